"""A duration with its interval and where it comes from; the unit of every ledger, projection and refusal.

Arithmetic only. Knows no law, lease or clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field, model_validator

from shotclock.request import Document

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Estimate(Document):
    """Between ``low_s`` and ``high_s``, most likely ``typical_s``; ``source`` names a law, a rate or a guess."""

    low_s: Seconds
    typical_s: Seconds
    high_s: Seconds
    source: str

    @model_validator(mode="after")
    def _is_in_order(self) -> Estimate:
        if not self.low_s <= self.typical_s <= self.high_s:
            raise ValueError(f"{self.low_s} <= {self.typical_s} <= {self.high_s} does not hold")
        return self

    def times(self, count: float) -> Estimate:
        """``count`` of it one after another, all at the same end of the interval."""
        return Estimate(
            low_s=self.low_s * count,
            typical_s=self.typical_s * count,
            high_s=self.high_s * count,
            source=self.source,
        )

    def __str__(self) -> str:
        return f"{_said(self.typical_s)} s ({_said(self.low_s)} to {_said(self.high_s)}), {self.source}"


def _said(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= 100 else f"{seconds:.3g}"


def exactly(seconds: float, source: str) -> Estimate:
    """A duration without an interval: a setting, or a figure that is taken at its word."""
    return Estimate(low_s=seconds, typical_s=seconds, high_s=seconds, source=source)


def around(seconds: float, factor: float, source: str) -> Estimate:
    """From ``seconds / factor`` to ``seconds * factor``."""
    return Estimate(low_s=seconds / factor, typical_s=seconds, high_s=seconds * factor, source=source)


def total(parts: Iterable[Estimate], source: str) -> Estimate:
    """Sum of all ends: the upper end holds even where every part is at its own."""
    listed = list(parts)
    return Estimate(
        low_s=sum(part.low_s for part in listed),
        typical_s=sum(part.typical_s for part in listed),
        high_s=sum(part.high_s for part in listed),
        source=source,
    )


def within(estimate: Estimate, low_s: float, high_s: float, source: str) -> Estimate:
    """All three ends of ``estimate``, none of them outside of ``low_s`` to ``high_s``."""
    low, typical, high = (min(max(one, low_s), high_s) for one in (estimate.low_s, estimate.typical_s, estimate.high_s))
    return Estimate(low_s=low, typical_s=typical, high_s=high, source=source)


def floor_of(flops: float, rate_flops_per_s: float) -> Estimate:
    """What the arithmetic takes at a measured matrix rate: less than this cannot be, how much more is not known."""
    assert rate_flops_per_s > 0, "a measured rate"
    return exactly(flops / rate_flops_per_s, f"floor at {rate_flops_per_s / 1e12:.4g} TFLOP/s, no law measured")
