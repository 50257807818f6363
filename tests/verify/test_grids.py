"""Grids, seams, dead blocks and skew are found where they were planted, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from shotclock.verify import grids
from shotclock.verify.still import Plane


@pytest.fixture
def picture() -> Plane:
    """Overlapping boxes of random grey with a little texture; no line on the token grid."""
    rng = np.random.default_rng(3)
    y = np.full((224, 288), 120, np.float32)
    for _ in range(160):
        top, left, height, width = rng.integers(-20, (224, 288, 80, 80))
        y[max(top, 0) : top + height, max(left, 0) : left + width] = rng.uniform(20, 230)
    return y + rng.normal(0, 1, y.shape).astype(np.float32)


@pytest.mark.parametrize(("period", "levels"), [(2, 2.0), (4, 2.0), (8, 8.0)])
def test_a_planted_grid_stands_out_at_its_own_period(picture: Plane, period: int, levels: float) -> None:
    """A faint checkerboard raises the score eightfold; of 8 pixels it is nearer to what pictures hold."""
    y, x = np.mgrid[: picture.shape[0], : picture.shape[1]]
    half = period // 2
    pattern = (levels * ((y // half + x // half) % 2 * 2 - 1)).astype(np.float32)
    clean, planted = grids.pixel_grid(picture, period), grids.pixel_grid(picture + pattern, period)
    assert clean is not None
    assert planted is not None
    assert planted[0] > 8 * clean[0]
    assert planted[1] > 0.5


def test_a_picture_too_small_for_a_grid_is_not_judged() -> None:
    """Fewer than eight periods say nothing."""
    assert grids.pixel_grid(np.zeros((60, 60), np.float32), 8) is None
    assert grids.token_grid(np.zeros((2, 90), np.float32)) is None


def _tokens(y: Plane) -> grids.TokenGrid:
    found = grids.token_grid(grids.excess_steps(y)[0])
    assert found is not None
    return found


def test_token_steps_of_one_sign_and_of_any_sign_are_told_apart(picture: Plane) -> None:
    """A ramp in every token raises both numbers; random steps raise only the second."""
    clean = _tokens(picture)
    assert clean.ratio < 5.5
    assert clean.token_ratio < 2
    x = np.arange(picture.shape[1])
    ramp = _tokens(picture + (4.0 * (x % 32) / 31).astype(np.float32))
    assert ramp.ratio > 5.5
    assert ramp.step > 0.3
    signs = np.random.default_rng(1).choice([-3.0, 3.0], (7, 9))
    steps = _tokens(picture + np.kron(signs, np.ones((32, 32))).astype(np.float32))
    assert steps.ratio < 5.5
    assert steps.token_ratio > 2


def test_a_seam_is_found_at_the_known_edge_only(picture: Plane) -> None:
    """Three levels from column 160 on, in hills with noise; asked about 96 there is nothing."""
    x = np.arange(picture.shape[1])
    hills = 120 + 20 * np.sin(x / 40) + 40 * np.cos(np.arange(picture.shape[0]) / 30)[:, None]
    seam = hills + 3 * (x >= 160) + np.random.default_rng(2).normal(0, 2, picture.shape)
    steps = grids.signed_steps(seam.astype(np.float32))
    here, elsewhere = grids.tile_seams(steps, [160]), grids.tile_seams(steps, [96])
    assert here is not None
    assert elsewhere is not None
    assert here[1] > 1.2
    assert elsewhere[1] < 1.2
    assert grids.tile_seams(steps, []) is None


def test_dead_tokens_inside_count_and_those_at_the_border_do_not(picture: Plane) -> None:
    """Two dead tokens in the middle, one in a corner, a letterbox row."""
    y = np.maximum(picture, 20)
    y[64:96, 96:160] = 0
    y[:32, :32] = 0
    dead = grids.dead_blocks(y)
    assert dead.sum() == 3
    assert grids.inner_dead_blocks(dead, y, edge_step=12.0) == 2


def test_a_dark_patch_of_a_dark_picture_is_not_dead() -> None:
    """Its rim hardly differs from what lies around it."""
    y = np.full((160, 160), 6, np.float32)
    y[64:96, 64:96] = 0
    assert grids.inner_dead_blocks(grids.dead_blocks(y), y, edge_step=12.0) == 0


@pytest.mark.parametrize(("pixels", "expected"), [(0, 0), (1, 8), (3, 24), (-3, 24)])
def test_skew_is_eight_times_the_shift_of_a_row(picture: Plane, pixels: int, expected: int) -> None:
    """Rows moved by a wrong line size."""
    skewed = np.stack([np.roll(row, -pixels * index) for index, row in enumerate(picture)])
    assert grids.row_skew(skewed) == pytest.approx(expected, abs=1)
