"""The journal: times on events, lines before launches, observers that may fail."""

from __future__ import annotations

import io
import json

import pytest
import torch

from fakes import FakeClock
from shotclock.events import PassBegins, PassEnds, Phase, PhaseBegins, Progress
from shotclock.guidance import LegName
from shotclock.render.journal import Journal, Tick
from shotclock.render.laps import Stopwatch

LEGS = tuple(LegName)


def journal(log: io.BytesIO, clock: FakeClock, **more: object) -> Journal:
    return Journal(log, clock=clock, synchronise=lambda: None, start_s=0.0, **more)


def lines(log: io.BytesIO) -> list[dict]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_the_seeds_series_is_reproduced() -> None:
    """Ticks at the seeds' times give the seeds' `last=` values: the line of a pass tells what the one before took."""
    log, clock = io.BytesIO(), FakeClock()
    book = journal(log, clock)
    starts = [478.846, 495.695, 512.112, 528.443, 544.873]
    for number, t_s in enumerate(starts, 1):
        if number > 1:
            clock.now_s = t_s
            book.say(PassEnds(index=number - 1, step=1, steps=30, legs=(LegName.COND,)))
        clock.now_s = t_s
        book.say(PassBegins(index=number, step=1, steps=30, legs=(LegName.COND,)))
    begins = [line for line in lines(log) if line["event"] == "PassBegins"]
    assert begins[0]["last_s"] is None
    assert [round(line["last_s"], 3) for line in begins[1:]] == [16.849, 16.417, 16.331, 16.43]


def test_a_pass_is_in_the_log_before_it_is_launched() -> None:
    """Written and readable when say() returns: a kill during the launch leaves its name as the last line."""
    log = io.BytesIO()
    journal(log, FakeClock()).say(PassBegins(index=7, step=2, steps=30, legs=LEGS))
    assert lines(log)[-1] | {"t_s": 0} == {
        "event": "PassBegins",
        "index": 7,
        "last_s": None,
        "legs": ["cond", "uncond", "perturbed", "isolated"],
        "phase": None,
        "step": 2,
        "steps": 30,
        "t_s": 0,
    }


def test_ends_wait_for_the_device() -> None:
    """users.md row 25: a time read before the device is done is launch time. Begins do not wait."""
    clock, waited = FakeClock(), []

    def synchronise() -> None:
        waited.append(clock.now_s)
        clock.now_s += 5.0

    book = Journal(io.BytesIO(), clock=clock, synchronise=synchronise, start_s=0.0)
    book.say(PassBegins(index=1, step=1, steps=1, legs=LEGS))
    assert waited == []
    assert book.say(PassEnds(index=1, step=1, steps=1, legs=LEGS)).last_s == 5.0
    with book.phase(Phase.DENOISE):
        pass
    assert len(waited) == 2


def test_a_failing_listener_is_left_out_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """A broken display never costs a render."""
    seen: list[Tick] = []

    def broken(_tick: Tick) -> None:
        raise ValueError("no terminal")

    book = journal(io.BytesIO(), FakeClock(), listeners=[broken, seen.append])
    for done in (1, 2):
        book.say(Progress(phase=Phase.ENCODE, done=done, total=2))
    assert len(seen) == 2
    assert sum("a listener failed" in record.message for record in caplog.records) == 1


def test_a_phase_that_fails_has_no_end() -> None:
    """The last line names the phase in which it happened."""
    log = io.BytesIO()
    book = journal(log, FakeClock())
    with pytest.raises(RuntimeError), book.phase(Phase.DECODE_AUDIO):
        raise RuntimeError
    assert lines(log)[-1]["event"] == "PhaseBegins" and lines(log)[-1]["phase"] == "decode-audio"


def test_events_from_before_the_journal_get_their_own_time() -> None:
    """Imports happen before there is a log."""
    log = io.BytesIO()
    book = journal(log, FakeClock())
    book.say(PhaseBegins(phase=Phase.IMPORT), at_s=0.0)
    assert lines(log)[-1]["t_s"] == 0.0


class FakeDevice:
    """Two marks on a device that works ``busy_s`` a pass; remembers what it was asked for."""

    def __init__(self, busy_s: float, said: list[str]) -> None:
        self.busy_s, self.said = busy_s, said

    def mark(self, number: int) -> None:
        self.said.append(f"mark {number}")

    def between_s(self) -> float:
        self.said.append("read")
        return self.busy_s


@pytest.mark.parametrize(("busy_s", "device_s"), [(9.0, 9.0), (None, None)])
def test_a_pass_is_split_into_launch_and_device_time(busy_s: float | None, device_s: float | None) -> None:
    """2 s of the gate, 3 s of launching, 7 s of waiting: one pair of marks, read after the one wait that is there."""
    log, clock, said = io.BytesIO(), FakeClock(), []

    def synchronise() -> None:
        said.append("wait")
        clock.now_s += 7

    device = None if busy_s is None else FakeDevice(busy_s, said)
    book = Journal(log, clock=clock, synchronise=synchronise, start_s=0.0, stopwatch=Stopwatch(clock, device))

    def gate(tick: Tick) -> None:
        clock.now_s += 2 if isinstance(tick.event, PassBegins) else 0

    book.gate = gate
    book.say(PassBegins(index=1, step=1, steps=3, legs=LEGS))
    clock.now_s += 3
    tick = book.say(PassEnds(index=1, step=1, steps=3, legs=LEGS))
    assert (tick.launch_s, tick.device_s, tick.last_s) == (3.0, device_s, 12.0)
    assert said == (["wait"] if device is None else ["mark 0", "mark 1", "wait", "read"])
    begins, ends = lines(log)
    assert (ends["launch_s"], ends["device_s"]) == (3.0, device_s) and "launch_s" not in begins


def test_a_refused_pass_is_not_marked() -> None:
    """The gate speaks first: what it refuses is not launched, and nothing is timed."""
    clock, said = FakeClock(), []
    book = Journal(
        io.BytesIO(),
        clock=clock,
        synchronise=lambda: None,
        start_s=0.0,
        stopwatch=Stopwatch(clock, FakeDevice(1, said)),
    )

    def refuse(tick: Tick) -> None:
        raise RuntimeError(tick.event)

    book.gate = refuse
    with pytest.raises(RuntimeError):
        book.say(PassBegins(index=1, step=1, steps=3, legs=LEGS))
    assert said == []


def test_on_a_cpu_launching_is_the_whole() -> None:
    """There is no device clock, and what is enqueued is computed."""
    clock = FakeClock()
    watch = Stopwatch.of(clock, torch.device("cpu"))
    watch.begin()
    clock.now_s += 4
    assert (watch.launched_s(), watch.device_s()) == (4.0, None)
