"""Proof of a resume: the way from the older snapshot to the newest once more, compared bit by bit. Writes nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from shotclock.errors import RenderFailed, RunDirError
from shotclock.events import LegsEnd, State, StepEnds
from shotclock.latents import noise, text_to_video
from shotclock.model.attention import attention_backends
from shotclock.plan.planner import Plan
from shotclock.render.contexts import read_contexts
from shotclock.render.denoise import denoise, prepare
from shotclock.render.snapshot import placed, read_snapshot, snapshots, tensors_of
from shotclock.request import Request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import Header
from shotclock.weights.transformer import load_transformer

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def replay(run: RunDir, request: Request, plan: Plan, header: Header, device: torch.device) -> list[str]:
    """Lines for a person; raises :class:`RenderFailed` naming the tensors that differ."""
    paths = snapshots(run)
    if len(paths) < 2:
        raise RunDirError(
            f"{run.path} holds {len(paths)} snapshots",
            allowed="two: one to begin at and one to arrive at",
            way_out="let the render finish another forward",
        )
    newest, older = (read_snapshot(path) for path in paths[:2])
    dtype = DTYPES[plan.dtype]
    with torch.inference_mode(), attention_backends():
        transformer = load_transformer(header, device=device, dtype=dtype, pinned_config=plan.pinned_config)
        geometry = request.geometry
        latents = text_to_video(geometry, *noise(geometry, request.seed)).to(device, transformer.dtype)
        prepared = prepare(transformer, latents, read_contexts(run, device, dtype))
        state = placed(older.state, latents.video.tokens)
        goal = newest.state.step, newest.state.legs
        for event in denoise(transformer, prepared, torch.tensor(plan.sigmas), request.guidance, state):
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
