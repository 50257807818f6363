"""Reads what a run said while it ran, its ``events.jsonl``, into attempts, phases, passes, projections and ends.

Reads one file and writes nothing. Imports no torch, so that looking at a run takes no seconds. An unknown event is
left alone; a line that is none is counted, never guessed at; a last line without its end was cut off by a kill.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shotclock.errors import RunDirError
from shotclock.record.attempt import (
    Attempt,
    FailureSeen,
    PassSeen,
    ProgressSeen,
    ProjectionSeen,
    SnapshotSeen,
    Span,
    StopSeen,
    Timeline,
)

EVENTS = "events.jsonl"


def read_timeline(folder: Path) -> Timeline:
    """Read the event log; raises :class:`RunDirError` where the folder holds no run. A run may have no log yet."""
    lines, unread = read_lines(folder / EVENTS)
    if lines is None and not (folder / "request.json").exists():
        raise RunDirError(
            f"{folder} holds no run: neither {EVENTS} nor request.json is there",
            allowed="the folder of a run",
            way_out="name a folder that `shotclock render --run` made",
        )
    readings: list[_Reading] = []
    for number, line in lines or []:
        try:
            if line["event"] == "RunBegins":
                readings.append(_Reading(number=len(readings) + 1, begins=line))
            elif readings:
                readings[-1].take(line)
        except (KeyError, TypeError, ValueError):
            unread.append(number)
    return Timeline(attempts=tuple(reading.attempt() for reading in readings), unread=tuple(sorted(unread)))


def read_lines(path: Path) -> tuple[list[tuple[int, dict[str, Any]]] | None, list[int]]:
    """Objects of a JSON-lines file with their numbers from 1, and the numbers of the lines that are none.

    What follows the last line end is left out: a kill cut it off. None where there is no file.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None, []
    except OSError as bad:
        raise RunDirError(
            f"{path} cannot be read: {bad.strerror}", allowed="a log that can be read", way_out="check its permissions"
        ) from None
    found: list[tuple[int, dict[str, Any]]] = []
    unread: list[int] = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            value = None
        if isinstance(value, dict):
            found.append((number, value))
        else:
            unread.append(number)
    return found, unread


@dataclass(slots=True, kw_only=True)
class _Reading:
    """An attempt while its lines are read."""

    number: int
    begins: Mapping[str, Any]
    spans: list[Span] = field(default_factory=list)
    opened: list[tuple[str, float]] = field(default_factory=list)  # open phases, outermost first, and where they go on
    passes: list[PassSeen] = field(default_factory=list)
    said: dict[str, list[Any]] = field(default_factory=dict)
    progress: ProgressSeen | None = None
    ended: Mapping[str, Any] | None = None
    stop: StopSeen | None = None
    failure: FailureSeen | None = None
    last_s: float = 0.0

    def take(self, line: Mapping[str, Any]) -> None:
        """Add a line; raises KeyError, TypeError or ValueError for a known event without its fields."""
        t_s = number(line, "t_s")
        match line["event"]:
            case "PhaseBegins" | "PhaseEnds" as event:
                self._turn(str(line["phase"]), _require(line, "t_s"), begins=event == "PhaseBegins")
            case "PassBegins" | "PassEnds" as event:
                self._pass(line, ended=event == "PassEnds")
            case "Progress":
                self.progress = ProgressSeen(phase=str(line["phase"]), done=int(line["done"]), total=int(line["total"]))
            case "Projected":
                self._keep("projections", _projection(line))
            case "Snapshotted":
                self._keep("snapshots", _snapshot(line))
            case "Seam":
                self._keep("seams", dict(line["differs"]))
            case "Notice":
                self._keep("notices", (_require(line, "t_s"), str(line["text"])))
            case "RunEnds":
                self.ended = line
            case "RunStops":
                self.stop = _stop(line)
            case "RunFails":
                words = {name: str(line.get(name) or "not said") for name in ("found", "allowed", "way_out")}
                self.failure = FailureSeen(exit_code=int(line["exit_code"]), **words)
            case _:
                pass
        self.last_s = max(self.last_s, t_s or 0.0)

    def _keep(self, name: str, value: Any) -> None:
        self.said.setdefault(name, []).append(value)

    def _turn(self, phase: str, t_s: float, *, begins: bool) -> None:
        """A phase begins or ends: the innermost open phase is the one that time belongs to."""
        if not begins and phase not in [name for name, _ in self.opened]:
            raise ValueError(f"{phase} ends and never began")
        if self.opened:
            inner, since_s = self.opened[-1]
            if t_s > since_s:
                self.spans.append(Span(phase=inner, begin_s=since_s, end_s=t_s))
        if begins:
            self.opened.append((phase, t_s))
            return
        while self.opened.pop()[0] != phase:
            pass
        if self.opened:
            self.opened[-1] = (self.opened[-1][0], t_s)

    def _pass(self, line: Mapping[str, Any], *, ended: bool) -> None:
        index, t_s = int(line["index"]), _require(line, "t_s")
        if ended and self.passes and self.passes[-1].index == index:
            begun = self.passes.pop()
            seconds = number(line, "last_s")
            seconds = t_s - begun.begin_s if seconds is None else seconds
        elif ended:
            raise ValueError(f"pass {index} ends and never began")
        else:
            begun, seconds = None, None
        self.passes.append(
            PassSeen(
                index=index,
                step=int(line["step"]),
                steps=int(line["steps"]),
                legs=tuple(str(leg) for leg in line["legs"]),
                begin_s=begun.begin_s if begun else t_s,
                seconds=seconds,
                warm_up=False,
                launch_s=number(line, "launch_s"),
                device_s=number(line, "device_s"),
            )
        )

    def attempt(self) -> Attempt:
        """As read; phases that are still open end at the last line, and the first passes are marked as warm-up."""
        spans = list(self.spans)
        if self.opened:
            phase, since_s = self.opened[-1]
            spans.append(Span(phase=phase, begin_s=since_s, end_s=max(self.last_s, since_s), open=True))
        attempt = Attempt(
            number=self.number,
            begins=self.begins,
            spans=tuple(spans),
            passes=tuple(self.passes),
            **{name: tuple(self.said.get(name, ())) for name in ("projections", "snapshots", "seams", "notices")},
            progress=self.progress,
            ended=self.ended,
            stop=self.stop,
            failure=self.failure,
            last_s=self.last_s,
        )
        return _with_warm_up(attempt)


def _with_warm_up(attempt: Attempt) -> Attempt:
    first = attempt.warm_up_passes or 1
    passes = [replace(seen, warm_up=place < first) for place, seen in enumerate(attempt.passes)]
    return replace(attempt, passes=tuple(passes))


def _projection(line: Mapping[str, Any]) -> ProjectionSeen:
    names = ("per_forward_s", "spread_ratio", "left_s", "tail_s", "tail_high_s", "reserve_s", "total_s", "budget_s")
    left = number(line, "forwards_left")
    return ProjectionSeen(
        t_s=_require(line, "t_s"),
        source=str(line["source"]),
        n=int(line.get("n") or 0),
        forwards_left=None if left is None else int(left),
        provisional=bool(line.get("provisional")),
        verdict=str(line["verdict"]),
        **{name: number(line, name) for name in names},
    )


def _snapshot(line: Mapping[str, Any]) -> SnapshotSeen:
    return SnapshotSeen(
        t_s=_require(line, "t_s"),
        step=int(line["step"]),
        legs=tuple(str(leg) for leg in line["legs"]),
        name=str(line["name"]),
        size_bytes=int(line["bytes"]),
    )


def _stop(line: Mapping[str, Any]) -> StopSeen:
    return StopSeen(
        exit_code=int(line["exit_code"]),
        reason=str(line["reason"]),
        terms=tuple((str(term["name"]), _require(term, "seconds")) for term in line.get("terms") or ()),
        sum_s=number(line, "sum_s"),
        budget_s=number(line, "budget_s"),
        way_out=str(line["way_out"]) if line.get("way_out") else None,
    )


def number(line: Mapping[str, Any], name: str) -> float | None:
    """A finite number, or None for anything else."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _require(line: Mapping[str, Any], name: str) -> float:
    value = number(line, name)
    if value is None:
        raise ValueError(f"{name} is {line.get(name)!r}")
    return value
