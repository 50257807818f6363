"""Guided sampling of many pocket clips at once: the rules of shotclock's sampler, batched for training-time evaluation.

Must not know training. The shipped sampler is shotclock's own; a test holds the combination equal to its.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from pocket.network import GEOMETRY, STG_BLOCK, Batch, Tables, forward
from shotclock.model.transformer import Transformer
from shotclock.schedule import sigmas
from shotclock.weights.released import one_stage

RECIPE = one_stage((2, 5), (STG_BLOCK,))  # what `shotclock render` does unless told otherwise

Tokens = tuple[Float[Tensor, "b n 128"], Float[Tensor, "b m 128"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Guidance of both streams: (video, audio) pairs; 1 (cfg, modality) and 0 (stg, rescale) switch a term off."""

    cfg: tuple[float, float] = (RECIPE.video_cfg, RECIPE.audio_cfg)
    stg: tuple[float, float] = (RECIPE.stg, RECIPE.stg)
    modality: tuple[float, float] = (RECIPE.modality, RECIPE.modality)
    rescale: tuple[float, float] = (RECIPE.rescale, RECIPE.rescale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Contexts of the prompts and of the negative prompt (one row, for all)."""

    video: Float[Tensor, "b s d"]
    audio: Float[Tensor, "b s e"]
    negative_video: Float[Tensor, "1 s d"]
    negative_audio: Float[Tensor, "1 s e"]

    def select(self, part: slice) -> "Contexts":
        """Some of the prompts."""
        return Contexts(
            video=self.video[part],
            audio=self.audio[part],
            negative_video=self.negative_video,
            negative_audio=self.negative_audio,
        )


def combine(
    c: Tensor, u: Tensor | None, p: Tensor | None, m: Tensor | None, scales: Scales, stream: int
) -> Float[Tensor, "b n 128"]:
    """Guided denoised states of each row (ltx25.md section 5.2) from cond, uncond, perturbed and isolated ones."""
    g = c
    for state, weight in ((u, scales.cfg[stream] - 1), (p, scales.stg[stream]), (m, scales.modality[stream] - 1)):
        if state is not None:
            g = g + weight * (c - state)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """The forwards of a step: those that read the prompt, row by row, and whether the negative prompt is read too."""

    perturbed: bool
    isolated: bool
    uncond: bool

    @classmethod
    def of(cls, scales: Scales) -> "Legs":
        """Those whose weight is not zero in both streams."""
        return cls(
            perturbed=any(s != 0 for s in scales.stg),
            isolated=any(s != 1 for s in scales.modality),
            uncond=any(s != 1 for s in scales.cfg),
        )

    @property
    def flags(self) -> list[tuple[float, float]]:
        """(cross, attend_self) of each leg that reads the prompt."""
        return [(1.0, 1.0)] + [(1.0, 0.0)] * self.perturbed + [(0.0, 1.0)] * self.isolated


def _velocities(
    model: Transformer, tables: Tables, states: Tokens, contexts: tuple[Tensor, Tensor], sigma: Tensor, legs: Tensor
) -> list[Float[Tensor, "b k n 128"]]:
    """Velocities of k legs of every row; `contexts` are one a row, or one for all."""
    b, k = len(states[0]), len(legs)
    rows = [x.repeat_interleave(k, 0) for x in states]
    flags = legs.repeat(b, 1)
    level = sigma.expand(b * k)
    batch = Batch(
        video=rows[0],
        audio=rows[1],
        video_sigma=level,
        audio_sigma=level,
        video_context=contexts[0],
        audio_context=contexts[1],
        cross=flags[:, 0],
        attend_self=flags[:, 1],
    )
    return [v.unflatten(0, (b, k)) for v in forward(model, batch, tables)]


@torch.no_grad()
def sample(
    model: Transformer,
    tables: Tables,
    texts: Contexts,
    start: Tokens,
    scales: Scales,
    schedule: Float[Tensor, " k"] | None = None,
) -> Tokens:
    """Thirty Euler steps (or those of `schedule`); legs with one context share its keys and values."""
    states, device = start, start[0].device
    steps = (sigmas(RECIPE.steps) if schedule is None else schedule).to(device)
    wanted = Legs.of(scales)
    legs = torch.tensor(wanted.flags, device=device)
    for now, after in pairwise(steps):
        own = _velocities(model, tables, states, (texts.video, texts.audio), now, legs)
        negative = None
        if wanted.uncond:
            context = texts.negative_video, texts.negative_audio
            negative = _velocities(model, tables, states, context, now, legs[:1])
        updated = []
        for stream, x in enumerate(states):
            denoised = list((x[:, None] - now * own[stream]).unbind(1))
            c = denoised.pop(0)
            p = denoised.pop(0) if wanted.perturbed else None
            m = denoised.pop(0) if wanted.isolated else None
            u = x - now * negative[stream][:, 0] if negative is not None else None
            guided = combine(c, u, p, m, scales, stream)
            updated.append(x + (x - guided) / now * (after - now))
        states = updated[0], updated[1]
    return states
