"""Our own sampler on the workload of a run, once more, for what the run does not keep: the latents after each step.

And each of the steps from the latents that another implementation had before it (teacher-forced).

Loads the transformer of the run and writes nothing. The final latents must be those of the run, up to rounding; whether
to the bit is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file

from shotclock.bench.job import Workload
from shotclock.errors import RenderFailed
from shotclock.events import State, StepEnds
from shotclock.geometry import Geometry, patchify_audio, patchify_video, unpatchify_audio, unpatchify_video
from shotclock.guidance import LegName
from shotclock.latents import Conditioning, conditioned, noise
from shotclock.model.attention import attention_backends
from shotclock.model.transformer import Transformer
from shotclock.record.pictures_compared import cosine
from shotclock.render.contexts import read_contexts
from shotclock.render.denoise import Prepared, denoise, prepare
from shotclock.render.samplers import begin
from shotclock.schedule import Sampler
from shotclock.weights.checkpoint import read_header
from shotclock.weights.fp8 import to_fp8
from shotclock.weights.transformer import load_transformer

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
STREAMS = ("video", "audio")
ROUNDING = 1e-4  # cosine distance; bfloat16 trajectories of other kernels end nearer than the gate of 1e-2

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """Latents after each step by stream, first velocities by "LEG STREAM", and the distance from what the run wrote.

    ``forced`` are the latents after each step but the first, from the other's latents before it.
    """

    steps: dict[str, list[Array]]
    forced: dict[str, list[Array]]
    first: dict[str, Array]
    same_bits: bool
    distance: float

    def line(self) -> str:
        """How far this second run may stand for the first."""
        return "the bits of the run" if self.same_bits else f"cosine distance {self.distance:.1e} from the run"


def trajectory(work: Workload, device: torch.device, theirs: Mapping[str, Array]) -> Trajectory:
    """Sample once more; raises :class:`RenderFailed` where that is not what the run wrote, up to rounding.

    ``theirs`` are the other's latents after each step: video (steps 128 f h w), audio (steps 8 a 16); may be empty.
    """
    plan, request, dtype = work.plan, work.request, DTYPES[work.plan.dtype]
    found: dict[str, list[Array]] = {stream: [] for stream in STREAMS}
    with torch.inference_mode(), attention_backends():
        header = read_header(work.run.path / plan.files["transformer"].path)
        transformer = load_transformer(header, device=device, dtype=dtype, pinned_config=plan.pinned_config)
        if request.quantise is not None:
            to_fp8(transformer, header, device)
        geometry = request.geometry
        (stage,) = request.stages
        begun = conditioned(geometry, *noise(geometry, request.seed), Conditioning(), sigma=stage.begins_at)
        latents = begun.to(device, transformer.dtype)
        prepared = prepare(transformer, latents, read_contexts(work.run, device, dtype))
        first = first_forward(transformer, prepared, work)
        start = begin(Sampler.EULER, latents, request.seed)
        for event in denoise(transformer, prepared, torch.tensor(plan.sigmas), request.guidance, start):
            if isinstance(event, StepEnds):
                keep(found, event.state, geometry)
        forced: dict[str, list[Array]] = {stream: [] for stream in STREAMS}
        for step in range(1, request.steps if theirs else 0):
            video, audio = (torch.from_numpy(theirs[stream][step - 1 : step]) for stream in STREAMS)
            tokens = [
                x.to(like.device, like.dtype)
                for x, like in (
                    (patchify_video(video), latents.video.tokens),
                    (patchify_audio(audio), latents.audio.tokens),
                )
            ]
            before = replace(start, step=step, video=tokens[0], audio=tokens[1])
            events = denoise(transformer, prepared, torch.tensor(plan.sigmas), request.guidance, before)
            keep(forced, next(one.state for one in events if isinstance(one, StepEnds)), geometry)
    written = {stream: tensor[0].float().numpy() for stream, tensor in load_file(work.run.latents).items()}
    distance = max(1 - cosine(written[stream], found[stream][-1]) for stream in STREAMS)
    if distance > ROUNDING:
        raise RenderFailed(
            f"our own sampler ends {distance:.1e} from the run's latents, as a cosine distance",
            allowed=f"rounding, at most {ROUNDING:g}",
            way_out="compare on the device and with the build of the run, or leave --per-step out",
        )
    same = all(np.array_equal(written[stream], found[stream][-1]) for stream in STREAMS)
    return Trajectory(steps=found, forced=forced, first=first, same_bits=same, distance=distance)


def keep(found: dict[str, list[Array]], state: State, geometry: Geometry) -> None:
    """Append the latents of a step, as others write them."""
    found["video"].append(unpatchify_video(state.video, geometry)[0].float().cpu().numpy())
    found["audio"].append(unpatchify_audio(state.audio)[0].float().cpu().numpy())


def first_forward(transformer: Transformer, prepared: tuple[Prepared, Prepared], work: Workload) -> dict[str, Array]:
    """Velocities of all legs on the initial noise, one after the other."""
    sigma = float(work.plan.sigmas[0])
    video, audio = prepared
    streams = (
        video.stream(video.latents.tokens, sigma, enabled=True),
        audio.stream(audio.latents.tokens, sigma, enabled=True),
    )
    found = {}
    for name, leg in work.request.guidance.legs(work.plan.blocks).items():
        velocities = transformer(*streams, [leg])
        for stream, velocity in zip(STREAMS, velocities, strict=True):
            found[f"{LegName(name)} {stream}"] = velocity.float().cpu().numpy()
    return found
