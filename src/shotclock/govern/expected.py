"""How long the passes that are left take: typically, and at most under the declared bounds.

From the render's own passes where there are enough, from the law before that. Pure; knows no lease.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shotclock.govern.observed import WINDOW, Observed, Pace
from shotclock.plan.estimate import Estimate

TOLERANCE = 0.2  # declared bound of a pass around its typical time; the laws in tests/govern hold under it
ROUNDING = 1e-6  # of times that were added and subtracted


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Durations by kind of pass. ``forwards`` counts those that a pass of each kind carries, by what one costs.

    ``law`` covers every kind or is empty: without one, kinds are taken to cost as ``forwards`` says. ``own`` says
    that a full step of own passes was measured; ``warm_up_ratio`` bounds a warm-up pass over a warm one.
    """

    observed: Observed
    law: Mapping[str, Estimate]
    forwards: Mapping[str, float]
    own: bool
    warm_up_ratio: float

    def typical_s(self, kind: str) -> float | None:
        """Own median of the kind, or what the other kinds make of it; the law before a full step; None without it."""
        if not self.own:
            return self.law[kind].typical_s if self.law else None
        return self.observed.medians().get(kind, self._weight(kind) * statistics.median(self._scales()))

    def upper_s(self, kind: str) -> float | None:
        """Longest warm pass of the kind; None where there is neither a law nor an own pass.

        As long as own passes agree with the law, its typical value and the declared bound; else what the shortest own
        pass allows under that bound, and never less than the longest of the last three.
        """
        scales = self._scales()
        if scales:
            low, high = min(scales), max(scales)
            agree = bool(self.law) and low >= 1 - TOLERANCE - ROUNDING and high <= 1 + TOLERANCE + ROUNDING
            bound = 1 + TOLERANCE if agree else low * (1 + TOLERANCE) / (1 - TOLERANCE)
            return self._weight(kind) * max(bound, *scales[-WINDOW:])
        if self.law:
            return max(self.law[kind].high_s, (1 + TOLERANCE) * self.law[kind].typical_s)
        warm_up = [self._scale(pace) for pace in self.observed.warm_up]
        return self._weight(kind) * max(warm_up) if warm_up else None

    def left_s(self, left: Mapping[str, int]) -> float | None:
        """Typical seconds of all passes left, given by kind."""
        return _sum({kind: self.typical_s(kind) for kind in left}, left)

    def upper_left_s(self, left: Mapping[str, int], warm_up: Sequence[str]) -> float | None:
        """Longest they may take; ``warm_up`` are the kinds of those among them that warm up."""
        upper = {kind: self.upper_s(kind) for kind in left}
        warm_s = _sum(upper, left)
        if warm_s is None:
            return None
        if not (self.law or self.observed.segment):
            return warm_s  # made of warm-up passes already
        return warm_s + sum((self.warm_up_ratio - 1) * (upper[kind] or 0.0) for kind in warm_up)

    def spread_ratio(self) -> float | None:
        """(max - min) / median of own passes since the last change, each over the law, or over its forwards."""
        scales = self._scales()
        return (max(scales) - min(scales)) / statistics.median(scales) if scales else None

    def _scales(self) -> list[float]:
        """Own passes since the last change over the weight of their kind."""
        return [self._scale(pace) for pace in self.observed.segment]

    def _scale(self, pace: Pace) -> float:
        return pace.seconds / self._weight(pace.kind)

    def _weight(self, kind: str) -> float:
        return self.law[kind].typical_s if self.law else float(self.forwards[kind])


def _sum(seconds: Mapping[str, float | None], counts: Mapping[str, int]) -> float | None:
    known = {kind: value for kind, value in seconds.items() if value is not None}
    return sum(known[kind] * counts[kind] for kind in counts) if len(known) == len(counts) else None
