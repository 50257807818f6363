"""A render from request to clip: loads, encodes, rehearses, denoises, saves, decodes, judges; one model at a time.

The only module that knows both sides: the loop that speaks and the governor that listens. Each stage reads what the
stage before left in the run folder, so a render that was stopped or killed goes on where it was.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

import torch

from shotclock.device import peak_bytes, release, synchronise
from shotclock.errors import RenderStopped
from shotclock.events import (
    Notice,
    Phase,
    PhaseBegins,
    PhaseEnds,
)
from shotclock.govern.meter import Demand, Gauge, Meter, Reading, default_floor_bytes, demand_of, wait_above
from shotclock.model.attention import attention_backends
from shotclock.render.contexts import Contexts, encode, keep_contexts, read_contexts
from shotclock.render.failures import in_user_terms
from shotclock.render.finish import decode, rehearse
from shotclock.render.gate import Gate, memory_stop
from shotclock.render.given import read_media
from shotclock.render.interrupt import Interrupts
from shotclock.render.job import Job, Outcome, Times
from shotclock.render.journal import Journal, Listener
from shotclock.render.laps import Stopwatch
from shotclock.render.sample import read_latents, sample
from shotclock.render.snapshot import newest_snapshot
from shotclock.render.stages import (
    Encoded,
    encode_media,
)
from shotclock.utilisation import Utilisation, utilisation_of

START_READINGS = 60  # a second apart: how long a start waits for memory
REHEARSAL_SHARE = 0.02  # of the planned render


def render(job: Job, *, times: Times, first_line: dict[str, Any], listeners: Sequence[Listener]) -> Outcome:
    """Render the clip into the run folder, from wherever the folder is; the caller holds it and wrote request and plan.

    Raises :class:`RenderStopped` at a boundary where the lease, memory or a signal ends this attempt, and
    :class:`RenderFailed` where the render cannot go on; whatever ended is in the folder then.
    """
    with ExitStack() as stack:
        log = stack.enter_context(job.run.open_events())
        interrupts = stack.enter_context(Interrupts())
        gauge = Gauge(job.device)
        memory = stack.enter_context(job.run.memory.open("ab", buffering=0))
        meter = Meter(
            gauge.read,
            now_s=lambda: times.clock() - times.began_s,
            floor_bytes=default_floor_bytes(gauge.read().host_total_bytes),
            write=lambda t_s, reading: _write_reading(memory, t_s, first_line["attempt"], reading),
        )
        journal = Journal(
            log,
            clock=times.clock,
            synchronise=lambda: synchronise(job.device),
            start_s=times.began_s,
            listeners=listeners,
            stopwatch=Stopwatch.of(time.perf_counter, job.device),
        )
        gate = journal.gate = Gate(job, times, interrupts, meter, journal.write)
        journal.write(first_line)
        try:
            for phase, start_s, end_s in (
                (Phase.IMPORT, 0.0, times.imported_s - times.began_s),
                (Phase.INSPECT, times.imported_s - times.began_s, journal.now_s()),
            ):
                journal.say(PhaseBegins(phase=phase), at_s=start_s)
                journal.say(PhaseEnds(phase=phase), at_s=end_s)
            require_memory(meter, journal)
            with meter:
                outcome = produce(job, journal, gate)
            demand = demand_of(meter.readings)
            journal.say(Notice(text=demand.line() if demand else "memory: NO READINGS"))
            journal.say(Notice(text=f"utilisation: {seen_of(meter) or 'not available'}"))
            journal.write({"event": "RunEnds", "t_s": outcome.wall_s} | outcome.to_json() | _memory_line(meter))
        except RenderStopped as stopped:
            journal.write(
                {"event": "RunStops", "t_s": journal.now_s(), "phase": journal.current, "exit_code": stopped.exit_code}
                | stopped.line
                | _memory_line(meter)
            )
            raise
        except Exception as error:
            ours = in_user_terms(job, journal.current, error)
            with suppress(OSError):  # the disk may be full: the error itself is what the user has to read
                said = {"found": ours.found, "allowed": ours.allowed, "way_out": ours.way_out} if ours else {}
                code = ours.exit_code if ours else 1
                journal.write(
                    {"event": "RunFails", "t_s": journal.now_s(), "phase": journal.current, "exit_code": code, **said}
                )
            if ours is None or ours is error:
                raise
            raise ours from error
        return outcome


def require_memory(meter: Meter, journal: Journal) -> None:
    """Wait a while for host memory above the floor, then refuse to start; exit 90."""

    def say(line: str) -> None:
        journal.say(Notice(text=line))

    floor = default_floor_bytes(meter.take().host_total_bytes)
    if not wait_above(meter.take, floor, tries=START_READINGS, pause=lambda: time.sleep(1.0), say=say):
        raise memory_stop(meter.readings[-1], floor, "start floor", "free memory, then start it again or resume it")
    meter.forget_breach()


def _write_reading(memory: Any, t_s: float, attempt: int, reading: Reading) -> None:
    line = {"t_s": t_s, "attempt": attempt} | asdict(reading)
    with suppress(OSError, ValueError):  # a full disk, or the last reading of a run that just ended
        memory.write(json.dumps(line, sort_keys=True).encode() + b"\n")


def _memory_line(meter: Meter) -> dict[str, Any]:
    demand: Demand | None = demand_of(meter.readings)
    seen = seen_of(meter)
    return {
        "memory": None if demand is None else asdict(demand) | {"own_demand_bytes": demand.own_demand_bytes},
        "utilisation": None if seen is None else asdict(seen) | {"load": seen.load},
    }


def seen_of(meter: Meter) -> Utilisation | None:
    """How busy the device was, where the machine tells."""
    return utilisation_of([reading.device_utilisation for reading in meter.readings])


def produce(job: Job, journal: Journal, gate: Gate) -> Outcome:
    """All stages that the run folder does not hold yet."""
    forwards: dict[str, int] = {}
    pass_s: tuple[float, ...] = ()
    if job.smaller is not None:
        journal.say(Notice(text=job.smaller))
    with torch.inference_mode(), attention_backends():
        state = read_latents(job)
        if state is None:
            contexts = contexts_of(job, journal)
            encoded = condition(job, journal)
            rehearse_if_worth(job, journal, gate)
            state, forwards, pass_s = sample(job, journal, contexts, encoded)
            del contexts
        if job.crew is not None:
            job.crew.part()
        if not (job.run.clip.is_file() and job.run.wave.is_file()):
            decode(job, journal, state)
    return Outcome(
        clip=job.run.clip,
        forwards=forwards,
        pass_s=pass_s,
        peak_bytes=peak_bytes(job.device),
        verdict=judge(job, journal),
        wall_s=journal.now_s(),
    )


def judge(job: Job, journal: Journal) -> str | None:
    """The verdict on the clip; None where none was asked for."""
    if job.judge is None:
        return None
    with journal.phase(Phase.VERIFY):
        judged = job.judge(job.run.path)
    for line in judged.lines:
        journal.say(Notice(text=line))
    return judged.outcome


def contexts_of(job: Job, journal: Journal) -> Contexts:
    """From the run folder if an earlier attempt left them, else given, else encoded."""
    if not job.run.contexts.is_file():
        if job.contexts is None:
            return encode(job, journal)
        keep_contexts(job)
    return read_contexts(job.run, job.device, job.dtype)


def condition(job: Job, journal: Journal) -> Encoded:
    """Pictures and sound of the run folder to latents."""
    kept = read_media(job.run, job.request)
    if not kept.images and kept.sound is None:
        return Encoded(pictures={}, sound=None)
    with journal.phase(Phase.CONDITION):
        encoded = encode_media(job.request, kept, job.headers, device=job.device, dtype=job.dtype)
        gc.collect()
        release(job.device)
    return encoded


def rehearse_if_worth(job: Job, journal: Journal, gate: Gate) -> None:
    """Rehearse the tail before the first forward, unless it costs too large a share of the render; learn from it."""
    if newest_snapshot(job.run) is not None:
        return
    ledger = job.foreseen.ledger
    rehearsal, whole = ledger.row("rehearsal").typical_s, ledger.needs.typical_s
    if job.rehearse == "never":
        journal.say(Notice(text="no rehearsal: --rehearse never"))
    elif job.rehearse == "auto" and rehearsal > REHEARSAL_SHARE * whole:
        share = f"{rehearsal:,.1f} s are more than {REHEARSAL_SHARE:.0%} of the planned {whole:,.1f} s"
        journal.say(Notice(text=f"no rehearsal: {share}; --rehearse always has one"))
    else:
        with journal.phase(Phase.REHEARSE):
            seen = rehearse(job, journal.now_s)
        if (tail := gate.rehearsed(*seen.tail(job.request.geometry))) is not None:
            journal.say(Notice(text=f"tail after the rehearsal: {tail}"))
