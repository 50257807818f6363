"""The job of an oracle: one finished run as another implementation is asked to render it.

Same checkpoint, contexts, noise, sigmas, guidance and dtype; written as one JSON file with two tensor files beside it.
Renders nothing and knows no adapter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from shotclock.errors import RequestError
from shotclock.latents import noise
from shotclock.plan.planner import Plan, read_plan
from shotclock.record.facts import canonical
from shotclock.request import Request, Scales, parse_fps, read_request
from shotclock.rundir import RunDir, write_aside

JOB, CONTEXTS, NOISE = "job.json", "contexts.safetensors", "noise.safetensors"
ASKED = {  # all that the job format can say of a request; another field would be lost without a word
    *("format", "recipe", "model_class", "prompt", "negative_prompt", "width", "height", "frames", "fps", "seed"),
    *("steps", "video", "audio", "legs_per_pass"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a run rendered, and where its job for others lies."""

    run: RunDir
    request: Request
    plan: Plan
    job: Path


def write_job(run: RunDir, folder: Path, *, device: str, decode: bool, compile_blocks: bool) -> Workload:
    """Write the job of a finished run into ``folder``; raises :class:`RequestError` for what cannot be asked of others.

    ``device`` is "cpu" or "cuda". Paths of weights are those of the plan.
    """
    request, plan = read_request(run.request.read_text()), read_plan(run.plan.read_text())
    require_expressible(request, run)
    folder.mkdir(parents=True, exist_ok=True)
    ours = load_file(run.contexts)
    contexts = {
        f"{stream}_{side}": ours[stream][row : row + 1].contiguous()
        for stream in ("video", "audio")
        for row, side in enumerate(("pos", "neg"))
    }
    save_file(contexts, folder / CONTEXTS)
    video, audio = noise(request.geometry, request.seed)
    save_file({"video": video.contiguous(), "audio": audio.contiguous()}, folder / NOISE)
    document = {
        **{name: _path(plan, name) for name in ("transformer", "text_encoder", "video_vae", "audio_vae")},
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "contexts": str((folder / CONTEXTS).resolve()),
        "noise": str((folder / NOISE).resolve()),
        "width": request.width,
        "height": request.height,
        "frames": request.frames,
        "fps": float(parse_fps(request.fps)),
        "steps": request.steps,
        "seed": request.seed,
        "video": guidance_of(request.video),
        "audio": guidance_of(request.audio),
        "max_batch_size": request.legs_per_pass,
        "dtype": plan.dtype,
        "device": device,
        "compile": compile_blocks,
        "decode": decode,
    }
    write_aside(folder / JOB, canonical(document))
    return Workload(run=run, request=request, plan=plan, job=folder / JOB)


def require_expressible(request: Request, run: RunDir) -> None:
    """Refuse a run that is not finished, or that asks for what the job format has no word for."""
    fields = {name: field.get_default() for name, field in Request.model_fields.items() if name not in ASKED}
    unsaid = sorted(name for name, default in fields.items() if getattr(request, name) != default)
    if request.recipe != "one_stage" or unsaid:
        raise RequestError(
            f"recipe {request.recipe}{', ' if unsaid else ''}{', '.join(unsaid)}",
            allowed="a one_stage render from text",
            way_out="compare a run without it",
        )
    for path in (run.latents, run.contexts):
        if not path.is_file():
            raise RequestError(
                f"{run.path} holds no {path.name}",
                allowed="a finished run",
                way_out=f"shotclock resume {run.path}",
            )


def guidance_of(scales: Scales) -> dict[str, Any]:
    """Guidance of one stream in the job's words."""
    return {
        "cfg_scale": scales.cfg,
        "stg_scale": scales.stg,
        "stg_blocks": list(scales.stg_blocks),
        "modality_scale": scales.modality,
        "rescale_scale": scales.rescale,
        "skip_step": scales.skip_step,
    }


def read_job(path: Path) -> dict[str, Any]:
    """A job as an adapter reads it."""
    found = json.loads(path.read_text())
    assert isinstance(found, dict), "a job is an object"
    return found


def _path(plan: Plan, name: str) -> str | None:
    planned = plan.files.get(name)
    return str(Path(planned.path).resolve()) if planned else None
