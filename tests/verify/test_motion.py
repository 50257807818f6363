"""Numbers over time against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shotclock.verify import motion


def _plain(levels: list[int]) -> list[np.ndarray]:
    return [np.full((8, 8, 3), level, np.uint8) for level in levels]


@given(
    one=hnp.arrays(np.uint8, (5, 4, 3)),
    other=hnp.arrays(np.uint8, (5, 4, 3)),
)
def test_mad_is_the_mean_absolute_difference_both_ways(one: np.ndarray, other: np.ndarray) -> None:
    """No wrap-around of unsigned bytes."""
    expected = np.abs(one.astype(int) - other).mean()
    assert motion.mean_absolute_difference(one, other) == pytest.approx(expected)
    assert motion.mean_absolute_difference(other, one) == pytest.approx(expected)


def test_the_seeds_ratio_is_small_for_drift_and_one_for_noise() -> None:
    """Adjacent over far MAD; 24 steps of one level against half a clip."""
    drift = _plain(list(range(0, 50, 2)))
    numbers = motion.seed_numbers(drift, motion.lagged_differences(drift, 1))
    assert numbers["distinct_frames"] == 25
    assert numbers["mad_ratio"] == pytest.approx(2 / 24)
    rng = np.random.default_rng(1)
    noise = [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(12)]
    ratio = motion.seed_numbers(noise, motion.lagged_differences(noise, 1))["mad_ratio"]
    assert ratio == pytest.approx(1, abs=0.02)


def test_a_black_frame_jumps_and_a_fade_does_not() -> None:
    """The step from or to a flat frame: MAD and brightness together."""
    flat = np.array([False, False, True])
    jump = motion.flat_numbers(flat, np.array([90.0, 90.0, 0.0]), np.array([1.0, 90.0]))
    assert jump["flat_jump"] == 180
    assert motion.flat_numbers(~flat & flat, np.zeros(3), np.zeros(2))["flat_jump"] == 0


@given(st.lists(st.booleans(), max_size=30))
def test_the_longest_run_is_that_of_the_text(flags: list[bool]) -> None:
    """As splitting a string of marks would give."""
    text = "".join("x" if flag else "." for flag in flags)
    assert motion.longest_run(np.array(flags, bool)) == max(map(len, text.split(".")))


def test_flicker_alternates_and_a_fade_does_not() -> None:
    """Up and down with every frame gives 1 and its step; a steady rise gives -1."""
    up_down = np.array([[100.0, 110.0] * 6] * 4).T
    numbers = motion.flicker_numbers(up_down)
    assert numbers["flicker_amplitude"] == pytest.approx(10)
    assert numbers["flicker_alternation"] == pytest.approx(10 / 11)
    rise = np.repeat(np.arange(12.0)[:, None], 4, axis=1)
    alternation = motion.flicker_numbers(rise)["flicker_alternation"]
    assert alternation is not None
    assert alternation < 0


def test_a_flicker_of_one_colour_is_found_though_luma_hardly_moves() -> None:
    """Blue weighs 7 % in luma."""
    means = np.array([[100, 100, 100 + 20 * (t % 2), 100 + 1.4 * (t % 2)] for t in range(12)], float)
    assert motion.flicker_numbers(means)["flicker_amplitude"] == pytest.approx(20)


def test_order_is_seen_in_frames_two_apart() -> None:
    """Steady motion gives 2, independent frames 1."""
    steady = _plain(list(range(0, 40, 4)))
    lag2 = motion.order_numbers(motion.lagged_differences(steady, 1), motion.lagged_differences(steady, 2))["lag2"]
    assert lag2 == pytest.approx(2)
    still = _plain([7] * 5)
    none = motion.order_numbers(motion.lagged_differences(still, 1), motion.lagged_differences(still, 2))
    assert none["lag2"] is None


def test_a_step_at_a_chunk_edge_is_told_from_one_elsewhere() -> None:
    """Frame 9 begins a chunk; the same step at frame 5 does not count for it."""
    at_edge = np.ones(24)
    at_edge[8] = 10
    assert motion.cut_numbers(at_edge, [9]) == {"cut_ratio": 10, "cut_frame": 9, "chunk_ratio": 10}
    assert motion.cut_numbers(np.roll(at_edge, -4), [9])["chunk_ratio"] == 1
    assert motion.cut_numbers(at_edge, [])["chunk_ratio"] is None


def test_a_step_of_light_at_a_chunk_edge_is_told_from_one_elsewhere() -> None:
    """Three levels at frame 9 among tenths; the same step at frame 5 belongs to the picture."""
    lumas = np.cumsum(np.full(25, 0.2))
    lumas[9:] += 3
    assert motion.chunk_numbers(lumas, [9, 17]) == {
        "chunk_light": pytest.approx(16),
        "chunk_light_step": pytest.approx(3.2),
    }
    elsewhere = motion.chunk_numbers(lumas, [5, 17])["chunk_light"]
    assert elsewhere is not None
    assert elsewhere < 1
    assert motion.chunk_numbers(lumas, []) == {"chunk_light": None, "chunk_light_step": None}


def test_a_step_every_eight_frames_is_a_beat() -> None:
    """Frames 9, 17 and 25 step; a single step is no beat."""
    adjacent, lumas = np.ones(32), np.zeros(33)
    adjacent[[8, 16, 24]] = 5
    lumas[9:] += 3
    lumas[17:] -= 3
    lumas[25:] += 3
    numbers = motion.beat_numbers(adjacent, lumas)
    assert numbers["beat_picture"] == 5
    assert numbers["beat_light"] == 30
    adjacent[16] = 1
    assert motion.beat_numbers(adjacent, lumas)["beat_picture"] == 1
