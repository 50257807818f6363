"""Conditions, margins and outcomes of single rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.verify.rules import Outcome, Rule, find, parse, worst

RULE = Rule(
    name="noise",
    arm="pixels",
    fail=("sigma > 18 & correlation < 0.8", "sigma > 40"),
    warn=("sigma > 9",),
    excused_by=frozenset({"strobe"}),
    softened_by=frozenset({"static"}),
    source="test",
    meaning="Noise.",
    way_out="none",
)
NOBODY: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("sigma", "correlation", "outcome"),
    [
        (2.0, 0.95, Outcome.PASS),
        (10.0, 0.95, Outcome.WARN),
        (20.0, 0.95, Outcome.WARN),
        (20.0, 0.5, Outcome.FAIL),
        (41.0, 0.95, Outcome.FAIL),
    ],
)
def test_a_conjunction_needs_all_and_one_alternative_is_enough(
    sigma: float, correlation: float, outcome: Outcome
) -> None:
    """FAIL when both bounds of the first or the one of the second alternative hold."""
    assert find(RULE, {"sigma": sigma, "correlation": correlation}, NOBODY).outcome is outcome


def test_a_finding_carries_value_threshold_and_a_signed_margin() -> None:
    """Half of the warning level is a margin of +50 %; twice of it is -100 %."""
    passed = find(RULE, {"sigma": 4.5, "correlation": 0.95}, NOBODY)
    assert (passed.metric, passed.value, passed.threshold, passed.margin) == ("sigma", 4.5, 9.0, 0.5)
    warned = find(RULE, {"sigma": 18.0, "correlation": 0.95}, NOBODY)
    assert (warned.outcome, warned.margin) == (Outcome.WARN, -1.0)


def test_the_bound_that_barely_holds_speaks_for_a_conjunction() -> None:
    """Correlation 0.79 is nearer to its limit than sigma 36."""
    found = find(RULE, {"sigma": 36.0, "correlation": 0.79}, NOBODY)
    assert (found.outcome, found.metric) == (Outcome.FAIL, "correlation")


def test_a_missing_number_is_not_judged_and_never_a_pass() -> None:
    """``None`` and an absent key are the same."""
    assert find(RULE, {}, NOBODY).outcome is Outcome.SKIPPED
    assert find(RULE, {"sigma": None, "correlation": None}, NOBODY).outcome is Outcome.SKIPPED


@pytest.mark.parametrize(
    ("word", "sigma", "outcome"),
    [
        ("strobe", 50.0, Outcome.PASS),
        ("static", 50.0, Outcome.WARN),
        ("static", 10.0, Outcome.PASS),
        ("fade", 50.0, Outcome.FAIL),
    ],
)
def test_what_was_asked_excuses_or_softens(word: str, sigma: float, outcome: Outcome) -> None:
    """An excuse lets it pass, a softener takes one step, another word changes nothing."""
    found = find(RULE, {"sigma": sigma, "correlation": 0.9}, frozenset({word}))
    assert found.outcome is outcome
    assert found.as_asked == (None if word == "fade" else word)


@given(value=st.floats(-1e6, 1e6), limit=st.integers(-1000, 1000), sign=st.sampled_from(["<", "<=", ">", ">="]))
def test_a_bound_holds_exactly_when_python_says_so(value: float, limit: int, sign: str) -> None:
    """The margin's sign and the comparison agree for every value and limit."""
    (bound,) = parse(f"a {sign} {limit}")
    truth = {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[sign]
    assert bound.holds(value) == truth
    assert (bound.margin(value) < 0) <= truth


@pytest.mark.parametrize("text", ["", "a", "a > ", "a > b", "a > 1 &", "a = 1", "a > 1; b < 2", "A > 1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(RequestError, match="cannot be read"):
        parse(text)


def test_the_gravest_outcome_wins() -> None:
    """FAIL over WARN over PASS over not judged."""
    assert worst([Outcome.PASS, Outcome.FAIL, Outcome.WARN]) is Outcome.FAIL
    assert worst([Outcome.SKIPPED, Outcome.PASS]) is Outcome.PASS
    assert worst([]) is Outcome.SKIPPED
