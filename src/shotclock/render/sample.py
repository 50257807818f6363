"""The sampling stages of a render, one after the other: from the folder's newest snapshot or fresh, to final latents.

Every finished pass is kept before the next begins. Knows the journal and the run folder; no governor.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.device import release
from shotclock.errors import RenderFailed, RenderStopped, RunDirError
from shotclock.events import (
    LegsEnd,
    Notice,
    PassEnds,
    Phase,
    State,
    StepEnds,
)
from shotclock.geometry import patchify_audio, patchify_video
from shotclock.latents import Latents
from shotclock.model.transformer import Model, Transformer
from shotclock.plan.spread import split_of
from shotclock.recipes import Stage, all_passes
from shotclock.render.contexts import Contexts
from shotclock.render.crew import Begin, Load
from shotclock.render.denoise import denoise, prepare
from shotclock.render.failures import first_not_finite, not_finite
from shotclock.render.finish import decode_draft
from shotclock.render.identity import Identity, numerics
from shotclock.render.job import DRAFT, Job
from shotclock.render.journal import Journal, Tick
from shotclock.render.samplers import begin
from shotclock.render.snapshot import newest_snapshot, placed, save_snapshot
from shotclock.render.stages import (
    Begun,
    Encoded,
    Left,
    stage_at,
    to_render,
    to_stage,
)
from shotclock.render.trace import Trace, tracing
from shotclock.render.upscale import Upscaler
from shotclock.rundir import aside
from shotclock.weights.digest import sampled_sha256


def identity_of(job: Job) -> Identity:
    """What this attempt would write into a snapshot."""
    return Identity(
        request_sha256=job.plan.request_sha256,
        sigmas_sha256=job.plan.sigmas_sha256,
        transformer_sha256=sampled_sha256(job.headers.transformer.path),
        contexts_sha256=hashlib.sha256(job.run.contexts.read_bytes()).hexdigest(),
        upscaler_sha256=None if job.given.upscaler is None else sampled_sha256(job.given.upscaler.path),
        numerics=numerics(job.plan, job.device, job.asked.legs_per_pass),
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
    return found is not None and stage_at(job.stages, found.state).number == stage.number


def _said(differences: dict[str, tuple[object, object]]) -> str:
    return "; ".join(f"{name} {then} then, {now} now" for name, (then, now) in differences.items())


class Tally:
    """What ran in this attempt: forwards by leg, seconds of every pass, and the last state where it was stopped."""

    def __init__(self) -> None:
        self.forwards: Counter[str] = Counter()
        self.pass_s: list[float] = []
        self.stopped_at: State | None = None

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
    for stage in job.stages:
        found = None if stage.last else Left.read(job.run, stage.number, job.request)
        if found is None:
            upscaled = None if left is None or inside(job, stage) else upscale(job, journal, left)
            if transformer is None or stage.lora != fused:
                del transformer
                transformer, fused = load(job, journal, stage.lora), stage.lora
            begun = Begun(encoded=encoded, left=left, upscaled=upscaled)
            try:
                state = sample_stage(job, journal, stage, transformer, contexts, begun, tally)
            except RenderStopped:
                transformer = None  # a draft's decode needs the memory
                draft_on_stop(job, journal, tally.stopped_at)
                raise
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
        load = Load(
            headers=job.headers,
            given=job.given,
            lora=lora,
            dtype=job.dtype,
            pinned_config=job.plan.pinned_config,
            quantise=job.request.quantise,
            placement=job.foreseen.placement,
        )
        if job.crew is not None:
            job.crew.load(load)
        return load.transformer(job.device, journal.loaded(Phase.LOAD_TRANSFORMER))


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
        passes_before = sum(len(step) for step in all_passes(job.stages[: stage.number - 1], job.plan.blocks))
        model = shared(job, transformer, stage, latents, contexts, state, passes_before)
    planned = forwards_left(job, stage, state)
    ran = Counter(tally.forwards)
    legs = stage.guidance.legs(job.plan.blocks)
    try:
        with (
            journal.phase(Phase.DENOISE),
            tracing(transformer, legs) if job.trace_nonfinite else nullcontext() as trace,
        ):
            for one in denoise(model, prepared, stage.schedule(), stage.guidance, state, stage.sampler):
                event = to_render(one, stage, passes_before, job.plan.steps)
                if isinstance(event, StepEnds | LegsEnd):
                    require_finite(job, journal, event.state, trace)
                    state = to_stage(event.state, stage)
                    keep(job, journal, event.state, identity)
                tick = journal.say(event)
                tally.add(tick)
                if job.crew is not None:
                    job.crew.heed(tick)
    except RenderStopped:
        tally.stopped_at = replace(state, step=state.step + stage.first)
        del transformer, model, prepared, latents  # the exception holds this frame, and must not hold the model with it
        raise
    if tally.forwards - ran != planned:
        raise RenderFailed(
            f"{dict(tally.forwards - ran)} forwards ran in stage {stage.number}",
            allowed=f"the planned {dict(planned)}",
            way_out="report this as a bug",
        )
    return state


def shared(
    job: Job,
    transformer: Transformer,
    stage: Stage,
    latents: Latents,
    contexts: Contexts,
    state: State,
    passes_before: int,
) -> Model:
    """The transformer, or this rank's part of it where the others begin the stage too."""
    if job.crew is None:
        return transformer
    planned = job.plan.splits[stage.number - 1]
    return job.crew.begin(
        transformer,
        Begin(
            stage=stage,
            split=split_of(planned, stage.guidance, job.plan.blocks),
            latents=latents,
            contexts=contexts,
            state=state,
            passes_before=passes_before,
            steps=job.plan.steps,
        ),
    )


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


def draft_on_stop(job: Job, journal: Journal, state: State | None) -> None:
    """Where the user asked for one, the draft of the last finished step."""
    if job.on_overrun == DRAFT and state is not None and state.video_x0 is not None:
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
