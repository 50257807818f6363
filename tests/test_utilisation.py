"""Utilisation in words: zero edges at high utilisation is a saturated device, and never a count of forwards."""

from __future__ import annotations

import pytest

from shotclock.utilisation import Load, utilisation_of


@pytest.mark.parametrize(
    ("shares", "counts", "load"),
    [
        ([0.97] * 2704 + [0.3] * 487, (3191, 2704, 1), Load.EDGES),
        ([0.3] * 487 + [0.97] * 2704, (3191, 2704, 0), Load.SATURATED),  # the seeds' samples
        ([1.0, None, 1.0], (2, 2, 0), Load.SATURATED),
        ([0.0, 0.5, 0.1], (3, 0, 0), Load.IDLE),
        ([0.9, 0.1] * 7, (14, 7, 7), Load.EDGES),
    ],
)
def test_edges_and_what_none_of_them_means(
    shares: list[float | None], counts: tuple[int, int, int], load: Load
) -> None:
    """A reading that tells nothing is left out; half is not busy."""
    found = utilisation_of(shares)
    assert found is not None and (found.readings, found.busy, found.edges) == counts and found.load is load
    assert "context only" in str(found) and (load is Load.SATURATED) == ("SATURATED" in str(found))


def test_a_counter_that_cannot_see_is_none() -> None:
    """Not zero."""
    assert utilisation_of([]) is utilisation_of([None, None]) is None
