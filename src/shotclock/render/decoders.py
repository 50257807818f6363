"""Both decoders of a render on the device, and one way to ask either video decoder for its pictures and tiles.

Which of the two it is follows from its file. Must not know media files, run folders, clocks or the governor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from shotclock.device import free_bytes
from shotclock.geometry import Geometry
from shotclock.render.decode import AudioDecoder, VideoDecoder
from shotclock.render.diffusion_decode import DiffusionVideoDecoder
from shotclock.render.exact_tiles import Cuts, choose_cuts, smaller_cuts
from shotclock.render.tiling import Boundaries, Tiling, choose_tiling, smaller
from shotclock.weights.checkpoint import CheckpointHeaders, Kind, identify

Tiles = Tiling | Cuts  # None stands for one piece
Frames = Iterator[UInt8[Tensor, "t height width 3"]]


class Pictures(Protocol):
    """What a latent decodes to, as often as memory asks for other tiles."""

    def planned(self, geometry: Geometry, at_most: int | None = None) -> Tiles | None:
        """The best tiles of a clip that the free memory holds, ``at_most`` bytes of it; raises :class:`DoesNotFit`."""

    def smaller(self, tiles: Tiles | None, geometry: Geometry) -> Tiles:
        """What to try where these ran out of memory; raises :class:`DoesNotFit` at the floor."""

    def frames(self, tiles: Tiles | None) -> Frames:
        """The pictures in order, at most 8 at a time; raises :class:`RenderFailed` where they are not finite."""


def allowed_bytes(device: torch.device, at_most: int | None) -> int:
    """What a decode's tiles may take: what is free, and no more than the plan kept for them where memory is capped."""
    free = free_bytes(device)
    return free if at_most is None else min(free, at_most)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPictures:
    """Of the conv decoder."""

    decoder: VideoDecoder
    latent: Float[Tensor, "1 c f h w"]

    def planned(self, geometry: Geometry, at_most: int | None = None) -> Tiling | None:
        """See :class:`Pictures`."""
        video = self.decoder
        free = allowed_bytes(video.device, at_most)
        return choose_tiling(geometry, free_bytes=free, stages=video.stages, element_bytes=video.dtype.itemsize)

    def smaller(self, tiles: Tiles | None, geometry: Geometry) -> Tiling:
        """See :class:`Pictures`."""
        assert not isinstance(tiles, Cuts), "tiles of this decoder"
        return smaller(tiles, geometry)

    def frames(self, tiles: Tiles | None) -> Frames:
        """See :class:`Pictures`."""
        assert not isinstance(tiles, Cuts), "tiles of this decoder"
        return self.decoder.frames(self.latent, tiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionPictures:
    """Of the diffusion decoder: ``noise`` is drawn once, so that other tiles give the same pictures."""

    decoder: DiffusionVideoDecoder
    latent: Float[Tensor, "1 c f h w"]
    noise: Float[Tensor, "1 3 t y x"]

    def planned(self, geometry: Geometry, at_most: int | None = None) -> Cuts | None:
        """See :class:`Pictures`."""
        video = self.decoder
        free = allowed_bytes(video.device, at_most)
        return choose_cuts(geometry, free_bytes=free, config=video.config, element_bytes=video.dtype.itemsize)

    def smaller(self, tiles: Tiles | None, geometry: Geometry) -> Cuts:
        """See :class:`Pictures`."""
        assert not isinstance(tiles, Tiling), "tiles of this decoder"
        video = self.decoder
        return smaller_cuts(tiles, geometry, config=video.config, element_bytes=video.dtype.itemsize)

    def frames(self, tiles: Tiles | None) -> Frames:
        """See :class:`Pictures`."""
        assert not isinstance(tiles, Tiling), "tiles of this decoder"
        return self.decoder.frames(self.latent, tiles, self.noise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoders:
    """Both decoders on the device."""

    video: VideoDecoder | DiffusionVideoDecoder
    audio: AudioDecoder

    def pictures(self, latent: Float[Tensor, "1 c f h w"], generator: torch.Generator) -> Pictures:
        """Of a latent; ``generator`` is where the diffusion decoder's noise comes from, the conv decoder draws none."""
        if isinstance(self.video, DiffusionVideoDecoder):
            noise = self.video.noise(latent, generator)
            return DiffusionPictures(decoder=self.video, latent=latent, noise=noise)
        return ConvPictures(decoder=self.video, latent=latent)


def load_decoders(headers: CheckpointHeaders, device: torch.device, dtype: torch.dtype) -> Decoders:
    """Both from their files."""
    is_diffusion = identify(headers.video_vae) is Kind.VIDEO_VAE_DIFFUSION
    kind = DiffusionVideoDecoder if is_diffusion else VideoDecoder
    return Decoders(
        audio=AudioDecoder.load(headers.audio_vae, device=device),
        video=kind.load(headers.video_vae, device=device, dtype=dtype),
    )


def words(tiles: Tiles | None) -> str:
    """How a person reads it, after "decode" or "decoding"."""
    if tiles is None:
        return "untiled"
    return f"in {tiles}" if isinstance(tiles, Cuts) else f"in tiles of {tiles}"


def boundaries(tiles: Tiles | None, geometry: Geometry) -> Boundaries:
    """Where tiles begin and end inside the picture."""
    return Boundaries(frames=(), rows=(), columns=()) if tiles is None else tiles.boundaries(geometry)
