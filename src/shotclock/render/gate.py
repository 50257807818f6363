"""Where a render may be ended: told every tick last, it lets the governor, signals and memory speak.

With ``pipeline.py`` the only module that knows the governor. Writes nothing but projections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shotclock.errors import EXIT_MEMORY_FLOOR, EXIT_RESUME, RenderStopped
from shotclock.events import PassBegins, Phase, PhaseBegins, Progress, StepEnds
from shotclock.govern.governor import Governor, OnOverrun, Outlook, Projection, Reason, Stop
from shotclock.govern.meter import Meter, Reading, default_floor_bytes
from shotclock.plan.estimate import Estimate, total, within
from shotclock.plan.law import kind_of
from shotclock.plan.ledger import Basis
from shotclock.plan.pricing import TAIL
from shotclock.recipes import all_passes
from shotclock.render.interrupt import Interrupts
from shotclock.render.job import Job, Times
from shotclock.render.journal import Tick

WARM_UP_RATIO = 10.0  # declared bound where no law has measured one (users.md, row 15)
SAVING = (PhaseBegins(phase=Phase.SNAPSHOT), PhaseBegins(phase=Phase.SAVE_LATENTS))  # what is never refused


class Gate:
    """Told every tick last; raises :class:`RenderStopped` where what is announced must not be launched."""

    def __init__(
        self, job: Job, times: Times, interrupts: Interrupts, meter: Meter, write: Callable[[dict[str, Any]], None]
    ) -> None:
        self._job = job
        self._interrupts = interrupts
        self._meter = meter
        self._governor = Governor(outlook(job, times))
        self._projected = False
        self._write = write

    def __call__(self, tick: Tick) -> None:
        """Let the governor see the tick, then stop for it, for a signal or for memory."""
        judged = self._governor.observe(tick.event, tick.t_s)
        first = isinstance(tick.event, PassBegins) and not self._projected
        if isinstance(tick.event, StepEnds) or first or isinstance(judged, Stop):
            self._projected = True
            verdict = "STOP" if isinstance(judged, Stop) else "GO"
            self._write(projected(judged.projection, tick.t_s, verdict))
        if isinstance(judged, Stop):
            raise governor_stop(judged)
        if isinstance(tick.event, PassBegins | PhaseBegins | Progress) and tick.event not in SAVING:
            self._stop_for_others()

    def rehearsed(self, low_s: float, high_s: float) -> Estimate | None:
        """Narrow the tail by bounds that a rehearsal measured, where it rests on guesses; None where it does not."""
        rows = [row for row in self._job.foreseen.ledger.rows if row.name in TAIL]
        if not any(row.basis is Basis.GUESS for row in rows):
            return None
        tail = within(self._job.foreseen.tail, low_s, high_s, "guesses within what the rehearsal allows")
        self._governor.expect_tail(tail)
        return tail

    def _stop_for_others(self) -> None:
        if self._interrupts.asked is not None:
            raise RenderStopped(
                f"{self._interrupts.asked} asked for an end; every finished forward is kept",
                allowed="an end at a boundary",
                way_out=f"shotclock resume {self._job.run.path}",
                exit_code=EXIT_RESUME,
                line={"reason": self._interrupts.asked, "terms": [], "sum_s": None, "budget_s": None},
            )
        if (breach := self._meter.breach) is not None:
            floor = default_floor_bytes(breach.host_total_bytes)
            way_out = f"free memory, then shotclock resume {self._job.run.path}"
            raise memory_stop(breach, floor, "memory floor", way_out)


def memory_stop(reading: Reading, floor_bytes: int, reason: str, way_out: str) -> RenderStopped:
    """Host memory below the floor, with both numbers; exit 90."""
    return RenderStopped(
        f"{reading.host_available_bytes:,} bytes of host memory were available",
        allowed=f"at least the floor of {floor_bytes:,} bytes",
        way_out=way_out,
        exit_code=EXIT_MEMORY_FLOOR,
        line={
            "reason": reason,
            "terms": [],
            "sum_s": None,
            "budget_s": None,
            "available_bytes": reading.host_available_bytes,
            "floor_bytes": floor_bytes,
        },
    )


def outlook(job: Job, times: Times) -> Outlook:
    """What the governor knows before the first forward."""
    foreseen = job.foreseen
    end_s = job.lease.end_s
    draft = job.on_overrun == OnOverrun.DRAFT
    return Outlook(
        end_s=None if end_s is None else end_s - times.began_s,
        steps=all_passes(job.stages, job.plan.blocks),
        law=foreseen.law,
        tail=foreseen.tail,
        closing=total((foreseen.closing, foreseen.draft), "closing") if draft else foreseen.closing,
        reserve_s=foreseen.reserve_s,
        on_overrun=OnOverrun(job.on_overrun),
        warm_up_passes=foreseen.warm_up_passes,
        warm_up_ratio=foreseen.warm_up_ratio or WARM_UP_RATIO,
        weights=weights(job),
    )


def weights(job: Job) -> dict[str, float]:
    """Forwards of a pass of each kind, those of later stages by what they cost against the first one's operations."""
    planned = job.plan.stages
    per_leg = [stage.step_flops / len(stage.legs) for stage in planned]
    return {
        kind_of(launch): len(launch.legs) * per_leg[launch.stage - 1] / per_leg[0]
        for step in all_passes(job.stages, job.plan.blocks)
        for launch in step
        if planned
    }


def projected(projection: Projection, t_s: float, verdict: str) -> dict[str, Any]:
    """A projection as a line of the event log."""
    return {
        "event": "Projected",
        "t_s": t_s,
        "phase": Phase.DENOISE,
        "source": projection.source,
        "first_dit_s": projection.first_dit_s,
        "n": projection.n,
        "per_forward_s": projection.per_forward_s,
        "spread_ratio": projection.spread_ratio,
        "forwards_left": projection.forwards_left,
        "left_s": projection.left_s,
        "tail_s": projection.tail.typical_s,
        "tail_high_s": projection.tail.high_s,
        "reserve_s": projection.reserve_s,
        "total_s": projection.total_s,
        "budget_s": projection.budget_s,
        "provisional": projection.provisional,
        "change": None if projection.change is None else str(projection.change),
        "timings_left_out": projection.rejected,
        "verdict": verdict,
    }


def governor_stop(stop: Stop) -> RenderStopped:
    """The governor's decision in the user's terms, with the sums."""
    more = {
        Reason.TAIL: "the latents are kept: `shotclock resume` only decodes",
        Reason.NEXT_FORWARD: "`shotclock resume` in the next lease goes on with this forward",
        Reason.OVERRUN: "a longer lease, --leases any, a smaller clip or fewer steps; `shotclock plan` has the prices",
        Reason.CLOCK: "`shotclock resume`; see why the clock of this machine cannot be read",
    }
    return RenderStopped(
        str(stop),
        allowed=f"what ends within {stop.budget_s:,.1f} s",
        way_out=more[stop.reason],
        exit_code=stop.exit_code,
        line={
            "reason": str(stop.reason),
            "terms": [{"name": term.name, "seconds": term.seconds} for term in stop.terms],
            "sum_s": stop.sum_s,
            "budget_s": stop.budget_s,
        },
    )
