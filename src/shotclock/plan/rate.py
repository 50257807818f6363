"""Seconds of the phases that are no forwards (loading, text, decode) from what earlier runs of the key took.

A phase is proportional to its units: bytes read, pixels decoded. Pure arithmetic on samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.plan.estimate import Estimate
from shotclock.request import Document

SINGLE_FACTOR = 1.5  # interval around a rate that was measured once; a guess: caches and clocks differ between runs
FILES = {  # files whose bytes a phase reads
    Phase.LOAD_TEXT: ("text_encoder",),
    Phase.LOAD_TRANSFORMER: ("transformer",),
    Phase.LOAD_DECODERS: ("video_vae", "audio_vae"),
}


class PhaseSample(Document):
    """One phase of one run."""

    phase: str
    units: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    run: str


def units_of(phase: Phase, geometry: Geometry, file_bytes: Mapping[str, int]) -> float:
    """What the phase's duration is proportional to: bytes, pixels, tokens; 1 where it is a constant."""
    match phase:
        case Phase.LOAD_TEXT | Phase.LOAD_TRANSFORMER | Phase.LOAD_DECODERS:
            return float(sum(file_bytes.get(name, 0) for name in FILES[phase])) or 1.0
        case Phase.DECODE_VIDEO:
            return float(geometry.width * geometry.height * geometry.frames)
        case Phase.DECODE_AUDIO:
            return float(geometry.audio_tokens)
        case Phase.PREPARE | Phase.SAVE_LATENTS:
            return float(geometry.video_tokens + geometry.audio_tokens)
        case _:
            return 1.0


def estimate_phase(samples: Sequence[PhaseSample], phase: Phase, units: float) -> Estimate | None:
    """Median rate times units, between the fastest and the slowest rate seen; None where none was measured."""
    rates = [sample.seconds / sample.units for sample in samples if sample.phase == phase]
    if not rates:
        return None
    low, high = min(rates), max(rates)
    if len(rates) == 1:
        low, high = low / SINGLE_FACTOR, high * SINGLE_FACTOR
    return Estimate(
        low_s=low * units,
        typical_s=statistics.median(rates) * units,
        high_s=high * units,
        source=f"rate of {phase}, n={len(rates)}",
    )
