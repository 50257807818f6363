"""Where each request of a batch is, from its folder, its tally and the scheduler's word."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from once import Once
from rich.console import Console

from shotclock.cluster.queue import Line, Stage, last_words, read_lines, stage_of, table, to_json
from shotclock.cluster.slurm import (
    Queue,
    executor_of,
    job_states,
    parse_sbatch,
    read_queue,
    require_cluster,
    require_new,
)
from shotclock.cluster.tally import Tally, begin_lease, close, end_lease
from shotclock.errors import RequestError, RunDirError

PROJECTED = {
    "event": "Projected", "t_s": 9.0, "phase": "denoise", "source": "own forwards", "first_dit_s": 3.0, "n": 4,
    "per_forward_s": 1.0, "spread_ratio": 0.1, "forwards_left": 8, "left_s": 8.0, "tail_s": 2.0, "tail_high_s": 3.0,
    "reserve_s": 2.0, "total_s": 20.0, "budget_s": 60.0, "provisional": False, "verdict": "GO", "change": None,
}  # fmt: skip


def queue_of(folder: Path, *names: str, cluster: str = "slurm") -> None:
    """A submitted batch; the job of the first is 1."""
    requests = [
        {"line": number, "name": name, "prompt": f"{name} prompt", "job_id": str(number)}
        for number, name in enumerate(names, start=1)
    ]
    document = {"format": "shotclock/queue/1", "cluster": cluster, "partition": None, "lease": "1h"}
    (folder / "queue.json").write_text(json.dumps(document | {"requests": requests}))


def run_of(folder: Path, name: str, *events: dict[str, Any], steps: int = 8) -> Path:
    """A run folder with these events."""
    run = folder / name
    run.mkdir()
    (run / "request.json").write_text("{}")
    (run / "plan.json").write_text(json.dumps({"steps": steps}))
    lines = [{"event": "RunBegins", "attempt": 1, "t_s": 0.0}, *events]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_the_table_says_where_each_request_is(tmp_path: Path) -> None:
    """State, leases, step, what is left and the verdict, in the order of the batch."""
    queue_of(tmp_path, "done", "between", "new", "gone", "bad")
    done = run_of(tmp_path, "done", {"event": "RunEnds", "t_s": 30.0, "verdict": "PASS"})
    between = run_of(tmp_path, "between", PROJECTED, {"event": "RunStops", "t_s": 12.0, "exit_code": 75, "reason": "x"})
    bad = run_of(tmp_path, "bad", {"event": "RunFails", "t_s": 1.0, "exit_code": 1, "found": "out of memory"})
    for run in (done, between, bad, tmp_path / "gone"):
        begin_lease(run)
    (done / "latents.safetensors").touch()
    (between / "snapshot-00003-1-0000000000000000.safetensors").touch()
    end_lease(between, "the end of the lease")
    begin_lease(between)
    close(bad, "out of memory")
    lines = read_lines(tmp_path, now_s=0.0, states={"1": "COMPLETED", "2": "PENDING", "3": "PENDING", "5": "FAILED"})
    seen = [(one.name, one.state, one.leases, one.step, one.steps, one.left_s, one.verdict) for one in lines]
    assert seen == [
        ("done", Stage.FINISHED, 1, 8, 8, None, "PASS"),
        ("between", Stage.BETWEEN, 2, 3, 8, 8.0, None),
        ("new", Stage.WAITING, 0, 0, None, None, None),
        ("gone", Stage.LOST, 1, 0, None, None, None),
        ("bad", Stage.FAILED, 1, 0, 8, None, None),
    ]
    assert last_words(lines) == ["gone: not in the queue", "bad: out of memory"]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table(lines))
    shown = console.export_text()
    assert "between leases" in shown and "3/8" in shown and "8.0 s" in shown and "PASS" in shown
    assert [Line(**one) for one in to_json(lines)["requests"]] == lines


TALLY = Tally(leases=2, progress="", idle=0, running=True)


@pytest.mark.parametrize(
    ("tally", "job", "stage"),
    [
        (None, "PENDING", Stage.WAITING),
        (None, "RUNNING", Stage.RUNNING),
        (TALLY, "COMPLETING", Stage.RUNNING),
        (TALLY, "REQUEUED", Stage.BETWEEN),
        (TALLY, "TIMEOUT", Stage.LOST),
        (TALLY, "", Stage.LOST),
        (TALLY, None, Stage.BETWEEN),
        (None, None, Stage.WAITING),
        (TALLY.model_copy(update={"over": True}), "PENDING", Stage.FAILED),
    ],
)
def test_the_schedulers_word_decides_what_the_folder_cannot_tell(
    tally: Tally | None, job: str | None, stage: Stage
) -> None:
    """Not asked is not the same as not known there."""
    assert stage_of(tally, None, job) is stage


def test_a_folder_without_a_queue_and_one_that_is_taken_are_refused(tmp_path: Path) -> None:
    """Both name the way out."""
    with pytest.raises(RunDirError, match=r"holds no queue: No such file[^/]*$"):
        read_queue(tmp_path)
    queue_of(tmp_path, "one")
    with pytest.raises(RunDirError, match="is not empty"):
        require_new(tmp_path)
    assert read_queue(tmp_path).requests[0].job_id == "1"


def test_options_of_sbatch_are_for_slurm() -> None:
    """Names with and without a value; nothing of it on the local cluster, no other cluster at all."""
    assert parse_sbatch(["gres=gpu:1", "--exclusive", "mem=8G"]) == {"gres": "gpu:1", "exclusive": True, "mem": "8G"}
    for bad in ("", "=1", "mem="):
        with pytest.raises(RequestError):
            parse_sbatch([bad])
    with pytest.raises(RequestError, match="local cluster"):
        require_cluster("local", {}, "gpu")
    with pytest.raises(RequestError, match="cluster 'pbs'"):
        require_cluster("pbs", {}, None)


def test_submitits_local_cluster_requeues_what_is_handed_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our executor, real processes: the first lease ends with the signal, the second with a result."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where the process finds `once`
    executor = executor_of(tmp_path, "local", "60s", None, {})
    job = executor.submit(Once(tmp_path / "mark"))
    queue = Queue.model_validate_json(
        json.dumps(
            {
                "cluster": "local",
                "partition": None,
                "lease": "60s",
                "requests": [{"line": 1, "name": "a", "prompt": "x", "job_id": job.job_id}],
            }
        )
    )
    assert job_states(queue) == {job.job_id: "RUNNING"}
    assert job.result() == "done" and (tmp_path / "mark").exists()
    assert "preempted" in job.stderr() or "timed-out" in job.stderr()
