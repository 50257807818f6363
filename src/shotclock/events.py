"""What a render says while it runs: frozen events, and their one-line text and JSON forms.

Events carry no clock: whoever logs them adds the time. Knows nothing of who listens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from shotclock.guidance import LegName


class Phase(StrEnum):
    """Leaf phases of a render, in order; together they cover its wall time."""

    IMPORT = "import"
    INSPECT = "inspect"
    LOAD_TEXT = "load-text"
    ENCODE = "encode"
    CONNECT = "connect"
    CONDITION = "condition"  # pictures and sound to latents
    REHEARSE = "rehearse"  # every later stage on one latent frame, before the first forward
    LOAD_TRANSFORMER = "load-transformer"
    PREPARE = "prepare"
    DENOISE = "denoise"
    SNAPSHOT = "snapshot"  # between the pieces of denoise
    UPSCALE = "upscale"  # between two stages
    SAVE_LATENTS = "save-latents"
    LOAD_DECODERS = "load-decoders"
    DECODE_AUDIO = "decode-audio"
    DECODE_VIDEO = "decode-video"  # pictures leave for the mp4 as they are decoded, the sound is muxed with them
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegins:
    """A leaf phase starts."""

    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnds:
    """A leaf phase is over, its work done on the device too."""

    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A long phase moves: ``done`` of ``total`` units."""

    phase: Phase
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something the user should know and the render goes on with."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBegins:
    """A transformer pass is about to be launched; it can still be refused. ``index`` and ``step`` count from 1."""

    index: int
    step: int
    steps: int
    legs: tuple[LegName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnds:
    """The pass is launched, and the step update with it if it was the step's last; the listener synchronises."""

    index: int
    step: int
    steps: int
    legs: tuple[LegName, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything a sampler needs to go on after ``step`` evaluations of the model, in the dtype of the latents.

    ``video_x0`` and ``audio_x0`` are the last denoised states: skip_step reuses them, a draft shows them; None before
    the first step. ``video_legs`` and ``audio_legs`` are the predictions of legs of the next step that have ended.
    ``carried`` is what else the sampler keeps from one evaluation to the next: the state of its noise generator,
    anchors of a step that is half done.
    """

    step: int
    video: Tensor
    audio: Tensor
    video_x0: Tensor | None = None
    audio_x0: Tensor | None = None
    video_legs: Mapping[LegName, Tensor] = field(default_factory=dict)
    audio_legs: Mapping[LegName, Tensor] = field(default_factory=dict)
    carried: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def legs(self) -> tuple[LegName, ...]:
        """Legs of the next step that have ended, in the official order."""
        return tuple(name for name in LegName if name in self.video_legs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegsEnd:
    """A pass inside a step is complete, others follow; ``state`` holds what it predicted."""

    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnds:
    """A step is complete; ``state`` is what the next one starts from. ``sigma`` is the level now reached."""

    steps: int
    sigma: float
    state: State


Event = PhaseBegins | PhaseEnds | Progress | Notice | PassBegins | PassEnds | LegsEnd | StepEnds
