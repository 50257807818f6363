"""Leases on a fake clock: handed back through the handler that was there, counted, and in the end the clip."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from test_batch import DEFAULTS

from fakes import FakeClock
from shotclock.cluster.tally import read_tally
from shotclock.cluster.worker import Clocks, Rules, Worker, has_begun, process_began_s
from shotclock.errors import CheckpointError, RenderFailed, RequestError
from shotclock.lease import Lease, Moment, resolve_lease

RULES = Rules(lease="60s", on_overrun="snapshot", verify=False, embed=False, private=False)
OPTIONS = DEFAULTS | {"prompt": "x", "models": "tiny", "size": "64x64", "frames": 9, "steps": 4, "device": "cpu"}
OPTIONS |= {"legs_per_pass": 1}


class HandedBack(BaseException):
    """What submitit's handler does at the end: leave the process, whatever is on the stack."""


@contextmanager
def submitits_handler() -> Iterator[None]:
    """In the place of submitit's own."""

    def handler(*_: object) -> None:
        raise HandedBack

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)


def no_lease(*_: object) -> Lease:
    return Lease(sources=())


def one_that_is_over(*_: object) -> Lease:
    raise RequestError("the lease of squeue ended 1.0 s ago", allowed="an end ahead", way_out="a later end")


def worker(run: Path, home: Path, lease: Callable[..., Lease] | None = None, **options: Any) -> Worker:
    """A new process's worker: its clock begins at 1 s and moves a second a reading."""
    clock = FakeClock(1.0)

    def a_minute(began_s: float, length: str | None, end: str | None) -> Lease:
        moment = Moment(monotonic_s=clock.now_s, wall=datetime(2026, 12, 1, tzinfo=UTC))
        return resolve_lease(moment, began_s=began_s, length=length, end=end)

    clocks = Clocks(read_s=clock, began_s=clock, lease=lease or a_minute)
    return Worker(run=run, options=OPTIONS | options, rules=RULES, home=home, clocks=clocks, job=lambda: "7")


def until_done(run: Path, home: Path) -> tuple[int, dict[str, Any]]:
    """Leases handed back, and what the last one returned."""
    with submitits_handler():
        for handed_back in range(20):
            try:
                return handed_back, worker(run, home)()
            except HandedBack:
                continue
    raise AssertionError("twenty leases")


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_a_render_over_many_leases_is_that_of_one(home: Path, tmp_path: Path) -> None:
    """Every lease handed back at a boundary, every pass once, the bits of a lease without an end."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert worker(whole, home, no_lease)()["clip"] == str(whole / "clip.mp4")
    handed_back, outcome = until_done(run, home)
    assert handed_back > 1 and outcome["clip"] == str(run / "clip.mp4")
    assert (run / "latents.safetensors").read_bytes() == (whole / "latents.safetensors").read_bytes()
    assert [line["index"] for line in log(run) if line["event"] == "PassEnds"] == list(range(1, 17))
    assert all(line["t_s"] <= 60 for line in log(run) if line["event"] in ("PassEnds", "Snapshotted"))
    tally = read_tally(run)
    assert tally is not None and tally.leases == handed_back + 1 and not tally.over
    assert worker(run, home)() == {"ended_already": True}


def test_a_lease_that_is_always_over_is_given_up(home: Path, tmp_path: Path) -> None:
    """Once, and after three restarts: four leases, then an error that submitit writes down."""
    run = tmp_path / "run"
    with submitits_handler():
        for _ in range(3):
            with pytest.raises(HandedBack):
                worker(run, home, one_that_is_over)()
        with pytest.raises(RenderFailed, match="without progress; the last: the lease of squeue ended"):
            worker(run, home, one_that_is_over)()
    assert not run.exists()


def test_what_another_lease_would_not_change_is_not_requeued(home: Path, tmp_path: Path) -> None:
    """A refusal and a failure end the job; the tally says why."""
    run = tmp_path / "run"
    with submitits_handler(), pytest.raises(CheckpointError):
        worker(run, home, no_lease, models=str(tmp_path / "nowhere"))()
    tally = read_tally(run)
    assert tally is not None and tally.over and tally.said and "nowhere" in tally.said


def test_a_folder_that_was_killed_before_its_plan_is_begun_again(tmp_path: Path) -> None:
    """A request alone is nothing to go on with."""
    run = tmp_path / "run"
    assert not has_begun(run)
    run.mkdir()
    for name in ("request.json", ".plan.json.1.part.json"):
        (run / name).touch()
    assert not has_begun(run) and list(run.iterdir()) == []
    for name in ("request.json", "plan.json"):
        (run / name).touch()
    assert has_begun(run)


def test_reading_a_workers_pickle_imports_nothing_heavy(tmp_path: Path) -> None:
    """Until it is read nobody listens, and a signal would end the process; it holds no tensor."""
    from shotclock.cli import _lease

    clocks = Clocks(read_s=process_began_s, began_s=process_began_s, lease=_lease)
    real = Worker(run=tmp_path, options=OPTIONS, rules=RULES, home=tmp_path, clocks=clocks, job=process_began_s)
    (tmp_path / "worker.pkl").write_bytes(pickle.dumps(real))
    code = (
        "import pickle, sys; found = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(*{'torch', 'diffusers', 'transformers'} & sys.modules.keys(), found.rules.lease)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "worker.pkl"], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["60s"]
