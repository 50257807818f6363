"""Where the weights of an attempt lie while they are used, and the next smaller setting where memory did not do.

A document and one decision; it counts nothing. plan/memory.py chooses, the render obeys.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shotclock.plan.law import RESIDENT
from shotclock.request import Document

FILE: Literal["file"] = "file"
GB = 1e9

Bytes = Annotated[int, Field(ge=0)]


class Placement(Document):
    """``resident`` of ``blocks`` blocks of the transformer fit on the device, two slots among them.

    ``source`` is where the others stream from, ``text`` where the text encoder computes: whole on the device, its
    layers one after the other, on the CPU, or nowhere. ``cap_bytes`` is what the user allows, ``tile_bytes`` what of
    it a decode's tiles may take. ``shared`` says that host and device have one memory.
    """

    cap_bytes: Bytes | None
    blocks: Annotated[int, Field(ge=1)]
    resident: Annotated[int, Field(ge=1)]
    source: Literal["device", "host", "file"]
    text: Literal["none", "device", "layers", "cpu"]
    tile_bytes: Bytes | None
    block_bytes: Bytes
    streamed: Annotated[int, Field(ge=0)]
    shared: bool

    @property
    def streams(self) -> bool:
        """Whether blocks pass through slots."""
        return self.streamed > 0

    @property
    def key(self) -> str:
        """What of it changes the seconds of a pass: field ``streaming`` of a law's key."""
        return f"{self.resident} of {self.blocks} blocks resident, from {self.source}" if self.streams else RESIDENT

    def lines(self) -> list[str]:
        """What a person reads of it; nothing where everything stays on the device and nobody capped it."""
        said = [] if self.cap_bytes is None else [f"memory: at most {self.cap_bytes / GB:.4g} GB (--memory)"]
        if self.streams:
            where = "page-locked host memory" if self.source == "host" else "the file"
            said.append(
                f"weights: {self.resident} of {self.blocks} blocks fit; {self.streamed} stream from {where}, "
                f"{self.streamed * self.block_bytes / GB:.3g} GB a pass, to the same bits"
            )
        elif self.cap_bytes is not None:
            said.append(f"weights: all {self.blocks} blocks stay on the device")
        if self.shared and (self.streams or self.cap_bytes is not None):
            said.append("streaming from host memory is pointless here: host and device have one memory")
        if self.text in ("layers", "cpu"):
            where = "layer by layer" if self.text == "layers" else "on the CPU"
            said.append(f"text encoder: does not fit whole, computes {where}")
        return said


def smaller(placement: Placement, legs_per_pass: int, legs: int, *, seam: bool) -> tuple[int, int] | None:
    """Legs a pass and resident blocks to try once where a pass ran out of memory; None where nothing is smaller.

    Fewer legs a pass first, where that may be: it changes roundings, so that after the first pass it is a ``seam``,
    which the user accepts or not. Then half of the resident blocks beside the slots, which changes no bit.
    """
    launched = min(legs_per_pass, legs)
    if seam and launched > 1:
        return (launched + 1) // 2, placement.resident
    slots = min(2, placement.blocks)
    fewer = slots + (placement.resident - slots) // 2
    can_stream = placement.block_bytes > 0 and fewer < placement.resident
    return (legs_per_pass, fewer) if can_stream else None
