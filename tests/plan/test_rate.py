"""Phases that are no forwards: their units, and what measured rates say of the next."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.plan.ledger import Basis
from shotclock.plan.rate import PhaseSample, Rates, estimate_phase, fixed_and_rate, read_rates, units_of
from shotclock.plan.stages import Stages

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
    assert (found.low_s, found.typical_s, found.high_s) == (4.0, 8.0, pytest.approx(55.0))
    assert found.source.startswith("rate of decode-video, n=3 at about one size")
    there = estimate_phase(samples, phase, 10.0)
    assert there is not None and (there.low_s, there.typical_s, there.high_s) == (20.0, 40.0, 50.0)
    assert there.source == "rate of decode-video, n=3"
    once = estimate_phase(samples[:1], phase, 10.0)
    assert once is not None
    assert (once.low_s, once.high_s) == (pytest.approx(20 / 1.5), 30.0)
    assert estimate_phase(samples, Phase.ENCODE, 1.0) is None


def sample(units: float, seconds: float, share: float | None = None) -> PhaseSample:
    """Of the load of a transformer."""
    return PhaseSample(
        phase="load-transformer", units=units, seconds=seconds, run=f"{units} {share}", cached_share=share
    )


def test_a_fixed_part_is_told_from_the_rate_where_sizes_differ() -> None:
    """2 s and 1 s a unit from three sizes; beyond them the interval widens with each doubling."""
    samples = [sample(units, 2 + units) for units in (1.0, 4.0, 10.0)]
    assert fixed_and_rate(samples) == (pytest.approx(2), pytest.approx(1))
    inside = estimate_phase(samples, "load-transformer", 10.0)
    beyond = estimate_phase(samples, "load-transformer", 40.0)
    assert inside is not None and beyond is not None
    assert (inside.typical_s, beyond.typical_s) == (pytest.approx(12), pytest.approx(42))
    assert inside.high_s / inside.typical_s == pytest.approx(1.1)
    assert beyond.high_s / beyond.typical_s == pytest.approx(1.1**3)


@given(st.floats(0.01, 100), st.floats(1, 1e6), st.floats(1e-3, 1e3))
def test_one_size_tells_no_fixed_part_so_the_interval_holds_both(seconds: float, units: float, times: float) -> None:
    """What was seen once may grow with its units or not; at its own size nothing widens."""
    found = estimate_phase([sample(units, seconds)], "load-transformer", units * times)
    assert found is not None
    assert found.low_s <= min(seconds, seconds * times) and found.high_s >= max(seconds, seconds * times) * (1 - 1e-9)
    assert ("not told apart" in found.source) == (units * times != units)


def test_a_warm_load_is_not_judged_by_cold_ones() -> None:
    """Cold 100 s, warm 2 s: each by its own, both where nothing is known of the cache or of the kind."""
    samples = [sample(10.0, 100.0, 0.0), sample(10.0, 2.0, 1.0)]
    phase = "load-transformer"
    cold = estimate_phase(samples, phase, 10.0, cached_share=0.1)
    warm = estimate_phase(samples, phase, 10.0, cached_share=0.9)
    unknown = estimate_phase(samples, phase, 10.0)
    assert cold is not None and warm is not None and unknown is not None
    assert (cold.typical_s, warm.typical_s) == (100.0, 2.0)
    assert warm.source == "rate of load-transformer, n=1, file in the page cache"
    assert cold.source.endswith("file on disk")
    assert unknown.low_s <= 2.0 < 100.0 <= unknown.high_s
    only_warm = estimate_phase(samples[1:], phase, 10.0, cached_share=0.0)
    assert only_warm is not None and (only_warm.typical_s, only_warm.high_s) == (2.0, 15.0)
    assert only_warm.source.endswith("measured from the page cache: the file is on disk now")
    only_cold = estimate_phase(samples[:1], phase, 10.0, cached_share=1.0)
    assert only_cold is not None and only_cold.low_s == pytest.approx(100.0 / 1.5 / 5)
    untold = estimate_phase([sample(10.0, 2.0)], phase, 10.0, cached_share=1.0)
    assert untold is not None and untold.source == "rate of load-transformer, n=1"


def test_rates_of_another_build_are_stale_and_broken_files_are_named() -> None:
    """Nothing is merged; NaN is no duration."""
    mine = Rates(device="cpu", build="a", samples=(sample(1.0, 1.0),))
    assert mine.merged(mine) == mine
    with pytest.raises(RequestError, match="STALE: rates were measured on cpu with a, not cpu with b"):
        mine.merged(mine.model_copy(update={"build": "b"}))
    with pytest.raises(RequestError, match=r"no rates: samples\.0\.seconds"):
        read_rates(mine.to_json().replace('"seconds": 1.0', '"seconds": NaN'))


def test_before_any_run_every_stage_is_a_guess_and_called_one() -> None:
    """Loads grow with their files, the decode with its operations at the matrix rate; a measured one is a rate."""
    stages = Stages(
        rates=Rates(device="cpu", build="a", samples=(sample(42.0, 3.0),)),
        file_bytes={"transformer": 42, "text_encoder": 24 * 10**9},
        cached_shares={},
        matrix_flops_per_s=1e14,
    )
    load = stages.row("load text", Phase.LOAD_TEXT, CLIP)
    assert (load.basis, load.estimate.typical_s) == (Basis.GUESS, 25.0)
    assert load.estimate.source == "guess: load-text was never measured here"
    assert (load.estimate.low_s, load.estimate.high_s) == (5.0, 125.0)
    decode = stages.row("decode", Phase.DECODE_VIDEO, CLIP, flops=3e14)
    assert decode.estimate.typical_s == pytest.approx(10.5, abs=0.01)
    encode = stages.row("text", Phase.ENCODE, CLIP)
    assert encode.estimate.typical_s == pytest.approx(0.5 + 2 * 24e9 * 1024 / 3e13)
    model = stages.row("load model", Phase.LOAD_TRANSFORMER, CLIP, count=2)
    assert (model.basis, model.estimate.typical_s) == (Basis.RATE, 6.0)
