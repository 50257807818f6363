"""The guided step as data: which legs a step needs, in which passes they run, and how their predictions combine.

``passes()`` is the single list of forwards: the planner counts it and the sampler runs it, so planned and executed
forwards cannot disagree. Equations of ltx25.md section 5.2. Knows no model, clock or file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import RequestError


class LegName(StrEnum):
    """The four forwards of a guided step, in the official order."""

    COND = "cond"
    UNCOND = "uncond"
    PERTURBED = "perturbed"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Blocks in which a leg passes self-attention values through, or drops a cross-modal residual."""

    video_self: frozenset[int] = frozenset()
    audio_self: frozenset[int] = frozenset()
    audio_to_video: frozenset[int] = frozenset()
    video_to_audio: frozenset[int] = frozenset()

    def before(self, block: int) -> Perturbation:
        """What of it acts in blocks ``< block``."""
        return Perturbation(
            video_self=frozenset(b for b in self.video_self if b < block),
            audio_self=frozenset(b for b in self.audio_self if b < block),
            audio_to_video=frozenset(b for b in self.audio_to_video if b < block),
            video_to_audio=frozenset(b for b in self.video_to_audio if b < block),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One row of a forward: which text context it reads (0 positive, 1 negative) and what is perturbed."""

    context: int = 0
    perturbation: Perturbation = field(default_factory=Perturbation)

    def history(self, block: int) -> Leg:
        """Equal for two legs exactly when their states before ``block`` are equal."""
        return Leg(context=self.context, perturbation=self.perturbation.before(block))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guider:
    """Scales of one stream; 1 (cfg, modality) and 0 (stg, rescale) switch a term off."""

    cfg: float
    stg: float
    modality: float
    rescale: float
    stg_blocks: tuple[int, ...]
    skip_step: int = 0

    def __post_init__(self) -> None:
        if self.skip_step < 0:
            raise RequestError(f"skip_step {self.skip_step}", allowed="0 or more", way_out="0 runs every step")
        if self.stg and not self.stg_blocks:
            raise RequestError(
                f"stg {self.stg} without a block to perturb",
                allowed="stg 0, or at least one stg block",
                way_out="name a block (28 in LTX-2.5) or use stg 0",
            )

    def runs(self, step: int) -> bool:
        """Whether the stream is predicted at 0-based ``step`` or reuses its last denoised state."""
        return step % (self.skip_step + 1) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One launch of the transformer: the legs it carries, which streams it predicts, and in which stage of a render."""

    legs: tuple[LegName, ...]
    video: bool = True
    audio: bool = True
    stage: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Both guiders of a render and how many legs share a launch (1 to 4)."""

    video: Guider
    audio: Guider
    legs_per_pass: int

    def __post_init__(self) -> None:
        if not 1 <= self.legs_per_pass <= len(LegName):
            raise RequestError(
                f"legs per pass {self.legs_per_pass}", allowed="1 to 4", way_out="4 is fastest, 1 needs least memory"
            )

    def legs(self, blocks: int) -> Mapping[LegName, Leg]:
        """The legs that a step needs for a model of ``blocks`` blocks, in the official order.

        Raises :class:`RequestError` when an stg block does not exist.
        """
        every = frozenset(range(blocks))
        legs = {LegName.COND: Leg()}
        if self.video.cfg != 1 or self.audio.cfg != 1:
            legs[LegName.UNCOND] = Leg(context=1)
        if self.video.stg or self.audio.stg:
            video = frozenset(self.video.stg_blocks if self.video.stg else ())
            audio = frozenset(self.audio.stg_blocks if self.audio.stg else ())
            if outside := sorted((video | audio) - every):
                raise RequestError(
                    f"stg blocks {outside} of a model with {blocks} blocks",
                    allowed=f"0 to {blocks - 1}",
                    way_out="name a block that exists, or use stg 0",
                )
            legs[LegName.PERTURBED] = Leg(perturbation=Perturbation(video_self=video, audio_self=audio))
        if self.video.modality != 1 or self.audio.modality != 1:
            legs[LegName.ISOLATED] = Leg(perturbation=Perturbation(audio_to_video=every, video_to_audio=every))
        return legs

    def passes(self, step: int, blocks: int) -> tuple[Pass, ...]:
        """The launches of 0-based ``step``; empty when both streams skip it."""
        video, audio = self.video.runs(step), self.audio.runs(step)
        if not (video or audio):
            return ()
        names = tuple(self.legs(blocks))
        groups = (names[i : i + self.legs_per_pass] for i in range(0, len(names), self.legs_per_pass))
        return tuple(Pass(legs=group, video=video, audio=audio) for group in groups)


def combine(
    predictions: Mapping[LegName, Float[Tensor, "b n c"]], guider: Guider, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "b n c"]:
    """Guided denoised state of one stream from the denoised states of its legs, computed in ``dtype``.

    ``g = c + (cfg-1)(c-u) + stg(c-p) + (mod-1)(c-m)``, then ``g *= r std(c)/std(g) + 1 - r`` with the unbiased std over
    the whole tensor. A leg that did not run contributes nothing. Returns the dtype of the predictions.
    """
    cond = predictions[LegName.COND]
    c = cond.to(dtype)
    g = c
    for name, weight in (
        (LegName.UNCOND, guider.cfg - 1),
        (LegName.PERTURBED, guider.stg),
        (LegName.ISOLATED, guider.modality - 1),
    ):
        if name in predictions and weight:
            g = g + weight * (c - predictions[name].to(dtype))
    if guider.rescale:
        g = g * (guider.rescale * c.std() / g.std() + (1 - guider.rescale))
    return g.to(cond.dtype)
