"""Phases that are no forwards: their units, and what measured rates say of the next."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.plan.rate import PhaseSample, estimate_phase, units_of

CLIP = Geometry(width=64, height=32, frames=9, fps=Fraction(24))
FILES = {"transformer": 42, "text_encoder": 24, "video_vae": 3, "audio_vae": 2}


def test_phases_are_proportional_to_what_they_read_or_make() -> None:
    """Bytes, pixels, tokens; a constant where nothing grows, or where a file was not read."""
    units = {phase: units_of(phase, CLIP, FILES) for phase in Phase}
    assert units[Phase.LOAD_TRANSFORMER] == 42
    assert units[Phase.LOAD_TEXT] == 24
    assert units[Phase.LOAD_DECODERS] == 5
    assert units[Phase.DECODE_VIDEO] == 64 * 32 * 9
    assert units[Phase.DECODE_AUDIO] == pytest.approx(9 / 24)
    assert units[Phase.VERIFY] == 64 * 32 * 9
    assert units[Phase.SAVE_LATENTS] == 4 + CLIP.audio_tokens
    assert units[Phase.IMPORT] == 1
    assert units[Phase.ENCODE] == 2  # prompts
    assert units_of(Phase.LOAD_TEXT, CLIP, {}) == 1


def test_a_rate_gives_its_range_and_says_how_often_it_was_measured() -> None:
    """One measurement has a guessed interval, none gives no figure."""
    phase = Phase.DECODE_VIDEO
    samples = [
        PhaseSample(phase=str(phase), units=10.0, seconds=seconds, run=str(seconds)) for seconds in (20.0, 40.0, 50.0)
    ]
    found = estimate_phase(samples, phase, 2.0)
    assert found is not None
    assert (found.low_s, found.typical_s, found.high_s) == (4.0, 8.0, 10.0)
    assert found.source == "rate of decode-video, n=3"
    once = estimate_phase(samples[:1], phase, 1.0)
    assert once is not None
    assert (once.low_s, once.high_s) == (pytest.approx(2 / 1.5), 3.0)
    assert estimate_phase(samples, Phase.ENCODE, 1.0) is None
