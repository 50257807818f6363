"""What changed without being asked: passes that grew slower within a run, than before, or memory that never came back.

Pure: raw samples in, sentences with numbers out. Knows no file.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from shotclock.record.facts import MIN_N, Samples, spread
from shotclock.record.runfacts import MemoryRow, RunFacts

DRIFT = 1.2  # last third over first third; a warm GPU gains a few per cent (users.md row 17 saw 3x)
SLOWER = 1.2  # against earlier runs of the same key (users.md row 18 saw 2x)
SWAP_BYTES = 256 << 20  # less is what an idle machine moves about
CLOCK_DROP = 0.9  # lowest over median clock
LEAK_BYTES = 16 << 20  # a run; users.md row 37 saw 60 MiB
LEAK_RUNS = 5  # floors that must rise one after another


def drift_warnings(run: RunFacts) -> tuple[str, ...]:
    """Kinds of passes whose last third is slower than their first by more than both differ in themselves."""
    said = []
    for kind, samples in run.timings().items():
        if (ratio := drift_ratio(samples.values)) is not None and ratio >= DRIFT:
            causes = causes_of(run.memory, throttled=bool(run.throttles)) or ["no cause was seen in swap or clocks"]
            said.append(f"{kind} passes ended {ratio:.1f}x slower than they began: {', '.join(causes)}")
    return tuple(said)


def drift_ratio(values: Sequence[float]) -> float | None:
    """Median of the last over the first third; None for few values, or where the thirds differ as much themselves."""
    third = len(values) // 3
    if third < MIN_N:
        return None
    first, last = values[:third], values[-third:]
    ratio = statistics.median(last) / statistics.median(first)
    return ratio if abs(ratio - 1) > max(spread(first) or 0.0, spread(last) or 0.0) else None


def causes_of(memory: Sequence[MemoryRow], *, throttled: bool) -> list[str]:
    """What the samples say of a slow run."""
    causes = []
    for row in memory:
        start, peak = row.swap_start.value, row.swap_peak.value
        if isinstance(start, int | float) and isinstance(peak, int | float) and peak - start >= SWAP_BYTES:
            causes.append(f"swap grew by {(peak - start) / 2**30:.1f} GiB")
        low, middle = row.clock_min.value, row.clock_median.value
        if isinstance(low, int | float) and isinstance(middle, int | float) and low < CLOCK_DROP * middle:
            causes.append(f"the clock fell to {low:.0f} MHz from {middle:.0f}")
    return [*causes, *(["the device was throttled"] if throttled else [])]


def against_earlier(kind: str, now: Samples, earlier: Sequence[Samples]) -> str | None:
    """A sentence where a kind of pass is slower than the median of earlier runs of the same key, beyond the spread."""
    medians = [one.median for one in earlier if one.median and not one.provisional and one.method == now.method]
    if not medians or now.median is None or now.provisional:
        return None
    base = statistics.median(medians)
    ratio = now.median / base
    noise = max(now.spread or 0.0, *(one.spread or 0.0 for one in earlier))
    if ratio < SLOWER or ratio - 1 <= noise:
        return None
    return f"{kind}: {now.median:.4g} s is {ratio:.1f}x the {base:.4g} s of {len(medians)} earlier runs of the same key"


def floor_leak(start_bytes: Sequence[int]) -> str | None:
    """A sentence where memory in use before each run rises from run to run, oldest first; None where it does not."""
    floors = start_bytes[-(LEAK_RUNS + 1) :]
    rises = [after - before for before, after in pairwise(floors)]
    if len(rises) < LEAK_RUNS or min(rises) <= 0 or statistics.median(rises) < LEAK_BYTES:
        return None
    each = statistics.median(rises) / 2**20
    return (
        f"memory in use before a run rose by {each:.0f} MiB a run over the last {len(rises)} runs: it is not given back"
    )
