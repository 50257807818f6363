"""How several GPUs share the forwards of a render: the quickest split of each stage, by counted block passes.

Arithmetic on counts; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from shotclock.errors import RequestError
from shotclock.guidance import Guidance, Leg
from shotclock.model.config import TransformerConfig
from shotclock.model.split import Split, share_legs, splits
from shotclock.plan.law import ONE
from shotclock.request import Document

EXCHANGE = {"cuda": 0.1, "cpu": 1.0}  # a block's heads sent once against its pass: guesses, for NVLink and gloo
WISHES = ("auto", "legs", "tokens")
Count = Annotated[int, Field(ge=1)]


class PlannedSplit(Document):
    """Ranks of one stage: ``legs`` groups that share its legs, of ``tokens`` ranks that share tokens.

    ``share`` is the longest rank's part of a step's block passes on one GPU, exchanges counted as block passes.
    """

    legs: Count
    tokens: Count
    share: Annotated[float, Field(gt=0)]

    @property
    def name(self) -> str:
        """As fingerprint, cost law and record have it."""
        parts = [f"{kind} over {ranks}" for kind, ranks in (("legs", self.legs), ("tokens", self.tokens)) if ranks > 1]
        return ", ".join(parts) or ONE

    def line(self, number: int) -> str:
        """What a person reads of it."""
        at_most = f"{1 / self.share:.2f}x as fast as one at most, counted"
        return f"stage {number} on {self.legs * self.tokens} GPUs: {self.name}; {at_most}"


def names_of(every: Sequence[PlannedSplit]) -> str:
    """The splits of all stages as one text, equal ones once."""
    return "; then ".join(dict.fromkeys(split.name for split in every)) or ONE


def choose(
    guidance: Guidance,
    tokens: tuple[int, int],
    config: TransformerConfig,
    *,
    gpus: int,
    device_type: str,
    wish: str = WISHES[0],
) -> PlannedSplit:
    """The quickest split for ``gpus`` ranks of steps with ``tokens`` of video and sound.

    ``wish`` is auto, legs (as many groups for legs as there can be) or tokens (over all ranks). Raises
    :class:`RequestError` where there is none.
    """
    launches = launches_of(guidance, config.blocks)
    most = min(config.video.heads, config.audio.heads, *tokens)
    found = splits(launches, gpus, config.blocks, exchange=EXCHANGE[device_type], most_sequence=most)
    if wish == "legs":
        found = tuple(sorted((one for one in found if one.share.ranks > 1), key=lambda one: one.sequence))
    elif wish == "tokens":
        found = tuple(one for one in found if one.share.ranks == 1)
    if not found:
        legs = sum(map(len, launches))
        raise RequestError(
            f"no way to share a step of {legs} legs over {gpus} GPUs with --split {wish}",
            allowed=f"groups of ranks for up to {legs} legs, each of up to {most} ranks for tokens",
            way_out="another number of --gpus, or --split auto",
        )
    whole = share_legs(launches, 1, config.blocks)
    best = found[0]
    return PlannedSplit(legs=best.share.ranks, tokens=best.sequence, share=best.step / whole.longest)


def split_of(planned: PlannedSplit, guidance: Guidance, blocks: int) -> Split:
    """Which rank runs which leg, as every rank of the render has it."""
    share = share_legs(launches_of(guidance, blocks), planned.legs, blocks)
    return Split(share=share, sequence=planned.tokens, step=planned.share)


def launches_of(guidance: Guidance, blocks: int) -> list[list[Leg]]:
    """Legs of each launch of a step that skips nothing."""
    legs = guidance.legs(blocks)
    return [[legs[name] for name in launch.legs] for launch in guidance.passes(0, blocks)]
