"""Two clips' pictures and sound in numbers: PSNR, SSIM, the same scene or not, mel distance after alignment.

Pure functions on raw frames and waveforms; the formulas and limits of docs/record.md. Knows no file and no run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from scipy import ndimage, signal

LUMA = np.array([0.2126, 0.7152, 0.0722])  # BT.709
SSIM_SIGMA, SSIM_REACH = 1.5, 5  # 11x11 Gaussian window (Wang et al. 2004)
SSIM_C1, SSIM_C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
SCENE_COLUMNS, SCENE_ROWS = 32, 18  # of the thumbnail that tells the same scene from another one
MEL_BANDS, MEL_FFT, MEL_HOP = 64, 2048, 512
FLOOR_DB = -70.0  # quieter bands count as silent: a hiss would move the distance by 2 to 10 dB
SPECTRA = (512, 1024, 2048)  # windows of the multi-resolution spectral convergence
REACH_S = 0.05  # alignment looks this far to either side
ENVELOPE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """``psnr_db`` is infinite for equal frames; ``scene_*`` are of 32x18 luma, ``motion_difference`` of its steps."""

    psnr_db: float
    psnr_worst_db: float
    ssim: float
    ssim_worst: float
    scene_psnr_db: float
    scene_correlation: float
    motion_difference: float
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sounds:
    """After alignment by ``lag_s``: mel distance, spectral convergence, gain, cosine of the worst channel."""

    lag_s: float
    mel_db: float
    convergence: float
    gain_db: float
    channel_cosine: float
    envelope_correlation: float


def compare_pictures(a: UInt8[np.ndarray, "t h w 3"], b: UInt8[np.ndarray, "t h w 3"]) -> Pictures:
    """Frame by frame; both must have the same shape."""
    assert a.shape == b.shape and len(a), f"frames of one shape, not {a.shape} and {b.shape}"
    errors = np.array([np.mean((one.astype(np.float64) - two) ** 2) for one, two in zip(a, b, strict=True)])
    ssims = [ssim(one @ LUMA, two @ LUMA) for one, two in zip(a, b, strict=True)]
    small_a, small_b = thumbnails(a), thumbnails(b)
    return Pictures(
        psnr_db=psnr_db(float(errors.mean())),
        psnr_worst_db=psnr_db(float(errors.max())),
        ssim=float(np.mean(ssims)),
        ssim_worst=float(np.min(ssims)),
        scene_psnr_db=psnr_db(float(np.mean((small_a - small_b) ** 2))),
        scene_correlation=correlation(small_a, small_b),
        motion_difference=_motion(small_a, small_b),
        frames=len(a),
    )


def psnr_db(mean_square_error: float) -> float:
    """Of 8-bit values."""
    return math.inf if mean_square_error == 0 else 10 * math.log10(255**2 / mean_square_error)


def ssim(a: Float[np.ndarray, "h w"], b: Float[np.ndarray, "h w"]) -> float:
    """Mean structural similarity of two luma pictures, Gaussian window of 11x11."""

    def blur(x: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        return ndimage.gaussian_filter(x, SSIM_SIGMA, truncate=SSIM_REACH / SSIM_SIGMA)  # type: ignore[no-any-return]

    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    cov = blur(a * b) - mean_a * mean_b
    top = (2 * mean_a * mean_b + SSIM_C1) * (2 * cov + SSIM_C2)
    return float(np.mean(top / ((mean_a**2 + mean_b**2 + SSIM_C1) * (var_a + var_b + SSIM_C2))))


def thumbnails(frames: UInt8[np.ndarray, "t h w 3"]) -> Float[np.ndarray, "t 18 32"]:
    """Luma, averaged over 32x18 cells that cover the frame."""
    luma = frames @ LUMA
    return _cells(_cells(luma, SCENE_ROWS, axis=1), SCENE_COLUMNS, axis=2)


def _cells(x: Float[np.ndarray, "t h w"], count: int, *, axis: int) -> Float[np.ndarray, "t i j"]:
    size = x.shape[axis]
    edges = [min(size - 1, i * size // count) for i in range(count)]
    widths = np.diff([*edges, size]) if size >= count else np.ones(count)
    if size < count:
        return np.take(x, edges, axis=axis)
    shape = [1, 1, 1]
    shape[axis] = count
    return np.add.reduceat(x, edges, axis=axis) / widths.reshape(shape)


def _motion(a: Float[np.ndarray, "t r c"], b: Float[np.ndarray, "t r c"]) -> float:
    """How far the sizes of the steps from frame to frame differ, as a share of the larger mean step."""
    if len(a) < 2:
        return 0.0
    steps = [np.abs(np.diff(x, axis=0)).mean(axis=(1, 2)) for x in (a, b)]
    scale = max(float(steps[0].mean()), float(steps[1].mean()))
    return float(np.abs(steps[0] - steps[1]).mean()) / scale if scale else 0.0


def compare_sounds(a: Float[np.ndarray, "c n"], b: Float[np.ndarray, "c n"], rate_hz: int) -> Sounds:
    """Waveforms of one rate and number of channels; ``b`` is shifted onto ``a`` before anything is compared."""
    assert a.shape[0] == b.shape[0], "the same channels"
    lag = align(a.mean(axis=0), b.mean(axis=0), int(REACH_S * rate_hz))
    one, two = _overlap(a.astype(np.float64), b.astype(np.float64), lag)
    mel_a, mel_b = mel(one, rate_hz), mel(two, rate_hz)
    return Sounds(
        lag_s=lag / rate_hz,
        mel_db=float(np.mean(np.abs(mel_a - mel_b))),
        convergence=max(_convergence(one, two, size) for size in SPECTRA),
        gain_db=_decibels(_rms(two)) - _decibels(_rms(one)),
        channel_cosine=min(cosine(x, y) for x, y in zip(one, two, strict=True)),
        envelope_correlation=correlation(_envelope(one, rate_hz), _envelope(two, rate_hz)),
    )


def align(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " m"], reach: int) -> int:
    """Samples by which ``b`` is late, within ``reach``: the largest cross-correlation."""
    products = signal.correlate(b, a, mode="full", method="fft")
    lags = signal.correlation_lags(len(b), len(a), mode="full")
    near = np.abs(lags) <= reach
    return int(lags[near][np.argmax(products[near])])


def _overlap(
    a: Float[np.ndarray, "c n"], b: Float[np.ndarray, "c m"], lag: int
) -> tuple[Float[np.ndarray, "c k"], Float[np.ndarray, "c k"]]:
    one, two = (a, b[:, lag:]) if lag >= 0 else (a[:, -lag:], b)
    length = min(one.shape[1], two.shape[1])
    return one[:, :length], two[:, :length]


def mel(x: Float[np.ndarray, "c n"], rate_hz: int) -> Float[np.ndarray, "c bands t"]:
    """Power of 64 mel bands in dB, full scale 0, with a floor of -70."""
    power = np.abs(_spectrum(x, MEL_FFT, MEL_HOP)) ** 2
    bands = np.einsum("bf,cft->cbt", mel_filters(rate_hz), power)
    return np.maximum(10 * np.log10(bands + 1e-12), FLOOR_DB)  # type: ignore[no-any-return]


def mel_filters(rate_hz: int) -> Float[np.ndarray, "bands f"]:
    """Triangles of equal width in mel (2595 log10(1 + f / 700)), from 0 to half the rate, each summing to 1."""
    top = 2595 * math.log10(1 + rate_hz / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MEL_BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(MEL_FFT, 1 / rate_hz)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.clip(np.minimum(rise, fall), 0, None)
    return filters / np.maximum(filters.sum(axis=1, keepdims=True), 1e-12)  # type: ignore[no-any-return]


def _spectrum(x: Float[np.ndarray, "c n"], size: int, hop: int) -> Float[np.ndarray, "c f t"]:
    padded = x if x.shape[1] >= size else np.pad(x, ((0, 0), (0, size - x.shape[1])))
    _, _, found = signal.stft(padded, window="hann", nperseg=size, noverlap=size - hop, boundary=None, padded=False)
    return found  # type: ignore[no-any-return]


def _convergence(a: Float[np.ndarray, "c n"], b: Float[np.ndarray, "c n"], size: int) -> float:
    one, two = (np.abs(_spectrum(x, size, size // 4)) for x in (a, b))
    scale = float(np.linalg.norm(one))
    return float(np.linalg.norm(one - two)) / scale if scale else float(np.linalg.norm(two) > 0)


def cosine(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Of two arrays taken as vectors; 1 for two zeros."""
    one, two = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    scale = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(one @ two) / scale if scale else float(np.array_equal(one, two))


def correlation(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Pearson's; see :func:`cosine` for constants."""
    return cosine(a - np.mean(a), b - np.mean(b))


def relative_l2(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Of ``b`` against ``a``."""
    one, two = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    scale = float(np.linalg.norm(one))
    return float(np.linalg.norm(two - one)) / scale if scale else float(np.linalg.norm(two) > 0)


def _rms(x: Float[np.ndarray, "c n"]) -> float:
    return float(np.sqrt(np.mean(x**2)))


def _decibels(x: float) -> float:
    return 20 * math.log10(max(x, 1e-9))


def _envelope(x: Float[np.ndarray, "c n"], rate_hz: int) -> Float[np.ndarray, " t"]:
    size = max(1, int(ENVELOPE_S * rate_hz))
    whole = x.shape[1] // size * size
    return np.sqrt(np.mean(x[:, :whole].reshape(x.shape[0], -1, size) ** 2, axis=(0, 2)))  # type: ignore[no-any-return]
