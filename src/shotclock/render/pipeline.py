"""A render from request to clip: loads, encodes, rehearses, denoises, saves, decodes, judges; one model at a time.

The only module that knows both sides: the loop that speaks and the governor that listens. Each stage reads what the
stage before left in the run folder, so a render that was stopped or killed goes on where it was.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.device import peak_bytes, release, synchronise
from shotclock.errors import RenderFailed, RenderStopped, RunDirError
from shotclock.events import (
    LegsEnd,
    Notice,
    PassEnds,
    Phase,
    PhaseBegins,
    PhaseEnds,
    State,
    StepEnds,
)
from shotclock.geometry import patchify_audio, patchify_video
from shotclock.govern.governor import OnOverrun
from shotclock.govern.meter import Demand, Gauge, Meter, Reading, default_floor_bytes, demand_of, wait_above
from shotclock.model.attention import attention_backends
from shotclock.model.transformer import Transformer
from shotclock.recipes import Stage, all_passes
from shotclock.render.contexts import Contexts, encode, keep_contexts, read_contexts
from shotclock.render.denoise import denoise, prepare
from shotclock.render.failures import first_not_finite, in_user_terms, not_finite
from shotclock.render.finish import decode, decode_draft, rehearse
from shotclock.render.gate import Gate, memory_stop
from shotclock.render.given import read_media
from shotclock.render.identity import Identity, numerics
from shotclock.render.interrupt import Interrupts
from shotclock.render.job import Job, Outcome, Times
from shotclock.render.journal import Journal, Listener, Tick
from shotclock.render.samplers import begin
from shotclock.render.snapshot import newest_snapshot, placed, save_snapshot
from shotclock.render.stages import (
    Begun,
    Encoded,
    Left,
    encode_media,
    load_fused,
    stage_at,
    to_render,
    to_stage,
)
from shotclock.render.trace import Trace, tracing
from shotclock.render.upscale import Upscaler
from shotclock.rundir import aside
from shotclock.weights.digest import sampled_sha256

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
        )
        journal.gate = Gate(job, times, interrupts, meter, journal.write)
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
                outcome = produce(job, journal)
            demand = demand_of(meter.readings)
            journal.say(Notice(text=demand.line() if demand else "memory: NO READINGS"))
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
    return {"memory": None if demand is None else asdict(demand) | {"own_demand_bytes": demand.own_demand_bytes}}


def produce(job: Job, journal: Journal) -> Outcome:
    """All stages that the run folder does not hold yet."""
    forwards: dict[str, int] = {}
    pass_s: tuple[float, ...] = ()
    with torch.inference_mode(), attention_backends():
        state = read_latents(job)
        if state is None:
            contexts = contexts_of(job, journal)
            encoded = condition(job, journal)
            rehearse_if_worth(job, journal)
            state, forwards, pass_s = sample(job, journal, contexts, encoded)
            del contexts
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


def rehearse_if_worth(job: Job, journal: Journal) -> None:
    """Rehearse the tail before the first forward, unless it costs too large a share of the render."""
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
            rehearse(job)


def identity_of(job: Job) -> Identity:
    """What this attempt would write into a snapshot."""
    return Identity(
        request_sha256=job.plan.request_sha256,
        sigmas_sha256=job.plan.sigmas_sha256,
        transformer_sha256=sampled_sha256(job.headers.transformer.path),
        contexts_sha256=hashlib.sha256(job.run.contexts.read_bytes()).hexdigest(),
        upscaler_sha256=None if job.given.upscaler is None else sampled_sha256(job.given.upscaler.path),
        numerics=numerics(job.plan, job.device, job.request.legs_per_pass),
    )


def beginning(job: Job, journal: Journal, identity: Identity, fresh: State, stage: Stage) -> State:
    """The newest snapshot's state, if this attempt may continue it and it is of this stage; else ``fresh``."""
    found = newest_snapshot(job.run)
    if found is None:
        return fresh
    for bad in found.passed_over:
        journal.say(Notice(text=f"passed over a snapshot: {bad}"))
    if other := found.identity.other_clip(identity):
        raise RunDirError(
            f"{found.name} is of another clip: {_said(other)}",
            allowed="the same request, transformer file and contexts",
            way_out="give the files of the first attempt, or render into a new folder",
        )
    if seam := found.identity.seam(identity):
        if not job.accept_seam:
            raise RunDirError(
                f"{found.name} was computed under other numerics: {_said(seam)}",
                allowed="the same fingerprint, so that the clip is the uninterrupted one to the last bit",
                way_out="resume where it was begun, or --accept-seam: the record and the clip will say so",
            )
        line = {"event": "Seam", "t_s": journal.now_s(), "step": found.state.step}
        journal.write(line | {"differs": {name: list(values) for name, values in seam.items()}})
        journal.say(Notice(text=f"seam after step {found.state.step}: {_said(seam)}"))
    return placed(to_stage(found.state, stage), fresh.video) if inside(job, stage) else fresh


def inside(job: Job, stage: Stage) -> bool:
    """Whether the newest snapshot is of ``stage``: nothing before it is needed then."""
    found = newest_snapshot(job.run)
    return found is not None and stage_at(job.request.stages, found.state).number == stage.number


def _said(differences: dict[str, tuple[object, object]]) -> str:
    return "; ".join(f"{name} {then} then, {now} now" for name, (then, now) in differences.items())


class Tally:
    """What ran in this attempt: forwards by leg, and seconds of every pass."""

    def __init__(self) -> None:
        self.forwards: Counter[str] = Counter()
        self.pass_s: list[float] = []

    def add(self, tick: Tick) -> None:
        """Count a pass that ended."""
        if isinstance(tick.event, PassEnds):
            self.forwards.update(str(leg) for leg in tick.event.legs)
            self.pass_s.append(tick.last_s or 0.0)


def sample(
    job: Job, journal: Journal, contexts: Contexts, encoded: Encoded
) -> tuple[State, dict[str, int], tuple[float, ...]]:
    """Run what is left of every stage and save the latents; the transformer is gone then.

    The transformer is read again where a stage fuses other LoRAs, since a fuse always begins from the file.
    """
    tally, left = Tally(), None
    transformer: Transformer | None = None
    fused: float | None = None
    for stage in job.request.stages:
        found = None if stage.last else Left.read(job.run, stage.number, job.request)
        if found is None:
            upscaled = None if left is None or inside(job, stage) else upscale(job, journal, left)
            if transformer is None or stage.lora != fused:
                del transformer
                transformer, fused = load(job, journal, stage.lora), stage.lora
            begun = Begun(encoded=encoded, left=left, upscaled=upscaled)
            state = sample_stage(job, journal, stage, transformer, contexts, begun, tally)
            found = Left.of(state, stage, len(job.request.slots))
            if not stage.last:
                with journal.phase(Phase.SAVE_LATENTS):
                    job.run.require_mine()
                    found.save(job.run, stage.number, job.request)
        left = found if left is None or "audio" in stage.keeps else replace(found, audio=left.audio)
    assert left is not None, "a recipe has a stage"
    with journal.phase(Phase.SAVE_LATENTS):
        save_latents(job, left)
        del transformer, contexts
        gc.collect()
        release(job.device)
    return state_of(job, left.video, left.audio), dict(tally.forwards), tuple(tally.pass_s)


def load(job: Job, journal: Journal, lora: float) -> Transformer:
    """The transformer as a stage runs it; the one of the stage before is gone."""
    with journal.phase(Phase.LOAD_TRANSFORMER):
        if lora:
            gc.collect()
            release(job.device)
        return load_fused(
            job.headers, job.given, lora, device=job.device, dtype=job.dtype, pinned_config=job.plan.pinned_config
        )


def upscale(job: Job, journal: Journal, left: Left) -> Tensor:
    """The video latent of the stage before at twice its rows and columns."""
    assert job.given.upscaler is not None, "a recipe of two sizes has an upscaler"
    with journal.phase(Phase.UPSCALE):
        upscaler = Upscaler.load(job.given.upscaler, job.headers.video_vae, device=job.device, dtype=job.dtype)
        return upscaler.upscale(left.video)


def sample_stage(
    job: Job,
    journal: Journal,
    stage: Stage,
    transformer: Transformer,
    contexts: Contexts,
    begun: Begun,
    tally: Tally,
) -> State:
    """Run what is left of one stage; its last state, as the stage counts."""
    with journal.phase(Phase.PREPARE):
        latents = begun.latents(job.request, stage).to(job.device, transformer.dtype)
        prepared = prepare(transformer, latents, contexts)
        identity = identity_of(job)
        state = beginning(job, journal, identity, begin(stage.sampler, latents, stage.noise_seed), stage)
    planned = forwards_left(job, stage, state)
    passes_before = sum(len(step) for step in all_passes(job.request.stages[: stage.number - 1], job.plan.blocks))
    ran = Counter(tally.forwards)
    legs = stage.guidance.legs(job.plan.blocks)
    try:
        with (
            journal.phase(Phase.DENOISE),
            tracing(transformer, legs) if job.trace_nonfinite else nullcontext() as trace,
        ):
            for one in denoise(transformer, prepared, stage.schedule(), stage.guidance, state, stage.sampler):
                event = to_render(one, stage, passes_before, job.plan.steps)
                if isinstance(event, StepEnds | LegsEnd):
                    require_finite(job, journal, event.state, trace)
                    state = to_stage(event.state, stage)
                    keep(job, journal, event.state, identity)
                tally.add(journal.say(event))
    except RenderStopped:
        del transformer, prepared, latents
        draft_on_stop(job, journal, replace(state, step=state.step + stage.first))
        raise
    if tally.forwards - ran != planned:
        raise RenderFailed(
            f"{dict(tally.forwards - ran)} forwards ran in stage {stage.number}",
            allowed=f"the planned {dict(planned)}",
            way_out="report this as a bug",
        )
    return state


def forwards_left(job: Job, stage: Stage, state: State) -> Counter[str]:
    """Forwards by leg that the plan still asks for in a stage after ``state``, whose steps are the stage's."""
    steps = range(state.step, stage.evaluations)
    launches = [launch for step in steps for launch in stage.passes(step, job.plan.blocks)]
    return Counter(str(leg) for launch in launches for leg in launch.legs) - Counter(str(leg) for leg in state.legs)


def keep(job: Job, journal: Journal, state: State, identity: Identity) -> None:
    """Write the snapshot, a phase of its own beside the denoising."""
    with journal.phase(Phase.SNAPSHOT):
        job.run.require_mine()
        name, size = save_snapshot(job.run, state, identity)
        line = {"event": "Snapshotted", "t_s": journal.now_s(), "phase": Phase.SNAPSHOT, "step": state.step}
        journal.write(line | {"legs": list(state.legs), "name": name, "bytes": size})


def draft_on_stop(job: Job, journal: Journal, state: State) -> None:
    """Where the user asked for one, the draft of the last finished step."""
    if job.on_overrun == OnOverrun.DRAFT and state.video_x0 is not None:
        gc.collect()
        release(job.device)
        decode_draft(job.run, job.request, job.plan, job.headers, job.device, job.dtype, state)
        journal.write({"event": "Notice", "t_s": journal.now_s(), "text": f"draft: {job.run.draft(state.step).name}"})


def require_finite(job: Job, journal: Journal, state: State, trace: Trace | None) -> None:
    """Stop at the first latent or prediction that is not finite: said, judged, and kept out of the snapshots."""
    found = first_not_finite(state)
    if found is None:
        return
    where, tokens = found
    counts = {"nans": int(tokens.isnan().sum()), "infinities": int(tokens.isinf().sum()), "values": tokens.numel()}
    first = [int(one) for one in (~tokens.isfinite()).nonzero()[0]]
    line = {"event": "NonFinite", "t_s": journal.now_s(), "phase": Phase.DENOISE, "stage": where, "first_index": first}
    traced = None if trace is None or trace.found is None else str(trace.found)
    journal.write(line | counts | {"traced": traced})
    if job.judge is not None:
        job.judge(job.run.path)
    raise not_finite(job, where, traced)


def save_latents(job: Job, left: Left) -> None:
    """Both final latents, and those of generated keyframes, durable before anything is decoded."""
    named = {"video": left.video, "audio": left.audio, "keyframes": left.keyframes}
    tensors = {name: value.contiguous().cpu() for name, value in named.items() if value is not None}
    job.run.require_mine()
    with aside(job.run.latents) as path:
        save_file(tensors, path, metadata={"request_sha256": job.plan.request_sha256})


def read_latents(job: Job) -> State | None:
    """The final latents that an earlier attempt saved."""
    if not job.run.latents.is_file():
        return None
    tensors = load_file(job.run.latents)
    return state_of(job, tensors["video"], tensors["audio"])


def state_of(job: Job, video: Tensor, audio: Tensor) -> State:
    """Final latents as the decoders take them."""
    video, audio = video.to(job.device, job.dtype), audio.to(job.device, job.dtype)
    return State(step=job.plan.steps, video=patchify_video(video), audio=patchify_audio(audio))
