"""Leases are counted by what they left in the run folder, however they ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from shotclock.cluster.tally import MAX_IDLE, begin_lease, close, end_lease, progress, read_tally
from shotclock.errors import RenderFailed, RunDirError


def leave(run: Path, name: str) -> None:
    """A file of the run."""
    run.mkdir(exist_ok=True)
    (run / name).touch()


def test_more_finished_work_is_more_progress(tmp_path: Path) -> None:
    """Contexts, passes, steps, a stage, latents, the clip, in the order they are finished."""
    run, seen = tmp_path / "run", [progress(tmp_path / "run")]
    for name in (
        "contexts.safetensors",
        "snapshot-00000-2-aaaaaaaaaaaaaaaa.safetensors",
        "snapshot-00001-0-0000000000000000.safetensors",
        "snapshot-00010-3-0000000000000000.safetensors",
        "stage-1.safetensors",
        "latents.safetensors",
        "clip.mp4",
    ):
        leave(run, name)
        seen.append(progress(run))
    assert seen == sorted(set(seen))


def test_three_restarts_without_progress_are_the_end(tmp_path: Path) -> None:
    """Handed back each time: the third that brought nothing is not asked for another lease."""
    run = tmp_path / "run"
    for number in range(1, MAX_IDLE + 1):
        assert begin_lease(run).leases == number
        end_lease(run, "the lease was over")
    begin_lease(run)
    with pytest.raises(RenderFailed, match="3 restarts of run without progress; the last: the lease was over again"):
        end_lease(run, "the lease was over again")
    tally = read_tally(run)
    assert tally is not None and tally.over and tally.leases == 1 + MAX_IDLE


def test_killed_workers_are_counted_when_the_next_begins(tmp_path: Path) -> None:
    """Nobody said how those leases ended."""
    run = tmp_path / "run"
    for _ in range(1 + MAX_IDLE):
        begin_lease(run)
    with pytest.raises(RenderFailed, match="3 restarts"):
        begin_lease(run)


def test_progress_starts_the_count_again(tmp_path: Path) -> None:
    """Ten leases with a pass in every third."""
    run = tmp_path / "run"
    for number in range(10):
        begin_lease(run)
        if number % 3 == 0:
            leave(run, f"snapshot-{number:05}-0-0000000000000000.safetensors")
        end_lease(run, "the end of the lease")
    tally = read_tally(run)
    assert tally is not None and not tally.over and tally.leases == 10


def test_a_closed_render_says_why_and_a_damaged_tally_is_refused(tmp_path: Path) -> None:
    """Never counted from 1 again in silence."""
    run = tmp_path / "run"
    begin_lease(run)
    close(run, "out of memory")
    tally = read_tally(run)
    assert tally is not None and tally.over and tally.said == "out of memory"
    (tmp_path / "run.leases.json").write_text("{")
    with pytest.raises(RunDirError, match="no tally of leases"):
        begin_lease(run)
