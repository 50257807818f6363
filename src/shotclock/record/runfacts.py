"""The form of what a record says of one run: how it ended, raw passes and phases, memory, projections, typed facts.

Strict documents with the few statistics that follow from them as properties. Derives nothing from files.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Literal

from pydantic import Field, JsonValue

from shotclock.record.facts import Fact, Samples, Seconds, Strict, missing
from shotclock.record.split import Split, split_of

METHOD = "pass: from just before its launch to device-synchronised; the last of a step includes guidance and Euler"
NOT_LOOKED_AT = missing("not looked at when this was recorded")
EndKind = Literal["finished", "verdict failed", "failed", "refused", "stopped", "killed", "unknown"]


class Term(Strict):
    """One summand of an arithmetic."""

    name: str
    seconds: float


class End(Strict):
    """How a run ended and, where it was refused or stopped, with which sum against which budget."""

    kind: EndKind
    exit_code: int | None
    found: str | None = None
    allowed: str | None = None
    way_out: str | None = None
    terms: tuple[Term, ...] = ()
    sum_s: float | None = None
    budget_s: float | None = None


class PassRow(Strict):
    """One launch that ended: seconds as ``method`` brackets them, legs joined by "+".

    ``launch_s`` is the host's part of them, until all was enqueued, ``device_s`` the device's own; None where the log
    has none, and of ``device_s`` on a CPU.
    """

    attempt: int
    step: int
    legs: str
    seconds: Seconds
    launch_s: Seconds | None = None
    device_s: Seconds | None = None


class PhaseRow(Strict):
    """One leaf phase; ``seconds`` is None where it did not end."""

    attempt: int
    phase: str
    begin_s: float
    seconds: float | None


class MemoryRow(Strict):
    """Memory of one attempt, sampled: starts, peaks and lows as read; own demand follows from them.

    ``busy_readings``, ``idle_edges`` and ``load`` are the device's utilisation (utilisation.py), context only.
    """

    attempt: int
    samples: int
    device_start: Fact
    device_peak: Fact
    host_start: Fact
    host_peak: Fact
    host_min_available: Fact
    swap_start: Fact
    swap_peak: Fact
    clock_min: Fact
    clock_median: Fact
    clock_max: Fact
    busy_readings: Fact = NOT_LOOKED_AT
    idle_edges: Fact = NOT_LOOKED_AT
    load: Fact = NOT_LOOKED_AT

    def own(self, place: Literal["device", "host"]) -> Fact:
        """Peak minus own start: the only memory figure that is compared across runs."""
        start: Fact = getattr(self, f"{place}_start")
        peak: Fact = getattr(self, f"{place}_peak")
        if isinstance(start.value, int | float) and isinstance(peak.value, int | float):
            return Fact(value=peak.value - start.value, unit=peak.unit)
        return missing(peak.reason or start.reason or "not a number", "B")


class Spot(Strict):
    """Something that happened at a time of an attempt: a throttle reason, a snapshot, a seam."""

    attempt: int
    t_s: float | None
    what: str
    detail: dict[str, JsonValue] = Field(default_factory=dict)


class Rung(Strict):
    """A geometry that the arithmetic rejected before any forward."""

    geometry: str
    video_tokens: int | None
    needs_s: float | None
    leaves_s: float | None
    line: str


class Oracle(Strict):
    """What another implementation said of the same workload; PENDING until one has run."""

    status: Literal["PENDING", "RAN"]
    reason: str


class RunFacts(Strict):
    """Everything of one run. ``checked`` facts must agree before two runs are compared."""

    format: Literal["shotclock/record/1"] = "shotclock/record/1"
    id: str
    run: str
    attempt: int
    continues: str | None
    source: str
    end: End
    checked: dict[str, Fact]
    facts: dict[str, Fact]
    planned_forwards: dict[str, int]
    executed_forwards: dict[str, int]
    repeated_forwards: int
    method: str
    warm_up_passes: int
    passes: tuple[PassRow, ...]
    reported: dict[str, Samples]
    phases: tuple[PhaseRow, ...]
    projections: tuple[dict[str, JsonValue], ...]
    memory: tuple[MemoryRow, ...]
    memory_reason: str | None
    throttles: tuple[Spot, ...]
    snapshots: tuple[Spot, ...]
    seams: tuple[Spot, ...]
    rejected: tuple[Rung, ...]
    warnings: tuple[str, ...]
    oracle: Oracle
    notes: tuple[str, ...]
    not_shown: tuple[str, ...]

    def timings(self) -> dict[str, Samples]:
        """Seconds by kind of pass, the first passes of each attempt apart; what was only reported as it was."""
        rows: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        seen: dict[int, int] = defaultdict(int)
        for row in self.passes:
            warm = seen[row.attempt] < self.warm_up_passes
            rows[row.legs][0 if warm else 1].append(row.seconds)
            seen[row.attempt] += 1
        measured = {
            legs: Samples(
                unit="s",
                method=self.method,
                values=tuple(values),
                warm_up=tuple(warm),
                reason=None if values else "only passes of the warm-up ended",
            )
            for legs, (warm, values) in rows.items()
        }
        return {**self.reported, **measured}

    def splits(self) -> dict[str, Split]:
        """Launch and device time by kind of pass, the warm-up left out; kinds without a launch time are not in it."""
        found: dict[str, list[tuple[float, float | None, float | None]]] = defaultdict(list)
        seen: dict[int, int] = defaultdict(int)
        for row in self.passes:
            if seen[row.attempt] >= self.warm_up_passes:
                found[row.legs].append((row.seconds, row.launch_s, row.device_s))
            seen[row.attempt] += 1
        splits = {legs: split_of(rows) for legs, rows in found.items()}
        return {legs: split for legs, split in splits.items() if split is not None}

    def phase_s(self) -> dict[str, float]:
        """Seconds by phase over all attempts; a phase that did not end is left out."""
        summed: dict[str, float] = defaultdict(float)
        for row in self.phases:
            if row.seconds is not None:
                summed[row.phase] += row.seconds
        return dict(summed)


def read_run_facts(predicate: dict[str, Any]) -> RunFacts:
    """The part of a predicate that is ours; raises pydantic's ValidationError."""
    return RunFacts.model_validate_json(json.dumps(predicate["shotclock_run"]))
