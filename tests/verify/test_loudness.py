"""Loudness against the standard's own test signals."""

from __future__ import annotations

import numpy as np
import pytest

from shotclock.verify.loudness import numbers

RATE_HZ = 16000  # a third of the work; the filters are those of 48 kHz at the same frequencies


def _tone(level_db: float, hz: float, seconds: float) -> np.ndarray:
    t = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    wave = 10 ** (level_db / 20) * np.sin(2 * np.pi * hz * t)
    return np.stack([wave, wave])


@pytest.mark.parametrize("level_db", [-23.0, -33.0])
def test_a_stereo_tone_of_1_khz_reads_its_level(level_db: float) -> None:
    """EBU Tech 3341 test cases 1 and 2: -23 and -33 LUFS within 0.1 LU."""
    assert numbers(_tone(level_db, 997, 5), RATE_HZ)["lufs"] == pytest.approx(level_db, abs=0.1)


def test_silence_around_a_tone_is_gated_out() -> None:
    """EBU Tech 3341 test case 3: parts 13 LU down do not count."""
    wave = np.concatenate([_tone(level, 997, seconds) for level, seconds in ((-36, 5), (-23, 30), (-36, 5))], axis=1)
    assert numbers(wave, RATE_HZ)["lufs"] == pytest.approx(-23, abs=0.1)


def test_the_range_is_the_step_between_two_levels() -> None:
    """EBU Tech 3342 test case 1: -20 and -30 dBFS, 20 s each, 10 LU within 1."""
    wave = np.concatenate([_tone(-20, 997, 12), _tone(-30, 997, 12)], axis=1)
    assert numbers(wave, RATE_HZ)["loudness_range_lu"] == pytest.approx(10, abs=1)


def test_the_true_peak_lies_between_samples() -> None:
    """A quarter-rate tone sampled at its 45-degree points peaks 3 dB above its samples."""
    t = np.arange(RATE_HZ // 4)
    wave = np.sin(2 * np.pi * t / 4 + np.pi / 4)[None] * np.hanning(len(t))
    assert 20 * np.log10(np.abs(wave).max()) == pytest.approx(-3, abs=0.1)
    assert numbers(wave, RATE_HZ)["true_peak_db"] == pytest.approx(0, abs=0.1)


def test_silence_has_no_loudness() -> None:
    """Unknown, not minus infinity."""
    assert numbers(np.zeros((2, RATE_HZ)), RATE_HZ)["lufs"] is None
