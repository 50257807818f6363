"""What a render is given and what it gives back, as values. Knows no model, file content or clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shotclock.lease import Lease
from shotclock.plan.foreseen import Foreseen
from shotclock.plan.planner import Plan
from shotclock.recipes import Stage
from shotclock.render.crew import Crew
from shotclock.render.given import NOTHING, Given
from shotclock.render.journal import Clock
from shotclock.request import Request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import CheckpointHeaders

DRAFT = "draft"  # of ``on_overrun``: a marked clip of the last finished step, where a lease ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A verdict as the render sees it: PASS, WARN or FAIL, and lines for a person."""

    outcome: str
    lines: tuple[str, ...]


Judge = Callable[[Path], Judged]  # judges the clip of a run folder and writes the verdict there


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a render is given. ``contexts`` replaces the text encoder by a file of an earlier run.

    ``on_overrun`` is snapshot, stop or draft; ``rehearse`` auto, always or never. ``judge`` is None for no verdict.
    ``prompts`` is the folder of features that earlier renders encoded; None keeps none. ``crew`` are the other ranks,
    where the render has several. ``legs_per_pass`` replaces the request's where memory did not hold those, and
    ``smaller`` says so; None is as it was asked for.
    """

    request: Request
    plan: Plan
    foreseen: Foreseen
    headers: CheckpointHeaders
    run: RunDir
    device: torch.device
    dtype: torch.dtype
    lease: Lease
    on_overrun: str
    rehearse: str
    judge: Judge | None
    accept_seam: bool
    trace_nonfinite: bool
    contexts: Path | None
    given: Given = NOTHING
    prompts: Path | None = None
    crew: Crew | None = None
    legs_per_pass: int | None = None
    smaller: str | None = None

    @property
    def asked(self) -> Request:
        """The request with this attempt's legs a pass. Its digest may be another; the clip's is ``request``'s."""
        return self.request.model_copy(update={"legs_per_pass": self.legs_per_pass or self.request.legs_per_pass})

    @property
    def tile_bytes(self) -> int | None:
        """What a decode's tiles may take; None is all that is free."""
        return None if self.foreseen.placement is None else self.foreseen.placement.tile_bytes

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The sampling jobs as this attempt launches them."""
        return self.asked.stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished render did: forwards by leg and seconds of every pass of this attempt, peak memory in bytes."""

    clip: Path
    forwards: dict[str, int]
    pass_s: tuple[float, ...]
    peak_bytes: int
    wall_s: float
    verdict: str | None

    def to_json(self) -> dict[str, Any]:
        """As the last event and ``--json`` print it."""
        return {
            "clip": str(self.clip),
            "forwards": self.forwards,
            "passes": len(self.pass_s),
            "median_pass_s": statistics.median(self.pass_s) if self.pass_s else None,
            "denoise_s": sum(self.pass_s),
            "peak_bytes": self.peak_bytes,
            "wall_s": self.wall_s,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A clock, and its readings when the command began and when its imports were done."""

    clock: Clock
    began_s: float
    imported_s: float
