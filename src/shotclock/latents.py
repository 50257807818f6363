"""Latent states of both streams: initial noise, conditioning masks, tokens and their layouts.

Knows geometry and tensors; no model, sampler or file.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    frame_positions,
    keyframe_marker,
    patchify_audio,
    patchify_video,
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
    return stage_noise([(geometry.video_tokens, geometry.audio_tokens)], seed)


def stage_noise(tokens: Sequence[tuple[int, int]], seed: int) -> tuple[Float[Tensor, "1 n c"], Float[Tensor, "1 m d"]]:
    """Initial noise of the last of the stages with these ``tokens`` (video, audio); one generator goes through them.

    Those of earlier stages are drawn and dropped, so that a stage needs nothing but the seed to be begun again.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        (
            torch.randn(1, video, VIDEO_CHANNELS, generator=generator),
            torch.randn(1, audio, AUDIO_CHANNELS * AUDIO_BINS, generator=generator),
        )
        for video, audio in tokens
    ]
    return drawn[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An encoded image that the clip passes through at ``frame``; strength 1 keeps it, less lets it change."""

    latent: Float[Tensor, "1 c 1 h w"]
    frame: int
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """What both streams begin from besides noise: pictures, keyframe slots to be generated, sound that stays.

    ``slots`` are pixel frames. ``video`` and ``audio`` are latents of a stage before, mixed with noise of the level
    that the stage begins at; None begins from noise alone. A ``sound`` is frozen: its stream is not generated.
    """

    pictures: tuple[Picture, ...] = ()
    slots: tuple[int, ...] = ()
    sound: Float[Tensor, "1 c m bins"] | None = None
    video: Float[Tensor, "1 c f h w"] | None = None
    audio: Float[Tensor, "1 c m bins"] | None = None


def appended_tokens(geometry: Geometry, picture_frames: Sequence[int], slots: Sequence[int]) -> int:
    """Video tokens beyond the clip's own: a latent frame for every picture that is not at frame 0, and every slot."""
    return (sum(frame > 0 for frame in picture_frames) + len(slots)) * geometry.rows * geometry.columns


def text_to_video(geometry: Geometry, video_noise: Tensor, audio_noise: Tensor) -> Latents:
    """Both streams fully generated from noise; the first latent frame carries the keyframe marker."""
    return conditioned(geometry, video_noise, audio_noise, Conditioning(), sigma=1.0)


def conditioned(
    geometry: Geometry, video_noise: Tensor, audio_noise: Tensor, given: Conditioning, *, sigma: float
) -> Latents:
    """Both streams before the first step, whose level is ``sigma`` (ltx25.md section 7).

    ``x = lerp(clean, lerp(begun, noise, sigma), mask)`` in float32. Tokens of pictures at frames > 0 and of slots
    follow those of the clip, in this order, and ``video_noise`` covers them; :func:`clip_tokens` drops them at the end.
    """
    return Latents(video=_video(geometry, video_noise, given, sigma), audio=_audio(geometry, audio_noise, given, sigma))


def _video(geometry: Geometry, noise: Tensor, given: Conditioning, sigma: float) -> StreamLatents:
    own, cell = geometry.video_tokens, geometry.rows * geometry.columns
    frames = [picture.frame for picture in given.pictures]
    assert noise.shape[1] == own + appended_tokens(geometry, frames, given.slots), "noise covers appended tokens"
    clean, mask = torch.zeros_like(noise), torch.ones(*noise.shape[:2], 1)
    begun = torch.zeros_like(noise)
    if given.video is not None:
        begun[:, :own] = patchify_video(given.video)
    marker, times, end = [keyframe_marker(geometry)], list[int](), own
    for picture in given.pictures:
        if picture.frame:
            start, end = end, end + cell
            times.append(picture.frame)
            marker.append(torch.zeros(1, cell, 1))
        else:
            start = 0
        clean[:, start : start + cell] = patchify_video(picture.latent)
        mask[:, start : start + cell] = 1 - picture.strength
    times += given.slots
    marker += [torch.ones(1, cell, 1)] * len(given.slots)
    positions = [video_positions(geometry), *(frame_positions(geometry, frame) for frame in times)]
    return StreamLatents(
        tokens=clean.lerp(begun.lerp(noise, sigma), mask),
        clean=clean,
        mask=mask,
        positions=torch.cat(positions, dim=2),
        marker=torch.cat(marker, dim=1),
    )


def _audio(geometry: Geometry, noise: Tensor, given: Conditioning, sigma: float) -> StreamLatents:
    clean = torch.zeros_like(noise) if given.sound is None else patchify_audio(given.sound).to(noise.dtype)
    begun = torch.zeros_like(noise) if given.audio is None else patchify_audio(given.audio).to(noise.dtype)
    frozen = given.sound is not None
    return StreamLatents(
        tokens=clean if frozen else begun.lerp(noise, sigma),
        clean=clean,
        mask=torch.full((*noise.shape[:2], 1), 0.0 if frozen else 1.0),
        positions=audio_positions(geometry),
        frozen=frozen,
    )


def clip_tokens(tokens: Float[Tensor, "b n c"], geometry: Geometry) -> Float[Tensor, "b k c"]:
    """The tokens of the clip itself, without appended ones."""
    return tokens[:, : geometry.video_tokens]


def slot_latents(tokens: Float[Tensor, "b n c"], geometry: Geometry, slots: int) -> Float[Tensor, "b c s h w"]:
    """Latents of the generated keyframe slots, which stand last, one latent frame each."""
    assert slots, "a render without slots has no slot latents"
    last = tokens[:, -slots * geometry.rows * geometry.columns :]
    return last.transpose(1, 2).unflatten(2, (slots, geometry.rows, geometry.columns))  # type: ignore[no-any-return]
