"""Diffusion decoders for tests: the released sizes, and small ones with random weights whose attention matters."""

from __future__ import annotations

import torch
from torch import Tensor

from shotclock.model.diffusion_decoder import DecoderConfig, DiffusionDecoder
from shotclock.model.neighbourhood import windowed
from shotclock.render.decode import LatentStatistics
from shotclock.render.diffusion_decode import DiffusionVideoDecoder

RELEASED = DecoderConfig(  # ltx25.md section 6
    latents=128,
    pixels=3,
    patch=4,
    head_dim=64,
    widths=(2048, 1024, 512, 512, 256),
    depths=(4, 6, 4, 2, 8),
    windows=((3, 7, 7), (3, 7, 7), (3, 5, 5), (3, 5, 5), (11, 11, 11)),
    strides=((1, 2, 2), (2, 1, 1), (2, 2, 2), (2, 2, 2)),
    time_width=384,
    time_scale=1000.0,
)
SMALL = DecoderConfig(
    latents=128,
    pixels=3,
    patch=4,
    head_dim=16,
    widths=(32, 16, 16, 16, 16),
    depths=(1, 1, 1, 2, 2),
    windows=((3, 3, 3), (1, 3, 3), (3, 3, 3), (3, 5, 3), (5, 3, 7)),
    strides=((1, 2, 2), (2, 1, 1), (2, 2, 2), (2, 2, 2)),
    time_width=16,
    time_scale=1000.0,
)


def alive(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> DiffusionVideoDecoder:
    """A decoder with random weights whose attention matters: its scores spread over several units."""
    network = DiffusionDecoder(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, weight in network.named_parameters():
        gain = 0.2 if weight.ndim == 1 else 1.2 / weight.shape[-1] ** 0.5
        weight.copy_(torch.randn(weight.shape, generator=generator) * gain)
        if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm_out.weight")):
            weight.copy_(0.8 + 0.4 * torch.rand(weight.shape, generator=generator))
    network.conv_out.weight.mul_(0.3)  # pictures inside their range, where a difference is not clamped away
    return DiffusionVideoDecoder(network.to(dtype), LatentStatistics(128), attend=windowed, dtype=dtype)


def drawn(decoder: DiffusionVideoDecoder, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(1, 128, *shape, generator=generator)
    return latent, decoder.noise(latent, generator)
