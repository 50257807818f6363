"""Seconds of the phases that are no forwards (loading, text, decode) from what earlier runs of the key took.

A phase takes a fixed time and a time a unit: bytes read, pixels decoded. Pure arithmetic on samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError
from scipy.optimize import nnls

from shotclock.errors import RequestError
from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.plan.estimate import Estimate
from shotclock.request import Document

SINGLE_FACTOR = 1.5  # interval around a rate that was measured once; a guess: caches and clocks differ between runs
LEAST_FACTOR = 1.1  # interval of one that was measured often; a guess, for the same reason
DOUBLING_FACTOR = 1.1  # and for each doubling beyond the largest units measured; a guess
MIN_FIT, MIN_STEP = 3, 1.5  # samples, and how far apart their units are, for a fixed part to be told from the rate
COLD_FACTOR = 5.0  # a load from the disk over one from the page cache, where only one was measured; a guess
WARM_SHARE = 0.5  # of a file in the page cache: from here on its load counts as warm
MATRIX = "matrix"  # no phase: a matrix product, units are operations
FILES = {  # files whose bytes a phase reads
    Phase.LOAD_TEXT: ("text_encoder",),
    Phase.LOAD_TRANSFORMER: ("transformer",),
    Phase.LOAD_DECODERS: ("video_vae", "audio_vae"),
}
DECODING = (Phase.DECODE_VIDEO, Phase.REHEARSE)  # phases that take another time with another video decoder
SOUND_PIXELS_PER_S = 1e5  # what a second of sound counts for beside the pixels of pictures; a choice
PROMPTS = 2  # positive and negative, both are always encoded


class PhaseSample(Document):
    """One phase of one run. ``cached_share`` is how much of its files was in the page cache; None is not known."""

    phase: str
    units: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    run: str
    cached_share: Annotated[float, Field(ge=0, le=1)] | None = None


class Rates(Document):
    """What was measured beside forwards on one device with one build; every sample is kept as it was."""

    format: Literal["shotclock/rates/1"] = "shotclock/rates/1"
    device: str
    build: str
    samples: tuple[PhaseSample, ...]

    def merged(self, newer: Rates) -> Rates:
        """With the runs of ``newer``, which replace their own earlier samples; raises for another device or build."""
        if (self.device, self.build) != (newer.device, newer.build):
            raise RequestError(
                f"STALE: rates were measured on {self.device} with {self.build}, not {newer.device} with {newer.build}",
                allowed="rates of one device and build",
                way_out="measure again: `shotclock calibrate`",
            )
        runs = {sample.run for sample in newer.samples}
        kept = (sample for sample in self.samples if sample.run not in runs)
        return self.model_copy(update={"samples": (*kept, *newer.samples)})

    def of_decoder(self, decoder: str) -> Rates:
        """As a render with this video decoder is to be priced: what was measured with the other one does not count."""
        names = {phase_of(phase, decoder): str(phase) for phase in DECODING}
        left_out = {str(phase) for phase in DECODING} - names.keys()
        samples = (
            sample.model_copy(update={"phase": names.get(sample.phase, sample.phase)})
            for sample in self.samples
            if sample.phase not in left_out
        )
        return self.model_copy(update={"samples": tuple(samples)})

    def matrix_flops_per_s(self, dtype: str) -> float | None:
        """Fastest matrix product measured in ``dtype``; None where none was."""
        phase = f"{MATRIX} {dtype}"
        found = [one.units / one.seconds for one in self.samples if one.phase == phase and one.seconds]
        return max(found, default=None)


def phase_of(phase: str, decoder: str) -> str:
    """What samples of a phase are called: those of a decoder other than conv carry its name."""
    return f"{phase} {decoder}" if decoder != "conv" and phase in DECODING else str(phase)


def read_rates(text: str) -> Rates:
    """Parse a rates file; raises :class:`RequestError` naming the first field that is wrong."""
    try:
        return Rates.model_validate_json(text)
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RequestError(
            f"no rates: {where}: {first['msg']}",
            allowed="what `shotclock calibrate` or `shotclock fit` wrote",
            way_out="remove the file and measure again: `shotclock calibrate`",
        ) from None


def units_of(phase: str, geometry: Geometry, file_bytes: Mapping[str, int], media: float = 0.0) -> float:
    """What the phase's duration grows with: bytes, pixels, tokens; 1 where it is a constant.

    ``media`` is what :func:`media_units` says of the given pictures and sound.
    """
    match phase:
        case Phase.CONDITION:
            return media or 1.0
        case Phase.LOAD_TEXT | Phase.LOAD_TRANSFORMER | Phase.LOAD_DECODERS:
            return float(sum(file_bytes.get(name, 0) for name in FILES[Phase(phase)])) or 1.0
        case Phase.DECODE_VIDEO | Phase.VERIFY:
            return float(geometry.width * geometry.height * geometry.frames)
        case Phase.DECODE_AUDIO:
            return float(geometry.duration_s)
        case Phase.REHEARSE:
            return float(geometry.width * geometry.height)
        case Phase.PREPARE | Phase.SNAPSHOT | Phase.SAVE_LATENTS | Phase.UPSCALE:
            return float(geometry.video_tokens + geometry.audio_tokens)
        case Phase.ENCODE:
            return float(PROMPTS)
        case _:
            return 1.0


def media_units(geometry: Geometry, pictures: int, *, sound: bool) -> float:
    """Pixels of the given pictures at the clip's size, and the sound's seconds counted as pixels; 0 without either."""
    heard = SOUND_PIXELS_PER_S * float(geometry.duration_s) if sound else 0.0
    return pictures * float(geometry.width * geometry.height) + heard


def estimate_phase(
    samples: Sequence[PhaseSample], phase: str, units: float, *, cached_share: float | None = None
) -> Estimate | None:
    """Seconds of ``units``, between what the cheapest and the dearest sample would make of it; None without samples.

    Samples of the phase that were as warm as ``cached_share`` count; where there are none such all of them do, with
    what the other kind of load may make of it on top, and the source says so. Where they are too few or too alike to
    tell a fixed part from what grows, growth is assumed and the interval holds both.
    """
    of_phase = [sample for sample in samples if sample.phase == phase]
    alike = [sample for sample in of_phase if _alike(sample.cached_share, cached_share)]
    chosen = alike or of_phase
    if not chosen:
        return None
    fixed_s, unit_s = fixed_and_rate(chosen)
    typical_s = fixed_s + unit_s * units
    units_seen = [sample.units for sample in chosen]
    largest = max(units_seen)
    beyond = DOUBLING_FACTOR ** max(math.log2(units / largest), 0.0)
    factor = beyond * (SINGLE_FACTOR if len(chosen) == 1 else LEAST_FACTOR)
    ratios = [1.0]
    ratios += [sample.seconds / (fixed_s + unit_s * sample.units) for sample in chosen if fixed_s or unit_s]
    source = f"rate of {phase}, n={len(chosen)}"
    ends = typical_s * min(*ratios, 1 / factor), typical_s * max(*ratios, factor)
    if not told_apart(chosen) and not min(units_seen) <= units <= largest:
        seen = [sample.seconds for sample in chosen]
        ends = min(ends[0], min(seen) / factor), max(ends[1], max(seen) * factor)
        source += " at about one size: what grows and what does not is not told apart"
    warm = _warm(cached_share)
    if alike and len(chosen) < len(of_phase):
        source += ", file in the page cache" if warm else ", file on disk"
    found = Estimate(low_s=ends[0], typical_s=typical_s, high_s=ends[1], source=source)
    told = any(sample.cached_share is not None for sample in chosen)
    return _otherwise(found, warm=bool(warm)) if told and not alike else found


def _otherwise(measured: Estimate, *, warm: bool) -> Estimate:
    """A load that was only measured from the disk and is ``warm`` now, or the other way round: said, and wider."""
    if warm:
        said = f"{measured.source}, measured from the disk: the file is in the page cache now"
        return measured.model_copy(update={"low_s": measured.low_s / COLD_FACTOR, "source": said})
    said = f"{measured.source}, measured from the page cache: the file is on disk now"
    return measured.model_copy(update={"high_s": measured.high_s * COLD_FACTOR, "source": said})


def told_apart(samples: Sequence[PhaseSample]) -> bool:
    """Whether samples are enough, and at units far enough apart, to tell a fixed part from one that grows."""
    units = [sample.units for sample in samples if sample.seconds > 0]
    return len(units) >= MIN_FIT and max(units) >= MIN_STEP * min(units)


def fixed_and_rate(samples: Sequence[PhaseSample]) -> tuple[float, float]:
    """Seconds that do not grow, and seconds a unit, both >= 0: least squares of relative errors.

    Where too little was measured to tell them apart, everything grows: the median rate.
    """
    if not told_apart(samples):
        return 0.0, statistics.median(sample.seconds / sample.units for sample in samples)
    timed = [sample for sample in samples if sample.seconds > 0]
    units = np.array([sample.units for sample in timed])
    seconds = np.array([sample.seconds for sample in timed])
    scale = float(units.max())
    columns = np.stack([np.ones_like(units), units / scale], axis=1) / seconds[:, None]
    (fixed_s, whole_s), _ = nnls(columns, np.ones_like(seconds))
    return float(fixed_s), float(whole_s) / scale


def _warm(share: float | None) -> bool | None:
    return None if share is None else share >= WARM_SHARE


def _alike(one: float | None, other: float | None) -> bool:
    return other is None or _warm(one) == _warm(other)
