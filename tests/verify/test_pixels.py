"""The pixel arm as a whole: every number for a good clip, and clips too small or too short for some."""

from __future__ import annotations

import numpy as np
import pytest

from shotclock.verify.cases import Base
from shotclock.verify.expectation import Expectation
from shotclock.verify.pixels import pixel_numbers

NEEDS_REQUEST = {
    "chunk_ratio",
    "chunk_light",
    "chunk_light_step",
    "tile_step",
    "tile_step_relative",
    "raw_copied_frames",
    "raw_copied_share",
}


def test_a_good_clip_gives_every_number_that_needs_no_request(base: Base) -> None:
    """What is None depends on the plan alone."""
    numbers = pixel_numbers(base.frames, Expectation())
    assert {name for name, value in numbers.items() if value is None} == NEEDS_REQUEST


def test_the_plan_adds_the_numbers_of_its_edges(base: Base) -> None:
    """Tiles, chunks and the count of distinct frames before encoding."""
    plan = Expectation(tile_columns=(96,), tile_frames=(9,), raw_distinct_frames=23)
    numbers = pixel_numbers(base.frames, plan)
    assert None not in numbers.values()
    assert numbers["raw_copied_frames"] == 2


@pytest.mark.parametrize("frames", [1, 2, 3])
@pytest.mark.parametrize("shape", [(16, 16), (33, 47), (64, 100)])
def test_short_and_small_clips_give_numbers_or_none(frames: int, shape: tuple[int, int]) -> None:
    """No error and no NaN, down to a single frame of 16x16; numpy's warnings are errors here."""
    rng = np.random.default_rng(2)
    clip = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for _ in range(frames)]
    with np.errstate(all="raise"):
        numbers = pixel_numbers(clip, Expectation(tile_columns=(8, 500), tile_frames=(2, 90)))
    assert all(value is None or np.isfinite(value) for value in numbers.values())
    assert numbers["frames_judged"] == frames


@pytest.mark.parametrize("level", [0, 128, 255])
def test_plain_clips_have_no_texture_to_speak_of(level: int) -> None:
    """All frames flat; kurtosis and the like are unknown, not zero."""
    numbers = pixel_numbers([np.full((64, 96, 3), level, np.uint8)] * 9, Expectation())
    assert numbers["flat_share"] == 1
    assert numbers["distinct_frames"] == 1
    assert all(numbers[name] is None for name in ("grad_kurt", "noise_sigma", "half_dead", "burnt"))
