"""Once more in the same command, with the next smaller setting, where a pass ran out of memory all the same.

The failed attempt stands in the log as it failed; the next one goes on from its snapshot. Knows no model and no clock.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

from shotclock.device import release
from shotclock.errors import OutOfMemory
from shotclock.events import Phase
from shotclock.plan.forecast import Forecast
from shotclock.plan.placement import smaller
from shotclock.plan.planner import Plan
from shotclock.recipes import all_passes
from shotclock.render.job import Job, Outcome, Times
from shotclock.render.snapshot import newest_snapshot
from shotclock.request import Request

HELD = (Phase.LOAD_TRANSFORMER, Phase.PREPARE, Phase.DENOISE)  # phases in which the transformer is there

Expect = Callable[[Request, int], Forecast]  # a request and the most blocks that may stay on the device
Attempt = Callable[[Job, Forecast, Times], Outcome]


def render_or_smaller(job: Job, expected: Forecast, times: Times, *, attempt: Attempt, expect: Expect) -> Outcome:
    """``attempt`` it, and once more with the next smaller setting where memory did not do.

    Raises what the attempt raises: of the second one, whatever it is.
    """
    try:
        return attempt(job, expected, times)
    except OutOfMemory as short:
        if (found := lessened(job, short)) is None:
            raise
        changed, resident = found
    gc.collect()  # the failed attempt's tensors went with its traceback
    release(job.device)
    now_s = times.clock()
    again = expect(changed.asked, resident)
    changed = replace(changed, foreseen=again.document, plan=planned_for(changed.plan, changed.asked))
    return attempt(changed, again, Times(clock=times.clock, began_s=now_s, imported_s=now_s))


def lessened(job: Job, short: OutOfMemory) -> tuple[Job, int] | None:
    """The job to try, and how many blocks may stay; None where nothing smaller is left, or it was tried."""
    placed = job.foreseen.placement
    if job.smaller is not None or job.crew is not None or placed is None or short.phase not in HELD:
        return None
    whole_clip = newest_snapshot(job.run) is None  # no pass has ended: fewer legs are no seam
    legs, most = job.asked.legs_per_pass, max(len(stage.guidance.legs(placed.blocks)) for stage in job.stages)
    found = smaller(placed, legs, most, seam=whole_clip or job.accept_seam)
    if found is None:
        return None
    what = [f"{found[0]} legs a pass, not {legs}"] if found[0] != legs else []
    what += (
        [f"{found[1]} of {placed.blocks} blocks resident, not {placed.resident}"] if found[1] != placed.resident else []
    )
    said = f"{short.found}: tried once more with {' and '.join(what)}"
    return replace(job, legs_per_pass=found[0], smaller=said), found[1]


def planned_for(plan: Plan, asked: Request) -> Plan:
    """The plan with the passes of other legs a pass."""
    passes = sum(len(step) for step in all_passes(asked.stages, plan.blocks))
    return plan.model_copy(update={"passes": passes})
