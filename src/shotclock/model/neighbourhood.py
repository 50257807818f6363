"""Exact neighbourhood attention over a part of a volume, and the arithmetic of parts.

Each cell attends to a window of fixed size, centred where possible and shifted inward at the borders of the whole
volume (NATTEN's rule), whichever part of the volume is at hand. Two implementations of one function, checked against
each other: :func:`windowed` in torch, bounded in memory, and :class:`Natten`. Knows no model, device or file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

BLOCK = 8  # cells a side of a block of queries: windows of 11 then read 18^3 keys for 8^3 queries, 4.4 times the need
SCORES = 2**27  # scores a launch may have: bounds the gathered keys, and the scores themselves where they are stored
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # flash takes masks on CPUs


@dataclass(frozen=True, slots=True)
class Part:
    """Cells ``[start, stop)`` of an axis that has ``count``."""

    start: int
    stop: int
    count: int

    def __post_init__(self) -> None:
        assert 0 <= self.start < self.stop <= self.count, f"no part of an axis: {self}"

    @staticmethod
    def whole(count: int) -> Part:
        """The whole axis."""
        return Part(0, count, count)

    @property
    def length(self) -> int:
        """Cells of the part."""
        return self.stop - self.start

    def seen(self, window: int) -> Part:
        """What the windows of these cells cover."""
        return Part(first_seen(self.start, window, self.count), last_seen(self.stop, window, self.count), self.count)

    def within(self, outer: Part) -> slice:
        """Where the part lies in a tensor that holds ``outer``."""
        assert outer.start <= self.start and self.stop <= outer.stop, f"{self} is not within {outer}"
        return slice(self.start - outer.start, self.stop - outer.start)


Box = tuple[Part, Part, Part]  # frames, rows, columns
Window = tuple[int, int, int]


def first_seen(cell: int, window: int, count: int) -> int:
    """First cell of a cell's window."""
    return min(max(cell - window // 2, 0), count - window)


def last_seen(stop: int, window: int, count: int) -> int:
    """One past the last cell of the window of the cell before ``stop``."""
    return first_seen(stop - 1, window, count) + window


def whole(shape: tuple[int, int, int]) -> Box:
    """The box that is all of a volume."""
    return Part.whole(shape[0]), Part.whole(shape[1]), Part.whole(shape[2])


def seen(box: Box, window: Window) -> Box:
    """What the windows of a box cover."""
    return box[0].seen(window[0]), box[1].seen(window[1]), box[2].seen(window[2])


def within(box: Box, outer: Box) -> tuple[slice, slice, slice]:
    """Where a box lies in a tensor that holds ``outer``."""
    return box[0].within(outer[0]), box[1].within(outer[1]), box[2].within(outer[2])


def cells(box: Box) -> int:
    """Cells of a box."""
    return box[0].length * box[1].length * box[2].length


Queries = Float[Tensor, "f h w heads d"]
Keys = Float[Tensor, "kf kh kw heads d"]
Attend = Callable[[Tensor, Tensor, Tensor, Box, Box, Window], Tensor]
"""``attend(q, k, v, queries, keys, window)``: queries are scaled already; the box of the keys holds every window."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of queries of one axis that share a mask: where each begins among the queries and its keys at hand."""

    mask: Bool[Tensor, "n m"]
    queries: tuple[int, ...]
    keys: tuple[int, ...]


def axis_blocks(queries: Part, keys: Part, window: int) -> list[Blocks]:
    """Cut the queries of one axis into blocks of :data:`BLOCK` and group those whose keys lie alike."""
    groups: dict[tuple[int, int, tuple[int, ...]], tuple[list[int], list[int]]] = {}
    for start in range(queries.start, queries.stop, BLOCK):
        stop = min(start + BLOCK, queries.stop)
        wanted = min(stop - start + window - 1, keys.length)
        begin = min(first_seen(start, window, queries.count), keys.stop - wanted)
        offsets = tuple(first_seen(cell, window, queries.count) - begin for cell in range(start, stop))
        assert begin >= keys.start and offsets[0] >= 0 and offsets[-1] + window <= wanted, "a window is not at hand"
        first, key = groups.setdefault((stop - start, wanted, offsets), ([], []))
        first.append(start - queries.start)
        key.append(begin - keys.start)
    return [
        Blocks(_mask(offsets, wanted, window), tuple(first), tuple(key))
        for (_, wanted, offsets), (first, key) in groups.items()
    ]


def _mask(offsets: tuple[int, ...], wanted: int, window: int) -> Bool[Tensor, "n m"]:
    key, first = torch.arange(wanted), torch.tensor(offsets)[:, None]
    return (key >= first) & (key < first + window)


def windowed(q: Queries, k: Keys, v: Keys, queries: Box, keys: Box, window: Window) -> Queries:
    """Neighbourhood attention in torch, block by block; a key outside the window weighs exactly 0.

    Holds, beside its arguments and its result, the gathered queries, keys and values of at most :data:`SCORES` scores.
    """
    out = torch.empty_like(q)
    axes = (axis_blocks(*axis) for axis in zip(queries, keys, window, strict=True))
    with sdpa_kernel(BACKENDS, set_priority=True):
        for frames, rows, columns in product(*axes):
            _attend_alike(out, (q, k, v), (frames, rows, columns))
    return out


def _attend_alike(out: Queries, qkv: tuple[Tensor, Tensor, Tensor], alike: tuple[Blocks, Blocks, Blocks]) -> None:
    """All blocks of one mask: one launch a row of blocks, or several where it is long."""
    q, k, v = qkv
    frames, rows, columns = alike
    mask = _joint(frames.mask, rows.mask, columns.mask).to(q.device)
    bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    step = max(1, SCORES // (mask.numel() * q.shape[3]))
    (n, kn), (m, km) = frames.mask.shape, rows.mask.shape
    for first in range(0, len(columns.queries), step):
        chosen = slice(first, first + step)
        x = _spread(columns.queries[chosen], columns.mask.shape[0]).to(q.device)
        kx = _spread(columns.keys[chosen], columns.mask.shape[1]).to(q.device)
        for (f, kf), (y, ky) in product(
            zip(frames.queries, frames.keys, strict=True), zip(rows.queries, rows.keys, strict=True)
        ):
            asked = _gathered(q[f : f + n, y : y + m], x)
            keys, values = (_gathered(each[kf : kf + kn, ky : ky + km], kx) for each in (k, v))
            answer = nn.functional.scaled_dot_product_attention(asked, keys, values, attn_mask=bias, scale=1.0)
            apart = answer.unflatten(2, (n, m, x.shape[1])).permute(2, 3, 0, 4, 1, 5)
            out[f : f + n, y : y + m, x.flatten()] = apart.flatten(2, 3)


def _joint(f: Bool[Tensor, "a b"], h: Bool[Tensor, "c d"], w: Bool[Tensor, "e g"]) -> Bool[Tensor, "n m"]:
    """The mask of a block from those of its axes."""
    joint = f[:, None, None, :, None, None] & h[:, None, None, :, None] & w[:, None, None, :]
    return joint.flatten(3).flatten(0, 2)


def _spread(starts: tuple[int, ...], length: int) -> Int[Tensor, "n b"]:
    return torch.tensor(starts)[:, None] + torch.arange(length)


def _gathered(x: Float[Tensor, "f h w heads d"], columns: Int[Tensor, "n b"]) -> Float[Tensor, "n heads cells d"]:
    """Blocks of columns of a row of blocks, cells of a block in order."""
    return x[:, :, columns].permute(2, 4, 0, 1, 3, 5).flatten(2, 4)


@dataclass(frozen=True, slots=True)
class Natten:
    """The same function through NATTEN's ``na3d``, which knows whole volumes only.

    Inside the box of keys its shifted windows are those of the whole volume for every query that the box was made
    for: the box ends either at a border of the volume or half a window further. Queries elsewhere are zeros.
    """

    na3d: Callable[..., Tensor]

    def __call__(self, q: Queries, k: Keys, v: Keys, queries: Box, keys: Box, window: Window) -> Queries:
        place = within(queries, keys)
        filled = torch.zeros_like(k)
        filled[place] = q
        answer = self.na3d(filled[None], k.contiguous()[None], v.contiguous()[None], kernel_size=window, scale=1.0)
        return answer[0][place]


def largest_difference(attend: Attend, other: Attend, *, device: torch.device, dtype: torch.dtype) -> float:
    """Largest difference of two implementations, of values near 1, at a corner and an edge of a small volume."""
    generator = torch.Generator().manual_seed(0)
    window: Window = (3, 5, 5)
    volume = whole((7, 12, 11))
    queries: Box = (Part(0, 5, 7), Part(3, 12, 12), Part(0, 9, 11))
    keys = seen(queries, window)
    qkv = [torch.randn(7, 12, 11, 2, 64, generator=generator).to(device, dtype) for _ in range(3)]
    q = qkv[0][within(queries, volume)].contiguous() * 0.125
    k, v = (each[within(keys, volume)].contiguous() for each in qkv[1:])
    return (attend(q, k, v, queries, keys, window) - other(q, k, v, queries, keys, window)).abs().max().item()
