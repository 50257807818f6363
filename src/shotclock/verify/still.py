"""Numbers of single frames: texture, noise, sharpness, range, dead and burnt areas (verify.md section 1, Video).

Arrays in, numbers out. Knows no file, no threshold and no neighbour of a frame; time is motion.py's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

LUMA_WEIGHTS = np.array([0.2126, 0.7152, 0.0722], np.float32)  # BT.709
FLAT_STD = 1.5  # levels; a frame with less spread in every channel has no texture (verify.md flat_frames)
DEAD_ROW_STD = 1.0  # levels (verify.md half_dead)
TEXTURED_STD = 8.0  # levels; below it a kurtosis is one of rounding (verify.md grad_kurt)
IMMERKAER = float(np.sqrt(np.pi / 2) / 6)  # Immerkaer 1996, equation 7
GAUSS2 = np.exp(-0.5 * (np.arange(-6, 7) / 2.0) ** 2).astype(np.float32)  # sigma 2, cut at 3 sigma
NEAR_BLACK_MEAN = 8.0  # levels; the seeds' "near-black" count, report only
NEAR_UNIFORM_STD = 4.0  # levels; the seeds' "near-uniform" count, report only

Frame = UInt8[np.ndarray, "h w 3"]
Plane = Float[np.ndarray, "h w"]
Half = Float[np.ndarray, "rows columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameNumbers:
    """What one frame says by itself; levels are 0 to 255."""

    means: Float[np.ndarray, " 4"]  # R, G, B, Y
    flat: bool
    contrast: float
    near_black: bool
    near_uniform: bool
    correlation: float
    noise_sigma: float
    dead_rows: float
    dead_columns: float
    burnt: float
    histogram: Int[np.ndarray, " 256"]


def luma(frame: Frame) -> Plane:
    """BT.709 luma in levels, float32."""
    plane: Plane = (frame.reshape(-1, 3).astype(np.float32) @ LUMA_WEIGHTS).reshape(frame.shape[:2])
    return plane


def half_size(plane: Plane) -> Half:
    """2x2 means; an odd last row or column is left out."""
    h, w = plane.shape[0] // 2 * 2, plane.shape[1] // 2 * 2
    even = plane[:h, :w]
    halved: Half = 0.25 * (even[::2, ::2] + even[1::2, ::2] + even[::2, 1::2] + even[1::2, 1::2])
    return halved


def frame_numbers(frame: Frame, y: Plane) -> FrameNumbers:
    """All numbers that every frame is asked for; ``y`` is its luma."""
    means, stds = channel_moments(frame)
    y_mean, y_std = float(y.mean(dtype=np.float64)), float(y.std())
    rows, columns = line_stds(y)
    return FrameNumbers(
        means=np.append(means, y_mean),
        flat=bool(stds.max() < FLAT_STD),
        contrast=float(stds.max()),
        near_black=y_mean < NEAR_BLACK_MEAN,
        near_uniform=y_std < NEAR_UNIFORM_STD,
        correlation=lag1_correlation(y),
        noise_sigma=noise_sigma(y),
        dead_rows=float((rows < DEAD_ROW_STD).mean()),
        dead_columns=float((columns < DEAD_ROW_STD).mean()),
        burnt=burnt_share(frame[_alive(rows), _alive(columns)]),
        histogram=np.bincount(y[::2, ::2].astype(np.uint8).ravel(), minlength=256),
    )


def channel_moments(frame: Frame) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
    """Mean and standard deviation of R, G and B, from exact sums of integers."""
    values = frame.reshape(-1, 3)
    count = len(values)
    total = np.array([values[:, c].sum(dtype=np.uint64) for c in range(3)], np.float64)
    square = np.array([np.square(values[:, c], dtype=np.uint16).sum(dtype=np.uint64) for c in range(3)], np.float64)
    means = total / count
    return means, np.sqrt(np.maximum(square / count - means**2, 0.0))


def line_stds(y: Plane) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " w"]]:
    """Standard deviation along every row and every column."""
    return y.std(axis=1), y.std(axis=0)


def _alive(stds: Float[np.ndarray, " n"]) -> slice:
    """From the first to the last line with texture: what lies inside letterbox or pillarbox bars."""
    alive = np.flatnonzero(stds >= DEAD_ROW_STD)
    return slice(int(alive[0]), int(alive[-1]) + 1) if alive.size else slice(None)


def burnt_share(values: Frame) -> float:
    """Share of RGB values at the ends of the range: 0, 1, 254 and 255 (verify.md burnt); 254 + 2 wraps to 0."""
    return float(np.count_nonzero((values + np.uint8(2)) <= 3) / values.size)


def lag1_correlation(y: Plane) -> float:
    """The smaller of the horizontal and vertical correlation of neighbouring pixels; 1 for a plane without spread."""
    centred = y - y.mean()
    power = float(np.vdot(centred, centred)) / centred.size
    if power < 1e-6 or min(y.shape) < 2:
        return 1.0
    across = (centred[:, 1:] * centred[:, :-1]).mean() / power
    down = (centred[1:] * centred[:-1]).mean() / power
    return float(min(across, down))


def noise_sigma(y: Plane) -> float:
    """Immerkaer's estimate of white noise: sqrt(pi/2)/6 times the mean of |Y * (1,-2,1)x(1,-2,1)|, in levels."""
    if min(y.shape) < 3:
        return 0.0
    across = y[:, :-2] - 2 * y[:, 1:-1] + y[:, 2:]
    both = across[:-2] - 2 * across[1:-1] + across[2:]
    return IMMERKAER * float(np.abs(both).mean())


def gradient_kurtosis(half: Half) -> float:
    """E[d^4] / E[d^2]^2 of horizontal differences of half-size luma: 3 for Gaussian noise, 7 and more for pictures."""
    d = np.diff(half, axis=1)
    square = d * d
    second = float(square.mean(dtype=np.float64))
    return float(np.vdot(square, square)) / square.size / second**2 if second > 0 else 0.0


def laplacian_variance(half: Half) -> float:
    """Variance of the four-neighbour Laplacian of half-size luma: small where nothing is sharp."""
    inner = half[1:-1, 1:-1]
    return float((half[:-2, 1:-1] + half[2:, 1:-1] + half[1:-1, :-2] + half[1:-1, 2:] - 4 * inner).var())


def chroma_fine_ratio(frame: Frame, y: Plane) -> float | None:
    """Fine detail of colour against that of luma: var(HP Cr, Cb) / var(HP Y), HP = x - gauss2(x), half size."""
    blue = half_size((frame[..., 2] - y) / np.float32(1.8556))
    red = half_size((frame[..., 0] - y) / np.float32(1.5748))
    light = _fine(half_size(y)).var()
    if light < 1e-3:
        return None
    return float(0.5 * (_fine(blue).var() + _fine(red).var()) / light)


def _fine(plane: Plane) -> Plane:
    fine: Plane = plane - _blur(_blur(plane, 0), 1)
    return fine


def _blur(plane: Plane, axis: int) -> Plane:
    """Gaussian of sigma 2 along one axis, edges repeated, weights renormalised."""
    radius = len(GAUSS2) // 2
    pad = [(radius, radius) if a == axis else (0, 0) for a in range(2)]
    padded = np.pad(plane, pad, mode="edge")
    size = plane.shape[axis]
    weights = GAUSS2 / GAUSS2.sum()
    total = np.zeros_like(plane)
    for tap, weight in enumerate(weights):
        total += weight * (padded[tap : tap + size] if axis == 0 else padded[:, tap : tap + size])
    return total
