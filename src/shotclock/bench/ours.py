"""Our own sampler on the workload of a run, once more, for what the run does not keep: the latents after each step.

Loads the transformer of the run and writes nothing; the final latents must be those of the run.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file

from shotclock.bench.job import Workload
from shotclock.errors import RenderFailed
from shotclock.events import StepEnds
from shotclock.geometry import unpatchify_audio, unpatchify_video
from shotclock.guidance import LegName
from shotclock.latents import noise, text_to_video
from shotclock.model.attention import attention_backends
from shotclock.model.transformer import Transformer
from shotclock.render.contexts import read_contexts
from shotclock.render.denoise import Prepared, denoise, prepare
from shotclock.render.samplers import begin
from shotclock.schedule import Sampler
from shotclock.weights.checkpoint import read_header
from shotclock.weights.transformer import load_transformer

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
STREAMS = ("video", "audio")

Array = Float[np.ndarray, "..."]


def trajectory(work: Workload, device: torch.device) -> tuple[dict[str, list[Array]], dict[str, Array]]:
    """Latents after each step by stream, and the first forward's velocities by "LEG STREAM".

    Raises :class:`RenderFailed` where the last latents are not those that the run wrote, bit for bit.
    """
    plan, request, dtype = work.plan, work.request, DTYPES[work.plan.dtype]
    found: dict[str, list[Array]] = {stream: [] for stream in STREAMS}
    with torch.inference_mode(), attention_backends():
        header = read_header(work.run.path / plan.files["transformer"].path)
        transformer = load_transformer(header, device=device, dtype=dtype, pinned_config=plan.pinned_config)
        geometry = request.geometry
        latents = text_to_video(geometry, *noise(geometry, request.seed)).to(device, transformer.dtype)
        prepared = prepare(transformer, latents, read_contexts(work.run, device, dtype))
        first = first_forward(transformer, prepared, work)
        start = begin(Sampler.EULER, latents, request.seed)
        for event in denoise(transformer, prepared, torch.tensor(plan.sigmas), request.guidance, start):
            if isinstance(event, StepEnds):
                video = unpatchify_video(event.state.video, geometry)
                found["video"].append(video[0].float().cpu().numpy())
                found["audio"].append(unpatchify_audio(event.state.audio)[0].float().cpu().numpy())
    written = load_file(work.run.latents)
    for stream in STREAMS:
        if not np.array_equal(found[stream][-1], written[stream][0].float().numpy()):
            raise RenderFailed(
                f"our own {stream} latents are not those of the run",
                allowed="the same bits as the run wrote",
                way_out="compare on the device and with the build of the run, or leave --per-step out",
            )
    return found, first


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
