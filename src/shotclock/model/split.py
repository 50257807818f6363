"""How the ranks of one render share a guided step: legs over ranks, sequence parallel, or both. Arithmetic only.

A unit of work is a block pass, one row through one block; prefixes that a rank's legs share are counted once. Legs are
not equal (the perturbed one may be half a leg where the cond leg is, and a whole one elsewhere), so who runs what is
searched, not dealt out. Knows neither tensors nor processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from shotclock.guidance import Leg
from shotclock.model.prefix import Prefix, schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which of ``ranks`` runs each leg of a step, and the block passes of the longest and of all of them.

    Passes wait for one another: ``longest`` adds up the longest rank of each.
    """

    homes: Mapping[Leg, int]
    ranks: int
    longest: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """``share.ranks`` groups run legs, each of ``sequence`` ranks over which the tokens of its legs are spread.

    ``step`` is the longest rank's work in block passes, exchanges included.
    """

    share: Share
    sequence: int
    step: float

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.share.ranks * self.sequence


def share_legs(passes: Sequence[Sequence[Leg]], ranks: int, blocks: int) -> Share:
    """The assignment with the shortest longest rank; among equals the one with the least work in all.

    ``passes`` are the legs of each launch of a step. Every rank gets a leg where there are enough.
    """
    legs = [leg for launch in passes for leg in launch]
    assert 1 <= ranks <= len(legs), f"{ranks} ranks for {len(legs)} legs"
    found = []
    for homes in product(range(ranks), repeat=len(legs)):
        if homes[0] == 0 and set(homes) == set(range(ranks)):
            longest, total = _work(passes, dict(zip(legs, homes, strict=True)), ranks, blocks)
            found.append((longest, total, homes))
    longest, total, best = min(found)
    return Share(homes=dict(zip(legs, best, strict=True)), ranks=ranks, longest=longest, total=total)


def _work(passes: Sequence[Sequence[Leg]], homes: Mapping[Leg, int], ranks: int, blocks: int) -> tuple[int, int]:
    """Block passes of the longest rank, pass by pass, and of all ranks."""
    longest, total = 0, 0
    kept: list[set[Prefix]] = [set() for _ in range(ranks)]
    for number, launch in enumerate(passes):
        later = [leg for after in passes[number + 1 :] for leg in after]
        counts = []
        for rank in range(ranks):
            own = [leg for leg in launch if homes[leg] == rank]
            own_later = [leg for leg in later if homes[leg] == rank]
            segments = schedule(own, blocks, kept=kept[rank], later=own_later) if own else ()
            kept[rank] |= {prefix for segment in segments for _, prefix in segment.keep}
            counts.append(sum((segment.stop - segment.start) * len(segment.rows) for segment in segments))
        longest, total = longest + max(counts), total + sum(counts)
    return longest, total


def splits(
    passes: Sequence[Sequence[Leg]], ranks: int, blocks: int, *, exchange: float, most_sequence: int
) -> tuple[Split, ...]:
    """Every way for ``ranks`` to share a step, the quickest first; of equals the one with fewer exchanges.

    ``exchange`` is what sending a block's heads over the link once costs, as a share of that block pass: a rank of s
    sends (s - 1) / s of its own. ``most_sequence`` bounds s: no more than heads or tokens of either stream.
    """
    legs = sum(len(launch) for launch in passes)
    found = []
    for groups in range(min(ranks, legs), 0, -1):
        sequence = ranks // groups
        if ranks % groups or sequence > most_sequence:
            continue
        share = share_legs(passes, groups, blocks)
        step = share.longest * (1 + exchange * (sequence - 1) / sequence) / sequence
        found.append(Split(share=share, sequence=sequence, step=step))
    return tuple(sorted(found, key=lambda split: (split.step, split.sequence)))
