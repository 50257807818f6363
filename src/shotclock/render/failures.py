"""What went wrong in the machine, in the user's terms: where, with numbers, and what is kept (users.md row 31)."""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from torch import Tensor

from shotclock.device import free_bytes, peak_bytes
from shotclock.errors import OutOfMemory, RenderFailed, ShotclockError
from shotclock.events import Phase, State
from shotclock.render.job import Job
from shotclock.render.together import lost


def in_user_terms(job: Job, phase: Phase | None, error: Exception) -> ShotclockError | None:
    """The failure in the user's terms; None for what is none of theirs (a bug)."""
    match error:
        case ShotclockError():
            return error
        case torch.OutOfMemoryError():
            return out_of_memory(job, phase)
        case OSError() | SafetensorError():
            return unwritable(job, phase, error)
        case RuntimeError() if job.crew is not None:
            return lost(job.crew.seat, error)
        case _:
            return None


def out_of_memory(job: Job, phase: Phase | None) -> OutOfMemory:
    """The device's memory did not do: where, for what, and what needs less (users.md row 31)."""
    placed = job.foreseen.placement
    blocks = f"{placed.resident} of {placed.blocks} blocks resident, " if placed is not None and placed.streams else ""
    error = OutOfMemory(
        f"out of memory in phase {phase} at {job.request.geometry}, {job.asked.legs_per_pass} legs a pass, {blocks}"
        f"{job.dtype}; at most {peak_bytes(job.device):,} bytes were held",
        allowed=f"what {job.plan.device} has free: {free_bytes(job.device):,} bytes now",
        way_out=f"shotclock resume {job.run.path} --memory SIZE, less than is free; a smaller --size or fewer --frames",
    )
    error.phase = phase
    return error


def unwritable(job: Job, phase: Phase | None, error: OSError | SafetensorError) -> RenderFailed:
    """A file of the run could not be read or written."""
    what = getattr(error, "strerror", None) or error
    return RenderFailed(
        f"{getattr(error, 'filename', None) or job.run.path}: {what} in phase {phase}",
        allowed="a run folder with free space and files that stay in place",
        way_out=f"free space, then shotclock resume {job.run.path}: what ended is kept",
    )


def first_not_finite(state: State) -> tuple[str, Tensor] | None:
    """The first of latents and predictions that holds NaN or Inf, and what it is called; None where all are finite."""
    named = {"video latents": state.video, "audio latents": state.audio}
    named |= {f"video of leg {leg}": tokens for leg, tokens in state.video_legs.items()}
    named |= {f"audio of leg {leg}": tokens for leg, tokens in state.audio_legs.items()}
    for name, tokens in named.items():
        if not bool(tokens.isfinite().all()):
            return f"{name} after step {state.step}", tokens
    return None


def not_finite(job: Job, where: str, traced: str | None) -> RenderFailed:
    """The stage that showed it first, leg and block where they were traced, and what to try."""
    trace = "" if traced else f"; `shotclock resume {job.run.path} --trace-nonfinite` names leg and block"
    return RenderFailed(
        f"{where} are not finite" + (f": {traced}" if traced else ""),
        allowed="finite latents",
        way_out=f"check the weights with `shotclock inspect --sha256`; try --dtype float32{trace}",
    )
