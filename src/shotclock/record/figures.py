"""Numbers as people read them, and the few statistics a report derives; spread and least n are those of records.

Pure. Raw values are stored elsewhere; what cannot be said is None or a word, never 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shotclock.record.facts import MIN_N, spread

NOT_RECORDED = "not recorded"
GIB, MIB, KIB = 2**30, 2**20, 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Seconds of ``n`` measurements; ``spread_ratio`` is that of records, None for a single measurement."""

    n: int
    median_s: float
    least_s: float
    most_s: float
    spread_ratio: float | None

    @property
    def provisional(self) -> bool:
        """Too few to be quoted."""
        return self.n < MIN_N


def figure(seconds: Sequence[float]) -> Figure | None:
    """Median and ends; None of nothing."""
    if not seconds:
        return None
    return Figure(
        n=len(seconds),
        median_s=statistics.median(seconds),
        least_s=min(seconds),
        most_s=max(seconds),
        spread_ratio=spread(seconds),
    )


def demand(used_bytes: Sequence[int | None]) -> int | None:
    """Own demand: the peak less what was in use when sampling began; None without a sample."""
    known = [used for used in used_bytes if used is not None]
    return max(known) - known[0] if known else None


def seconds_text(seconds: float | None) -> str:
    """Four significant digits, no exponent: "16.43 s", "0.0688 s", "10,803 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds == 0:
        return "0 s"
    digits = max(0, min(4, 3 - math.floor(math.log10(abs(seconds)))))
    return f"{seconds:,.{digits}f} s"


def duration_text(seconds: float | None) -> str:
    """As a person says it: "16.4 s", "41 min 10 s", "2 h 3 min", "4 h"."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, seconds_left = divmod(rest, 60)
    if hours:
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    return f"{minutes} min {seconds_left} s" if seconds_left else f"{minutes} min"


def bytes_text(count: float | None) -> str:
    """Binary units: "74.91 GiB", "417 KiB"."""
    if count is None:
        return NOT_RECORDED
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(count) >= unit:
            return f"{significant(count / unit)} {name}"
    return f"{count:,.0f} bytes"


def significant(value: float, digits: int = 4) -> str:
    """So many significant digits with commas and without trailing zeros: "1,344", "0.215", "52"."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    after = digits - 1 - math.floor(math.log10(abs(value)))
    if after > 9:
        return f"{value:.{digits - 1}e}"
    text = f"{round(value, after):,.{max(after, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent_text(ratio: float | None, *, signed: bool = False) -> str:
    """A ratio in percent, with one digit below 100."""
    if ratio is None or not math.isfinite(ratio):
        return NOT_RECORDED
    return f"{ratio * 100:{'+' if signed else ''},.{1 if abs(ratio) < 1 else 0}f} %"


def counted(count: int, one: str, many: str) -> str:
    """A count with its noun: "1 pass", "1,344 passes"."""
    return f"{count:,} {one if count == 1 else many}"
