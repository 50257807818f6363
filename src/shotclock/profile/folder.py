"""Where the time of a whole render went, from its event log: phases, passes, and what no phase covers.

Reads one file; imports no torch. Every pass is an interval from its launch to device-synchronised, no profile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import RunDirError
from shotclock.record.attempt import Attempt
from shotclock.record.facts import Samples
from shotclock.record.timeline import read_timeline

FORMAT = "shotclock/profile-run/1"
DENOISE = "denoise"
PASS_METHOD = "interval of a pass, from before its launch to device-synchronised, warm-ups apart"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpent:
    """One attempt: seconds by phase, of passes by their legs, of denoise between passes, and outside of all phases."""

    number: int
    wall_s: float
    phases: Mapping[str, float]
    passes: Mapping[str, Samples]
    passes_s: float
    between_s: float
    outside_s: float

    @property
    def dominant(self) -> str:
        """One sentence."""
        shares = {**self.phases, "no phase": self.outside_s}
        name, seconds = max(shares.items(), key=lambda item: item[1])
        share = seconds / self.wall_s if self.wall_s else 0.0
        return f"Dominant in attempt {self.number}: {name}, {seconds:.4g} s, {share:.0%} of its wall."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpent:
    """All attempts; ``unread`` lines of the log could not be read."""

    attempts: tuple[AttemptSpent, ...]
    unread: tuple[int, ...]

    def lines(self) -> list[str]:
        """For a person."""
        said = []
        for one in self.attempts:
            said.append(f"attempt {one.number}: {one.wall_s:.4g} s")
            for phase, seconds in sorted(one.phases.items(), key=lambda item: -item[1]):
                said.append(f"  {phase}: {seconds:.4g} s, {seconds / one.wall_s:.1%}")
            said += [f"  pass {legs}: {samples}" for legs, samples in one.passes.items()]
            said.append(f"  passes {one.passes_s:.4g} s, denoise between passes {one.between_s:.4g} s")
            said.append(f"  outside of all phases {one.outside_s:.4g} s, {one.outside_s / one.wall_s:.1%}")
            said.append(one.dominant)
        return said + ([f"note: lines {list(self.unread)} of the log are not readable"] if self.unread else [])

    def to_json(self) -> dict[str, Any]:
        """The whole of it."""
        return {
            "format": FORMAT,
            "unread": list(self.unread),
            "attempts": [
                {
                    "attempt": one.number,
                    "wall_s": one.wall_s,
                    "phases_s": dict(one.phases),
                    "passes": {legs: samples.model_dump(mode="json") for legs, samples in one.passes.items()},
                    "passes_s": one.passes_s,
                    "between_s": one.between_s,
                    "outside_s": one.outside_s,
                    "dominant": one.dominant,
                }
                for one in self.attempts
            ],
        }

    def rows(self) -> list[tuple[str, Mapping[str, float]]]:
        """Bars of a picture."""
        rows: list[tuple[str, Mapping[str, float]]] = []
        for one in self.attempts:
            parts = {phase: seconds for phase, seconds in one.phases.items() if phase != DENOISE}
            shown = {
                "passes": one.passes_s,
                "denoise between passes": one.between_s,
                **parts,
                "no phase": one.outside_s,
            }
            rows.append((f"attempt {one.number}", shown))
        return rows


def spent(run: Path) -> RunSpent:
    """Read the log of a run; raises :class:`RunDirError` where there is no run, or no attempt yet."""
    timeline = read_timeline(run)
    if not timeline.attempts or not any(attempt.last_s for attempt in timeline.attempts):
        raise RunDirError(f"{run} has no attempt that lasted", allowed="a run that began", way_out="render first")
    return RunSpent(attempts=tuple(map(_spent, timeline.attempts)), unread=timeline.unread)


def _spent(attempt: Attempt) -> AttemptSpent:
    phases: dict[str, float] = defaultdict(float)
    for span in attempt.spans:
        phases[span.phase] += span.seconds
    kinds: dict[str, list[float]] = defaultdict(list)
    cold: dict[str, list[float]] = defaultdict(list)
    for seen in attempt.passes:
        if seen.seconds is not None:
            (cold if seen.warm_up else kinds)["+".join(seen.legs)].append(seen.seconds)
    passes_s = sum(seen.seconds or 0.0 for seen in attempt.passes)
    return AttemptSpent(
        number=attempt.number,
        wall_s=attempt.last_s,
        phases=dict(phases),
        passes={
            legs: Samples(
                unit="s",
                method=PASS_METHOD,
                values=tuple(kinds.get(legs, ())),
                warm_up=tuple(cold.get(legs, ())),
                reason=None if kinds.get(legs) else "every pass of this kind was a warm-up",
            )
            for legs in {**cold, **kinds}
        },
        passes_s=passes_s,
        between_s=max(phases.get(DENOISE, 0.0) - passes_s, 0.0),
        outside_s=max(attempt.last_s - sum(phases.values()), 0.0),
    )
