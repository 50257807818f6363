"""Renders that are really killed, cut and interrupted go on and end in the bits of one that was not."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import pytest

if TYPE_CHECKING:
    from conftest import Zygote

SMALL = ("--models=tiny", "--size=64x64", "--frames=9", "--steps=3", "--legs-per-pass=2", "--device=cpu", "--no-verify")
SMALL += ("--quiet",)
PASSES = 6  # of SMALL
RESUME = ("--no-verify", "--quiet")
RESUMABLE, KILLED = 75, -signal.SIGKILL


def render(zygote: Zygote, run: Path, *more: str, die: dict[str, Any] | None = None) -> int:
    """The render that all tests share, its text encoded anew."""
    shutil.rmtree(zygote.home / "prompts", ignore_errors=True)
    return zygote.run("render", "a red circle", "--run", str(run), *SMALL, *more, log=run.with_suffix(".log"), die=die)


def resume(zygote: Zygote, run: Path, *more: str, die: dict[str, Any] | None = None) -> int:
    return zygote.run("resume", str(run), *RESUME, *more, log=run.with_suffix(".log"), die=die)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def ended(run: Path) -> list[int]:
    """Indices of passes that ended, over all attempts."""
    return [line["index"] for line in log(run) if line["event"] == "PassEnds"]


def said(run: Path) -> str:
    return " ".join(run.with_suffix(".log").read_text().split())


@pytest.fixture(scope="module")
def whole(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The render that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert render(zygote, run) == 0, said(run)
    return run


def assert_same(run: Path, whole: Path) -> None:
    """Latents and sound bit for bit, a clip that decodes, no litter. (libx264 does not repeat its bytes everywhere.)"""
    assert (run / "latents.safetensors").read_bytes() == (whole / "latents.safetensors").read_bytes()
    assert (run / "clip.wav").read_bytes() == (whole / "clip.wav").read_bytes()
    with av.open(run / "clip.mp4") as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 9
    assert not [path.name for path in run.iterdir() if ".part" in path.name or path.name == ".rehearsal"]


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ({"event": "PhaseBegins", "phase": "encode"}, 0),
        ({"event": "PassBegins", "index": 2}, 0),
        ({"event": "PassEnds", "index": 3}, 1),  # its snapshot was not durable yet
        ({"event": "LegsEnd", "step": 1}, 0),
        ({"event": "Snapshotted", "step": 2}, 0),
        ({"event": "PhaseBegins", "phase": "save-latents"}, 0),
        ({"event": "PhaseBegins", "phase": "decode-video"}, 0),
    ],
    ids=lambda value: "-".join(str(part) for part in value.values()) if isinstance(value, dict) else "",
)
def test_killed_after_a_line_it_goes_on(
    zygote: Zygote, whole: Path, tmp_path: Path, line: dict[str, Any], lost: int
) -> None:
    """The log ends with whole lines, the last names what was in flight; a pass is run again only in flight."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": line}) == KILLED
    assert (run / "events.jsonl").read_text().endswith("\n") and line.items() <= log(run)[-1].items()
    assert not (run / "clip.mp4").exists()
    before = ended(run)
    assert resume(zygote, run) == 0, said(run)
    assert_same(run, whole)
    assert ended(run)[: len(before)] == before
    assert ended(run)[len(before) :] == list(range(len(before) + 1 - lost, PASSES + 1))
    assert [one["attempt"] for one in log(run) if one["event"] == "RunBegins"] == [1, 2]
    encoded = [one for one in log(run) if one["event"] == "PhaseEnds" and one["phase"] == "load-text"]
    assert len(encoded) == (1 if line.get("phase") != "encode" else 2), "the text encoder is not loaded again"


@pytest.mark.parametrize("die", [{"fsync": n} for n in (8, 13, 19)] + [{"rename": n} for n in (5, 9)])
def test_killed_while_a_file_is_written_it_goes_on(
    zygote: Zygote, whole: Path, tmp_path: Path, die: dict[str, int]
) -> None:
    """Between any write and its rename: at most the pass whose snapshot was not durable is run again."""
    run = tmp_path / "run"
    assert render(zygote, run, die=die) == KILLED
    assert resume(zygote, run) == 0, said(run)
    assert_same(run, whole)
    again = len(ended(run)) - PASSES
    assert 0 <= again <= 1 and sorted(set(ended(run))) == list(range(1, PASSES + 1))


def test_many_leases_one_clip(zygote: Zygote, whole: Path, tmp_path: Path) -> None:
    """Killed in each attempt, six leases long."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted"}}) == KILLED
    for _ in range(4):
        assert resume(zygote, run, die={"line": {"event": "Snapshotted"}}) == KILLED
    assert resume(zygote, run) == 0, said(run)
    assert_same(run, whole)
    assert ended(run) == list(range(1, PASSES + 1))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR2"])
def test_one_signal_ends_at_the_next_boundary(zygote: Zygote, whole: Path, tmp_path: Path, name: str) -> None:
    """What was announced is not launched; exit 75; the reason is in the log and on the screen."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "PassBegins", "index": 2}, "signal": name}) == RESUMABLE
    last = log(run)[-1]
    assert last["event"] == "RunStops" and last["exit_code"] == RESUMABLE and last["reason"] == name
    assert ended(run) == [1] and f"{name} asked for an end" in said(run) and "shotclock resume" in said(run)
    assert resume(zygote, run) == 0
    assert_same(run, whole)
    assert ended(run) == list(range(1, PASSES + 1))


def test_a_second_signal_ends_at_once(zygote: Zygote, whole: Path, tmp_path: Path) -> None:
    """Exit 75 as well: the pass in flight is lost, what ended before is not."""
    run = tmp_path / "run"
    die = {"line": {"event": "PassBegins", "index": 3}, "signal": "SIGTERM", "repeat": 2}
    assert render(zygote, run, die=die) == RESUMABLE
    assert log(run)[-1]["event"] == "PassBegins" and ended(run) == [1, 2]
    assert resume(zygote, run) == 0
    assert_same(run, whole)


def test_a_damaged_newest_snapshot_costs_one_pass(zygote: Zygote, whole: Path, tmp_path: Path) -> None:
    """A flipped bit is seen and named; the one before is used."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2}}) == KILLED
    newest = max(run.glob("snapshot-*"), key=lambda path: path.name)
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    assert resume(zygote, run) == 0
    assert_same(run, whole)
    assert any("passed over" in one.get("text", "") and newest.name in one["text"] for one in log(run))
    assert len(ended(run)) == PASSES + 1


def test_without_a_readable_snapshot_it_is_refused(zygote: Zygote, tmp_path: Path) -> None:
    """Never silently from step 1."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2}}) == KILLED
    for path in run.glob("snapshot-*"):
        path.write_bytes(path.read_bytes()[:100])
    assert resume(zygote, run) == 2
    assert "no snapshot of" in said(run)


def test_other_numerics_are_refused_and_a_seam_is_written(zygote: Zygote, tmp_path: Path) -> None:
    """Another dtype or version is named; --accept-seam goes on and the log says so."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2}}) == KILLED
    zygote_code = run / "plan.json"
    plan = json.loads(zygote_code.read_text())
    plan["dtype"] = "bfloat16"
    zygote_code.write_text(json.dumps(plan))
    assert resume(zygote, run) == 2
    assert "dtype float32 then, bfloat16 now" in said(run) and "--accept-seam" in said(run)
    assert resume(zygote, run, "--accept-seam") == 0, said(run)
    seams = [one for one in log(run) if one["event"] == "Seam"]
    assert len(seams) == 1 and seams[0]["differs"]["dtype"] == ["float32", "bfloat16"]
    with av.open(run / "clip.mp4") as clip:
        assert json.loads(clip.metadata["comment"])["seams"] == ["after step 2: dtype"]


def test_another_request_or_context_is_another_clip(zygote: Zygote, tmp_path: Path) -> None:
    """No flag accepts that."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 1, "legs": []}}) == KILLED
    contexts = bytearray((run / "contexts.safetensors").read_bytes())
    contexts[-1] ^= 1
    (run / "contexts.safetensors").write_bytes(contexts)
    assert resume(zygote, run, "--accept-seam") == 2
    assert "contexts_sha256" in said(run)


def test_a_resume_is_proved_bit_by_bit(zygote: Zygote, tmp_path: Path) -> None:
    """The way from the older snapshot to the newest again; a changed newest is told apart by its tensors."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2}}) == KILLED
    assert zygote.run("resume", str(run), "--prove", log=run.with_suffix(".log")) == 0
    assert "the same bits" in said(run)


def test_a_draft_is_never_the_clip(zygote: Zygote, tmp_path: Path) -> None:
    """Named, tagged and marked; the run goes on as before."""
    run = tmp_path / "run"
    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2}}) == KILLED
    assert zygote.run("draft", str(run), log=run.with_suffix(".log")) == 0, said(run)
    with av.open(run / "draft-step-2.mp4") as clip:
        assert json.loads(clip.metadata["comment"]) == {"draft_of_step": 2, "of": 3, "not_the_clip": True}
        corner = next(clip.decode(video=0)).to_ndarray(format="rgb24")[:6, :6].reshape(-1, 3)
    assert corner[:, 0].mean() > 100 and corner[:, 2].mean() < 80, "yellow and black stripes"
    assert not (run / "clip.mp4").exists()


def test_an_ended_render_is_left_alone(zygote: Zygote, whole: Path) -> None:
    """Exit 0, nothing is run or written."""
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    assert resume(zygote, whole) == 0
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir()} == before


def test_a_second_writer_and_a_folder_without_a_run_are_refused(zygote: Zygote, tmp_path: Path) -> None:
    """One writer a run; a resume needs a run."""
    run = tmp_path / "run"
    assert resume(zygote, run) == 2 and "holds no run" in said(run)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_and_a_read_only_disk_lose_nothing(zygote: Zygote, disk: Path, tmp_path: Path, whole: Path) -> None:
    """Really filled, then really read-only: each ends with words, and with room again the bits are the same."""
    run, printed = disk / "run", tmp_path / "printed"

    def again() -> tuple[int, str]:
        printed.unlink(missing_ok=True)
        code = zygote.run("resume", str(run), *RESUME, log=printed)
        return code, " ".join(printed.read_text().split())

    assert render(zygote, run, die={"line": {"event": "Snapshotted", "step": 2, "legs": []}}) == KILLED
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    for what in ("No space left on device", "Read-only file system"):
        code, words = again()
        assert code not in (0, KILLED, RESUMABLE)
        assert what in words and "way out" in words and "Traceback" not in words, words
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    (disk / "filler").unlink()
    assert again()[0] == 0
    assert_same(run, whole)
