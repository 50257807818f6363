"""Typical and longest durations of the passes left, from own passes and from the law."""

from __future__ import annotations

import pytest

from shotclock.govern.expected import Expected
from shotclock.govern.observed import Observed, Pace
from shotclock.plan.estimate import Estimate

LAW = {
    "cond": Estimate(low_s=9.0, typical_s=10.0, high_s=13.0, source="law"),
    "perturbed": Estimate(low_s=3.0, typical_s=4.0, high_s=4.5, source="law"),
}


def expected(
    *seconds: tuple[str, float], law: dict[str, Estimate] = LAW, own: bool = True, warm_up_passes: int = 0
) -> Expected:
    """After these passes; a warm-up takes at most twice as long."""
    observed = Observed(warm_up_passes=warm_up_passes)
    for number, (kind, value) in enumerate(seconds):
        observed.add(Pace(index=number + 1, kind=kind, seconds=value, forwards=1))
    return Expected(observed=observed, law=law, forwards={"cond": 1, "perturbed": 1}, own=own, warm_up_ratio=2.0)


def test_before_a_full_step_the_law_is_typical_and_after_it_own_medians() -> None:
    """A kind that was not measured yet follows the others in proportion to the law."""
    assert expected(("cond", 12.0), own=False).typical_s("cond") == 10.0
    own = expected(("cond", 12.0), ("cond", 11.0), ("cond", 11.5))
    assert own.typical_s("cond") == 11.5
    assert own.typical_s("perturbed") == pytest.approx(4.0 * 1.15)
    assert own.left_s({"cond": 2, "perturbed": 1}) == pytest.approx(23 + 4.6)


def test_the_longest_pass_is_the_laws_until_own_passes_are_there() -> None:
    """The wider of the law's interval and the declared 20 %; then 20 % over the law while they agree."""
    assert expected().upper_s("cond") == 13.0
    assert expected().upper_s("perturbed") == pytest.approx(4.8)
    assert expected(("cond", 11.0)).upper_s("cond") == pytest.approx(12.0)


def test_own_passes_that_contradict_the_law_bound_alone() -> None:
    """1.2 / 0.8 of the shortest, and the longest of the last three where that is more."""
    assert expected(("cond", 20.0)).upper_s("cond") == pytest.approx(30.0)
    assert expected(("cond", 10.0), ("cond", 40.0)).upper_s("cond") == pytest.approx(40.0)
    later = expected(("cond", 40.0), *[("cond", 10.0)] * 3)
    assert later.upper_s("cond") == pytest.approx(15.0)


def test_without_a_law_only_what_was_measured_speaks() -> None:
    """Nothing first, then the warm-up itself, then 1.5 times the shortest."""
    nothing = expected(law={}, own=False)
    assert (nothing.typical_s("cond"), nothing.upper_s("cond")) == (None, None)
    assert expected(law={}, own=False).left_s({"cond": 1}) is None
    assert expected(law={}, own=False).upper_left_s({"cond": 1}, []) is None
    warm = expected(("cond", 50.0), law={}, own=False, warm_up_passes=2)
    assert warm.upper_left_s({"cond": 3}, ["cond"]) == 150.0
    assert expected(("cond", 8.0), law={}).upper_s("perturbed") == pytest.approx(12.0)


def test_warm_up_passes_weigh_their_ratio() -> None:
    """Twice as long here; the others once."""
    assert expected().upper_left_s({"cond": 3}, ["cond"]) == pytest.approx(13.0 * 4)


def test_the_spread_is_over_the_law_where_kinds_differ() -> None:
    """Cheap perturbed legs are no spread; without a law each forward counts alike."""
    paces = (("cond", 10.0), ("perturbed", 4.0), ("cond", 11.0))
    assert expected(*paces).spread_ratio() == pytest.approx(0.1)
    assert expected(*paces, law={}).spread_ratio() == pytest.approx(0.7)
    assert expected().spread_ratio() is None
