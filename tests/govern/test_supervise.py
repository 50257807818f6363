"""Any program under a lease: ticks are read, overruns end the whole group, what fits is left alone."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from shotclock.errors import RequestError
from shotclock.govern.governor import Reason, Stop
from shotclock.govern.meter import Reading
from shotclock.govern.supervise import PROGRESS, Bounds, Tick, Watch, event_tick, supervise, tick_reader
from shotclock.plan.estimate import exactly


def bounds(end_s: float | None, *, total: int | None = None, tail_s: float = 0.0, floor: int = 0) -> Bounds:
    return Bounds(end_s=end_s, tail=exactly(tail_s, "said"), reserve_s=2.0, total=total, floor_bytes=floor)


def reading(available: int = 10**9) -> Reading:
    return Reading(
        host_available_bytes=available, host_total_bytes=10**10, swap_used_bytes=0, device_used_bytes=None,
        device_total_bytes=None, device_utilisation=None, device_clock_mhz=None, throttle=None,
    )  # fmt: skip


def feed(watch: Watch, total: int, pass_s: float, first_s: float | None = None) -> tuple[int, Stop | None]:
    """Print "k/total" after each pass; the units that ended and the stop."""
    t_s = 0.0
    for index in range(1, total + 1):
        t_s += first_s if first_s is not None and index == 1 else pass_s
        if stop := watch.line(f"sampling {index}/{total} [..]", t_s):
            return index, stop
    return total, None


def test_ticks_are_read_from_events_and_by_expression() -> None:
    """Our event lines without a pattern; with one, the groups done and total."""
    assert event_tick(json.dumps({"event": "PassEnds", "index": 3})) == Tick(done=3, total=None)
    assert event_tick("{broken") is None and event_tick("7/9") is None and event_tick('{"event": "PassBegins"}') is None
    read = tick_reader(PROGRESS)
    assert read(" 35%|###   | 7/20 [00:10<..") == Tick(done=7, total=20) and read("loading") is None
    for bad in ("(", r"\d+"):
        with pytest.raises(RequestError):
            tick_reader(bad)


def test_what_fits_is_left_alone() -> None:
    """A first unit ten times as long as the others does not end it (seeds: the first log)."""
    assert feed(Watch(bounds(300.0), tick_reader(PROGRESS)), 20, 10.0, first_s=90.0) == (20, None)
    assert feed(Watch(bounds(None), tick_reader(PROGRESS)), 20, 1e6) == (20, None)


def test_what_cannot_fit_is_ended_once_enough_was_seen() -> None:
    """By its own units, with terms that sum to more than the budget; not on the first two."""
    index, stop = feed(Watch(bounds(3600.0), tick_reader(PROGRESS)), 120, 95.0)
    assert stop is not None and stop.reason is Reason.OVERRUN and stop.exit_code == 92
    assert 3 <= index <= 6 and stop.sum_s > 3600.0


def test_a_silent_program_goes_where_the_lease_ends() -> None:
    """Loading for ever is no reason to lose the node."""
    watch = Watch(bounds(60.0), event_tick)
    assert not watch.late(50.0) and watch.late(54.0)


def run(code: str, watch: Watch, *, available: int = 10**9) -> tuple[int, str, str]:
    """Exit code, output and what was said; the clock stands until the program has printed "ready"."""
    out, said = io.BytesIO(), list[str]()

    def clock() -> float:
        return 1000.0 if b"ready" in out.getvalue() else 0.0

    ended = supervise(
        [sys.executable, "-u", "-c", code], watch, clock=clock, gauge=lambda: reading(available),
        sample=lambda *_: None, out=out, say=said.append, grace_s=0.5,
    )  # fmt: skip
    return ended.exit_code, out.getvalue().decode(), " ".join(said)


def test_a_program_that_ends_keeps_its_own_code_and_its_output() -> None:
    """Passed through to the byte."""
    code, out, _ = run("print('1/2\\r2/2\\n'); raise SystemExit(3)", Watch(bounds(None), tick_reader(PROGRESS)))
    assert (code, out) == (3, "1/2\r2/2\n\n")


def test_the_whole_group_is_ended(tmp_path: Path) -> None:
    """A program that ignores SIGTERM, and the child that it started, are both gone."""
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"  # closed at once: no reference is kept
        "print('ready'); time.sleep(600)\n"
    )
    ended, _, said = run(code, Watch(bounds(30.0), event_tick))
    assert ended == 92 and "the lease ends" in said
    child = int((tmp_path / "child").read_text())
    deadline_s = time.monotonic() + 60
    while _runs(child) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # it was killed, and is another process's child: when it is gone is told to nobody here
    assert not _runs(child)


def _runs(process: int) -> bool:
    """Whether it still executes; one that nobody has waited for is dead."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_low_memory_ends_it() -> None:
    """Exit 90 with the reading."""
    code, _, said = run("import time; time.sleep(600)", Watch(bounds(None, floor=5000), event_tick), available=4000)
    assert code == 90 and "4,000 bytes" in said


def test_a_program_that_is_not_there_is_refused() -> None:
    """Before anything is started."""
    with pytest.raises(RequestError, match="cannot be started"):
        supervise(
            ["/nowhere/program"], Watch(bounds(None), event_tick), clock=lambda: 0.0, gauge=reading,
            sample=lambda *_: None, out=io.BytesIO(), say=print,
        )  # fmt: skip
