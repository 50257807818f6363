"""The diffusion video decoder's network, run on any part of its volume (ltx25.md section 6, "Diffusion decoder").

Four stages of neighbourhood-attention blocks turn a latent into a context volume, a fifth predicts the picture from
noise and context in one step. :func:`plan_tile` says what each layer needs of the layer before, so that a part comes
out as it does in the whole: windows and positions are those of the whole volume. Knows no file, clock or device choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.model.adaln import FREQUENCY_DIM, sinusoid
from shotclock.model.linear import Linear
from shotclock.model.neighbourhood import Attend, Box, Part, Window, whole, within

EPS = 1e-6  # of every norm, ltx25.md section 6
THETA = 10_000.0  # of the rotary embedding, ltx25.md section 6
MODULATIONS = 7  # rows of the tables; the gates (2, 5) and the context gate (6) are unused, ltx25.md section 6
SLAB = 8  # frames of queries at a time: keys and values of no more than SLAB + window - 1 frames are held
PIECE = 2**25  # values of the widest activation (hidden layer, upsampled cells) made at a time
MLP_RATIO = 4  # hidden over model width, ltx25.md section 6

Shape = tuple[int, int, int]
Pair = tuple[Tensor, Tensor]  # scale, shift
Modulation = tuple[Pair, Pair]  # of attention, of the feed-forward
Volume = Float[Tensor, "f h w c"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Sizes of a decoder; entry 5 of ``widths``, ``depths`` and ``windows`` is the denoising stage."""

    latents: int
    pixels: int
    patch: int
    head_dim: int
    widths: tuple[int, int, int, int, int]
    depths: tuple[int, int, int, int, int]
    windows: tuple[Window, Window, Window, Window, Window]
    strides: tuple[Window, Window, Window, Window]
    time_width: int
    time_scale: float

    @property
    def ghosts(self) -> int:
        """Copies of the last latent frame that pass through stages 1 to 4, so that no kept frame's window shifts."""
        return self.windows[0][0] // 2 * 2

    @property
    def floor(self) -> Shape:
        """Fewest latent frames, rows and columns with which every stage holds its window."""
        frames, rows, columns = (
            next(n for n in range(1, 1 + max(map(max, self.windows))) if self._holds(n, axis)) for axis in range(3)
        )
        return frames, rows, columns

    def _holds(self, latents: int, axis: int) -> bool:
        grids = self.grids((latents, latents, latents), ghosts=0)
        return all(grid[axis] >= window[axis] for grid, window in zip(grids, self.windows, strict=True))

    def grids(self, latent: Shape, *, ghosts: int | None = None) -> list[Shape]:
        """Cells of the five stages for a latent's frames, rows and columns; ghosts are in the first four."""
        frames, rows, columns = latent
        grid = (frames + (self.ghosts if ghosts is None else ghosts), rows, columns)
        grids = [grid]
        for stride in self.strides:
            grid = upsampled(grid, stride)
            grids.append(grid)
        scale = prod(stride[0] for stride in self.strides)
        return [*grids[:-1], (scale * (frames - 1) + 1, *grids[-1][1:])]


def upsampled(grid: Shape, stride: Window) -> Shape:
    """Cells after an upsampling; where time doubles the first frame is dropped."""
    return grid[0] * stride[0] - (stride[0] - 1), grid[1] * stride[1], grid[2] * stride[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPlan:
    """One axis of a tile: inputs of the blocks of stages 4 and 5, then what the stage gives; the last is the core."""

    stage_4: tuple[Part, ...]
    stage_5: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TilePlan:
    """The boxes of a tile, as :class:`AxisPlan`."""

    stage_4: tuple[Box, ...]
    stage_5: tuple[Box, ...]


def plan_axis(config: DecoderConfig, axis: int, count: int, core: Part) -> AxisPlan:
    """Halos along one axis, as wide as the windows of the blocks together; ``count`` cells has the grid of stage 4."""
    stage_5 = _inputs(core, config.depths[4], config.windows[4][axis])
    scale = config.strides[3][axis]
    dropped = scale - 1 if axis == 0 else 0
    first, last = (stage_5[0].start + dropped) // scale, (stage_5[0].stop - 1 + dropped) // scale
    stage_4 = _inputs(Part(first, last + 1, count), config.depths[3], config.windows[3][axis])
    return AxisPlan(stage_4=stage_4, stage_5=stage_5)


def _inputs(out: Part, depth: int, window: int) -> tuple[Part, ...]:
    """What each of ``depth`` blocks takes in so that the last gives ``out``, and ``out``."""
    parts = [out]
    for _ in range(depth):
        parts.append(parts[-1].seen(window))
    return tuple(reversed(parts))


def plan_tile(config: DecoderConfig, grids: Sequence[Shape], core: Box) -> TilePlan:
    """What a tile needs that fills ``core`` of the denoising stage; ``grids`` of :meth:`DecoderConfig.grids`."""
    axes = [plan_axis(config, axis, grids[3][axis], part) for axis, part in enumerate(core)]
    return TilePlan(
        stage_4=tuple(zip(*(axis.stage_4 for axis in axes), strict=True)),
        stage_5=tuple(zip(*(axis.stage_5 for axis in axes), strict=True)),
    )


def pieces(shape: Sequence[int], limit: int) -> Iterator[tuple[slice, slice]]:
    """Frames and rows of a volume, in order, at most ``limit`` cells at a time, but a row of a frame at least."""
    frames, rows, columns = shape
    if rows * columns <= limit:
        step = limit // (rows * columns)
        yield from ((slice(f, min(f + step, frames)), slice(0, rows)) for f in range(0, frames, step))
        return
    step = max(1, limit // columns)
    for f in range(frames):
        yield from ((slice(f, f + 1), slice(y, min(y + step, rows))) for y in range(0, rows, step))


class Turns:
    """Rotary angles of a box: head values split over frame, row and column (16, 24, 24 of 64), in adjacent pairs."""

    def __init__(self, box: Box, head_dim: int, device: torch.device) -> None:
        axes = []
        for part, width in zip(box, turned(head_dim), strict=True):
            exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
            frequencies = (1.0 / THETA**exponents).float().to(device)
            positions = torch.arange(part.start, part.stop, dtype=torch.float32, device=device)
            axes.append(positions[:, None] * frequencies)
        self._frames, self._rows, self._columns = axes

    def of(self, frames: slice, rows: slice) -> Float[Tensor, "f h w half"]:
        """Angles of some frames and rows, all columns."""
        f, h, w = self._frames[frames], self._rows[rows], self._columns
        shape = len(f), len(h), len(w), -1
        spread = (f[:, None, None].expand(shape), h[:, None].expand(shape), w.expand(shape))
        return torch.cat(spread, dim=-1)


def turned(head_dim: int) -> Shape:
    """Values of a head that turn with frame, row and column: a quarter, and half the rest each, whole pairs of each."""
    sides = -(-(head_dim - head_dim // 4 // 2 * 2) // 4) * 2
    return head_dim - 2 * sides, sides, sides


def turn(x: Float[Tensor, "f h w heads d"], angles: Float[Tensor, "f h w half"]) -> Float[Tensor, "f h w heads d"]:
    """Rotate adjacent pairs, in float32 or wider."""
    cos, sin = angles.cos()[..., None, :], angles.sin()[..., None, :]
    even, odd = x[..., 0::2].to(torch.promote_types(x.dtype, torch.float32)), x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    """Projections of neighbourhood attention: heads of ``head_dim``, normed queries and keys, queries scaled."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.width, self.head_dim = width, head_dim
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)
        self.q_norm = nn.RMSNorm(head_dim, eps=EPS)
        self.k_norm = nn.RMSNorm(head_dim, eps=EPS)

    def queries(self, x: Volume, angles: Tensor) -> Float[Tensor, "f h w heads d"]:
        """Normed, scaled and turned queries."""
        return turn(self.q_norm(self._part(x, 0, 1)) * self.head_dim**-0.5, angles)

    def keys_values(self, x: Volume, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Normed and turned keys, and values."""
        k, v = self._part(x, 1, 3).chunk(2, dim=-2)
        return turn(self.k_norm(k), angles), v

    def _part(self, x: Volume, first: int, last: int) -> Float[Tensor, "f h w heads d"]:
        rows = slice(first * self.width, last * self.width)
        part = nn.functional.linear(x, self.qkv.weight[rows], self.qkv.bias[rows])
        return part.unflatten(-1, (-1, self.head_dim))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """``w_down(silu(w_gate x) * w_up x)``, hidden width rounded up to 16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = -(-MLP_RATIO * width // 16) * 16
        self.w_up = Linear(width, self.hidden, bias=False)
        self.w_gate = Linear(width, self.hidden, bias=False)
        self.w_down = Linear(self.hidden, width, bias=False)

    def forward(self, x: Volume) -> Volume:
        """As named."""
        return self.w_down(nn.functional.silu(self.w_gate(x)).mul_(self.w_up(x)))  # type: ignore[no-any-return]


class SeenFrames:
    """Keys and values of the frames that the current slab sees; those that the slab before saw are kept."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self.k, self.v = like.new_empty(shape), like.new_empty(shape)
        self._first = self._last = 0

    def advance(self, part: Part) -> int:
        """Hold ``part`` from now on; returns how many of its first frames are there already."""
        kept = max(0, self._last - part.start)
        for f in range(kept if part.start > self._first else 0):  # frame by frame: source and target may overlap
            for buffer in (self.k, self.v):
                buffer[f].copy_(buffer[f + part.start - self._first])
        self._first, self._last = part.start, part.stop
        return kept


class Block(nn.Module):
    """Attention and feed-forward, pre-norm, with ungated residuals."""

    def __init__(self, width: int, head_dim: int, window: Window) -> None:
        super().__init__()
        self.window = window
        self.norm1 = nn.RMSNorm(width, eps=EPS)
        self.attn = Attention(width, head_dim)
        self.norm2 = nn.RMSNorm(width, eps=EPS)
        self.mlp = SwiGLU(width)

    def run(
        self, x: Volume, box: Box, out: Box, attend: Attend, modulation: Modulation | None = None
    ) -> Float[Tensor, "of oh ow c"]:
        """The block's output on ``out``: a view of ``x``, which holds ``box`` and is changed in place.

        ``box`` must hold the windows of ``out``. Works through slabs of frames; a slab is written only once the keys
        that later slabs see have been made of it.
        """
        first, second = modulation or (None, None)
        head_dim = self.attn.head_dim
        frames = min(SLAB + self.window[0] - 1, box[0].length)
        held = SeenFrames((frames, *x.shape[1:3], x.shape[3] // head_dim, head_dim), x)
        turns = Turns(box, head_dim, x.device)
        for start in range(out[0].start, out[0].stop, SLAB):
            asked: Box = (Part(start, min(start + SLAB, out[0].stop), out[0].count), out[1], out[2])
            known: Box = (asked[0].seen(self.window[0]), box[1], box[2])
            kept, count = held.advance(known[0]), known[0].length
            new = slice(known[0].start - box[0].start + kept, known[0].stop - box[0].start)
            self._fill(x[new], (held.k[kept:count], held.v[kept:count]), turns, new.start, first)
            target = x[within(asked, box)]
            q = self._queries(target, Turns(asked, head_dim, x.device), first)
            answer = attend(q, held.k[:count], held.v[:count], asked, known, self.window)
            del q
            for piece in pieces(target.shape[:3], PIECE // self.mlp.hidden):
                part = target[piece]
                part += self.attn.proj(answer[piece].flatten(-2))
                part += self.mlp(modulated(self.norm2(part), second))
        return x[within(out, box)]

    def _fill(self, x: Volume, kv: tuple[Tensor, Tensor], turns: Turns, first: int, pair: Pair | None) -> None:
        """Keys and values of the frames ``x``, which begin ``first`` frames into the box of ``turns``."""
        for f, y in pieces(x.shape[:3], PIECE // self.mlp.hidden):
            angles = turns.of(slice(f.start + first, f.stop + first), y)
            kv[0][f, y], kv[1][f, y] = self.attn.keys_values(modulated(self.norm1(x[f, y]), pair), angles)

    def _queries(self, x: Volume, turns: Turns, pair: Pair | None) -> Float[Tensor, "f h w heads d"]:
        q = x.new_empty(*x.shape[:3], x.shape[3] // self.attn.head_dim, self.attn.head_dim)
        for f, y in pieces(x.shape[:3], PIECE // self.mlp.hidden):
            q[f, y] = self.attn.queries(modulated(self.norm1(x[f, y]), pair), turns.of(f, y))
        return q


def modulated(x: Volume, pair: Pair | None) -> Volume:
    """``x * (1 + scale) + shift``, or ``x`` where there is nothing to modulate with."""
    return x if pair is None else torch.addcmul(pair[1], x, 1 + pair[0])


class DiffusionBlock(Block):
    """A block that first adds its own projection of the context, and is modulated by the time."""

    def __init__(self, width: int, head_dim: int, window: Window, context: int) -> None:
        super().__init__(width, head_dim, window)
        self.context_proj = Linear(context, width)
        self.scale_shift_table = nn.Parameter(torch.zeros(MODULATIONS, width))

    def add_context(self, x: Volume, context: Float[Tensor, "f h w k"]) -> None:
        """Add to ``x`` in place."""
        for piece in pieces(x.shape[:3], PIECE // self.mlp.hidden):
            part = x[piece]
            part += self.context_proj(context[piece])

    def modulation(self, rows: Float[Tensor, "7 c"]) -> Modulation:
        """Scale and shift of attention and of the feed-forward from the shared head's rows."""
        table = self.scale_shift_table + rows
        return (table[0], table[1]), (table[3], table[4])


class Upsampler(nn.Module):
    """A linear layer whose outputs become the cells of a finer grid; the first frame is dropped where time doubles."""

    def __init__(self, width: int, out: int, stride: Window) -> None:
        super().__init__()
        self.stride, self.out = stride, out
        self.proj = Linear(width, prod(stride) * out)

    def run(self, x: Volume, box: Box, out: Box) -> Float[Tensor, "of oh ow k"]:
        """The finer volume on ``out``, from ``x`` that holds ``box``."""
        filled = x.new_empty(*(part.length for part in out), self.out)
        ft, ht, wt = self.stride
        columns = slice(out[2].start - box[2].start * wt, out[2].stop - box[2].start * wt)
        for f, y in pieces(x.shape[:3], PIECE // (prod(self.stride) * self.out)):
            fine = self.proj(x[f, y]).unflatten(-1, (self.out, ft, ht, wt)).permute(0, 4, 1, 5, 2, 6, 3)
            fine = fine.flatten(0, 1).flatten(1, 2).flatten(2, 3)
            at = (box[0].start + f.start) * ft - (ft - 1), (box[1].start + y.start) * ht
            frames, target_frames = _overlap(at[0], len(fine), out[0])
            rows, target_rows = _overlap(at[1], fine.shape[1], out[1])
            filled[target_frames, target_rows] = fine[frames, rows, columns]
        return filled


def _overlap(start: int, length: int, part: Part) -> tuple[slice, slice]:
    """What cells ``[start, start + length)`` and a part share: in the one, in the other."""
    first, last = max(start, part.start), max(min(start + length, part.stop), start, part.start)
    return slice(first - start, last - start), slice(first - part.start, last - part.start)


class TimeEmbedder(nn.Module):
    """Two linear layers with SiLU between, under their official names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(FREQUENCY_DIM, width), nn.SiLU(), Linear(width, width))


class SharedModulation(nn.Module):
    """Seven rows for all denoising blocks from the time."""

    def __init__(self, width: int, time_width: int) -> None:
        super().__init__()
        self.proj = Linear(time_width, MODULATIONS * width)


class DiffusionDecoder(nn.Module):
    """The network; volumes have no batch axis and lie channels last."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        widths, noised = config.widths, config.pixels * config.patch**2
        self.conv_in = Linear(config.latents, widths[0])
        self.det_stages = nn.ModuleList(
            nn.ModuleList(Block(widths[stage], config.head_dim, config.windows[stage]) for _ in range(depth))
            for stage, depth in enumerate(config.depths[:-1])
        )
        self.upsamples = nn.ModuleList(
            Upsampler(widths[stage], widths[stage + 1], stride) for stage, stride in enumerate(config.strides)
        )
        self.t_embedder = TimeEmbedder(config.time_width)
        self.conv_in_x_t = Linear(noised, widths[4])
        self.shared_adaln = SharedModulation(widths[4], config.time_width)
        self.diff_blocks = nn.ModuleList(
            DiffusionBlock(widths[4], config.head_dim, config.windows[4], widths[4]) for _ in range(config.depths[4])
        )
        self.norm_out = nn.RMSNorm(widths[4], eps=EPS)
        self.conv_out = Linear(widths[4], noised)

    def features(self, latent: Float[Tensor, "c f h w"], attend: Attend) -> Float[Tensor, "of oh ow k"]:
        """Stages 1 to 3 of a whole latent, which must not be below the floor; the ghosts are still there."""
        ghosts = latent[:, -1:].expand(-1, self.config.ghosts, -1, -1)
        x: Tensor = self.conv_in(torch.cat([latent, ghosts], dim=1).permute(1, 2, 3, 0))
        grids = self.config.grids((latent.shape[1], latent.shape[2], latent.shape[3]))
        for stage in range(3):
            box, finer = whole(grids[stage]), whole(grids[stage + 1])
            for block in self._stage(stage):
                x = block.run(x, box, box, attend)
            x = self._upsample(stage).run(x, box, finer)
        return x

    def context(
        self, features: Float[Tensor, "f h w c"], grids: Sequence[Shape], plan: TilePlan, attend: Attend
    ) -> Float[Tensor, "of oh ow k"]:
        """Stage 4 of a tile: what its denoising blocks are told."""
        x = features[within(plan.stage_4[0], whole(grids[3]))].clone()
        for block, (box, out) in zip(self._stage(3), pairwise(plan.stage_4), strict=True):
            x = block.run(x, box, out, attend)
        return self._upsample(3).run(x, plan.stage_4[-1], plan.stage_5[0])

    def _stage(self, number: int) -> list[Block]:
        return [block for block in self.det_stages[number].children() if isinstance(block, Block)]

    def _upsample(self, number: int) -> Upsampler:
        module = self.upsamples[number]
        assert isinstance(module, Upsampler), "as built"
        return module

    def denoise(
        self, noise: Float[Tensor, "3 f height width"], context: Volume, plan: TilePlan, attend: Attend
    ) -> Iterator[Float[Tensor, "3 n height2 width2"]]:
        """Stage 5 of a tile: the picture of its core, about [-1, 1], some frames at a time.

        ``noise`` is the tile's part of the one volume, its halo included, and may lie on another device.
        """
        x = self._noised(noise, context)
        rows = self._rows(x)
        for block, (box, out) in zip(self.diff_blocks, pairwise(plan.stage_5), strict=True):
            assert isinstance(block, DiffusionBlock), "as built"
            block.add_context(x, context[within(box, plan.stage_5[0])])
            x = block.run(x, box, out, attend, block.modulation(rows))
        for start in range(0, len(x), SLAB):
            yield unpatchify(self.conv_out(self.norm_out(x[start : start + SLAB])), self.config.patch)

    def _noised(self, noise: Float[Tensor, "3 t height width"], context: Volume) -> Volume:
        x = torch.empty_like(context)
        for start in range(0, len(x), SLAB):
            part = noise[:, start : start + SLAB].to(context.device, context.dtype)
            x[start : start + SLAB] = self.conv_in_x_t(patchify(part, self.config.patch))
        return x

    def _rows(self, like: Tensor) -> Float[Tensor, "7 c"]:
        """The shared rows at time 1, where all is noise: the one step that there is."""
        time = torch.full((1,), self.config.time_scale, device=like.device)
        embedded = self.t_embedder.mlp(sinusoid(time).to(like.dtype))
        return self.shared_adaln.proj(nn.functional.silu(embedded)).view(MODULATIONS, -1)  # type: ignore[no-any-return]


def patchify(x: Float[Tensor, "c f height width"], patch: int) -> Float[Tensor, "f h w k"]:
    """Pixels of a patch to channels, in the order (channel, column, row)."""
    apart = x.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))
    return apart.permute(1, 2, 4, 0, 5, 3).flatten(3)  # type: ignore[no-any-return]


def unpatchify(x: Float[Tensor, "f h w k"], patch: int) -> Float[Tensor, "c f height width"]:
    """The inverse of :func:`patchify`."""
    apart = x.unflatten(3, (-1, patch, patch))
    return apart.permute(3, 0, 1, 5, 2, 4).flatten(4).flatten(2, 3)  # type: ignore[no-any-return]
