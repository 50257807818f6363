"""Memory samples of one attempt to starts, peaks and lows, and the moments at which the device was throttled.

Pure. Reads what was sampled; a counter that could not see has a reason, never 0.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence

from shotclock.record.facts import Fact, fact, known, missing
from shotclock.record.folder import Attempt, Line
from shotclock.record.runfacts import MemoryRow, Spot
from shotclock.utilisation import utilisation_of

NO_COUNTER = "the counter was not available"
QUIET: tuple[object, ...] = (None, "", "none", 0, [])  # what a sampler says where nothing holds the clocks down


def memory_row(attempt: Attempt) -> MemoryRow | None:
    """None where there is no sample."""
    lines = attempt.memory
    if not lines:
        return None
    device, swap = _values(lines, "device_used_bytes"), _values(lines, "swap_used_bytes")
    seen = utilisation_of(shares_of(_values(lines, "device_utilisation")))
    available, clocks = _values(lines, "host_available_bytes"), _values(lines, "device_clock_mhz")
    used = [
        line["host_total_bytes"] - line["host_available_bytes"]
        for line in lines
        if line.get("host_total_bytes") is not None and line.get("host_available_bytes") is not None
    ]
    return MemoryRow(
        attempt=attempt.number,
        samples=len(lines),
        device_start=_first(device, "B"),
        device_peak=_over(device, max, "B"),
        host_start=_first(used, "B"),
        host_peak=_over(used, max, "B"),
        host_min_available=_over(available, min, "B"),
        swap_start=_first(swap, "B"),
        swap_peak=_over(swap, max, "B"),
        clock_min=_over(clocks, min, "MHz"),
        clock_median=_over(clocks, statistics.median, "MHz"),
        clock_max=_over(clocks, max, "MHz"),
        busy_readings=fact(None if seen is None else seen.busy, NO_COUNTER),
        idle_edges=fact(None if seen is None else seen.edges, NO_COUNTER),
        load=fact(None if seen is None else str(seen.load), NO_COUNTER),
    )


def throttle_spots(attempt: Attempt) -> tuple[Spot, ...]:
    """One spot each time that the reason for throttling changes to another one."""
    spots, before = [], None
    for line in attempt.memory:
        now = line.get("throttle")
        if now != before and now not in QUIET:
            what = now if isinstance(now, str) else json.dumps(now)
            spots.append(Spot(attempt=attempt.number, t_s=line.get("t_s"), what=what))
        before = now
    return tuple(spots)


def shares_of(values: Sequence[float]) -> list[float]:
    """Utilisation from 0 to 1, whether it was written so or in percent."""
    unit = 1 if max(values, default=0) <= 1 else 100
    return [value / unit for value in values]


def _values(lines: Sequence[Line], name: str) -> list[float]:
    return [line[name] for line in lines if line.get(name) is not None]


def _first(values: Sequence[float], unit: str) -> Fact:
    return _over(values, lambda found: found[0], unit)


def _over(values: Sequence[float], take: Callable[[Sequence[float]], float], unit: str) -> Fact:
    return known(take(values), unit) if values else missing(NO_COUNTER, unit)
