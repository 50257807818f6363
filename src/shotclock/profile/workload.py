"""One guided step to be measured: a transformer, random texts and noise, and the legs of a recipe.

The step goes through the very loop that a render runs, from sigma 0.7 to 0. Knows no profiler and no file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch

from shotclock.errors import RequestError
from shotclock.events import PassBegins, PassEnds
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Leg
from shotclock.latents import Latents, noise, text_to_video
from shotclock.model.config import transformer_config
from shotclock.model.transformer import Stream, Transformer
from shotclock.plan.cost import TEXT_TOKENS, step_flops
from shotclock.render.ahead import Machine, read_room
from shotclock.render.calibrate import (
    SEED,
    dtype_for,
    files_for,
    guidance_of,
    random_contexts,
    random_transformer,
)
from shotclock.render.denoise import Prepared, denoise, prepare
from shotclock.render.samplers import begin
from shotclock.render.settings import device_name, pick_device
from shotclock.schedule import Sampler
from shotclock.weights.checkpoint import Recipe, recipe_for
from shotclock.weights.released import MODEL_VERSION, PINNED_25_CONFIG, one_stage
from shotclock.weights.tiny import STG_BLOCK, TRANSFORMER
from shotclock.weights.transformer import load_transformer

SIGMA = 0.7
RANDOM, RANDOM_TINY = "random", "random-tiny"  # weights made here, of the released and of the tiny set's widths
Around = Callable[[str], AbstractContextManager[object]]  # told the legs of a pass, "cond+uncond", or a part's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One step: wall to device-synchronised, host seconds up to its last launch, device seconds (None on a CPU)."""

    wall_s: float
    launch_s: float
    device_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A prepared step; ``guidance`` says how many legs a pass has."""

    transformer: Transformer
    prepared: tuple[Prepared, Prepared]
    geometry: Geometry
    guidance: Guidance
    machine: Machine

    @property
    def flops(self) -> int:
        """Operations that the step needs (plan/cost.py)."""
        return step_flops(self.transformer.config, self.geometry, self.guidance, TEXT_TOKENS)

    @property
    def rows(self) -> list[Leg]:
        """All legs of the step."""
        return list(self.guidance.legs(self.transformer.config.blocks).values())

    @property
    def streams(self) -> tuple[Stream, Stream]:
        """Both sides of a forward at sigma 0.7."""
        video, audio = self.prepared
        return (
            video.stream(video.latents.tokens, SIGMA, enabled=True),
            audio.stream(audio.latents.tokens, SIGMA, enabled=True),
        )

    def step(self, around: Around = lambda _: nullcontext()) -> None:
        """Launch one guided step; ``around`` is entered for each pass and for the guidance that follows the last."""
        video, audio = self.prepared
        state = begin(Sampler.EULER, Latents(video=video.latents, audio=audio.latents), SEED)
        sigmas = torch.tensor([SIGMA, 0.0])
        events = denoise(self.transformer, self.prepared, sigmas, self.guidance, state)
        for event in events:
            if isinstance(event, PassBegins):
                with around("+".join(event.legs)):
                    ended = next(events)
                assert isinstance(ended, PassEnds), "a pass that begins ends"

    def lap(self, around: Around = lambda _: nullcontext()) -> Lap:
        """Run one step and time it."""
        device = self.machine.device
        cuda = device.type == "cuda"
        wait(device)
        edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
        begun_s = time.perf_counter()
        if cuda:
            edges[0].record()
        self.step(around)
        if cuda:
            edges[1].record()
        launched_s = time.perf_counter()
        wait(device)
        ended_s = time.perf_counter()
        return Lap(
            wall_s=ended_s - begun_s,
            launch_s=launched_s - begun_s,
            device_s=edges[0].elapsed_time(edges[1]) / 1000 if cuda else None,
        )


def wait(device: torch.device) -> None:
    """Until the device has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine_of(device: str | None, dtype: str | None) -> Machine:
    """The device and dtype that were named, or those a render would take."""
    where = pick_device(device)
    return Machine(device=where, name=device_name(where), dtype=dtype_for(where, dtype), room=read_room(where))


def model_for(models: str, machine: Machine, home: Path, *, pinned_config: bool) -> tuple[Transformer, Recipe]:
    """A transformer of the files in the folder ``models`` (or ``tiny``), or of random weights, and its recipe."""
    if models in (RANDOM, RANDOM_TINY):
        config = transformer_config(PINNED_25_CONFIG if models == RANDOM else TRANSFORMER)
        recipe = one_stage(MODEL_VERSION, None if models == RANDOM else (STG_BLOCK,))
        return random_transformer(config, machine.device, machine.dtype), recipe
    headers = files_for(models, machine.device, home, pinned_config=pinned_config)
    assert headers is not None, "files were named"
    transformer = load_transformer(
        headers.transformer, device=machine.device, dtype=machine.dtype, pinned_config=pinned_config
    )
    return transformer, recipe_for(headers.transformer)


def workload(
    transformer: Transformer, recipe: Recipe, geometry: Geometry, machine: Machine, legs_per_pass: int
) -> Workload:
    """A step of ``geometry``: seeded noise, texts of noise."""
    latents = text_to_video(geometry, *noise(geometry, SEED)).to(machine.device, transformer.dtype)
    return Workload(
        transformer=transformer,
        prepared=prepare(transformer, latents, random_contexts(machine, transformer)),
        geometry=geometry,
        guidance=guidance_of(recipe, legs_per_pass),
        machine=machine,
    )


def clip(size: str, frames: int) -> Geometry:
    """A geometry at 24 frames a second from ``WIDTHxHEIGHT``; raises :class:`RequestError` for what is none."""
    try:
        width, height = (int(side) for side in size.split("x"))
    except ValueError:
        raise RequestError(f"size {size!r}", allowed="WIDTHxHEIGHT", way_out="768x448") from None
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))
