"""Settings to everything that a render or a plan begins from; all that can be refused is refused on the way.

Reads headers and media. Loads weights only for ``--frames auto``, whose answer is part of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from shotclock.device import limit
from shotclock.errors import DoesNotFit, RequestError
from shotclock.model.config import transformer_config
from shotclock.plan.planner import Plan, make_plan, splits_for
from shotclock.render.ahead import Machine, decode_counter, fitting_legs, read_room
from shotclock.render.contexts import connect, require_contexts
from shotclock.render.duration import duration_names, frames_of, predict_s
from shotclock.render.given import Given, gather, require_clip
from shotclock.render.launch import require_gpus
from shotclock.render.prompts import FOLDER, PromptCache
from shotclock.render.settings import (
    Settings,
    class_from,
    device_name,
    models_folder,
    pick_device,
    pick_dtype,
    read_models,
    recipe_from,
    request_from,
)
from shotclock.render.text import TextEncoder, read_prompts
from shotclock.request import Request, parse_fps
from shotclock.weights.checkpoint import CheckpointHeaders, Kind, find_part, recipe_for, transformer_settings
from shotclock.weights.fp8 import require_asked, require_quantisable
from shotclock.weights.transformer import load_connectors, require_fit

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A render that may begin. ``settings`` have every automatic value filled in."""

    settings: Settings
    request: Request
    plan: Plan
    headers: CheckpointHeaders
    given: Given
    device: torch.device
    dtype: torch.dtype
    image_crf: int


def resolve(settings: Settings, home: Path, say: Callable[[str], None]) -> Resolved:
    """Resolve or refuse; ``say`` is told what a user should know before the start."""
    require_gpus(settings.gpus, settings.device)
    device, dtype = pick_device(settings.device), pick_dtype(settings)
    require_asked(settings.quantise, device, dtype)
    limit(device, settings.cap_bytes)
    headers = read_models(settings, home)
    if settings.quantise is not None:
        require_quantisable(headers.transformer)
    model_class = class_from(settings, headers.transformer, home)
    given = gather(settings.options, recipe_from(settings, model_class), headers, models_folder(settings, home))
    if settings.frames == AUTO:
        require_fit(headers, pinned_config=settings.pinned_config)
        settings = replace(settings, frames=automatic_frames(settings, headers, home, say))
    defaults = recipe_for(headers.transformer)
    request = request_from(settings, defaults, model_class, given)
    require_clip(given, request)
    if settings.legs_per_pass is None:
        request = request.model_copy(
            update={"legs_per_pass": most_legs(request, headers, settings, device, dtype, home)}
        )
    plan = make_plan(
        request,
        headers,
        device=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        decode_flops=decode_counter(headers.video_vae)(request.geometry),
        pinned_config=settings.pinned_config,
        others=given.files,
        said=given.warnings,
    )
    config = transformer_config(transformer_settings(headers.transformer, pinned_config=settings.pinned_config))
    gpus, wish = settings.gpus, settings.split
    plan = plan.on(gpus, splits_for(request, config, gpus=gpus, device_type=device.type, wish=wish))
    if settings.contexts is not None:
        require_contexts(settings.contexts, headers.transformer, request, pinned_config=settings.pinned_config)
    require_fit(headers, pinned_config=settings.pinned_config)
    for line in given.lines():
        say(line)
    return Resolved(
        settings=settings,
        request=request,
        plan=plan,
        headers=headers,
        given=given,
        device=device,
        dtype=dtype,
        image_crf=defaults.image_crf,
    )


def most_legs(
    request: Request,
    headers: CheckpointHeaders,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
    home: Path,
) -> int:
    """Legs a pass that memory holds; 1 where not even that fits, which the plan then refuses with its reasons."""
    room = read_room(device, settings.cap_bytes)
    machine = Machine(device=device, name=device_name(device), dtype=dtype, room=room, gpus=settings.gpus)
    encodes, pinned = settings.contexts is None, settings.pinned_config
    try:
        return fitting_legs(request, headers, machine, home=home, encodes_text=encodes, pinned_config=pinned)
    except DoesNotFit:
        return 1


def automatic_frames(settings: Settings, headers: CheckpointHeaders, home: Path, say: Callable[[str], None]) -> int:
    """Frames that the duration head predicts for the prompt; encodes it, and keeps what was encoded for the render."""
    header = find_part(
        models_folder(settings, home), Kind.DURATION_HEAD, settings.duration_head, option="--duration-head"
    )
    duration_names(header)
    fps = parse_fps(settings.fps)
    if headers.text_encoder is None:
        raise RequestError(
            "--frames auto with --contexts",
            allowed="a number of frames where no text encoder is loaded",
            way_out="say --frames, or leave --contexts out",
        )
    device, dtype = pick_device(settings.device), pick_dtype(settings)
    prompt, _ = read_prompts(settings.prompt, settings.negative_prompt)
    cache = PromptCache.of(home / FOLDER, headers.text_encoder, device=device_name(device), dtype=dtype)
    with torch.inference_mode():
        features = cache.read(prompt)
        if features is None:
            with TextEncoder.load(headers.text_encoder, device=device, dtype=dtype) as encoder:
                features = encoder.encode([prompt])[0]
            cache.keep(prompt, features)
        connectors = load_connectors(
            headers.transformer, device=device, dtype=dtype, pinned_config=settings.pinned_config
        )
        seconds = predict_s(header, connect(connectors, [features], dtype))
    frames = frames_of(seconds, fps)
    say(f"frames auto: {seconds:.2f} s are {frames} frames at {settings.fps}")
    return frames
