"""Width, height, frames and rate of a clip, and what follows: latent grids, token counts, positions, layouts.

Pure arithmetic on legal geometries (ltx25.md section 4). Knows no model, device or file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import RequestError

VIDEO_CHANNELS = 128  # latent channels of both video VAEs
AUDIO_CHANNELS = 8  # latent channels of the audio VAE
AUDIO_BINS = 16  # mel bins of an audio latent; 8 * 16 = 128 values a token
SPACE_SCALE = 32  # pixels a latent column or row
MAX_SIDE = 8_192  # four times the largest position the model knows (ltx25.md 1.1)
MAX_FRAMES = 2_401  # 100 s at 24 a second, five times the largest time the model knows
TIME_SCALE = 8  # frames a latent frame, the first latent frame holds one
AUDIO_LATENTS_HZ = 25  # 16,000 Hz / hop 160 / 4
AUDIO_TIME_SCALE = 4  # mel frames an audio latent, the first holds one
MEL_FRAME_S = 0.01  # hop 160 at 16,000 Hz


def _nearest(value: int, step: int, offset: int) -> str:
    """The legal neighbours ``step*k + offset`` of ``value``, smallest legal value ``step + offset`` or ``offset``."""
    lowest = offset if offset else step
    below = (value - offset) // step * step + offset
    return f"{max(below, lowest)} or {max(below + step, lowest)}" if below >= lowest else f"{lowest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """A legal clip: sides are multiples of 32 pixels, frames are 8k+1, the rate is exact.

    Raises :class:`RequestError` naming both legal neighbours of an illegal value.
    """

    width: int
    height: int
    frames: int
    fps: Fraction

    def __post_init__(self) -> None:
        for name, side in (("width", self.width), ("height", self.height)):
            if side > MAX_SIDE:
                raise RequestError(
                    f"{name} {side}", allowed=f"at most {MAX_SIDE:,} pixels", way_out="render smaller and scale up"
                )
            if side < SPACE_SCALE or side % SPACE_SCALE:
                raise RequestError(
                    f"{name} {side} is not a positive multiple of {SPACE_SCALE}",
                    allowed=f"multiples of {SPACE_SCALE}",
                    way_out=f"use {name} {_nearest(side, SPACE_SCALE, 0)}",
                )
        if self.frames > MAX_FRAMES:
            raise RequestError(
                f"{self.frames} frames", allowed=f"at most {MAX_FRAMES:,}", way_out="render the clip in parts"
            )
        if self.frames < 1 or (self.frames - 1) % TIME_SCALE:
            raise RequestError(
                f"{self.frames} frames are off the grid",
                allowed=f"{TIME_SCALE}k + 1 frames",
                way_out=f"use {_nearest(self.frames, TIME_SCALE, 1)} frames",
            )
        if not 1 <= self.fps <= 240:
            raise RequestError(
                f"{self.fps} frames a second", allowed="1 to 240", way_out="use a rate such as 24, 25 or 24000/1001"
            )
        if self.audio_frames < 1:
            raise RequestError(
                f"{self.frames} frames at {self.fps} a second last {float(self.duration_s):.4f} s, "
                "less than one audio latent",
                allowed=f"at least {1 / AUDIO_LATENTS_HZ} s",
                way_out=f"use {TIME_SCALE + 1} frames or a lower rate",
            )

    @property
    def duration_s(self) -> Fraction:
        """Seconds of picture, exact."""
        return Fraction(self.frames) / self.fps

    @property
    def latent_frames(self) -> int:
        """Latent frames of the video stream."""
        return (self.frames - 1) // TIME_SCALE + 1

    @property
    def rows(self) -> int:
        """Latent rows."""
        return self.height // SPACE_SCALE

    @property
    def columns(self) -> int:
        """Latent columns."""
        return self.width // SPACE_SCALE

    @property
    def audio_frames(self) -> int:
        """Audio latents, 25 a second (golden ``latent_counts``)."""
        return round(self.frames / float(self.fps) * AUDIO_LATENTS_HZ)

    @property
    def video_tokens(self) -> int:
        """Tokens of the video stream."""
        return self.latent_frames * self.rows * self.columns

    @property
    def audio_tokens(self) -> int:
        """Tokens of the audio stream."""
        return self.audio_frames

    def __str__(self) -> str:
        return f"{self.width}x{self.height}, {self.frames} frames at {self.fps}"


def video_positions(geometry: Geometry) -> Float[Tensor, "1 3 n 2"]:
    """Bounds ``[start, end)`` of each video token: seconds, pixel rows, pixel columns; order (frame, row, column)."""
    fps = float(geometry.fps)
    index = torch.arange(geometry.latent_frames + 1, dtype=torch.float32)
    edges = (index * TIME_SCALE - (TIME_SCALE - 1)).clamp(min=0) / fps
    time = torch.stack([edges[:-1], edges[1:]], dim=-1)
    row = torch.arange(geometry.rows, dtype=torch.float32) * SPACE_SCALE
    column = torch.arange(geometry.columns, dtype=torch.float32) * SPACE_SCALE
    shape = (geometry.latent_frames, geometry.rows, geometry.columns, 2)
    grid = torch.stack(
        [
            time[:, None, None, :].expand(shape),
            torch.stack([row, row + SPACE_SCALE], dim=-1)[None, :, None, :].expand(shape),
            torch.stack([column, column + SPACE_SCALE], dim=-1)[None, None, :, :].expand(shape),
        ]
    )
    return grid.reshape(1, 3, -1, 2)


def frame_positions(geometry: Geometry, frame: int) -> Float[Tensor, "1 3 n 2"]:
    """Bounds of the tokens of one image at pixel ``frame``: the time of that frame, the clip's rows and columns."""
    first = video_positions(geometry)[:, :, : geometry.rows * geometry.columns].clone()
    first[:, 0] = torch.tensor([frame, frame + 1], dtype=torch.float32) / float(geometry.fps)
    return first


def audio_positions(geometry: Geometry) -> Float[Tensor, "1 1 m 2"]:
    """Bounds ``[start, end)`` of each audio token in seconds."""
    index = torch.arange(geometry.audio_frames + 1, dtype=torch.float32)
    edges = (index * AUDIO_TIME_SCALE - (AUDIO_TIME_SCALE - 1)).clamp(min=0) * MEL_FRAME_S
    return torch.stack([edges[:-1], edges[1:]], dim=-1).reshape(1, 1, -1, 2)


def keyframe_marker(geometry: Geometry) -> Float[Tensor, "1 n 1"]:
    """1 for the tokens of the first latent frame, which always get the keyframe embedding; 0 elsewhere."""
    marker = torch.zeros(1, geometry.video_tokens, 1)
    marker[:, : geometry.rows * geometry.columns] = 1
    return marker


def patchify_video(latent: Float[Tensor, "b c f h w"]) -> Float[Tensor, "b n c"]:
    """Video latent to tokens, order (f, h, w)."""
    return latent.flatten(2).transpose(1, 2)


def unpatchify_video(tokens: Float[Tensor, "b n c"], geometry: Geometry) -> Float[Tensor, "b c f h w"]:
    """Tokens back to the video latent."""
    grid = (geometry.latent_frames, geometry.rows, geometry.columns)
    return tokens.transpose(1, 2).unflatten(2, grid)  # type: ignore[no-any-return]


def patchify_audio(latent: Float[Tensor, "b c m bins"]) -> Float[Tensor, "b m d"]:
    """Audio latent to tokens, features channel-major (c, bins)."""
    return latent.transpose(1, 2).flatten(2)


def unpatchify_audio(tokens: Float[Tensor, "b m d"]) -> Float[Tensor, "b c m bins"]:
    """Tokens back to the audio latent."""
    return tokens.unflatten(2, (AUDIO_CHANNELS, AUDIO_BINS)).transpose(1, 2)  # type: ignore[no-any-return]
