"""What weights that are not on the device make of seconds: a pass takes as long as its computing or its copies.

Arithmetic on a placement and a rate. Knows no file, device or clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from shotclock.plan.estimate import Estimate, around
from shotclock.plan.placement import Placement
from shotclock.weights.stream import streamed_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Blocks of ``block_bytes`` that pass over a bus at ``bytes_per_s``, right within ``factor`` either way.

    ``source`` says who measured the rate, or that it is a guess.
    """

    order: tuple[int, ...]
    block_bytes: int
    bytes_per_s: float
    factor: float
    source: str

    @classmethod
    def of(cls, placement: Placement, bytes_per_s: float, *, factor: float, source: str) -> Copies | None:
        """Those of a placement; None where nothing streams."""
        if not placement.streams:
            return None
        return cls(
            order=streamed_blocks(placement.blocks, placement.resident),
            block_bytes=placement.block_bytes,
            bytes_per_s=bytes_per_s,
            factor=factor,
            source=source,
        )

    def a_pass(self, start: int = 0) -> Estimate:
        """The copies of a pass that begins at block ``start``."""
        count = sum(block >= start for block in self.order)
        return around(count * self.block_bytes / self.bytes_per_s, self.factor, self.source)

    def bound(self, computing: Estimate, start: int) -> Estimate:
        """Seconds of a pass whose copies go on beside its computing: at each end the longer of the two."""
        copies = self.a_pass(start)
        said = "copies of streamed blocks" if copies.typical_s > computing.typical_s else "copies hide behind it"
        return Estimate(
            low_s=max(computing.low_s, copies.low_s),
            typical_s=max(computing.typical_s, copies.typical_s),
            high_s=max(computing.high_s, copies.high_s),
            source=f"{computing.source}; {said}: {copies}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What a placement changes in the durations of a render. ``encode`` are both prompts of an encoder that is apart.

    The shares are what of a file is read while it loads; the rest is read when it is needed.
    """

    copies: Copies | None = None
    encode: Estimate | None = None
    text_share: float = 1.0
    transformer_share: float = 1.0


WHOLE = Apart()  # everything is on the device: nothing changes
