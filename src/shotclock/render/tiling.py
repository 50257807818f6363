"""How a conv decode is cut into tiles, how tiles are weighted, and how much memory a tile needs.

Pure arithmetic on sizes, the official tiling rule (ltx25.md section 6, "Conv tiling rule"). Must not know decoders,
devices or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import DoesNotFit, RequestError
from shotclock.geometry import SPACE_SCALE, TIME_SCALE, VIDEO_CHANNELS, Geometry

PIXEL_CHANNELS = 3
FLOAT_BYTES = 4  # accumulation is in float32
PAD_FRAMES = 4  # each convolution of kernel 3 holds two replicated frames and the padded copy with two more
WORKSPACE_RATIO = 1.25  # allowance for convolution workspaces and allocator slack; assumed, no device run yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Tile length and overlap along one axis, in frames or pixels."""

    size: int
    overlap: int

    def in_latents(self, scale: int) -> tuple[int, int]:
        """Size and overlap in latents of ``scale`` frames or pixels."""
        return self.size // scale, self.overlap // scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Tile sizes of the three axes: frames in multiples of 8, pixels in multiples of 32, overlap at least one latent.

    Raises :class:`RequestError` for anything else: one-latent tiles without overlap flicker every 8 frames.
    """

    frames: Span
    height: Span
    width: Span

    def __post_init__(self) -> None:
        for name, span, scale in (
            ("frames", self.frames, TIME_SCALE),
            ("height", self.height, SPACE_SCALE),
            ("width", self.width, SPACE_SCALE),
        ):
            if span.size % scale or span.overlap % scale or not scale <= span.overlap < span.size:
                raise RequestError(
                    f"tile {name} {span.size} with overlap {span.overlap}",
                    allowed=f"multiples of {scale}, {scale} <= overlap < size",
                    way_out=f"use for example size {4 * scale} with overlap {scale}",
                )

    def boundaries(self, geometry: Geometry) -> Boundaries:
        """Where tiles begin and end inside the picture; what a seam detector has to look at."""
        grid = tiles(self, geometry)
        return Boundaries(frames=_inner(grid.frames), rows=_inner(grid.rows), columns=_inner(grid.columns))

    def __str__(self) -> str:
        pairs = ((self.frames, "frames"), (self.height, "px high"), (self.width, "px wide"))
        return ", ".join(f"{span.size}/{span.overlap} {unit}" for span, unit in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """First frame, pixel row or pixel column after each tile edge, ascending, picture edges left out."""

    frames: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile along one axis: latents ``[first, last)`` fill frames or pixels ``[start, stop)``, with linear ramps."""

    first: int
    last: int
    start: int
    stop: int
    ramp_in: int
    ramp_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGrid:
    """The tiles of each axis; every combination of the three is decoded once."""

    frames: tuple[Tile, ...]
    rows: tuple[Tile, ...]
    columns: tuple[Tile, ...]

    @property
    def count(self) -> int:
        """Decoder forwards."""
        return len(self.frames) * len(self.rows) * len(self.columns)

    @property
    def largest(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns of the largest tile."""
        frames, rows, columns = (max(t.last - t.first for t in axis) for axis in (self.frames, self.rows, self.columns))
        return frames, rows, columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One resolution of a conv decoder in run order: width, residual blocks, and its scale against the latent grid."""

    channels: int
    layers: int
    time_scale: int
    side_scale: int


def tiles(tiling: Tiling | None, geometry: Geometry) -> TileGrid:
    """The tile grid of a clip; one tile for all of it when ``tiling`` is None."""
    if tiling is None:
        frames, rows, columns = geometry.latent_frames, geometry.rows, geometry.columns
        whole = Tile(first=0, last=frames, start=0, stop=geometry.frames, ramp_in=0, ramp_out=0)
        return TileGrid(frames=(whole,), rows=side_tiles(rows, rows, 0), columns=side_tiles(columns, columns, 0))
    return TileGrid(
        frames=time_tiles(
            geometry.latent_frames, tiling.frames.size // TIME_SCALE, tiling.frames.overlap // TIME_SCALE
        ),
        rows=side_tiles(geometry.rows, tiling.height.size // SPACE_SCALE, tiling.height.overlap // SPACE_SCALE),
        columns=side_tiles(geometry.columns, tiling.width.size // SPACE_SCALE, tiling.width.overlap // SPACE_SCALE),
    )


def time_tiles(count: int, size: int, overlap: int) -> tuple[Tile, ...]:
    """Temporal tiles of ``count`` latent frames, size and overlap in latents.

    Tiles after the first begin one latent earlier, because the first latent of any decode fills one frame only: it
    gets weight 0 and the ramp is one latent longer.
    """
    cuts = _cuts(count, size, overlap)
    return tuple(
        Tile(
            first=(first := start - 1 if start else 0),
            last=last,
            start=TIME_SCALE * first,
            stop=TIME_SCALE * (last - 1) + 1,
            ramp_in=TIME_SCALE * overlap + 1 if start else 0,
            ramp_out=TIME_SCALE * overlap if last < count else 0,
        )
        for start, last in cuts
    )


def side_tiles(count: int, size: int, overlap: int) -> tuple[Tile, ...]:
    """Spatial tiles of ``count`` latent rows or columns, size and overlap in latents."""
    return tuple(
        Tile(
            first=start,
            last=last,
            start=SPACE_SCALE * start,
            stop=SPACE_SCALE * last,
            ramp_in=SPACE_SCALE * overlap if start else 0,
            ramp_out=SPACE_SCALE * overlap if last < count else 0,
        )
        for start, last in _cuts(count, size, overlap)
    )


def _cuts(count: int, size: int, overlap: int) -> list[tuple[int, int]]:
    number = max(1, -(-(count - overlap) // (size - overlap)))
    starts = [index * (size - overlap) for index in range(number)]
    return [(start, min(start + size, count)) for start in starts]


def time_weights(axis: Sequence[Tile]) -> list[Float[Tensor, " n"]]:
    """Normalised weights of temporal tiles: ramps ``i/L`` in, ``1 - i/(R+1)`` out, divided by their sum per frame."""
    return _normalised(axis, open_in=0)


def side_weights(axis: Sequence[Tile]) -> list[Float[Tensor, " n"]]:
    """Normalised weights of spatial tiles: ramps ``i/(R+1)``, mirrored, divided by their sum per pixel."""
    return _normalised(axis, open_in=1)


def _normalised(axis: Sequence[Tile], *, open_in: int) -> list[Float[Tensor, " n"]]:
    """The masks are products of axes, so the sum over all tiles is a product too: each axis is normalised alone."""
    masks = [_mask(tile, open_in=open_in) for tile in axis]
    total = torch.zeros(axis[-1].stop, dtype=torch.float64)
    for tile, mask in zip(axis, masks, strict=True):
        total[tile.start : tile.stop] += mask
    return [(m / total[t.start : t.stop]).float() for t, m in zip(axis, masks, strict=True)]


def _mask(tile: Tile, *, open_in: int) -> Float[Tensor, " n"]:
    mask = torch.ones(tile.stop - tile.start, dtype=torch.float64)
    if tile.ramp_in:
        steps = torch.arange(tile.ramp_in, dtype=torch.float64) + open_in
        mask[: tile.ramp_in] *= steps / (tile.ramp_in + open_in)
    if tile.ramp_out:
        steps = torch.arange(1, tile.ramp_out + 1, dtype=torch.float64)
        mask[-tile.ramp_out :] *= 1 - steps / (tile.ramp_out + 1)
    return mask


def _inner(axis: Sequence[Tile]) -> tuple[int, ...]:
    edges = {tile.start for tile in axis} | {tile.stop for tile in axis}
    return tuple(sorted(edges - {0, axis[-1].stop}))


OFFICIAL = Tiling(  # ltx25.md section 6: conv, 768 / 64 pixels, 80 / 24 frames
    frames=Span(size=80, overlap=24), height=Span(size=768, overlap=64), width=Span(size=768, overlap=64)
)


def _square(side: int, frames: int, overlap: int) -> Tiling:
    span = Span(size=side, overlap=64)
    return Tiling(frames=Span(size=frames, overlap=overlap), height=span, width=span)


LADDER = (  # from the official default down to the floor; 64 pixels of overlap are kept on every rung
    OFFICIAL,
    _square(512, 80, 24),
    _square(512, 56, 24),
    _square(384, 56, 24),
    _square(384, 40, 16),
    _square(256, 40, 16),
    _square(256, 24, 8),
    _square(192, 24, 8),
    _square(128, 24, 8),
)


def activation_elements(stages: Sequence[Stage], frames: int, rows: int, columns: int) -> int:
    """Most values alive at once inside the conv decoder for a tile of that many latents.

    With ``E(s) = channels * frames * rows * columns`` of stage s, ``E+`` the same with its padding, ``F`` the
    upsampled stage before its first frame is dropped: a residual block holds the stage before, its input, the activated
    input, the padded copy and the convolution's result, ``E(s-1) + F(s) + E(s) + E+(s) + E(s)``; upsampling holds
    ``E(s-1) + F(s) + max(E+(s-1), F(s))``. The released widths 1024, 512, 512, 256, 128 make the last residual block
    the peak: about 295,000 values a latent position. Source: the statements of diffusers 0.42.1
    ``LTX2VideoDecoder3d``; test_decode.py measures live bytes against it.
    """
    plane = rows * columns
    before = VIDEO_CHANNELS * frames * plane
    padded_before = VIDEO_CHANNELS * (frames + PAD_FRAMES) * plane
    peak, length = 0, frames
    for number, stage in enumerate(stages):
        area = plane * stage.side_scale**2
        doubled = number > 0 and stage.time_scale > stages[number - 1].time_scale
        full = stage.channels * (2 * length if doubled else length) * area
        length = stage.time_scale * (frames - 1) + 1
        size, padded = stage.channels * length * area, stage.channels * (length + PAD_FRAMES) * area
        arrival = before + full + (max(padded_before, full) if number else padded_before)
        entry = before + full if number else size
        held = max(entry, size + (before if number else size)) if stage.layers > 1 else entry
        blocks = held + 2 * size + padded if stage.layers else 0
        peak = max(peak, arrival, blocks)
        before, padded_before = size, padded
    pixels = PIXEL_CHANNELS * length * plane * SPACE_SCALE**2
    latent = VIDEO_CHANNELS * frames * plane  # held by the caller
    return latent + max(peak, before + padded_before + pixels, 3 * pixels)


def decode_bytes(tiling: Tiling | None, geometry: Geometry, *, stages: Sequence[Stage], element_bytes: int) -> int:
    """Memory a decode needs beside the weights: activations of the largest tile plus float32 sums of one group.

    A group is the tiles of one temporal position; its sums, the tail of the group before and one tile in float32 are
    held: ``4 * 3 * H * W * (2 * frames of a group)`` bytes plus the tile. Activations carry ``WORKSPACE_RATIO``.
    """
    grid = tiles(tiling, geometry)
    frames, rows, columns = grid.largest
    activations = activation_elements(stages, frames, rows, columns) * element_bytes
    group = 2 * (max(t.stop - t.start for t in grid.frames)) * geometry.height * geometry.width
    tile = (TIME_SCALE * (frames - 1) + 1) * rows * columns * SPACE_SCALE**2
    return int(WORKSPACE_RATIO * activations) + FLOAT_BYTES * PIXEL_CHANNELS * (group + tile)


def choose_tiling(geometry: Geometry, *, free_bytes: int, stages: Sequence[Stage], element_bytes: int) -> Tiling | None:
    """The largest tiles that fit ``free_bytes`` by :func:`decode_bytes`: none at all, the official ones, then smaller.

    ``free_bytes`` is what is free once the decoder's weights are loaded. Raises :class:`DoesNotFit` below the floor.
    """
    for tiling in (None, *LADDER):
        if decode_bytes(tiling, geometry, stages=stages, element_bytes=element_bytes) <= free_bytes:
            return tiling
    needed = decode_bytes(LADDER[-1], geometry, stages=stages, element_bytes=element_bytes)
    raise DoesNotFit(
        f"decoding {geometry} in the smallest tiles needs {needed:,} bytes and {free_bytes:,} are free",
        allowed=f"tiles down to {LADDER[-1]}",
        way_out="free memory, decode on the CPU, or render a smaller picture; the latents are kept",
    )


def smaller(tiling: Tiling | None, geometry: Geometry) -> Tiling:
    """The next tiling down whose largest tile really is smaller for this clip; what to try after out-of-memory.

    Raises :class:`DoesNotFit` at the floor.
    """
    frames, rows, columns = tiles(tiling, geometry).largest
    for rung in LADDER:
        less, low, narrow = tiles(rung, geometry).largest
        if less * low * narrow < frames * rows * columns:
            return rung
    raise DoesNotFit(
        f"decoding {geometry} ran out of memory with tiles of {frames}x{rows}x{columns} latents",
        allowed=f"tiles down to {LADDER[-1]}",
        way_out="free memory or decode on the CPU; the latents are kept",
    )
