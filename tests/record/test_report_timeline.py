"""Event and memory logs as a report reads them: attempts, phases, passes, ends, broken lines; where a run stands."""

from __future__ import annotations

import fcntl
import io
import json
import math
from pathlib import Path

import pytest
from told_runs import GIB, LEGS, Told, failed, finished, memory, resumed, stopped, write_told

from fakes import FakeClock
from shotclock.errors import RunDirError
from shotclock.events import Notice, PassBegins, PassEnds, Phase
from shotclock.guidance import LegName
from shotclock.record.memory_log import read_memory
from shotclock.record.status import Standing, is_written, read_status
from shotclock.record.timeline import read_timeline
from shotclock.render.journal import Journal

NOW_S = 2e9


def told(folder: Path, text: str) -> Path:
    """A run folder whose log holds this text."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text(text)
    return folder


def test_what_the_journal_writes_is_read_back(tmp_path: Path) -> None:
    """Phases, passes with their seconds and legs, and what an outer phase pauses for, from the writer itself."""
    log, clock = io.BytesIO(), FakeClock()
    journal = Journal(log, clock=clock, synchronise=lambda: None, start_s=0.0)
    journal.write({"event": "RunBegins", "law_key": {"launch": "graph"}})
    with journal.phase(Phase.DENOISE):
        for index, seconds in enumerate((5.0, 4.0, 2.0, 2.5), start=1):
            said = {"index": index, "step": index, "steps": 4, "legs": tuple(LegName)}
            journal.say(PassBegins(**said))  # type: ignore[arg-type]  # a mapping of four kinds of values
            clock.now_s += seconds
            journal.say(PassEnds(**said))  # type: ignore[arg-type]  # the same
            with journal.phase(Phase.SNAPSHOT):
                clock.now_s += 0.25
    journal.say(Notice(text="half way"))
    attempt = read_timeline(told(tmp_path, log.getvalue().decode())).attempts[0]
    assert [seen.seconds for seen in attempt.passes] == [5.0, 4.0, 2.0, 2.5]
    assert [seen.warm_up for seen in attempt.passes] == [True, True, False, False]  # a captured graph warms up twice
    assert attempt.passes[0].legs == tuple(str(leg) for leg in LegName)
    seconds = {
        phase: sum(span.seconds for span in attempt.spans if span.phase == phase) for phase in ("denoise", "snapshot")
    }
    assert seconds == {"denoise": 13.5, "snapshot": 1.0}
    assert attempt.notices[0][1] == "half way"
    assert (attempt.closed, attempt.phase, attempt.in_flight) == (False, None, None)


def test_time_belongs_to_the_innermost_phase(tmp_path: Path) -> None:
    """Phases inside each other are told apart, so that leaf phases sum to the wall."""
    log = Told()
    log.begins()
    log.say("PhaseBegins", phase="denoise")
    log.now_s = 3.0
    log.phase("snapshot", 2.0)
    log.now_s = 9.0
    log.say("PhaseEnds", phase="denoise", last_s=9.0)
    spans = read_timeline(write_told(tmp_path, log)).attempts[0].spans
    assert [(span.phase, span.begin_s, span.end_s) for span in spans] == [
        ("denoise", 0.0, 3.0),
        ("snapshot", 3.0, 5.0),
        ("denoise", 5.0, 9.0),
    ]


def test_attempts_are_laid_end_to_end(tmp_path: Path) -> None:
    """Three attempts: stopped, killed in a pass, ended; each keeps its own end, snapshot and seam."""
    timeline = read_timeline(write_told(tmp_path, resumed()))
    first, second, third = timeline.attempts
    assert (first.stop is not None, second.closed, third.ended is not None) == (True, False, True)
    assert second.in_flight is not None and second.in_flight.legs == ("perturbed",)
    assert second.spans[-1].open and second.phase == "denoise"
    assert third.seams == ({"torch": ["2.12.0", "2.13.0"]},)
    assert first.snapshots[-1].step == 4
    assert timeline.starts_s == (0.0, first.last_s, first.last_s + second.last_s)
    assert sum(seen.seconds is not None for seen in timeline.passes) == 26
    assert [seen.warm_up for seen in third.passes].count(True) == 1


def test_a_torn_last_line_is_left_out_and_a_broken_one_is_counted(tmp_path: Path) -> None:
    """A kill tears the end; a line inside that is none, or lacks its fields, is named by its number."""
    lines = finished().text().splitlines(keepends=True)
    lines[2] = "not json\n"
    lines[4] = json.dumps({"event": "PassEnds", "t_s": 1.0}) + "\n"
    lines[6] = "[1, 2]\n"
    timeline = read_timeline(told(tmp_path, "".join(lines[:-1]) + lines[-1][:20]))
    assert timeline.unread == (3, 5, 7)
    assert timeline.attempts[0].ended is None
    assert read_timeline(told(tmp_path, finished().text())).unread == ()


def test_an_unknown_event_is_left_alone(tmp_path: Path) -> None:
    """Logs of a later version can be read."""
    log = finished()
    log.lines.insert(5, {"event": "Rethought", "t_s": 1.0, "why": [1]})
    timeline = read_timeline(write_told(tmp_path, log))
    assert timeline.unread == () and timeline.attempts[0].ended is not None


def test_a_folder_without_a_run_is_refused_and_one_that_never_began_is_not(tmp_path: Path) -> None:
    """Exit code 2 with the way out; a run that was cut before its first line is a run."""
    with pytest.raises(RunDirError, match="holds no run") as refused:
        read_timeline(tmp_path)
    assert refused.value.exit_code == 2
    (tmp_path / "request.json").write_text("{}")
    assert read_timeline(tmp_path).attempts == ()


def test_every_moment_of_a_log_can_be_read(tmp_path: Path) -> None:
    """A watcher may look between any two bytes that reach the disk (users.md row 26)."""
    text = resumed().text()
    (tmp_path / "request.json").write_text("{}")
    for cut in range(0, len(text), 331):
        status = read_status(told(tmp_path, text[:cut]), now_s=NOW_S)
        assert status.standing is Standing.SILENT or status.said is not None
        assert all(isinstance(line, str) for line in status.lines())
        assert json.loads(json.dumps(status.to_json()))["attempts"] == status.attempts


def test_memory_that_cannot_be_read_is_none_and_never_0(tmp_path: Path) -> None:
    """Device fields of a machine without one, and numbers that are no numbers."""
    (tmp_path / "memory.jsonl").write_text(
        memory([3.0], device=False) + '{"t_s": 3, "host_available_bytes": NaN}\n{"t_s": null}\n{"t_s"'
    )
    samples = read_memory(tmp_path)
    assert [sample.t_s for sample in samples] == [0.0, 1.0, 2.0, 3.0]
    assert samples[0].device_used_bytes is None and samples[0].throttle is None
    assert samples[3].host_available_bytes is None and samples[3].host_used_bytes is None
    assert read_memory(tmp_path / "elsewhere") == ()


STATES = {
    "finished": (finished(), Standing.FINISHED, None),
    "stopped": (stopped(), Standing.STOPPED, "stopped, exit code 75: the next forward"),
    "failed": (failed("the disk is full"), Standing.FAILED, "failed, exit code 1: the disk is full"),
}


@pytest.mark.parametrize("state", STATES)
def test_where_a_run_stands(tmp_path: Path, state: str) -> None:
    """Each end is told, with the last pass, the projection, the snapshot and own demand."""
    log, standing, said = STATES[state]
    folder = write_told(tmp_path, log)
    (folder / "memory.jsonl").write_text(memory([400.0], start_gib=9.0))
    status = read_status(folder, now_s=NOW_S)
    assert status.standing is standing
    assert (status.said or "").startswith(said or "")
    assert status.host_demand_bytes is not None and math.isclose(status.host_demand_bytes / GIB, 70, abs_tol=0.5)
    text = "\n".join(status.lines())
    assert "own demand" in text and str(standing) in text
    if state == "stopped":
        assert "snapshot after step 4" in text and "lease 15 min" in text


def test_a_killed_run_says_what_was_in_flight(tmp_path: Path) -> None:
    """No last line: the pass that was announced is the last word."""
    log = stopped()
    log.lines.pop()
    log.one_pass(17, 6, 0.0, ends=False)
    (tmp_path / "draft-step-2.mp4").write_bytes(b"")
    (tmp_path / "draft-step-10.mp4").write_bytes(b"")
    status = read_status(write_told(tmp_path, log), now_s=NOW_S)
    assert status.standing is Standing.SILENT and status.quiet_s is not None and status.quiet_s > 0
    assert "step 5/6, pass 17 in flight (cond)" in "\n".join(status.lines())
    assert status.draft == "draft-step-10.mp4"
    assert status.passes_done == 4 * len(LEGS)


def test_a_run_that_is_written_is_running_and_watching_takes_no_lock(tmp_path: Path) -> None:
    """The kernel's table says who holds the lock; a writer that comes later still gets it."""
    folder = write_told(tmp_path, stopped())
    with (folder / ".lock").open("ab") as lock:
        assert not is_written(folder)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not is_written(folder):
            pytest.skip("this kernel does not show file locks in /proc/locks")
        assert read_status(folder, now_s=NOW_S).standing is Standing.RUNNING
    assert read_status(folder, now_s=NOW_S).standing is Standing.STOPPED
