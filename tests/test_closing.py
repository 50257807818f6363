"""What follows a render: one record whatever happened, a warning where it was slower than before, a tag with seams."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from fakes import FakeClock
from shotclock.closing import recorded
from shotclock.errors import RenderStopped
from shotclock.lease import Lease
from shotclock.record.ledger import Ledger
from shotclock.render import run as runs
from shotclock.render.job import Times
from shotclock.render.run import Terms
from shotclock.render.settings import Settings

TERMS = Terms(
    lease=Lease(sources=()), leases=1, on_overrun="snapshot", rehearse="never", accept_seam=False,
    trace_nonfinite=False, judge=None,
)  # fmt: skip
SETTINGS = Settings(
    prompt="x", run=Path(), models="tiny", negative_prompt=None, size="64x64", frames="9", fps="24", seed=1, steps=8,
    cfg=1.0, audio_cfg=None, stg=0.0, stg_blocks=None, modality=1.0, rescale=None, skip_step=0, legs_per_pass=None,
    device="cpu", dtype=None, contexts=None, transformer=None, text_encoder=None, video_vae=None, audio_vae=None,
    pinned_config=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def finished(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight passes of a second each."""
    from dataclasses import replace

    run, clock = tmp_path_factory.mktemp("run") / "run", FakeClock(1.0)
    times = Times(clock=clock, began_s=0.0, imported_s=0.0)
    with recorded(run, home, TERMS.lease, began_s=0.0, private=False, job=None):
        runs.start(replace(SETTINGS, run=run), TERMS, home=home, times=times, console=None)
    return run


def test_a_run_that_is_slower_than_before_is_named(
    finished: Path, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """users.md row 18: the ledger has the first, the second took twice as long; the ratio is said."""
    again = tmp_path / "again"
    shutil.copytree(finished, again, ignore=shutil.ignore_patterns("record*.json"))
    lines = [json.loads(line) for line in (again / "events.jsonl").read_text().splitlines()]
    lines[0]["utc"] = "2030-01-01T00:00:00+00:00"
    for line in lines:
        line["t_s"] = 2 * line.get("t_s", 0.0)
        if line.get("last_s"):
            line["last_s"] *= 2
    (again / "events.jsonl").write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    with caplog.at_level(logging.WARNING), recorded(again, home, TERMS.lease, began_s=0.0, private=False, job=None):
        pass
    assert any("2.0" in message for message in caplog.messages), caplog.messages


def test_a_stop_leaves_a_record_and_goes_on_as_a_stop(finished: Path, tmp_path: Path) -> None:
    """What happened inside is raised on, whatever became of the record."""
    stopped = RenderStopped("x", allowed="y", way_out="z", exit_code=75, line={})
    with (
        pytest.raises(RenderStopped),
        recorded(finished, tmp_path / "home", TERMS.lease, began_s=0.0, private=False, job=None),
    ):
        raise stopped
    assert len(Ledger.of(tmp_path / "home").records()) == 1
    (tmp_path / "file").write_text("no folder")
    with (
        pytest.raises(RenderStopped),
        recorded(finished, tmp_path / "file", TERMS.lease, began_s=0.0, private=False, job=None),
    ):
        raise stopped
