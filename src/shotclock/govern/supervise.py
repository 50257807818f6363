"""Governs any program: reads its ticks from what it prints, projects, and ends its whole process group in time.

A tick is one of our event lines, or what a regular expression finds: groups ``done`` and ``total``. A program that
says nothing is ended where the lease ends. What it prints is passed on unchanged.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from shotclock.errors import EXIT_MEMORY_FLOOR, EXIT_OVERRUN, RequestError
from shotclock.events import PassBegins, PassEnds
from shotclock.govern.governor import Governor, OnOverrun, Outlook, Stop
from shotclock.govern.meter import Reading
from shotclock.guidance import LegName, Pass
from shotclock.plan.estimate import Estimate, exactly

GRACE_S = 5.0  # between SIGTERM and SIGKILL; with the reading of the output it stays under 10 s
POLL_S = 0.2
PROGRESS = r"(?P<done>\d+)\s*/\s*(?P<total>\d+)"  # what progress bars print
ENDINGS = re.compile(rb"[\r\n]")  # progress bars overwrite their line
ALONE = Pass(legs=(LegName.COND,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """``done`` of ``total`` units have ended; total is None where the program does not say."""

    done: int
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """When the program must be gone (None: never), what follows its last tick, and what is kept free at the end."""

    end_s: float | None
    tail: Estimate
    reserve_s: float
    total: int | None
    floor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How it ended: our exit code, the program's own where it was left alone, and why."""

    exit_code: int
    program_code: int
    why: str


def tick_reader(pattern: str | None) -> Callable[[str], Tick | None]:
    """Reads a line: as one of our events, or by ``pattern``. Raises :class:`RequestError` for a bad expression."""
    if pattern is None:
        return event_tick
    try:
        found = re.compile(pattern)
    except re.error as bad:
        raise RequestError(
            f"tick {pattern!r}: {bad}", allowed="a regular expression", way_out=f"for example {PROGRESS!r}"
        ) from None
    if "done" not in found.groupindex:
        raise RequestError(
            f"tick {pattern!r} has no group done", allowed="(?P<done>...), and (?P<total>...)", way_out=PROGRESS
        )

    def read(line: str) -> Tick | None:
        match = found.search(line)
        if match is None:
            return None
        named = match.groupdict()
        total = named.get("total")
        return Tick(done=int(named["done"]), total=int(total) if total else None)

    return read


def event_tick(line: str) -> Tick | None:
    """A pass that ended, from one of our event lines."""
    if not line.startswith("{"):
        return None
    try:
        said = json.loads(line)
    except json.JSONDecodeError:
        return None
    if said.get("event") != "PassEnds" or not isinstance(said.get("index"), int):
        return None
    return Tick(done=said["index"], total=None)


class Watch:
    """The judgement, apart from the process: told lines and readings with their seconds since the start."""

    def __init__(self, bounds: Bounds, read: Callable[[str], Tick | None]) -> None:
        self._bounds = bounds
        self._read = read
        self._governor: Governor | None = None
        self._total = bounds.total
        self._seen_s = 0.0
        self._done = 0

    def line(self, text: str, t_s: float) -> Stop | None:
        """Take a line of output; a stop where the next unit, or all that is left, does not fit."""
        tick = self._read(text)
        if tick is None:
            return None
        self._total = self._total or tick.total
        if self._total is None:
            return None
        if self._governor is None:
            self._governor = Governor(self._outlook(self._total))
            self._begin(self._governor, 1, 0.0)
        while self._done < min(tick.done, self._total):
            stop = self._end(self._governor, t_s)
            if stop is not None:
                return stop
        return None

    @property
    def done(self) -> int:
        """Units that have ended."""
        return self._done

    @property
    def projection(self) -> str:
        """The latest projection as a line."""
        assert self._governor is not None, "a tick was seen"
        return self._governor.project(self._seen_s).line("GO")

    def late(self, t_s: float) -> bool:
        """Whether a program that says nothing has to go: only the reserve is left."""
        return self._bounds.end_s is not None and t_s + self._bounds.reserve_s + GRACE_S >= self._bounds.end_s

    def low(self, reading: Reading) -> bool:
        """Whether host memory is below the floor."""
        return reading.host_available_bytes < self._bounds.floor_bytes

    def _end(self, governor: Governor, t_s: float) -> Stop | None:
        self._done += 1
        self._seen_s = t_s
        assert self._total is not None, "a governor knows the number of units"
        unit = {"index": self._done, "step": self._done, "steps": self._total, "legs": ALONE.legs}
        governor.observe(PassEnds(**unit), t_s)  # type: ignore[arg-type]
        governor.step_ended()
        return self._begin(governor, self._done + 1, t_s) if self._done < self._total else None

    def _begin(self, governor: Governor, index: int, t_s: float) -> Stop | None:
        self._seen_s = t_s
        assert self._total is not None, "a governor knows the number of units"
        unit = {"index": index, "step": index, "steps": self._total, "legs": ALONE.legs}
        judged = governor.observe(PassBegins(**unit), t_s)  # type: ignore[arg-type]
        return judged if isinstance(judged, Stop) else None

    def _outlook(self, total: int) -> Outlook:
        return Outlook(
            end_s=self._bounds.end_s,
            steps=((ALONE,),) * total,
            law={},
            tail=self._bounds.tail,
            closing=exactly(GRACE_S, "to end the program"),
            reserve_s=self._bounds.reserve_s,
            on_overrun=OnOverrun.STOP,
            warm_up_passes=1,
            warm_up_ratio=10.0,
        )


def supervise(
    command: Sequence[str],
    watch: Watch,
    *,
    clock: Callable[[], float],
    gauge: Callable[[], Reading],
    sample: Callable[[float, Reading], None],
    out: IO[bytes],
    say: Callable[[str], None],
    grace_s: float = GRACE_S,
) -> Ended:
    """Run ``command`` until it ends or has to; ``sample`` keeps a reading a second, ``say`` is told why it was ended.

    Raises :class:`RequestError` where it cannot be started.
    """
    began_s = clock()
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as bad:
        raise RequestError(
            f"{command[0]} cannot be started: {bad.strerror}", allowed="a program", way_out="check its name and rights"
        ) from None
    lines: queue.Queue[bytes | None] = queue.Queue()
    assert process.stdout is not None, "a pipe"
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    sampled_s, said, rest = -1.0, 0, b""
    while True:
        try:
            chunk = lines.get(timeout=POLL_S)
        except queue.Empty:
            chunk = b""
        if chunk is None:
            code = process.wait()
            return Ended(exit_code=code if code >= 0 else 128 - code, program_code=code, why="it ended by itself")
        out.write(chunk)
        out.flush()
        t_s = clock() - began_s
        *whole, rest = ENDINGS.split(rest + chunk)
        for text in whole:
            if stop := watch.line(text.decode(errors="replace"), t_s):
                return _end(process, EXIT_OVERRUN, str(stop), say, grace_s)
        if watch.late(t_s):
            return _end(process, EXIT_OVERRUN, f"the lease ends, the command ran {t_s:.0f} s", say, grace_s)
        if t_s - sampled_s >= 1.0:
            reading, sampled_s = gauge(), t_s
            sample(t_s, reading)
            if watch.done > said:
                said = watch.done
                say(watch.projection)
            if watch.low(reading):
                free = reading.host_available_bytes
                return _end(process, EXIT_MEMORY_FLOOR, f"only {free:,} bytes of memory are available", say, grace_s)


def _read(pipe: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    while chunk := os.read(pipe.fileno(), 65536):
        lines.put(chunk)
    lines.put(None)


def _end(process: subprocess.Popen[bytes], code: int, why: str, say: Callable[[str], None], grace_s: float) -> Ended:
    """SIGTERM to the group, and SIGKILL to what is left of it after the grace."""
    say(f"{why}: ending process group {process.pid}")
    _signal(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    _signal(process.pid, signal.SIGKILL)  # also what the program started and left behind
    return Ended(exit_code=code, program_code=process.wait(), why=why)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
