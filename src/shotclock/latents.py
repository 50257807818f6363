"""Latent states of both streams: initial noise, conditioning masks, tokens and their layouts.

Knows geometry and tensors; no model, sampler or file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.geometry import (
    AUDIO_BINS,
    AUDIO_CHANNELS,
    VIDEO_CHANNELS,
    Geometry,
    audio_positions,
    keyframe_marker,
    video_positions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLatents:
    """Tokens of one stream and what conditions them.

    ``mask`` is 1 where a token is generated and 0 where ``clean`` stays; a ``frozen`` stream is at sigma 0 throughout.
    """

    tokens: Float[Tensor, "b n c"]
    clean: Float[Tensor, "b n c"]
    mask: Float[Tensor, "b n 1"]
    positions: Float[Tensor, "b axes n 2"]
    marker: Float[Tensor, "b n 1"] | None = None
    frozen: bool = False

    def to(self, device: torch.device, dtype: torch.dtype) -> StreamLatents:
        """Tokens in ``dtype``; mask, positions and marker stay float32."""
        return replace(
            self,
            tokens=self.tokens.to(device, dtype),
            clean=self.clean.to(device, dtype),
            mask=self.mask.to(device),
            positions=self.positions.to(device),
            marker=None if self.marker is None else self.marker.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """Both streams before the first step."""

    video: StreamLatents
    audio: StreamLatents

    def to(self, device: torch.device, dtype: torch.dtype) -> Latents:
        """Both streams on ``device`` in ``dtype``."""
        return Latents(video=self.video.to(device, dtype), audio=self.audio.to(device, dtype))


def noise(geometry: Geometry, seed: int) -> tuple[Float[Tensor, "1 n c"], Float[Tensor, "1 m d"]]:
    """Initial noise in the patchified layout: one CPU generator in float32, video first, then audio.

    Drawn on the CPU whatever the device, so that a seed means the same clip everywhere (golden ``loop_t2v_seed``).
    """
    generator = torch.Generator().manual_seed(seed)
    video = torch.randn(1, geometry.video_tokens, VIDEO_CHANNELS, generator=generator)
    audio = torch.randn(1, geometry.audio_tokens, AUDIO_CHANNELS * AUDIO_BINS, generator=generator)
    return video, audio


def text_to_video(geometry: Geometry, video_noise: Tensor, audio_noise: Tensor) -> Latents:
    """Both streams fully generated from noise; the first latent frame carries the keyframe marker."""

    def stream(tokens: Tensor, positions: Tensor, marker: Tensor | None) -> StreamLatents:
        return StreamLatents(
            tokens=tokens,
            clean=torch.zeros_like(tokens),
            mask=torch.ones(*tokens.shape[:2], 1),
            positions=positions,
            marker=marker,
        )

    return Latents(
        video=stream(video_noise, video_positions(geometry), keyframe_marker(geometry)),
        audio=stream(audio_noise, audio_positions(geometry), None),
    )
