"""Reads a trace of torch's profiler: which part and pass each kernel belongs to, and what of a step is no kernel.

A kernel belongs to the ranges that were open when it was launched, which its correlation number tells. Union of kernels
is compute, union of copies that no kernel hides is transfer, the rest is gaps. Pure: a parsed trace in, seconds out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shotclock.profile.ranges import AT, DO, PASS, STEP, Part, part_of

KERNELS, COPIES, LAUNCHES = ("kernel",), ("gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
RANGES, OPERATORS = "user_annotation", "cpu_op"
MICROSECOND = 1e-6
NOT_TOLD = "not told"  # of a pass: what was launched outside of every one
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One step of a trace, in seconds. ``parts`` and ``passes`` sum kernels; ``wall_s`` is the step's own range.

    Without device events kernels are operators of the CPU: launch and compute together.
    """

    wall_s: float
    compute_s: float
    transfer_s: float
    parts: Mapping[Part, float]
    passes: Mapping[str, Mapping[Part, float]]
    kernels: int
    names: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def gaps_s(self) -> float:
        """What neither a kernel nor a copy covers."""
        return max(self.wall_s - self.compute_s - self.transfer_s, 0.0)

    @property
    def sum_s(self) -> float:
        """All parts, transfer and gaps; more than the wall where kernels overlap."""
        return sum(self.parts.values()) + self.transfer_s + self.gaps_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All steps of a trace; whether the device itself was seen."""

    steps: tuple[Split, ...]
    device_events: bool


def read_trace(trace: Mapping[str, Any]) -> Reading:
    """Split every step of a parsed Chrome trace; a trace without kernels is read from the CPU's operators."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X" and "cat" in event]
    by_category: dict[str, list[Any]] = defaultdict(list)
    for event in events:
        by_category[event["cat"]].append(event)
    ranges = [event for event in by_category[RANGES] if str(event["name"]).startswith("shotclock ")]
    launched = _launches(by_category)
    kernels = [event for name in KERNELS for event in by_category[name]]
    copies = [event for name in COPIES for event in by_category[name]]
    seen = bool(kernels)
    if not seen:
        kernels = _outermost(by_category[OPERATORS])
    steps = [event for event in ranges if event["name"].startswith(STEP)]
    places = _places(ranges, [launched.get(_correlation(one), one["ts"]) if seen else one["ts"] for one in kernels])
    placed = list(zip(kernels, places, strict=True))
    return Reading(
        steps=tuple(_split(step, placed, copies) for step in sorted(steps, key=lambda one: one["ts"])),
        device_events=seen,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Ranges that were open at a launch."""

    legs: str
    part: Part


def _split(step: Mapping[str, Any], placed: Iterable[tuple[Any, _Place]], copies: Iterable[Any]) -> Split:
    low, high = _interval(step)
    inside = [(event, place) for event, place in placed if low <= event["ts"] < high]
    busy = merged(_clip(_interval(event), low, high) for event, _ in inside)
    moving = merged(_clip(_interval(event), low, high) for event in copies if low <= event["ts"] < high)
    both = length(merged([*busy, *moving]))
    parts: dict[Part, float] = defaultdict(float)
    passes: dict[str, dict[Part, float]] = defaultdict(lambda: defaultdict(float))
    names: dict[str, tuple[int, float]] = {}
    for event, place in inside:
        seconds = event["dur"] * MICROSECOND
        parts[place.part] += seconds
        passes[place.legs][place.part] += seconds
        number, before = names.get(event["name"], (0, 0.0))
        names[event["name"]] = (number + 1, before + seconds)
    return Split(
        wall_s=(high - low) * MICROSECOND,
        compute_s=length(busy) * MICROSECOND,
        transfer_s=(both - length(busy)) * MICROSECOND,
        parts=dict(parts),
        passes={legs: dict(found) for legs, found in passes.items()},
        kernels=len(inside),
        names=names,
    )


def _places(ranges: Sequence[Mapping[str, Any]], launches: Sequence[float]) -> list[_Place]:
    """For each launch time the innermost place and work, and the pass; ranges of one thread nest."""
    order = sorted(range(len(launches)), key=launches.__getitem__)
    waiting = sorted(ranges, key=lambda event: (event["ts"], -event["dur"]))
    found: list[_Place] = [_Place(NOT_TOLD, Part.OTHER)] * len(launches)
    stack: list[Mapping[str, Any]] = []
    following = 0
    for number in order:
        now = launches[number]
        while following < len(waiting) and waiting[following]["ts"] <= now:
            stack = [one for one in stack if _interval(one)[1] > waiting[following]["ts"]]
            stack.append(waiting[following])
            following += 1
        stack = [one for one in stack if _interval(one)[1] > now]
        names = [str(one["name"]) for one in stack]
        found[number] = _Place(_last(names, PASS) or NOT_TOLD, part_of(_last(names, AT), _work(names)))
    return found


def _last(names: Sequence[str], prefix: str) -> str | None:
    return next((name.removeprefix(prefix) for name in reversed(names) if name.startswith(prefix)), None)


def _work(names: Sequence[str]) -> str | None:
    """The innermost work inside the innermost place: a place inside a work begins anew."""
    for name in reversed(names):
        if name.startswith(DO):
            return name.removeprefix(DO)
        if name.startswith(AT):
            return None
    return None


def _launches(by_category: Mapping[str, Sequence[Any]]) -> dict[Any, float]:
    """When the host launched what has a correlation number."""
    calls = (event for name in LAUNCHES for event in by_category.get(name, ()))
    return {_correlation(event): event["ts"] for event in calls if _correlation(event) is not None}


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation")


def _outermost(operators: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Operators that no other operator of their thread called."""
    found: list[Mapping[str, Any]] = []
    ends: dict[Any, float] = {}
    for event in sorted(operators, key=lambda one: (one["ts"], -one["dur"])):
        low, high = _interval(event)
        if low >= ends.get(event["tid"], float("-inf")):
            found.append(event)
            ends[event["tid"]] = high
    return found


def _interval(event: Mapping[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _clip(interval: Interval, low: float, high: float) -> Interval:
    return max(interval[0], low), min(interval[1], high)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Their union, in order."""
    found: list[Interval] = []
    for low, high in sorted(intervals):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Of disjoint intervals together."""
    return sum(high - low for low, high in intervals)
