"""Which rows a pass computes in which blocks, so that legs with the same history share it (performance.md, saving 1).

A pure schedule over legs; knows no tensors. Two legs share their states up to the first block that treats them
differently: with the released guidance the perturbed leg forks off the cond leg at block 28 of 48.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from shotclock.guidance import Leg


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """States before ``block`` of every leg whose history there equals ``history``."""

    history: Leg
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Blocks ``[start, stop)`` on ``rows``; ``sources`` say where each row's state comes from.

    A source is a row number of the segment before, a kept :class:`Prefix`, or None for the embedded latents.
    ``keep`` names (row, prefix) whose states at ``stop`` a later pass will fork from.
    """

    start: int
    stop: int
    rows: tuple[Leg, ...]
    sources: tuple[int | Prefix | None, ...]
    keep: tuple[tuple[int, Prefix], ...] = ()


def fork(a: Leg, b: Leg, blocks: int) -> int:
    """First block that treats the two legs differently; ``blocks`` when none does."""
    return next((k - 1 for k in range(1, blocks + 1) if a.history(k) != b.history(k)), blocks)


def _order(leg: Leg, start: int, stop: int) -> tuple[bool, int, bool]:
    """Rows with all cross-modal attention first, equal contexts side by side: row subsets become slices."""
    p = leg.perturbation
    here = range(start, stop)
    crossless = any(block in p.audio_to_video or block in p.video_to_audio for block in here)
    selfless = any(block in p.video_self or block in p.audio_self for block in here)
    return crossless, -leg.context, selfless


def schedule(
    legs: Sequence[Leg], blocks: int, *, kept: Collection[Prefix] = (), later: Sequence[Leg] = ()
) -> tuple[Segment, ...]:
    """Segments that compute ``legs``, from ``kept`` prefixes where one matches, keeping what ``later`` legs can use."""
    starts = {
        leg: max((p for p in kept if leg.history(p.block) == p.history), key=lambda p: p.block, default=None)
        for leg in legs
    }
    begin = {leg: prefix.block if prefix else 0 for leg, prefix in starts.items()}
    everyone = [*legs, *later]
    cuts = {fork(a, b, blocks) for i, a in enumerate(everyone) for b in everyone[:i]}
    first = min(begin.values())
    edges = sorted({first, blocks} | {cut for cut in cuts | set(begin.values()) if first <= cut <= blocks})
    wanted = _wanted(legs, later, blocks)

    segments: list[Segment] = []
    for start, stop in pairwise(edges):
        active = [leg for leg in legs if begin[leg] <= start]
        rows = tuple(sorted({leg.history(stop): leg for leg in active}.values(), key=lambda g: _order(g, start, stop)))
        before = segments[-1].rows if segments else ()
        sources: list[int | Prefix | None] = []
        for row in rows:
            parent = next((i for i, b in enumerate(before) if b.history(start) == row.history(start)), None)
            sources.append(parent if parent is not None else starts[row])
        keep = tuple(
            (i, prefix)
            for i, row in enumerate(rows)
            for prefix in wanted
            if prefix.block == stop and row.history(stop) == prefix.history
        )
        segments.append(Segment(start=start, stop=stop, rows=rows, sources=tuple(sources), keep=keep))
    return tuple(segments)


def _wanted(legs: Sequence[Leg], later: Sequence[Leg], blocks: int) -> frozenset[Prefix]:
    """The deepest prefix of each later leg that one of ``legs`` will have computed."""
    deepest = ((leg, max((fork(leg, other, blocks) for other in legs), default=0)) for leg in later)
    return frozenset(Prefix(history=leg.history(block), block=block) for leg, block in deepest if block > 0)
