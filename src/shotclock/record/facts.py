"""Typed facts of a record: a value with its unit, or none with the reason; raw samples, from which statistics follow.

Pure values and their strict form on disk. Knows no run folder, no ledger and no clock.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

MIN_N = 5  # below this a figure is provisional and nothing is claimed from it (performance.md, protocol: n >= 5)
SPREAD_TAIL = 0.05  # a spread leaves this share of the samples out at either end, as plan/law.py does

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Scalar = bool | int | float | str


class Strict(BaseModel):
    """No coercion, no unknown field, no NaN, no change."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Fact(Strict):
    """One value and its unit ("" for names and counts); a missing one is None with the reason, never 0."""

    value: Scalar | None
    unit: str = ""
    reason: str | None = None

    @model_validator(mode="after")
    def _missing_has_a_reason(self) -> Fact:
        if (self.value is None) != bool(self.reason):
            raise ValueError("a value, or a reason why there is none")
        return self

    def __str__(self) -> str:
        if self.value is None:
            return f"not available ({self.reason})"
        shown = f"{self.value:,.6g}" if isinstance(self.value, float) else str(self.value)
        return f"{shown} {self.unit}".rstrip()


class Samples(Strict):
    """Raw values in the order they were taken, those of the warm-up apart; ``method`` says what they bracket.

    ``stated_n`` and ``stated_median`` are what a source printed where it kept no raw values; ``reason`` says why.
    """

    unit: str
    method: str
    values: tuple[Seconds, ...]
    warm_up: tuple[Seconds, ...] = ()
    stated_n: int | None = None
    stated_median: float | None = None
    reason: str | None = None

    @model_validator(mode="after")
    def _raw_or_stated(self) -> Samples:
        if not self.values and not self.reason:
            raise ValueError("raw values, or a reason why there are none")
        if self.values and (self.stated_n is not None or self.stated_median is not None):
            raise ValueError("statistics follow from raw values and are not stored beside them")
        return self

    @property
    def n(self) -> int:
        """How many values the figure rests on."""
        return len(self.values) if self.values else self.stated_n or 0

    @property
    def median(self) -> float | None:
        """The figure to quote; None where there is none."""
        return statistics.median(self.values) if self.values else self.stated_median

    @property
    def spread(self) -> float | None:
        """Range over median, without the outer 5 % at either end from 20 values on; None below two raw values."""
        return spread(self.values)

    @property
    def provisional(self) -> bool:
        """Too few values to claim anything."""
        return self.n < MIN_N

    def __str__(self) -> str:
        if self.median is None:
            return f"not available ({self.reason})"
        wide = "spread not available" if self.spread is None else f"spread {self.spread:.1%}"
        return f"{self.median:.6g} {self.unit} (n={self.n}, {wide}{', provisional' if self.provisional else ''})"


def spread(values: Sequence[float]) -> float | None:
    """Range over median; from 20 values on between the 5 % and the 95 % quantile. None below two values."""
    if len(values) < 2 or not statistics.median(values):
        return None
    tail = SPREAD_TAIL if len(values) >= 1 / SPREAD_TAIL else 0.0
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(high - low) / statistics.median(values)


def known(value: Scalar, unit: str = "") -> Fact:
    """A fact that was found."""
    return Fact(value=value, unit=unit)


def missing(reason: str, unit: str = "") -> Fact:
    """A fact that was not, and why."""
    return Fact(value=None, unit=unit, reason=reason)


def fact(value: Scalar | None, reason: str, unit: str = "") -> Fact:
    """The value, or the reason where it is None."""
    return missing(reason, unit) if value is None else known(value, unit)


def canonical(document: Mapping[str, Any]) -> bytes:
    """Sorted keys, no NaN, a final newline: the bytes that are stored and hashed."""
    return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sha256(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()
