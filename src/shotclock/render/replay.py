"""Proof of a resume: the way from the older snapshot to the newest once more, compared bit by bit. Writes nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from shotclock.errors import RenderFailed, RunDirError
from shotclock.events import LegsEnd, State, StepEnds
from shotclock.model.attention import attention_backends
from shotclock.plan.planner import Plan
from shotclock.render.contexts import read_contexts
from shotclock.render.denoise import denoise, prepare
from shotclock.render.given import Given, read_media
from shotclock.render.settings import DTYPES
from shotclock.render.snapshot import placed, read_snapshot, snapshots, tensors_of
from shotclock.render.stages import Begun, encode_media, load_fused, stage_at, to_render, to_stage
from shotclock.request import Request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import CheckpointHeaders


def replay(
    run: RunDir, request: Request, plan: Plan, headers: CheckpointHeaders, given: Given, device: torch.device
) -> list[str]:
    """Lines for a person; raises :class:`RenderFailed` naming the tensors that differ."""
    paths = snapshots(run)
    if len(paths) < 2:
        raise RunDirError(
            f"{run.path} holds {len(paths)} snapshots",
            allowed="two: one to begin at and one to arrive at",
            way_out="let the render finish another forward",
        )
    newest, older = (read_snapshot(path) for path in paths[:2])
    legs = newest.identity.numerics.legs_per_pass
    stages = request.model_copy(update={"legs_per_pass": legs}).stages
    stage = stage_at(stages, newest.state)
    if stage_at(stages, older.state).number != stage.number:
        raise RunDirError(
            f"{older.name} ends stage {stage.number - 1} and {newest.name} is of stage {stage.number}",
            allowed="two snapshots of one stage",
            way_out="let the render finish another forward",
        )
    dtype = DTYPES[plan.dtype]
    with torch.inference_mode(), attention_backends():
        encoded = encode_media(request, read_media(run, request), headers, device=device, dtype=dtype)
        transformer = load_fused(
            headers,
            given,
            stage.lora,
            device=device,
            dtype=dtype,
            pinned_config=plan.pinned_config,
            placement=None if plan.forecast is None else plan.forecast.placement,
            quantise=request.quantise,
        )
        begun = Begun(encoded=encoded, left=None, upscaled=None)
        latents = begun.latents(request, stage).to(device, transformer.dtype)
        prepared = prepare(transformer, latents, read_contexts(run, device, dtype))
        state = placed(to_stage(older.state, stage), latents.video.tokens)
        goal = newest.state.step, newest.state.legs
        for one in denoise(transformer, prepared, stage.schedule(), stage.guidance, state, stage.sampler):
            event = to_render(one, stage, 0, plan.steps)
            if isinstance(event, StepEnds | LegsEnd) and (event.state.step, event.state.legs) == goal:
                return _compared(older.name, newest.name, event.state, newest.state)
    raise AssertionError("the newest snapshot lies ahead of the older one")


def _compared(older: str, newest: str, found: State, kept: State) -> list[str]:
    here, there = tensors_of(found), tensors_of(kept)
    bad = [name for name in there if name not in here or not _same(here[name], there[name])]
    if bad:
        raise RenderFailed(
            f"from {older} the replay does not arrive at {newest}: {', '.join(bad)} differ",
            allowed="the same bits",
            way_out="the snapshots come from other numerics than this machine's; `shotclock resume` names them",
        )
    count = sum(tensor.numel() for tensor in there.values())
    return [f"from {older}", f"to   {newest}", f"{len(there)} tensors, {count:,} values: the same bits"]


def _same(a: Tensor, b: Tensor) -> bool:
    def bits(tensor: Tensor) -> bytes:
        return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return a.dtype == b.dtype and bits(a) == bits(b)
