"""Guided sampling of many pocket clips at once: the rules of shotclock's sampler, batched for training-time evaluation.

Must not know training. The shipped sampler is shotclock's own; a test holds the combination equal to its.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pocket.network import GEOMETRY, Batch, Tables, forward
from shotclock.model.transformer import Transformer
from shotclock.schedule import sigmas

Tokens = tuple[Float[Tensor, "b n 128"], Float[Tensor, "b m 128"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Guidance of both streams: (video, audio) pairs; 1 (cfg, modality) and 0 (stg, rescale) switch a term off."""

    cfg: tuple[float, float] = (3.0, 3.0)
    stg: tuple[float, float] = (1.0, 1.0)
    modality: tuple[float, float] = (3.0, 3.0)
    rescale: tuple[float, float] = (0.7, 0.7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Contexts of the prompts and of the negative prompt (one row, for all)."""

    video: Float[Tensor, "b s d"]
    audio: Float[Tensor, "b s e"]
    negative_video: Float[Tensor, "1 s d"]
    negative_audio: Float[Tensor, "1 s e"]


def combine(c: Tensor, u: Tensor, p: Tensor, m: Tensor, scales: Scales, stream: int) -> Float[Tensor, "b n 128"]:
    """Guided denoised states of each row (ltx25.md section 5.2)."""
    g = c + (scales.cfg[stream] - 1) * (c - u) + scales.stg[stream] * (c - p) + (scales.modality[stream] - 1) * (c - m)
    rescale = scales.rescale[stream]
    spread = c.std(dim=(1, 2), keepdim=True) / g.std(dim=(1, 2), keepdim=True)
    return g * (rescale * spread + 1 - rescale)


def noise(count: int, seed: int, device: str) -> Tokens:
    """Starting noise, a generator a row: row i is what seed + i starts from."""
    rows = []
    for i in range(count):
        generator = torch.Generator().manual_seed(seed + i)
        rows.append([torch.randn(n, 128, generator=generator) for n in (GEOMETRY.video_tokens, GEOMETRY.audio_tokens)])
    return tuple(torch.stack([row[k] for row in rows]).to(device) for k in (0, 1))  # type: ignore[return-value]


@torch.no_grad()
def sample(
    model: Transformer,
    tables: Tables,
    texts: Contexts,
    start: Tokens,
    scales: Scales,
    schedule: Float[Tensor, " k"] | None = None,
) -> Tokens:
    """Thirty Euler steps (or those of `schedule`), the four legs of a step in one batch."""
    steps = sigmas(30) if schedule is None else schedule
    video, audio = start
    b = len(video)
    device = video.device
    ones, zeros = torch.ones(b, device=device), torch.zeros(b, device=device)
    context = [
        torch.cat([x, y.expand_as(x), x, x])
        for x, y in ((texts.video, texts.negative_video), (texts.audio, texts.negative_audio))
    ]
    base = Batch(
        video=video,
        audio=audio,
        video_sigma=ones,
        audio_sigma=ones,
        video_clean=torch.zeros(4 * b, video.shape[1], dtype=torch.bool, device=device),
        video_context=context[0],
        audio_context=context[1],
        cross=torch.cat([ones, ones, ones, zeros]),
        attend_self=torch.cat([ones, ones, zeros, ones]),
    )
    for now, after in zip(steps[:-1].tolist(), steps[1:].tolist(), strict=True):
        sigma = torch.full((4 * b,), now, device=device)
        legs = replace(
            base, video=video.repeat(4, 1, 1), audio=audio.repeat(4, 1, 1), video_sigma=sigma, audio_sigma=sigma
        )
        velocities = forward(model, legs, tables)
        states = []
        for stream, (x, v) in enumerate(zip((video, audio), velocities, strict=True)):
            c, u, p, m = (x.repeat(4, 1, 1) - now * v).chunk(4)
            guided = combine(c, u, p, m, scales, stream)
            states.append(x + (x - guided) / now * (after - now))
        video, audio = states
    return video, audio
