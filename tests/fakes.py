"""Small stand-ins that tests share: a clock that only moves when told, and tiny transformers with random weights."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import torch
from torch import Tensor

from shotclock.geometry import Geometry
from shotclock.latents import noise, text_to_video
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.model.transformer import Stream, Transformer
from shotclock.render.denoise import Prepared, prepare
from shotclock.weights.tiny import TRANSFORMER

SMALL = Geometry(width=64, height=32, frames=9, fps=Fraction(24))


class FakeClock:
    """Seconds that a test sets; each reading moves it by ``tick_s``."""

    def __init__(self, tick_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


def tiny_config(blocks: int = 4) -> TransformerConfig:
    """The tiny set's widths with another number of blocks."""
    return replace(transformer_config(TRANSFORMER), blocks=blocks)


def random_transformer(config: TransformerConfig, dtype: torch.dtype, seed: int = 0) -> Transformer:
    """Weights of order one, all of them, tables and biases too, so that no path is hidden behind a zero."""
    model = Transformer(config).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            parameter.data.normal_(1, 0.1, generator=generator)
        elif "table" in name or "keyframes" in name or parameter.ndim == 1:
            parameter.data.normal_(0, 0.3, generator=generator)
        else:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def contexts(config: TransformerConfig, dtype: torch.dtype, tokens: int = 24) -> tuple[Tensor, Tensor]:
    """Random texts, positive and negative, for both streams."""
    generator = torch.Generator().manual_seed(7)
    video = torch.randn(2, tokens, config.video_context, generator=generator)
    return video.to(dtype), torch.randn(2, tokens, config.audio_context, generator=generator).to(dtype)


def prepared(model: Transformer, geometry: Geometry = SMALL, seed: int = 3) -> tuple[Prepared, Prepared]:
    """Both streams of a text-to-video render."""
    latents = text_to_video(geometry, *noise(geometry, seed)).to(torch.device("cpu"), model.dtype)
    return prepare(model, latents, contexts(model.config, model.dtype))


def streams(model: Transformer, sigma: float = 0.7, geometry: Geometry = SMALL) -> tuple[Stream, Stream]:
    """Both streams of one forward."""
    video, audio = prepared(model, geometry)
    return (
        video.stream(video.latents.tokens, sigma, enabled=True),
        audio.stream(audio.latents.tokens, sigma, enabled=True),
    )
