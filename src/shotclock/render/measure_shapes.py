"""Clips of equal video tokens and other shapes, timed on this device: what ``fit --check-shapes`` asks of no run.

The steps are those of a calibration, every shape twice, the second time backwards, so that a drift is not taken for a
shape. Writes nothing and judges nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from shotclock.geometry import Geometry
from shotclock.model.attention import attention_backends
from shotclock.plan.law import AUDIO_WEIGHT, Timings
from shotclock.plan.rate import Rates
from shotclock.render.ahead import Machine, read_room
from shotclock.render.calibrate import (
    Bench,
    Calibration,
    dtype_for,
    files_for,
    guidance_of,
    key_of,
    model_of,
    random_contexts,
    steps_at,
)
from shotclock.render.settings import TINY, device_name, pick_device
from shotclock.weights.checkpoint import recipe_for
from shotclock.weights.released import MODEL_VERSION, one_stage

SIZE, TINY_SIZE = "768x448x25", "256x128x25"  # clips that have wide, tall and long ones of their tokens


@dataclass(frozen=True, slots=True)
class ShapesAsked:
    """What was said on the command line, as ``calibrate`` has it."""

    models: str | None
    device: str | None
    dtype: str | None
    legs_per_pass: int
    pinned_config: bool


def default_size(asked: ShapesAsked) -> str:
    """As large as the model is worth."""
    small = asked.models == TINY or (asked.models is None and pick_device(asked.device).type == "cpu")
    return TINY_SIZE if small else SIZE


def measure_shapes(
    asked: ShapesAsked, clips: Sequence[Geometry], *, home: Path, say: Callable[[str], None]
) -> Calibration:
    """A few guided steps of every clip; raises :class:`RequestError` for a device or files that are not there."""
    where = pick_device(asked.device)
    machine = Machine(device=where, name=device_name(where), dtype=dtype_for(where, asked.dtype), room=read_room(where))
    headers = files_for(asked.models, where, home, pinned_config=asked.pinned_config)
    begun_s = time.perf_counter()
    run = f"shapes {datetime.now(UTC).isoformat()}"
    bench = Bench(machine=machine, clock=time.perf_counter, say=say, run=run)
    with torch.inference_mode(), attention_backends():
        transformer = model_of(bench, headers, asked.pinned_config)
        recipe = one_stage(MODEL_VERSION, None) if headers is None else recipe_for(headers.transformer)
        guidance = guidance_of(recipe, asked.legs_per_pass)
        key = key_of(machine, transformer.config, guidance)
        contexts = random_contexts(machine, transformer)
        samples = [
            sample
            for clip in (*clips, *reversed(clips))
            for sample in steps_at(bench, transformer, contexts, guidance, key, clip)[0]
        ]
    return Calibration(
        timings=Timings(key=key, audio_weight=AUDIO_WEIGHT, samples=tuple(samples)),
        rates=Rates(device=key.device, build=key.build, samples=tuple(bench.phases)),
        seconds=time.perf_counter() - begun_s,
    )
