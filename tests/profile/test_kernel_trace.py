"""A trace is split into compute, transfer and gaps, and each kernel goes to the ranges it was launched in."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from shotclock.profile.ranges import AT, DO, PASS, STEP, At, Do, Part, part_of
from shotclock.profile.trace import length, merged, read_trace

numbers = itertools.count(1)


def event(category: str, name: str, ts: float, dur: float, tid: int = 1, **arguments: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": arguments}


def range_(name: str, ts: float, end: float) -> dict[str, Any]:
    return event("user_annotation", name, ts, end - ts)


def kernel(launched: float, ts: float, dur: float, call: str = "cuda_runtime") -> list[dict[str, Any]]:
    number = next(numbers)
    return [
        event(call, "launch", launched, 1, correlation=number),
        event("kernel", "some_kernel", ts, dur, tid=7, correlation=number),
    ]


def a_step() -> dict[str, Any]:
    """100 us: two passes; kernels run long after the ranges that launched them have closed; one copy half hidden."""
    ranges = [
        range_(f"{STEP}0", 0, 100),
        range_(f"{PASS}cond", 1, 20),
        range_(f"{AT}{At.SELF}", 2, 10),
        range_(f"{DO}{Do.PROJECT}", 3, 4.5),
        range_(f"{DO}{Do.ATTEND}", 5, 7),
        range_(f"{AT}{At.FEED}", 11, 15),
        range_(f"{DO}{Do.PROJECT}", 12, 14),
        range_(f"{PASS}uncond", 21, 30),
        range_(f"{AT}{At.TEXT}", 22, 29),
        range_(f"{DO}{Do.ATTEND}", 23, 24.5),
    ]
    events = [
        *kernel(3, 30, 10),
        *kernel(6, 40, 5, "cuda_driver"),
        *kernel(8, 45, 1),  # in the place, in no named work: element-wise
        *kernel(12.5, 50, 10),
        *kernel(23, 60, 8),
        *kernel(27, 66, 4),  # overlaps the one before by 2
        event("gpu_memcpy", "copy", 68, 7, tid=7),  # 5 of 7 are after the kernels
    ]
    return {"traceEvents": [*ranges, *events]}


def test_kernels_go_to_the_ranges_of_their_launch() -> None:
    """Not to those that are open while they run; passes and parts both, in seconds."""
    reading = read_trace(a_step())
    (split,) = reading.steps
    assert reading.device_events and split.kernels == 6
    us = {part: round(seconds * 1e6, 6) for part, seconds in split.parts.items()}
    assert us == {Part.PROJECT: 10, Part.SELF: 5, Part.NORM: 1 + 4, Part.FEED: 10, Part.TEXT: 8}
    assert sum(split.passes["uncond"].values()) == pytest.approx(12e-6)
    assert split.names["some_kernel"] == (6, pytest.approx(38e-6))


def test_compute_transfer_and_gaps_fill_the_step() -> None:
    """Unions: overlapping kernels count once, a copy counts where no kernel hides it; the sum of parts may be more."""
    (split,) = read_trace(a_step()).steps
    assert split.compute_s == pytest.approx(36e-6)  # 30 to 46, 50 to 70
    assert split.transfer_s == pytest.approx(5e-6)
    assert split.compute_s + split.transfer_s + split.gaps_s == pytest.approx(split.wall_s)
    assert split.sum_s == pytest.approx(102e-6)


def test_without_kernels_the_outermost_operators_are_read_and_that_is_said() -> None:
    """A real trace of the CPU: nested operators count once, and the ranges tell whose they are."""
    a = torch.randn(64, 64)
    with torch.profiler.profile() as profile, torch.profiler.record_function(f"{STEP}0"):
        with torch.profiler.record_function(f"{AT}{At.FEED}"):
            _ = torch.nn.functional.linear(a, a)
        _ = a + a
    events = [
        event("user_annotation" if one.is_user_annotation else "cpu_op", one.name, one.time_range.start, one.cpu_time)
        for one in profile.events()
    ]
    reading = read_trace({"traceEvents": events})
    (split,) = reading.steps
    assert not reading.device_events
    assert set(split.parts) == {Part.FEED, Part.OTHER} and set(split.names) == {"aten::linear", "aten::add"}


@pytest.mark.parametrize(
    ("at", "do", "part"),
    [
        (At.SELF, Do.ATTEND, Part.SELF),
        (At.CROSS, Do.ATTEND, Part.CROSS),
        (At.CROSS, Do.PROJECT, Part.PROJECT),
        (At.FEED, Do.PROJECT, Part.FEED),
        (At.CONDITIONS, None, Part.NORM),
        (At.GUIDANCE, None, Part.GUIDANCE),
        (None, Do.NORM, Part.NORM),
        (None, None, Part.OTHER),
    ],
)
def test_place_and_work_make_the_part(at: At | None, do: Do | None, part: Part) -> None:
    """Attention by its place, layers of attention as projections, a feed-forward whole."""
    assert part_of(at, do) is part


def test_a_union_counts_what_overlaps_once() -> None:
    """Touching and nested intervals too."""
    assert merged([(5, 6), (0, 2), (1, 3), (3, 4), (0.5, 1)]) == [(0, 4), (5, 6)]
    assert length(merged([(0, 2), (1, 3)])) == 3
