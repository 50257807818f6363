"""The audio arm's numbers against sounds whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from shotclock.verify import tones
from shotclock.verify.reader import Sound
from shotclock.verify.sound import sound_numbers

RATE_HZ = 48000


def _numbers(*channels: np.ndarray) -> dict[str, float]:
    found = sound_numbers(Sound(waveform=np.stack(channels).astype(np.float32), rate_hz=RATE_HZ))
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def t() -> np.ndarray:
    """One second."""
    return np.arange(RATE_HZ) / RATE_HZ


def test_a_tone_reads_its_level_and_stands_out(t: np.ndarray) -> None:
    """-20 dBFS peak is -23.01 dBFS rms; a steady tone has no envelope and a high crest."""
    numbers = _numbers(0.1 * np.sin(2 * np.pi * 1000 * t))
    assert numbers["rms_db"] == pytest.approx(-23.01, abs=0.01)
    assert numbers["peak_db"] == pytest.approx(-20, abs=0.01)
    assert numbers["env_cv"] < 0.01
    assert numbers["spectral_crest"] > 400


def test_white_noise_is_flat_steady_and_gaussian() -> None:
    """verify.md: flatness -.06 dB and above, crest 1.5-2.1, kurtosis 3."""
    numbers = _numbers(0.1 * np.random.default_rng(0).normal(size=RATE_HZ))
    assert numbers["flat_mid_db"] > -0.2
    assert numbers["spectral_crest"] < 2.1
    assert numbers["sample_kurtosis"] == pytest.approx(3, abs=0.1)


def test_each_channel_and_the_mono_sum_are_read(t: np.ndarray) -> None:
    """Polarity, balance, and what is left in mono."""
    wave = 0.3 * np.sin(2 * np.pi * 300 * t)
    turned = _numbers(wave, -wave)
    assert turned["channel_correlation"] == pytest.approx(-1)
    assert turned["rms_db_mono"] < -100
    assert turned["rms_db_channel0"] == pytest.approx(turned["rms_db_channel1"])
    assert _numbers(wave, 0.1 * wave)["imbalance_db"] == pytest.approx(20, abs=0.01)
    assert "channel_correlation" not in _numbers(wave, 0 * wave)


def test_offset_and_clipping_are_shares_of_full_scale(t: np.ndarray) -> None:
    """0.1 of offset; the flat tops of a square wave."""
    assert _numbers(0.1 + 0.2 * np.sin(2 * np.pi * 300 * t))["dc"] == pytest.approx(0.1, abs=1e-4)
    assert _numbers(np.sign(np.sin(2 * np.pi * 301 * t)))["clipped_share"] > 0.99


def test_a_tail_of_zeros_is_told_from_a_quiet_end(t: np.ndarray) -> None:
    """0.4 s of zeros count; 0.4 s of room tone at -70 dB do not."""
    wave = 0.2 * np.sin(2 * np.pi * 500 * t)
    padded = np.where(t < 0.6, wave, 0)
    assert _numbers(padded)["zero_tail_s"] == pytest.approx(0.4, abs=0.03)
    room = 10 ** (-70 / 20) * np.random.default_rng(1).normal(size=RATE_HZ)
    assert _numbers(padded + room)["zero_tail_s"] == 0


def test_holes_are_counted_and_pauses_are_not(t: np.ndarray) -> None:
    """Three holes of 15 ms; a fade to silence and back is a pause."""
    wave = 0.2 * np.sin(2 * np.pi * 500 * t)
    holed = wave.copy()
    for start in (9000, 20000, 33000):
        holed[start : start + 720] = 0
    assert _numbers(holed)["dropouts_hz"] == pytest.approx(3)
    pause = wave * np.clip(np.abs(t - 0.5) * 1.5 - 0.15, 0, 1)
    assert _numbers(pause)["dropouts_hz"] == 0


def test_hum_is_found_at_either_mains(t: np.ndarray) -> None:
    """50 and 60 Hz with harmonics, against a melody."""
    for hz in (50, 60):
        assert _numbers(0.2 * sum(np.sin(2 * np.pi * hz * k * t) / k for k in (1, 2, 3)))["hum_share"] > 0.9
    assert _numbers(*tones.birds(np.random.default_rng(0), RATE_HZ))["hum_share"] < 0.5


def test_nan_and_inf_are_counted_before_anything_else() -> None:
    """The other numbers are taken from what is left."""
    wave = np.full(RATE_HZ, 0.1, np.float32)
    wave[:7], wave[9] = np.nan, -np.inf
    numbers = _numbers(wave)
    assert numbers["nonfinite_samples"] == 8
    assert np.isfinite(list(numbers.values())).all()


@pytest.mark.parametrize("samples", [0, 1, 100, 5000])
def test_short_and_silent_sounds_give_numbers_or_nothing(samples: int) -> None:
    """No error, and no NaN."""
    found = sound_numbers(Sound(waveform=np.zeros((2, samples), np.float32), rate_hz=RATE_HZ))
    assert all(value is None or np.isfinite(value) for value in found.values())


@pytest.mark.parametrize("name", [*tones.SOUNDS, *tones.HARD_SOUNDS])
def test_made_sounds_fit_and_differ_by_seed(name: str) -> None:
    """Full scale is kept, and the generator is the only source of chance."""
    maker = {**tones.SOUNDS, **tones.HARD_SOUNDS}[name]
    one, again, other = (maker(np.random.default_rng(seed), 24000) for seed in (1, 1, 2))
    assert np.abs(one).max() <= 1
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
