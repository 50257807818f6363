"""A render's own forwards, as the governor knows them: medians by kind, what is normal, and where it changed.

Holds durations that were measured after the device had finished. Knows no lease, law or clock.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW = 3  # passes in a row that must agree before a change has happened
MIN_BASE = 4  # passes before them, without which nothing is known to be normal
LEAST_CHANGE = 1.15  # a smaller factor is weather
SPREAD_FACTOR = 2.0  # and so is one within twice the spread (10 to 90 %) of what was normal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """From pass ``index`` on (counted from 1) passes took ``ratio`` times as long as the ``before`` ones before."""

    index: int
    ratio: float
    before: int
    before_s: float
    after_s: float

    def __str__(self) -> str:
        what = "slower" if self.ratio > 1 else "faster"
        return (
            f"{what} since pass {self.index}: {self.after_s:.3f} s (n={WINDOW}) after {self.before_s:.3f} s "
            f"(n={self.before}), {self.ratio:.2f} times; look for swap, clocks, neighbours"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """One measured pass: its index from 1, kind, seconds, and how many forwards it carried."""

    index: int
    kind: str
    seconds: float
    forwards: int


class Observed:
    """Warm passes in order; those of the warm-up, and readings that are no duration, are kept apart."""

    def __init__(self, *, warm_up_passes: int) -> None:
        self._warm_up_passes = warm_up_passes
        self.warm_up: list[Pace] = []
        self.paces: list[Pace] = []
        self.rejected = 0
        self.change: ChangePoint | None = None
        self._segment = 0  # where, in paces, the present normal begins

    @property
    def passes(self) -> int:
        """All passes that ran, whatever became of their timing."""
        return len(self.warm_up) + len(self.paces) + self.rejected

    def add(self, pace: Pace) -> None:
        """Take a pass into account; NaN, infinite, zero and negative seconds are counted and left out."""
        if not (math.isfinite(pace.seconds) and pace.seconds > 0):
            self.rejected += 1
        elif self.passes < self._warm_up_passes:
            self.warm_up.append(pace)
        else:
            self.paces.append(pace)
            self._look_for_a_change()

    @property
    def segment(self) -> list[Pace]:
        """Passes since the last change."""
        return self.paces[self._segment :]

    def medians(self) -> dict[str, float]:
        """Seconds by kind, over the present segment."""
        return _medians(self.segment)

    def per_forward_s(self) -> float | None:
        """Median seconds of a forward over the present segment."""
        forwards = [pace.seconds / pace.forwards for pace in self.segment]
        return statistics.median(forwards) if forwards else None

    def _look_for_a_change(self) -> None:
        base, latest = self.segment[:-WINDOW], self.segment[-WINDOW:]
        medians = _medians(base)
        if len(base) < MIN_BASE or any(pace.kind not in medians for pace in latest):
            return
        normal = sorted(_ratios(base, medians))
        spread = _quantile(normal, 0.9) - _quantile(normal, 0.1)
        bound = max(LEAST_CHANGE, 1 + SPREAD_FACTOR * spread)
        ratios = _ratios(latest, medians)
        if not (min(ratios) > bound or max(ratios) < 1 / bound):
            return
        ratio = statistics.median(ratios)
        before_s = statistics.median(medians[pace.kind] for pace in latest)
        self.change = ChangePoint(
            index=latest[0].index,
            ratio=ratio,
            before=len(base),
            before_s=before_s,
            after_s=statistics.median(pace.seconds for pace in latest),
        )
        self._segment = len(self.paces) - WINDOW


def _medians(paces: list[Pace]) -> dict[str, float]:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for pace in paces:
        by_kind[pace.kind].append(pace.seconds)
    return {kind: statistics.median(seconds) for kind, seconds in by_kind.items()}


def _ratios(paces: list[Pace], medians: Mapping[str, float]) -> list[float]:
    return [pace.seconds / medians[pace.kind] for pace in paces]


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]
