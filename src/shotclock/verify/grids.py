"""Numbers of regular damage: pixel grids, the token grid, tile seams, NaN blocks, skewed rows (verify.md, Video).

Planes in, numbers out. Knows no file and no threshold; of the request only where tiles meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from shotclock.verify.still import Plane

Profile = Float[np.ndarray, "n"]
Steps = Float[np.ndarray, "_ _"]  # [tokens along the edge, edges]: signed mean excess in levels

TOKEN_PIXELS = 32  # pixels a latent column or row (ltx25.md section 4)
STEP_CLIP = 6.0  # levels; an edge of the picture counts no more than this (verify.md grid32)
NEAR_PIXELS = 16  # a seam stands out against its neighbourhood (verify.md tile_step)
SHOULDER_PIXELS = 3  # a codec smears a seam this far
BLOCK_STD = 0.6  # levels (verify.md nan_blocks)
BLOCK_LOW, BLOCK_HIGH = 2.0, 253.0  # levels; 0 and 255 after a codec
SKEW_ROWS = 8  # rows apart (verify.md skew)
SKEW_REACH = 40  # pixels tried each way
GRID_CONTROLS = (-3, -1, 1, 3)  # periods beside P that hold no grid (verify.md gridP)


def pixel_grid(mean_y: Plane, period: int) -> tuple[float, float] | None:
    """(score, amplitude in levels) of a pattern of ``period`` pixels in the mean frame; ``None`` when too small.

    High-pass by a box of 2P+1, clipped at 3 MAD, folded modulo P; the rms of the folded cells over its expectation for
    independent pixels, over the median of the same for neighbouring periods.
    """
    if min(mean_y.shape) < 8 * period:
        return None
    fine = mean_y - local_mean(mean_y, 2 * period + 1)
    spread = float(np.median(np.abs(fine - np.median(fine))))
    fine = np.clip(fine, -3 * max(spread, 1e-3), 3 * max(spread, 1e-3))
    deviation = max(float(fine.std()), 1e-6)
    rms, score = _fold(fine, period, deviation)
    others = [_fold(fine, period + step, deviation)[1] for step in GRID_CONTROLS if period + step >= 2]
    return score / max(float(np.median(others)), 1e-6), rms


def _fold(fine: Plane, period: int, deviation: float) -> tuple[float, float]:
    """(rms of phase means, the same times sqrt(cells) over the standard deviation)."""
    rows, columns = fine.shape[0] // period, fine.shape[1] // period
    cells = fine[: rows * period, : columns * period].reshape(rows, period, columns, period).mean(axis=(0, 2))
    rms = float(np.sqrt(((cells - cells.mean()) ** 2).mean()))
    return rms, rms * float(np.sqrt(rows * columns)) / deviation


def local_mean(plane: Plane, size: int) -> Plane:
    """Mean over size x size pixels (odd), edges repeated, by running sums in double precision."""
    radius = size // 2
    padded = np.pad(plane.astype(np.float64), radius + 1, mode="edge")[:-1, :-1]
    total = padded.cumsum(axis=0).cumsum(axis=1)
    window = total[size:, size:] - total[:-size, size:] - total[size:, :-size] + total[:-size, :-size]
    mean: Plane = (window / size**2).astype(np.float32)
    return mean


def excess_steps(y: Plane) -> tuple[Steps, Steps]:
    """Per token row and column edge, and per token column and row edge: how much harder the step is than around it.

    e = dY - mean of dY at distance 1 and 2, clipped at 6, in levels with their sign, averaged over the 32 pixels of
    a token along the edge; entry j lies between pixel j and j + 1.
    """
    return _excess(np.diff(y, axis=1)), _excess(np.diff(y.T, axis=1))


def _excess(step: Plane) -> Steps:
    around = 0.25 * (step[:, :-4] + step[:, 1:-3] + step[:, 3:-1] + step[:, 4:])
    excess = np.clip(step[:, 2:-2] - around, -STEP_CLIP, STEP_CLIP)
    tokens = max(len(excess) // TOKEN_PIXELS, 1)
    pixels = min(len(excess), tokens * TOKEN_PIXELS)
    return np.pad(excess[:pixels].reshape(tokens, pixels // tokens, -1).mean(axis=1), ((0, 0), (2, 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrid:
    """Edges between tokens against the other 31 phases: ratios to their median, and sizes in levels.

    ``ratio`` and ``step`` are of steps that have one sign all over (verify.md grid32), ``token_ratio`` and
    ``token_step`` of steps whose sign differs from token to token.
    """

    ratio: float
    step: float
    token_ratio: float
    token_step: float


def token_grid(steps: Steps) -> TokenGrid | None:
    """Strength of edges at 31 mod 32; ``None`` under three tokens.

    One sign: |mean over edges of the mean along the edge|, or the same with the median over edges when that is less,
    since one straight line of the picture on the grid is no grid. Any sign: median of |mean along a token's edge|.
    """
    whole = steps.shape[1] // TOKEN_PIXELS
    if whole < 3:
        return None
    profile = _phases(steps.mean(axis=0), whole)
    same = np.abs(profile.mean(axis=0)), np.abs(np.median(profile, axis=0))
    each = np.median(_phases(np.abs(steps).mean(axis=0), whole), axis=0)
    return TokenGrid(
        ratio=min(map(_last_over_median, same)),
        step=min(float(phases[-1]) for phases in same),
        token_ratio=_last_over_median(each),
        token_step=float(each[-1]),
    )


def _phases(profile: Profile, whole: int) -> Float[np.ndarray, "whole 32"]:
    return profile[: whole * TOKEN_PIXELS].reshape(whole, TOKEN_PIXELS)


def _last_over_median(phases: Profile) -> float:
    return float(phases[-1] / max(float(np.median(phases)), 1e-6))


def signed_steps(y: Plane) -> Profile:
    """Mean step between columns j and j + 1 with its sign, single steps clipped at 6 levels; for rows give ``y.T``.

    Nothing around it is subtracted (verify.md does, as for grid32): a codec smears a weak seam over its neighbours, and
    then takes it away. On 15 clips with 2 levels this finds 67 % instead of 53 %, at a third of the false alarms.
    """
    profile: Profile = np.clip(np.diff(y, axis=1), -STEP_CLIP, STEP_CLIP).mean(axis=0, dtype=np.float64)
    return profile


def tile_seams(steps: Profile, boundaries: Sequence[int]) -> tuple[float, float] | None:
    """(z, z against the largest z within 16 pixels) of the hardest known seam; ``None`` without a seam inside.

    ``steps`` are :func:`signed_steps` averaged over time. A boundary is the first pixel of a tile, so that its edge is
    entry boundary - 1.
    """
    profile = np.abs(steps)
    z = profile / max(1.4826 * float(np.median(profile)), 1e-6)
    found = []
    for edge in (boundary - 1 for boundary in boundaries if 1 < boundary < profile.size):
        before = z[max(0, edge - NEAR_PIXELS) : max(0, edge - SHOULDER_PIXELS)]
        near = np.r_[before, z[edge + SHOULDER_PIXELS + 1 : edge + NEAR_PIXELS + 1]]
        found.append((float(z[edge] / max(near.max(initial=0.0), 1e-6)), float(z[edge])))
    if not found:
        return None
    relative, height = max(found)
    return height, relative


def dead_blocks(y: Plane) -> Bool[np.ndarray, "rows columns"]:
    """Which 32-pixel blocks are one value at the bottom or the top of the range."""
    rows, columns = y.shape[0] // TOKEN_PIXELS, y.shape[1] // TOKEN_PIXELS
    centres = y[TOKEN_PIXELS // 2 :: TOKEN_PIXELS, TOKEN_PIXELS // 2 :: TOKEN_PIXELS][:rows, :columns]
    if not ((centres < BLOCK_LOW) | (centres > BLOCK_HIGH)).any():
        return np.zeros((rows, columns), bool)
    blocks = y[: rows * TOKEN_PIXELS, : columns * TOKEN_PIXELS].reshape(rows, TOKEN_PIXELS, columns, TOKEN_PIXELS)
    level = blocks.mean(axis=(1, 3))
    still = blocks.std(axis=(1, 3)) < BLOCK_STD
    dead: Bool[np.ndarray, "rows columns"] = still & ((level < BLOCK_LOW) | (level > BLOCK_HIGH))
    return dead


def inner_dead_blocks(dead: Bool[np.ndarray, "rows columns"], mean_y: Plane, *, edge_step: float) -> int:
    """Dead blocks in components that touch no border and whose median edge steps by more than ``edge_step`` levels."""
    return sum(
        len(component)
        for component in _components(dead)
        if _is_inside(component, dead.shape) and _edge_step(component, mean_y) > edge_step
    )


def _components(dead: Bool[np.ndarray, "rows columns"]) -> list[set[tuple[int, int]]]:
    """Four-connected components."""
    left = {(int(r), int(c)) for r, c in np.argwhere(dead)}
    found = []
    while left:
        stack, component = [left.pop()], set()
        while stack:
            r, c = stack.pop()
            component.add((r, c))
            for near in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
                if near in left:
                    left.remove(near)
                    stack.append(near)
        found.append(component)
    return found


def _is_inside(component: set[tuple[int, int]], shape: tuple[int, ...]) -> bool:
    return all(0 < r < shape[0] - 1 and 0 < c < shape[1] - 1 for r, c in component)


def _edge_step(component: set[tuple[int, int]], y: Plane) -> float:
    """Median step from a component's rim to the pixel two outside, which a deblocking filter leaves alone."""
    steps = []
    for r, c in component:
        top, left = r * TOKEN_PIXELS, c * TOKEN_PIXELS
        bottom, right = top + TOKEN_PIXELS - 1, left + TOKEN_PIXELS - 1
        rows, columns = slice(top, bottom + 1), slice(left, right + 1)
        sides = {
            (r - 1, c): (y[top, columns], y[top - 2, columns]),
            (r + 1, c): (y[bottom, columns], y[bottom + 2, columns]),
            (r, c - 1): (y[rows, left], y[rows, left - 2]),
            (r, c + 1): (y[rows, right], y[rows, right + 2]),
        }
        steps += [np.abs(inner - outer) for near, (inner, outer) in sides.items() if near not in component]
    return float(np.median(np.concatenate(steps))) if steps else 0.0


def row_skew(y: Plane) -> int:
    """The horizontal shift, in pixels, that best maps rows onto the rows 8 below: 0 for pictures.

    Cross-correlation summed over all pairs of rows, by FFT; only shifts of up to 40 pixels are tried.
    """
    centred = y - y.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, axis=1)
    cross = (np.conj(spectrum[:-SKEW_ROWS]) * spectrum[SKEW_ROWS:]).sum(axis=0)
    correlation = np.fft.irfft(cross, n=y.shape[1])
    reach = min(SKEW_REACH, y.shape[1] // 2 - 1)
    shifts = np.arange(-reach, reach + 1)
    return abs(int(shifts[np.argmax(correlation[shifts])]))
