"""Numbers of single frames against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from shotclock.verify import still


@pytest.fixture
def rng() -> np.random.Generator:
    """Always the same noise."""
    return np.random.default_rng(5)


@pytest.mark.parametrize("sigma", [5.0, 20.0])
def test_the_noise_estimate_finds_the_sigma_that_was_planted(rng: np.random.Generator, sigma: float) -> None:
    """Immerkaer's estimate is within 3 % on noise over a plane."""
    y = (np.add.outer(np.arange(256), np.arange(256)) * 0.2 + rng.normal(0, sigma, (256, 256))).astype(np.float32)
    assert still.noise_sigma(y) == pytest.approx(sigma, rel=0.03)


def test_kurtosis_is_three_for_gaussian_noise_and_high_for_edges(rng: np.random.Generator) -> None:
    """The number that separates noise from pictures."""
    noise = rng.normal(0, 30, (200, 300)).astype(np.float32)
    assert still.gradient_kurtosis(noise) == pytest.approx(3, abs=0.1)
    edges = np.kron(rng.uniform(0, 255, (10, 15)), np.ones((20, 20))).astype(np.float32)
    assert still.gradient_kurtosis(edges) > 20


def test_neighbours_are_unrelated_in_white_noise_and_related_in_a_ramp(rng: np.random.Generator) -> None:
    """And a plain plane counts as related."""
    assert abs(still.lag1_correlation(rng.normal(0, 30, (200, 300)).astype(np.float32))) < 0.02
    ramp = np.add.outer(np.arange(100), np.arange(100)).astype(np.float32)
    assert still.lag1_correlation(ramp) > 0.95
    assert still.lag1_correlation(np.full((9, 9), 7, np.float32)) == 1.0


def test_moments_are_those_of_the_values(rng: np.random.Generator) -> None:
    """Means and standard deviations of each channel, exactly."""
    frame = rng.integers(0, 256, (60, 70, 3), dtype=np.uint8)
    means, stds = still.channel_moments(frame)
    np.testing.assert_allclose(means, frame.reshape(-1, 3).mean(axis=0))
    np.testing.assert_allclose(stds, frame.reshape(-1, 3).std(axis=0), rtol=1e-9)


def test_burnt_values_are_the_two_at_each_end() -> None:
    """0, 1, 254 and 255 of all values."""
    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    assert still.burnt_share(values) == pytest.approx(4 / 256)


def test_a_letterbox_is_no_burnt_area_and_its_rows_are_dead() -> None:
    """Bars are left out of the active area; they do count as rows without texture."""
    frame = np.zeros((100, 80, 3), np.uint8)
    frame[20:80] = np.linspace(30, 220, 80).astype(np.uint8)[None, :, None]
    numbers = still.frame_numbers(frame, still.luma(frame))
    assert numbers.burnt == 0
    assert numbers.dead_rows == pytest.approx(0.4)


def test_sharpness_falls_with_blur(rng: np.random.Generator) -> None:
    """The Laplacian's variance of an edge picture against its box-blurred self."""
    edges = np.kron(rng.uniform(0, 255, (10, 15)), np.ones((20, 20))).astype(np.float32)
    soft = sum(np.roll(edges, k, axis=a) for a in (0, 1) for k in range(-8, 9)) / 34
    assert still.laplacian_variance(edges) > 5 * still.laplacian_variance(soft)


def test_chroma_detail_is_high_for_coloured_and_low_for_grey_noise(rng: np.random.Generator) -> None:
    """Independent channels against one channel thrice."""
    coloured = rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)
    grey = np.repeat(rng.integers(0, 256, (96, 96, 1), dtype=np.uint8), 3, axis=2)
    high, low = (still.chroma_fine_ratio(frame, still.luma(frame)) for frame in (coloured, grey))
    assert high is not None
    assert low is not None
    assert high > 0.4
    assert low < 0.01
