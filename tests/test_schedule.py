"""Sigma schedules fall strictly from 1 to exactly 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.schedule import DISTILLED, DISTILLED_STAGE_2, check, sigmas


@given(steps=st.integers(2, 200), tokens=st.integers(1, 8_192))
def test_every_schedule_ends_at_zero(steps: int, tokens: int) -> None:
    """users.md row 49: a schedule that never reaches 0 renders speckle.

    Up to 8,192 tokens: beyond, float32 cancellation moves the first sigma (0.987 at 2 steps and 32,952 tokens);
    one_stage always uses 4,096.
    """
    values = sigmas(steps, tokens)
    check(values)
    assert len(values) == steps + 1 and values[-1] == 0
    assert values[0] == pytest.approx(1, abs=1e-3) and values[-2] == pytest.approx(0.1, abs=1e-6)


def test_released_lists_are_legal_and_have_their_steps() -> None:
    """8 + 3 steps, not the 8 + 4 of other documents (ltx25.md section 0)."""
    for values, steps in ((DISTILLED, 8), (DISTILLED_STAGE_2, 3)):
        check(torch.tensor(values))
        assert len(values) == steps + 1


@pytest.mark.parametrize(
    "values", [[1.0, 0.5, 0.1], [1.0, 0.5, 0.5, 0.0], [0.5, 1.0, 0.0], [1.5, 0.5, 0.0], [1.0], [float("nan"), 0.0]]
)
def test_a_bad_list_is_refused(values: list[float]) -> None:
    """Not reaching 0, not falling, above 1, too short, not finite."""
    with pytest.raises(RequestError, match="sigmas"):
        check(torch.tensor(values))


def test_one_step_is_refused() -> None:
    """There is no last nonzero sigma to stretch to 0.1."""
    with pytest.raises(RequestError, match="1 steps"):
        sigmas(1)
