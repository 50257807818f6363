"""Own passes: what is kept apart, medians by kind, and changes of pace."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shotclock.govern.observed import Observed, Pace


def watched(seconds: list[float], *, kinds: int = 1, warm_up_passes: int = 0) -> Observed:
    """Passes of alternating kinds."""
    observed = Observed(warm_up_passes=warm_up_passes)
    for number, value in enumerate(seconds):
        observed.add(Pace(index=number + 1, kind=f"kind {number % kinds}", seconds=value, forwards=1))
    return observed


def test_warm_up_is_kept_apart() -> None:
    """It is there to be read and in no median."""
    observed = watched([58.0, 40.0, 6.0, 6.0], warm_up_passes=2)
    assert [pace.seconds for pace in observed.warm_up] == [58.0, 40.0]
    assert observed.medians() == {"kind 0": 6.0}
    assert observed.passes == 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_what_is_no_duration_is_counted_and_left_out(bad: float) -> None:
    """NaN, infinite, zero, negative."""
    observed = watched([2.0, bad, 2.0])
    assert (observed.rejected, observed.passes, len(observed.paces)) == (1, 3, 2)


def test_kinds_have_their_own_medians_and_changes_are_seen_across_them() -> None:
    """Cheap and dear passes in turn are no change; both twice as slow is one."""
    steady = watched([10.0, 4.0] * 10, kinds=2)
    assert steady.change is None
    assert steady.medians() == {"kind 0": 10.0, "kind 1": 4.0}
    slower = watched([10.0, 4.0] * 10 + [20.0, 8.0] * 3, kinds=2)
    assert slower.change is not None
    assert (slower.change.index, slower.change.ratio, slower.change.before) == (21, 2.0, 20)
    assert slower.medians() == {"kind 0": 20.0, "kind 1": 8.0}
    assert len(slower.segment) == 6


def test_a_return_to_the_old_pace_is_a_change_too() -> None:
    """Named faster; the newest is the one that is shown."""
    observed = watched([10.0] * 8 + [30.0] * 8 + [10.0] * 8)
    assert observed.change is not None
    assert str(observed.change).startswith("faster since pass 17: 10.000 s (n=3) after 30.000 s (n=8)")


def test_a_change_needs_a_normal_before_it_and_three_passes_that_agree() -> None:
    """Neither a slow start nor two slow passes in a row."""
    assert watched([30.0] * 3 + [10.0] * 3).change is None
    assert watched([10.0] * 8 + [30.0] * 2 + [10.0] * 8).change is None


@given(seconds=st.lists(st.floats(1, 1.14), min_size=1, max_size=40))
def test_weather_is_no_change(seconds: list[float]) -> None:
    """Below 15 % nothing is named, however it is ordered."""
    assert watched(seconds).change is None
