"""How a diffusion decode is cut into exact tiles, and how much memory and arithmetic a cut needs.

A tile is a part of the picture and a halo of what the attention windows of its layers see; tiles do not overlap, are
not blended, and together are the untiled decode. Pure arithmetic on sizes. Must not know devices, files or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from shotclock.errors import DoesNotFit, RequestError
from shotclock.geometry import Geometry
from shotclock.model.diffusion_decoder import MLP_RATIO, PIECE, SLAB, DecoderConfig, Shape, plan_axis
from shotclock.model.neighbourhood import BLOCK, SCORES, Part, Window
from shotclock.render.tiling import FLOAT_BYTES, PIXEL_CHANNELS, Boundaries

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40)  # tiles an axis that are considered
PIECE_WIDTHS = 6  # hidden widths held a cell of a piece: feed-forward, or norms and rotations in float32 (tests/render)
SLACK_RATIO = 1.1  # allowance for the allocator; assumed, no device run yet
SMALLER_RATIO = 0.75  # of the memory that was not there, for the next try


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """First frame, pixel row or pixel column of each tile but the first, ascending; rows and columns in multiples of 4.

    Any cuts give the same picture. Raises :class:`RequestError` for cuts that are none.
    """

    frames: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, cuts, step in (("frames", self.frames, 1), ("rows", self.rows, 4), ("columns", self.columns, 4)):
            if any(a >= b for a, b in pairwise((0, *cuts))) or any(cut % step for cut in cuts):
                raise RequestError(
                    f"tiles cut at {name} {cuts}",
                    allowed=f"ascending multiples of {step}",
                    way_out="leave the cuts out",
                )

    @property
    def count(self) -> int:
        """Tiles."""
        return (len(self.frames) + 1) * (len(self.rows) + 1) * (len(self.columns) + 1)

    def boundaries(self, geometry: Geometry) -> Boundaries:
        """Where tiles meet inside the picture; nothing is to be seen there."""
        frames, rows, columns = (
            tuple(cut for cut in cuts if cut < length)
            for cuts, length in zip(
                (self.frames, self.rows, self.columns), (geometry.frames, geometry.height, geometry.width), strict=True
            )
        )
        return Boundaries(frames=frames, rows=rows, columns=columns)

    def __str__(self) -> str:
        counts = len(self.frames) + 1, len(self.rows) + 1, len(self.columns) + 1
        return f"{self.count} exact tiles ({counts[0]} in time, {counts[1]} high, {counts[2]} wide)"


def spans(cuts: Sequence[int], length: int) -> list[tuple[int, int]]:
    """The intervals between cuts of ``[0, length)``; cuts beyond the end cut nothing."""
    return list(pairwise((0, *(cut for cut in cuts if cut < length), length)))


def evenly(geometry: Geometry, counts: Shape, patch: int) -> Cuts:
    """That many tiles along each axis, as equal as the patch of pixels allows."""
    frames, rows, columns = (
        tuple(step * (n * index // count) for index in range(1, count))
        for n, step, count in zip(
            (geometry.frames, geometry.height // patch, geometry.width // patch), (1, patch, patch), counts, strict=True
        )
    )
    return Cuts(frames=frames, rows=rows, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """A latent grid that no window is larger than: repeated at the end of time, evenly at the sides, cut off again."""

    latent: Shape
    before: Shape
    after: Shape

    @property
    def grid(self) -> Shape:
        """Latent frames, rows and columns with the padding."""
        frames, rows, columns = (sum(n) for n in zip(self.latent, self.before, self.after, strict=True))
        return frames, rows, columns


def padding(config: DecoderConfig, latent: Shape) -> Padding:
    """What a latent lacks of the floor; the odd one goes to the right and below (golden vae_diffusion_decode_small)."""
    lacks = [max(0, floor - n) for floor, n in zip(config.floor, latent, strict=True)]
    before = (0, lacks[1] // 2, lacks[2] // 2)
    return Padding(latent=latent, before=before, after=(lacks[0], lacks[1] - before[1], lacks[2] - before[2]))


def latent_grid(geometry: Geometry) -> Shape:
    """Latent frames, rows and columns of a clip."""
    return geometry.latent_frames, geometry.rows, geometry.columns


def cores(config: DecoderConfig, latent: Shape, cuts: Cuts | None) -> tuple[list[Part], list[Part], list[Part]]:
    """What the tiles of each axis fill, in cells of the padded grid of the denoising stage; padding is in no tile."""
    cuts = cuts or Cuts()
    cells = cuts.frames, [cut // config.patch for cut in cuts.rows], [cut // config.patch for cut in cuts.columns]
    frames, rows, columns = (_cores(config, latent, axis, each) for axis, each in enumerate(cells))
    return frames, rows, columns


def _cores(config: DecoderConfig, latent: Shape, axis: int, cuts: Sequence[int]) -> list[Part]:
    padded = padding(config, latent)
    length, count = config.grids(latent)[4][axis], config.grids(padded.grid)[4][axis]
    offset = padded.before[axis] * prod(stride[axis] for stride in config.strides)
    return [Part(start + offset, stop + offset, count) for start, stop in spans(cuts, length)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """Cells along one axis: inputs of stage 4's blocks, its output, the same of stage 5."""

    largest: tuple[int, ...]  # of any tile
    together: tuple[int, ...]  # of all tiles


def _lengths(config: DecoderConfig, latent: Shape, axis: int, parts: Sequence[Part]) -> _Lengths:
    given = config.grids(padding(config, latent).grid)[3][axis]
    plans = [plan_axis(config, axis, given, part) for part in parts]
    columns = list(zip(*([part.length for part in (*p.stage_4, *p.stage_5)] for p in plans), strict=True))
    return _Lengths(largest=tuple(map(max, columns)), together=tuple(map(sum, columns)))


def workspace_elements(shape: Shape, width: int, window: Window) -> int:
    """Values that a block holds beside its volume of ``shape`` and ``width``, at most.

    Keys and values of a slab's frames and their halo, its queries and answers; gathered keys, values, queries and
    answers of one launch of attention with its mask; norms and hidden layer of one piece.
    """
    frames, rows, columns = shape
    plane = rows * columns * width
    slab = 2 * plane * (min(SLAB + window[0] - 1, frames) + min(SLAB, frames))
    asked = prod(min(BLOCK, n) for n in shape)
    known = prod(min(BLOCK + w - 1, n) for n, w in zip(shape, window, strict=True))
    blocks = max(1, min(-(-columns // BLOCK), SCORES // (asked * known)))
    launch = 2 * blocks * (known + asked) * width + 2 * asked * known
    hidden = MLP_RATIO * width
    piece = PIECE_WIDTHS * hidden * min(SLAB * rows * columns, max(columns, PIECE // hidden))
    return slab + max(launch, piece)


def decode_elements(config: DecoderConfig, latent: Shape, cuts: Cuts | None) -> int:
    """Most values alive at once on the device during a decode in these tiles, beside the weights.

    Either stages 1 to 3 of the whole latent (a volume, the finer one being filled, a block's workspace), or their
    result and one tile: its input to stage 4, or its context and the volume of the denoising stage, and a workspace.
    """
    sizes = [_lengths(config, latent, axis, parts).largest for axis, parts in enumerate(cores(config, latent, cuts))]
    return _elements(config, latent, sizes)


def _elements(config: DecoderConfig, latent: Shape, sizes: Sequence[Sequence[int]]) -> int:
    widths, windows = config.widths, config.windows
    features, early = _early_elements(config, latent)
    shape_4, shape_5 = _box(sizes, 0), _box(sizes, config.depths[3] + 1)
    tile, context = prod(shape_4) * widths[3], prod(shape_5) * widths[4]
    finer = context + _piece_elements(context, shape_5)
    stage_4 = tile + max(workspace_elements(shape_4, widths[3], windows[3]), finer)
    stage_5 = 2 * context + workspace_elements(shape_5, widths[4], windows[4])
    return max(early, features + max(stage_4, stage_5))


@lru_cache(maxsize=4)
def _early_elements(config: DecoderConfig, latent: Shape) -> tuple[int, int]:
    """Values of the result of stages 1 to 3, and the most that are alive before it is there."""
    grids, widths = config.grids(padding(config, latent).grid), config.widths
    volumes = [prod(grid) * width for grid, width in zip(grids, widths, strict=True)]
    held = []
    for stage in range(3):
        finer = volumes[stage + 1] + _piece_elements(volumes[stage + 1], grids[stage + 1])
        held.append(volumes[stage] + max(workspace_elements(grids[stage], widths[stage], config.windows[stage]), finer))
    return volumes[3], max(held)


def _box(sizes: Sequence[Sequence[int]], layer: int) -> Shape:
    return sizes[0][layer], sizes[1][layer], sizes[2][layer]


def _piece_elements(volume: int, shape: Shape) -> int:
    """What an upsampling holds beside its two volumes: a piece as the linear layer gives it, and put in order."""
    return 2 * min(max(PIECE, 4 * volume // (shape[0] * shape[1])), 2 * volume)


def decode_bytes(cuts: Cuts | None, geometry: Geometry, *, config: DecoderConfig, element_bytes: int) -> int:
    """Device memory of a decode beside the weights, with :data:`SLACK_RATIO`."""
    return int(SLACK_RATIO * element_bytes * decode_elements(config, latent_grid(geometry), cuts))


def host_bytes(cuts: Cuts | None, geometry: Geometry, *, config: DecoderConfig) -> int:
    """Host memory of a decode: the noise of the padded clip in float32, and the pictures of one group in uint8."""
    frames, rows, columns = config.grids(padding(config, latent_grid(geometry)).grid)[4]
    noise = FLOAT_BYTES * config.pixels * frames * rows * columns * config.patch**2
    group = max(b - a for a, b in spans(() if cuts is None else cuts.frames, geometry.frames))
    return noise + PIXEL_CHANNELS * group * geometry.height * geometry.width


def decode_flops(cuts: Cuts | None, geometry: Geometry, *, config: DecoderConfig) -> int:
    """Operations of a decode in these tiles: linear layers and the scores that windows need, halos included.

    The path in torch computes up to ``((BLOCK + window - 1) / window)^3`` as many scores.
    """
    latent = latent_grid(geometry)
    sums = [_lengths(config, latent, axis, parts).together for axis, parts in enumerate(cores(config, latent, cuts))]
    return _early_flops(config, latent) + _tiles_flops(config, sums)


def _cell_flops(width: int, window: Window) -> int:
    return 2 * (4 + 3 * MLP_RATIO) * width**2 + 4 * prod(window) * width


def _early_flops(config: DecoderConfig, latent: Shape) -> int:
    grids, widths = config.grids(padding(config, latent).grid), config.widths
    total = 2 * config.latents * widths[0] * prod(grids[0])
    for stage in range(3):
        cell = config.depths[stage] * _cell_flops(widths[stage], config.windows[stage])
        total += prod(grids[stage]) * (cell + 2 * widths[stage] * widths[stage + 1] * prod(config.strides[stage]))
    return total


def _tiles_flops(config: DecoderConfig, sums: Sequence[Sequence[int]]) -> int:
    """Blocks at the sizes of what they give, for all tiles: cells of boxes are products, and sums of them too."""
    cells = [prod(layer) for layer in zip(*sums, strict=True)]
    given = config.depths[3]  # where stage 4's output stands
    width_4, width_5 = config.widths[3], config.widths[4]
    stage_4 = sum(cells[1 : given + 1]) * _cell_flops(width_4, config.windows[3])
    upsample = cells[given] * 2 * width_4 * width_5 * prod(config.strides[3])
    context = sum(cells[given + 1 : -1]) * 2 * width_5**2
    stage_5 = sum(cells[given + 2 :]) * _cell_flops(width_5, config.windows[4])
    ends = 2 * config.pixels * config.patch**2 * width_5 * (cells[given + 1] + cells[-1])
    return int(stage_4 + upsample + context + stage_5 + ends)


def choose_cuts(geometry: Geometry, *, free_bytes: int, config: DecoderConfig, element_bytes: int) -> Cuts | None:
    """The cuts that fit ``free_bytes`` with the least arithmetic; None where the whole clip does.

    ``free_bytes`` is what is free once the weights are loaded. Raises :class:`DoesNotFit` with the least that does.
    """
    if decode_bytes(None, geometry, config=config, element_bytes=element_bytes) <= free_bytes:
        return None  # no halo, so the least arithmetic
    latent = latent_grid(geometry)
    candidates = _candidates(config, latent)
    fitting = list[tuple[int, Shape]]()
    least = None
    for counts in product(*candidates):
        axes = [candidate[count] for candidate, count in zip(candidates, counts, strict=True)]
        needed = int(SLACK_RATIO * element_bytes * _elements(config, latent, [axis.largest for axis in axes]))
        least = needed if least is None else min(least, needed)
        if needed <= free_bytes:
            fitting.append((_tiles_flops(config, [axis.together for axis in axes]), (counts[0], counts[1], counts[2])))
    if not fitting:
        raise DoesNotFit(
            f"decoding {geometry} in the smallest tiles needs {least:,} bytes and {free_bytes:,} are free",
            allowed=f"a device with {least:,} bytes free",
            way_out="--decoder conv, free memory, decode on the CPU, or render a smaller picture; the latents are kept",
        )
    counts = min(fitting)[1]
    return None if counts == (1, 1, 1) else evenly(geometry, counts, config.patch)


@lru_cache(maxsize=4)
def _candidates(config: DecoderConfig, latent: Shape) -> list[dict[int, _Lengths]]:
    """Sizes of every number of tiles along each axis, tiles of at least :data:`SLAB` frames or cells."""
    axes = []
    for axis in range(3):
        length = config.grids(latent)[4][axis]
        axes.append(
            {
                count: _lengths(
                    config,
                    latent,
                    axis,
                    _cores(config, latent, axis, [length * index // count for index in range(1, count)]),
                )
                for count in COUNTS
                if count == 1 or length // count >= SLAB
            }
        )
    return axes


def smaller_cuts(cuts: Cuts | None, geometry: Geometry, *, config: DecoderConfig, element_bytes: int) -> Cuts:
    """Cuts that need less than three quarters of the memory; what to try after out-of-memory.

    Raises :class:`DoesNotFit` at the floor.
    """
    needed = decode_bytes(cuts, geometry, config=config, element_bytes=element_bytes)
    chosen = choose_cuts(geometry, free_bytes=int(SMALLER_RATIO * needed), config=config, element_bytes=element_bytes)
    assert chosen is not None, "the whole needs no less than its parts"
    return chosen
