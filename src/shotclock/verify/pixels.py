"""The pixel arm's numbers: one pass over decoded frames, then what the sum of them says (verify.md section 1, Video).

RGB frames in, one flat dict of numbers out; ``None`` is "cannot be told". Knows no file and no threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, UInt8

from shotclock.verify import grids, motion, still
from shotclock.verify.expectation import Expectation

SEAM_FRAMES = 32  # frames that seams are averaged over, or all of a shorter clip
SAMPLED_FRAMES = 8  # frames that dearer numbers are taken from (verify.md grad_kurt)
DEAD_TIME_SHARE = 0.9  # a block is dead when it is in more than this share of frames (verify.md nan_blocks)
DEAD_EDGE_STEP = 12.0  # levels (verify.md nan_blocks)
GRID_PERIODS = (2, 4, 8)  # pixels (verify.md gridP)

Frames = Sequence[UInt8[np.ndarray, "h w 3"]]
Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one pass over all frames leaves behind; planes and profiles are means over time."""

    stills: list[still.FrameNumbers]
    mean_y: Float[np.ndarray, "h w"]
    column_steps: grids.Steps
    row_steps: grids.Steps
    dead: Bool[np.ndarray, "rows columns"]


def pixel_numbers(frames: Frames, expectation: Expectation) -> Numbers:
    """Every number of the pixel arm for T >= 1 frames of one size, uint8 RGB; keys are the metrics' names."""
    swept = sweep(frames)
    adjacent = motion.lagged_differences(frames, 1)
    means = np.array([numbers.means for numbers in swept.stills])
    flat = np.array([numbers.flat for numbers in swept.stills])
    raw = expectation.raw_distinct_frames
    return {
        "frames_judged": float(len(frames)),
        "raw_copied_frames": None if raw is None else float(len(frames) - raw),
        "raw_copied_share": None if raw is None or len(frames) < 2 else (len(frames) - raw) / (len(frames) - 1),
        **motion.seed_numbers(frames, adjacent),
        **motion.flat_numbers(flat, means[:, 3], adjacent),
        **motion.freeze_numbers(adjacent),
        **motion.order_numbers(adjacent, motion.lagged_differences(frames, 2)),
        **motion.flicker_numbers(means),
        **motion.cut_numbers(adjacent, expectation.tile_frames),
        **motion.chunk_numbers(means[:, 3], expectation.tile_frames),
        **motion.beat_numbers(adjacent, means[:, 3]),
        **_still_summary(swept.stills),
        **_sampled_numbers(frames),
        **_grid_numbers(swept),
        **_seam_numbers(frames, expectation),
    }


def sweep(frames: Frames) -> Sweep:
    """One pass: numbers of every frame, and the sums that grids are found in."""
    stills: list[still.FrameNumbers] = []
    total_y = np.zeros(frames[0].shape[:2], np.float64)
    dead = np.zeros((frames[0].shape[0] // grids.TOKEN_PIXELS, frames[0].shape[1] // grids.TOKEN_PIXELS))
    columns, rows = [], []
    for frame in frames:
        y = still.luma(frame)
        stills.append(still.frame_numbers(frame, y))
        total_y += y
        dead += grids.dead_blocks(y)
        across, down = grids.excess_steps(y)
        columns.append(across)
        rows.append(down)
    return Sweep(
        stills=stills,
        mean_y=(total_y / len(frames)).astype(np.float32),
        column_steps=np.mean(columns, axis=0),
        row_steps=np.mean(rows, axis=0),
        dead=dead > DEAD_TIME_SHARE * len(frames),
    )


def _still_summary(stills: list[still.FrameNumbers]) -> Numbers:
    """Medians and extremes over time; frames without texture say nothing about texture."""
    textured = [numbers for numbers in stills if not numbers.flat]
    noise = [numbers.noise_sigma for numbers in textured]
    histogram = np.sum([numbers.histogram for numbers in stills], axis=0)
    low, high = np.searchsorted(np.cumsum(histogram) / histogram.sum(), [0.01, 0.99])
    return {
        "near_black_frames": float(sum(numbers.near_black for numbers in stills)),
        "near_uniform_frames": float(sum(numbers.near_uniform for numbers in stills)),
        "luma_mean": float(np.mean([numbers.means[3] for numbers in stills])),
        "range": float(high - low),
        "contrast": float(np.median([numbers.contrast for numbers in stills])),
        "correlation": _median([numbers.correlation for numbers in textured]),
        "correlation_least": min((numbers.correlation for numbers in textured), default=None),
        "noise_sigma": _median(noise),
        "noise_sigma_most": max(noise, default=None),
        "half_dead": _median([numbers.dead_rows for numbers in textured]),
        "half_dead_columns": _median([numbers.dead_columns for numbers in textured]),
        "burnt": _median([numbers.burnt for numbers in textured]),
    }


def _sampled_numbers(frames: Frames) -> Numbers:
    """Numbers from up to 8 frames spread over the clip."""
    picked = np.unique(np.linspace(0, len(frames) - 1, SAMPLED_FRAMES).round().astype(int))
    kurtosis, sharpness, colour, skew = [], [], [], []
    for index in picked:
        y = still.luma(frames[index])
        half = still.half_size(y)
        if y.std() > still.TEXTURED_STD and min(half.shape) >= 8:
            kurtosis.append(still.gradient_kurtosis(half))
            sharpness.append(still.laplacian_variance(half))
            skew.append(float(grids.row_skew(y)))
            fine = still.chroma_fine_ratio(frames[index], y)
            colour += [] if fine is None else [fine]
    return {
        "grad_kurt": _median(kurtosis),
        "sharpness": _median(sharpness),
        "chroma_fine": _median(colour),
        "skew": _median(skew),
    }


def _grid_numbers(swept: Sweep) -> Numbers:
    """Pixel grids, the token grid, NaN blocks."""
    numbers: Numbers = {}
    for period in GRID_PERIODS:
        grid = grids.pixel_grid(swept.mean_y, period)
        numbers[f"grid{period}"], numbers[f"grid{period}_amplitude"] = grid or (None, None)
    numbers |= _token_numbers([grids.token_grid(steps) for steps in (swept.column_steps, swept.row_steps)])
    numbers["nan_blocks"] = float(grids.inner_dead_blocks(swept.dead, swept.mean_y, edge_step=DEAD_EDGE_STEP))
    return numbers


def _seam_numbers(frames: Frames, expectation: Expectation) -> Numbers:
    """The hardest seam at the plan's tile edges; costs nothing when there are none."""
    if not (expectation.tile_columns or expectation.tile_rows):
        return {"tile_step": None, "tile_step_relative": None}
    lumas = [still.luma(frame) for frame in frames[:: max(len(frames) // SEAM_FRAMES, 1)]]
    seams = [
        grids.tile_seams(np.mean([grids.signed_steps(y) for y in lumas], axis=0), expectation.tile_columns),
        grids.tile_seams(np.mean([grids.signed_steps(y.T) for y in lumas], axis=0), expectation.tile_rows),
    ]
    known = [seam for seam in seams if seam is not None]
    worst = max(known, key=lambda seam: seam[1]) if known else (None, None)
    return {"tile_step": worst[0], "tile_step_relative": worst[1]}


def _token_numbers(both: Sequence[grids.TokenGrid | None]) -> Numbers:
    """The worse of columns and rows, each ratio with its own step."""
    found = [grid for grid in both if grid is not None]
    if not found:
        return dict.fromkeys(("grid32", "grid32_step", "grid32_tokens", "grid32_tokens_step"))
    same = max(found, key=lambda grid: grid.ratio)
    each = max(found, key=lambda grid: grid.token_ratio)
    return {
        "grid32": same.ratio,
        "grid32_step": same.step,
        "grid32_tokens": each.token_ratio,
        "grid32_tokens_step": each.token_step,
    }


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if len(values) else None
