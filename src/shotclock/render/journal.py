"""Puts times on a render's events and hands them on: to the log, to whoever watches, then to the one who may stop.

The only place where events meet a clock. A line is written before what it announces is launched, and ends are said
after the device has been waited for. Knows no model and decides nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from shotclock.events import (
    Event,
    LegsEnd,
    Notice,
    PassBegins,
    PassEnds,
    Phase,
    PhaseBegins,
    PhaseEnds,
    Progress,
    StepEnds,
)
from shotclock.render.laps import Stopwatch

logger = logging.getLogger(__name__)

Clock = Callable[[], float]  # seconds, monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """An event with its time: ``t_s`` since the run began, ``last_s`` what ended last took.

    Of a pass that ended, ``launch_s`` is the host's time until all of it was enqueued and ``device_s`` the device's own
    time for it; None where nobody took them, ``device_s`` on a CPU too.
    """

    event: Event
    t_s: float
    last_s: float | None
    launch_s: float | None = None
    device_s: float | None = None


Listener = Callable[[Tick], None]


class Journal:
    """Says events. ``synchronise`` waits for the device; ``start_s`` is the clock's reading when the run began.

    ``gate``, where it is set, is told last and may raise: what a Begins announced is then not launched. ``stopwatch``
    splits passes into launch and device time, where there is one.
    """

    def __init__(
        self,
        log: BinaryIO,
        *,
        clock: Clock,
        synchronise: Callable[[], None],
        start_s: float,
        listeners: Sequence[Listener] = (),
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._synchronise = synchronise
        self._start_s = start_s
        self._listeners = list(listeners)
        self._stopwatch = stopwatch
        self.gate: Listener | None = None
        self._begun_s: dict[str, float] = {}
        self._last_pass_s: float | None = None
        self._phase: Phase | None = None
        self._open = False

    def now_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._start_s

    @property
    def current(self) -> Phase | None:
        """The phase that began last."""
        return self._phase

    def say(self, event: Event, *, at_s: float | None = None) -> Tick:
        """Log the event and tell the listeners; ``at_s`` for what happened before the journal was opened."""
        watch = self._stopwatch if isinstance(event, PassEnds) else None
        launch_s = None if watch is None else watch.launched_s()
        if isinstance(event, PassEnds | PhaseEnds):
            self._synchronise()
        t_s = self.now_s() if at_s is None else at_s
        device_s = None if watch is None else watch.device_s()
        tick = Tick(event=event, t_s=t_s, last_s=self._last(event, t_s), launch_s=launch_s, device_s=device_s)
        self.write(as_line(tick, self._phase))
        for listener in list(self._listeners):
            try:
                listener(tick)
            except Exception:
                logger.exception("a listener failed and is left out from here on")
                self._listeners.remove(listener)
        if self.gate is not None:
            self.gate(tick)
        if isinstance(event, PassBegins) and self._stopwatch is not None:
            self._stopwatch.begin()
        return tick

    def write(self, line: dict[str, Any]) -> None:
        """Append one JSON line, unbuffered."""
        self._log.write(json.dumps(line, sort_keys=True, ensure_ascii=False).encode() + b"\n")

    def loaded(self, phase: Phase) -> Callable[[int, int], None]:
        """What a load is to tell of its bytes."""

        def progress(done: int, total: int) -> None:
            self.say(Progress(phase=phase, done=done, total=total))

        return progress

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Say that a leaf phase begins and, if it succeeds, ends; within another one, that pauses meanwhile."""
        outer = self._phase if self._open else None
        if outer is not None:
            self.say(PhaseEnds(phase=outer))
        self.say(PhaseBegins(phase=phase))
        yield
        self.say(PhaseEnds(phase=phase))
        if outer is not None:
            self.say(PhaseBegins(phase=outer))

    def _last(self, event: Event, t_s: float) -> float | None:
        match event:
            case PhaseBegins(phase=phase):
                self._phase, self._open = phase, True
                self._begun_s["phase"] = t_s
            case PassBegins():
                self._begun_s["pass"] = t_s
                return self._last_pass_s
            case PassEnds():
                self._last_pass_s = t_s - self._begun_s["pass"]
                return self._last_pass_s
            case PhaseEnds():
                self._open = False
                return t_s - self._begun_s["phase"]
            case _:
                pass
        return None


def as_line(tick: Tick, phase: Phase | None) -> dict[str, Any]:
    """The event as a JSON object: ``t_s`` and ``last_s`` in seconds, ``index``, ``step`` and ``steps`` from 1."""
    event = tick.event
    line: dict[str, Any] = {"event": type(event).__name__, "t_s": tick.t_s, "phase": phase}
    match event:
        case PassBegins() | PassEnds():
            line |= {"index": event.index, "step": event.step, "steps": event.steps, "legs": list(event.legs)}
            line["last_s"] = tick.last_s
            if isinstance(event, PassEnds):
                line |= {"launch_s": tick.launch_s, "device_s": tick.device_s}
        case PhaseEnds():
            line["last_s"] = tick.last_s
        case Progress():
            line |= {"done": event.done, "total": event.total}
        case StepEnds():
            line |= {"step": event.state.step, "steps": event.steps, "sigma": event.sigma}
        case LegsEnd():
            line |= {"step": event.state.step, "legs": list(event.state.legs)}
        case Notice():
            line["text"] = event.text
        case _:
            pass
    return line
