"""What a plan expects, as it stands in plan.json: the ledger, the law's passes by kind, the tail, and memory.

A document; it computes nothing. The governor is given its figures.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shotclock.plan.estimate import Estimate, Seconds
from shotclock.plan.law import LawKey
from shotclock.plan.ledger import Ledger
from shotclock.plan.placement import Placement
from shotclock.request import Document

LEAST_SHOWN = 5 * 2**20  # bytes of a part that is named
Bytes = Annotated[int, Field(ge=0)]


class Demand(Document):
    """Memory that one phase holds at its widest point; ``free_bytes`` is None where it could not be read."""

    phase: str
    where: Literal["device", "host"]
    need_bytes: Bytes
    free_bytes: Bytes | None
    parts: dict[str, Bytes]

    @property
    def fits(self) -> bool:
        """Whether it is known not to be too much."""
        return self.free_bytes is None or self.need_bytes <= self.free_bytes

    def line(self) -> str:
        """Need, free, and the largest parts."""
        free = "unknown" if self.free_bytes is None else f"{self.free_bytes / 2**30:.2f} GiB"
        parts = ", ".join(f"{name} {size / 2**30:.2f}" for name, size in self.parts.items() if size >= LEAST_SHOWN)
        verdict = "" if self.fits else ": TOO MUCH"
        return (
            f"memory: {self.phase} {self.need_bytes / 2**30:.2f} GiB of {free} on the {self.where} ({parts}){verdict}"
        )


class Foreseen(Document):
    """Expectations of one attempt. ``law`` holds seconds of a warm pass by kind and is empty without a law.

    ``tail`` follows the last forward; ``closing`` is a snapshot, ``draft`` what decoding a draft takes beside it.
    ``warm_up_ratio`` bounds a warm-up pass over a warm one and is None where none was measured.
    """

    ledger: Ledger
    law_key: LawKey
    law_said: tuple[str, ...]
    law: dict[str, Estimate]
    tail: Estimate
    closing: Estimate
    draft: Estimate
    reserve_s: Seconds
    warm_up_passes: Annotated[int, Field(ge=0)]
    warm_up_ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None
    leases: Annotated[int, Field(ge=1)] | None
    memory: tuple[Demand, ...]
    placement: Placement | None = None
