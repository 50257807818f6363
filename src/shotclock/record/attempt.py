"""What a run said of itself, as values: attempts, their phases, passes, projections, snapshots and ends.

Values only, no files; imports no torch, so that looking at a run takes no seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from shotclock.record.derive import WARM_UP_PASSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one leaf phase, in seconds of its attempt; ``open`` where no line says that it ended."""

    phase: str
    begin_s: float
    end_s: float
    open: bool = False

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeen:
    """A transformer pass; ``seconds`` is None where it was announced and no line says that it ended.

    ``launch_s`` and ``device_s`` as :class:`shotclock.record.runfacts.PassRow` has them.
    """

    index: int
    step: int
    steps: int
    legs: tuple[str, ...]
    begin_s: float
    seconds: float | None
    warm_up: bool
    launch_s: float | None = None
    device_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionSeen:
    """One reading of the governor; None is what nobody could say then, ``budget_s`` None a render without a lease."""

    t_s: float
    source: str
    n: int
    per_forward_s: float | None
    spread_ratio: float | None
    forwards_left: int | None
    left_s: float | None
    tail_s: float | None
    tail_high_s: float | None
    reserve_s: float | None
    total_s: float | None
    budget_s: float | None
    provisional: bool
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSeen:
    """A snapshot on disk: after ``step`` steps, with the ``legs`` of the next that had ended."""

    t_s: float
    step: int
    legs: tuple[str, ...]
    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSeen:
    """Why the governor stopped: ``terms`` of (name, seconds) that sum to more than the budget."""

    exit_code: int
    reason: str
    terms: tuple[tuple[str, float], ...]
    sum_s: float | None
    budget_s: float | None
    way_out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSeen:
    """What a failed attempt said last."""

    exit_code: int
    found: str
    allowed: str
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSeen:
    """How far the phase ``phase`` is: ``done`` of ``total`` units."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process that worked on the run; times in seconds since its command began. ``begins`` is its first line."""

    number: int
    begins: Mapping[str, Any]
    spans: tuple[Span, ...]
    passes: tuple[PassSeen, ...]
    projections: tuple[ProjectionSeen, ...]
    snapshots: tuple[SnapshotSeen, ...]
    seams: tuple[Mapping[str, Any], ...]
    notices: tuple[tuple[float, str], ...]
    progress: ProgressSeen | None
    ended: Mapping[str, Any] | None
    stop: StopSeen | None
    failure: FailureSeen | None
    last_s: float

    @property
    def closed(self) -> bool:
        """Whether it said how it ended; one that was killed did not."""
        return not (self.ended is None and self.stop is None and self.failure is None)

    @property
    def phase(self) -> str | None:
        """The phase that is open at the last line."""
        return self.spans[-1].phase if self.spans and self.spans[-1].open else None

    @property
    def in_flight(self) -> PassSeen | None:
        """The pass that was announced and of which no line says that it ended; a stop refuses it before its launch."""
        return self.passes[-1] if self.passes and self.passes[-1].seconds is None else None

    @property
    def warm_up_passes(self) -> int | None:
        """First passes that are kept apart, as the law's key says; None where the first line has no key."""
        key = self.begins.get("law_key")
        launch = key.get("launch") if isinstance(key, Mapping) else None
        return WARM_UP_PASSES.get(launch) if isinstance(launch, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All attempts of a run in order; ``unread`` are numbers from 1 of lines of the log that could not be read."""

    attempts: tuple[Attempt, ...]
    unread: tuple[int, ...]

    @property
    def starts_s(self) -> tuple[float, ...]:
        """Where each attempt begins when attempts are laid end to end, without the waits between them."""
        return tuple(accumulate((attempt.last_s for attempt in self.attempts[:-1]), initial=0.0))[: len(self.attempts)]

    @property
    def placed(self) -> tuple[tuple[float, Attempt], ...]:
        """Each attempt with the second at which it begins, laid end to end."""
        return tuple(zip(self.starts_s, self.attempts, strict=True))

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def passes(self) -> tuple[PassSeen, ...]:
        """Passes of all attempts in the order they ran."""
        return tuple(seen for attempt in self.attempts for seen in attempt.passes)
