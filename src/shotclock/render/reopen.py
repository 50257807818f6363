"""A run folder that a render goes on with: its files of weights, its device, and the log so far.

Reads headers; loads no weight and changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from shotclock.errors import RunDirError
from shotclock.plan.planner import Plan
from shotclock.render.settings import device_name, pick_device, video_kind
from shotclock.request import Request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import CheckpointHeaders, find_checkpoints, read_headers


def headers_of(run: RunDir, request: Request, plan: Plan, models: Path | None) -> CheckpointHeaders:
    """Headers of the run's files, where they were or in ``models``; the text encoder only while it is needed."""
    text_wanted = not run.contexts.is_file() and "text_encoder" in plan.files
    paths = {role: path for role, path in paths_of(plan, models).items() if text_wanted or role != "text_encoder"}
    if models is None:
        if missing := [str(path) for path in paths.values() if not path.is_file()]:
            raise RunDirError(
                f"{missing[0]} is not there any more",
                allowed="the files that the render began with",
                way_out="say where they are now: --models DIR",
            )
        models = paths["transformer"].parent
    found = find_checkpoints(
        models,
        transformer=paths["transformer"],
        text_encoder=paths.get("text_encoder"),
        video_vae=paths["video_vae"],
        audio_vae=paths["audio_vae"],
        text_encoder_wanted=text_wanted,
        pinned_config=plan.pinned_config,
        video_kind=video_kind(request.decoder),
    )
    return read_headers(found, pinned_config=plan.pinned_config, video_kind=video_kind(request.decoder))


def paths_of(plan: Plan, models: Path | None) -> dict[str, Path]:
    """The run's files of weights by role, where they were or in ``models``."""
    paths = {role: Path(file.path) for role, file in plan.files.items()}
    return paths if models is None else {role: models / path.name for role, path in paths.items()}


def device_of(plan: Plan) -> torch.device:
    """The first device that is called as the plan says, else the machine's own choice: the fingerprint tells."""
    names = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    alike = [name for name in names if device_name(torch.device(name)) == plan.device]
    return torch.device(alike[0]) if alike else pick_device(None)


def logged(run: RunDir) -> list[dict[str, Any]]:
    """Whole lines of the event log so far."""
    lines: list[dict[str, Any]] = []
    for text in run.events.read_text(errors="replace").splitlines() if run.events.is_file() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue  # cut by a kill or a full disk
    return lines
