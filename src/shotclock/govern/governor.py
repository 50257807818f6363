"""Judges each forward before it is launched: go, or stop with the sums.

Pure: it is told events with their times and answers; it reads no clock, sleeps not and writes nothing. Projects from
the render's own forwards, and from the law before one full step of them. Never from utilisation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from shotclock.errors import EXIT_OVERRUN, EXIT_RESUME
from shotclock.events import Event, PassBegins, PassEnds, Phase, PhaseBegins, StepEnds
from shotclock.govern.expected import Expected
from shotclock.govern.observed import ChangePoint, Observed, Pace
from shotclock.guidance import Pass
from shotclock.plan.estimate import Estimate
from shotclock.plan.law import kind_of

MIN_PASSES = 3  # warm passes below which a projection is provisional and stops nothing; as in observed.WINDOW
WARM_UP_RATIO = 10.0  # declared bound where no law has measured one; 9 to 15 times were reported (users.md, row 15)
TAIL_BEGINS = Phase.LOAD_DECODERS  # decoding is refused here or not at all


class OnOverrun(StrEnum):
    """What happens to a render that its lease cannot hold."""

    SNAPSHOT = "snapshot"  # forwards until the last that fits, then a snapshot
    STOP = "stop"  # an end as soon as the projection says so
    DRAFT = "draft"  # as snapshot, and a decoded draft of the latents so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known before the first forward. Times are seconds since the run began, as events are logged.

    ``steps`` are the passes of every step of the render, ``law`` predicts a pass by its kind and is empty without one.
    ``tail`` follows the last forward; ``closing`` is what a stop still has to write (snapshot, and the draft decode).
    The first ``warm_up_passes`` are kept apart and may take ``warm_up_ratio`` times as long as warm ones. ``weights``
    are what kinds of pass cost against each other where no law says it; without one, the forwards that a pass carries.
    """

    end_s: float | None
    steps: tuple[tuple[Pass, ...], ...]
    law: Mapping[str, Estimate]
    tail: Estimate
    closing: Estimate
    reserve_s: float
    on_overrun: OnOverrun
    warm_up_passes: int
    warm_up_ratio: float
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Every pass of the render in order; pass ``index`` of the events is number ``index - 1``."""
        return tuple(launch for step in self.steps for launch in step)

    @property
    def passes_per_step(self) -> int:
        """Passes of the fullest step."""
        return max(len(step) for step in self.steps)

    @property
    def usable_law(self) -> Mapping[str, Estimate]:
        """The law where it knows every kind of pass that will run; else none, as half a sum is no projection."""
        return self.law if all(kind_of(launch) in self.law for launch in self.passes) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One summand of a projection or a refusal, in seconds."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name} {self.seconds:,.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """Where the render would end. ``source`` is own forwards, law or none; None is what nobody can say yet."""

    source: str
    first_dit_s: float | None
    n: int
    per_forward_s: float | None
    spread_ratio: float | None
    forwards_left: int
    elapsed_s: float
    left_s: float | None
    tail: Estimate
    reserve_s: float
    budget_s: float | None
    provisional: bool
    change: ChangePoint | None
    rejected: int

    @property
    def total_s(self) -> float | None:
        """Seconds from the start of the run to its end."""
        return None if self.left_s is None else self.elapsed_s + self.left_s + self.tail.typical_s

    @property
    def overruns(self) -> bool:
        """Whether it would end after the lease less the reserve."""
        return self.total_s is not None and self.budget_s is not None and self.total_s + self.reserve_s > self.budget_s

    def line(self, verdict: str) -> str:
        """One line for the log."""
        change = f" change=[{self.change}]" if self.change else ""
        rejected = f" timings_left_out={self.rejected}" if self.rejected else ""
        return (
            f"governor[{self.source}{', provisional' if self.provisional else ''}]: first_dit={_s(self.first_dit_s)} "
            f"n={self.n} per_forward={_s(self.per_forward_s, 3)} "
            f"spread={'-' if self.spread_ratio is None else f'{self.spread_ratio:.1%}'} "
            f"forwards_left={self.forwards_left} tail={_s(self.tail.typical_s)} reserve={_s(self.reserve_s)} "
            f"projected_total={_s(self.total_s)} budget={_s(self.budget_s)} verdict={verdict}{change}{rejected}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """The next thing may be launched."""

    projection: Projection

    def __str__(self) -> str:
        return self.projection.line("GO")


class Reason(StrEnum):
    """Why a render stops."""

    NEXT_FORWARD = "the next forward would cross the end of the lease"
    OVERRUN = "projected overrun"
    TAIL = "decoding would cross the end of the lease"
    CLOCK = "the clock cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nothing more may be launched: the reason, and the terms that sum to more than the budget."""

    reason: Reason
    terms: tuple[Term, ...]
    budget_s: float
    resumable: bool
    projection: Projection

    @property
    def exit_code(self) -> int:
        """75 where a snapshot can be resumed, 92 where nothing could or nothing should."""
        return EXIT_RESUME if self.resumable else EXIT_OVERRUN

    @property
    def sum_s(self) -> float:
        """What the terms add up to."""
        return math.fsum(term.seconds for term in self.terms)

    def __str__(self) -> str:
        sums = " + ".join(str(term) for term in self.terms)
        return f"STOP[{self.exit_code}] {self.reason}: {sums} = {self.sum_s:,.1f} s > budget {self.budget_s:,.1f} s"


class Governor:
    """Follows one attempt of a render. Give :meth:`observe` every event, with its time, before going on."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._law = outlook.usable_law
        self._kinds = [kind_of(launch) for launch in outlook.passes]
        self._forwards = [len(launch.legs) for launch in outlook.passes]
        self.observed = Observed(warm_up_passes=outlook.warm_up_passes)
        self._first_dit_s: float | None = None
        self._begun_s = math.nan
        self._next = 0  # number of the next pass, from 0
        self._steps_ended = 0

    def observe(self, event: Event, t_s: float) -> Go | Stop:
        """Judge ``event`` at ``t_s``: a stop at a beginning means that it must not be launched."""
        match event:
            case PassBegins(index=index):
                self._next = index - 1
                self._begun_s = t_s
                self._first_dit_s = t_s if self._first_dit_s is None else self._first_dit_s
                return self._before_a_pass(t_s)
            case PassEnds(index=index):
                number, seconds = index - 1, t_s - self._begun_s
                self.observed.add(
                    Pace(index=index, kind=self._kinds[number], seconds=seconds, forwards=self._forwards[number])
                )
                self._next = index
            case StepEnds():
                self.step_ended()
            case PhaseBegins(phase=phase) if phase is TAIL_BEGINS:
                return self._before_the_tail(t_s)
            case _:
                pass
        return Go(projection=self.project(t_s))

    def expect_tail(self, tail: Estimate) -> None:
        """What follows the last forward, known better than at the start."""
        self._outlook = replace(self._outlook, tail=tail)

    def step_ended(self) -> None:
        """A step is complete; said by :class:`StepEnds`, or by who has no state to show."""
        self._steps_ended += 1

    def project(self, t_s: float) -> Projection:
        """Where the render ends, seen from ``t_s``."""
        o, expected = self._outlook, self._expected
        own = expected.own
        return Projection(
            source="own forwards" if own else ("law" if self._law else "none"),
            first_dit_s=self._first_dit_s,
            n=sum(pace.forwards for pace in self.observed.segment),
            per_forward_s=self.observed.per_forward_s(),
            spread_ratio=expected.spread_ratio(),
            forwards_left=sum(self._forwards[self._next :]),
            elapsed_s=t_s,
            left_s=expected.left_s(self._left),
            tail=o.tail,
            reserve_s=o.reserve_s,
            budget_s=o.end_s,
            provisional=len(self.observed.segment) < MIN_PASSES,
            change=self.observed.change,
            rejected=self.observed.rejected,
        )

    @property
    def _has_a_full_step(self) -> bool:
        """One full step of own forwards, some of them warm."""
        full = self._steps_ended >= 1 and self.observed.passes >= self._outlook.passes_per_step
        return full and bool(self.observed.paces)

    @property
    def _expected(self) -> Expected:
        return Expected(
            observed=self.observed,
            law=self._law,
            forwards={**dict(zip(self._kinds, self._forwards, strict=True)), **self._outlook.weights},
            own=self._has_a_full_step,
            warm_up_ratio=self._outlook.warm_up_ratio,
        )

    @property
    def _left(self) -> Mapping[str, int]:
        """Passes left by kind."""
        return Counter(self._kinds[self._next :])

    @property
    def _warm_up(self) -> Sequence[str]:
        """Kinds of the next passes that warm up."""
        count = max(self._outlook.warm_up_passes - self.observed.passes, 0)
        return self._kinds[self._next : self._next + count]

    def _before_a_pass(self, t_s: float) -> Go | Stop:
        o, projection = self._outlook, self.project(t_s)
        if o.end_s is None:
            return Go(projection=projection)
        if not math.isfinite(t_s):
            return self._stop(Reason.CLOCK, (Term(name="elapsed", seconds=t_s),), projection)
        expected = self._expected
        upper_s = expected.upper_left_s(self._left, self._warm_up)
        if upper_s is not None and t_s + upper_s + o.tail.high_s + o.reserve_s <= o.end_s:
            return Go(projection=projection)
        if o.on_overrun is OnOverrun.STOP and projection.overruns and self._may_abort(projection):
            return self._stop(Reason.OVERRUN, self._overrun_terms(projection), projection)
        following = self._kinds[self._next]
        next_s = expected.upper_left_s({following: 1}, self._warm_up[:1])
        terms = (
            Term(name="elapsed", seconds=t_s),
            Term(name="longest next pass" if next_s else "next pass (unknown)", seconds=next_s or 0.0),
            Term(name="closing", seconds=o.closing.high_s),
            Term(name="reserve", seconds=o.reserve_s),
        )
        if math.fsum(term.seconds for term in terms) > o.end_s:
            return self._stop(Reason.NEXT_FORWARD, terms, projection)
        return Go(projection=projection)

    def _before_the_tail(self, t_s: float) -> Go | Stop:
        """Decoding begins only where all of it fits; once begun it goes on."""
        o, projection = self._outlook, self.project(t_s)
        terms = (
            Term(name="elapsed", seconds=t_s),
            Term(name="longest tail", seconds=o.tail.high_s),
            Term(name="reserve", seconds=o.reserve_s),
        )
        if o.end_s is None or math.fsum(term.seconds for term in terms) <= o.end_s:
            return Go(projection=projection)
        return self._stop(Reason.TAIL, terms, projection)

    def _stop(self, reason: Reason, terms: tuple[Term, ...], projection: Projection) -> Stop:
        resumable = self._next > 0 and self._outlook.on_overrun is not OnOverrun.STOP
        end_s = self._outlook.end_s
        assert end_s is not None, "no lease, no stop"
        return Stop(reason=reason, terms=terms, budget_s=end_s, resumable=resumable, projection=projection)

    def _may_abort(self, projection: Projection) -> bool:
        """Before a full step the law alone may; after it own forwards, once there are enough."""
        return not projection.provisional if self._has_a_full_step else bool(self._law)

    def _overrun_terms(self, projection: Projection) -> tuple[Term, ...]:
        assert projection.left_s is not None, "an overrun is a sum"
        name = f"{projection.forwards_left} forwards ({projection.source})"
        return (
            Term(name="elapsed", seconds=projection.elapsed_s),
            Term(name=name, seconds=projection.left_s),
            Term(name="tail", seconds=projection.tail.typical_s),
            Term(name="reserve", seconds=projection.reserve_s),
        )


def _s(seconds: float | None, digits: int = 1) -> str:
    return "-" if seconds is None else f"{seconds:.{digits}f}s"
