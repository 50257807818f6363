"""The fixed filters that a vocoder file carries: anti-alias low-pass, Fourier bases, mel filter bank, in numpy.

Formulas only; knows no file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float64

Array = np.ndarray[Any, np.dtype[np.float64]]

STOPBAND_DB = 21.0  # Kaiser's design rule: below it the window is rectangular
STEEP_DB = 50.0  # Kaiser's design rule: above it beta is linear in the attenuation
MEL_LINEAR_HZ = 200.0 / 3  # slaney mel scale: hertz a mel below 1 kHz
MEL_KNEE_HZ = 1000.0  # slaney mel scale: logarithmic above
MEL_LOG_STEP = np.log(6.4) / 27  # slaney mel scale: 27 steps from 1 kHz to 6.4 kHz


def kaiser_low_pass(ratio: int, taps: int) -> Float64[Array, " taps"]:
    """Low-pass for resampling by ``ratio``: a sinc cut at 1/(2 ratio) under a Kaiser window, with sum 1."""
    cutoff, half_width = 0.5 / ratio, 0.6 / ratio
    attenuation = 2.285 * (taps // 2 - 1) * np.pi * 4 * half_width + 7.95  # Kaiser 1974, order from transition width
    window = np.kaiser(taps, _kaiser_beta(attenuation))
    time = np.arange(taps) - (taps - 1) / 2
    values: Array = 2 * cutoff * window * np.sinc(2 * cutoff * time)
    return values / float(values.sum())


def _kaiser_beta(attenuation: float) -> float:
    if attenuation > STEEP_DB:
        return 0.1102 * (attenuation - 8.7)
    if attenuation >= STOPBAND_DB:
        return float(0.5842 * (attenuation - STOPBAND_DB) ** 0.4 + 0.07886 * (attenuation - STOPBAND_DB))
    return 0.0


def fourier_bases(n_fft: int) -> tuple[Float64[Array, "rows n_fft"], Float64[Array, "rows n_fft"]]:
    """Forward and inverse basis of a Hann-windowed transform: cosine rows, then negative sine rows, n_fft/2+1 each.

    Without the windows, inverse transposed times forward is the identity on real signals.
    """
    times = np.arange(n_fft)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * times / n_fft)
    angles = 2 * np.pi * np.outer(np.arange(n_fft // 2 + 1), times) / n_fft
    rows = np.concatenate([np.cos(angles), -np.sin(angles)])
    weights = np.full(n_fft // 2 + 1, 2.0 / n_fft)
    weights[[0, -1]] = 1.0 / n_fft  # zero and Nyquist frequency have no mirror image
    return rows * window, rows * np.tile(weights, 2)[:, None] * window


def mel_bank(rate_hz: int, n_fft: int, mels: int) -> Float64[Array, "mels bins"]:
    """Triangles of unit area, equally wide on the slaney mel scale from 0 Hz to half of ``rate_hz``."""
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(rate_hz / 2), mels + 2))
    frequencies = np.linspace(0.0, rate_hz / 2, n_fft // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    heights = 2.0 / (edges[2:] - edges[:-2])
    return np.maximum(0.0, np.minimum(rising, falling)) * heights[:, None]


def _hz_to_mel(hz: float) -> float:
    if hz < MEL_KNEE_HZ:
        return hz / MEL_LINEAR_HZ
    return float(MEL_KNEE_HZ / MEL_LINEAR_HZ + np.log(hz / MEL_KNEE_HZ) / MEL_LOG_STEP)


def _mel_to_hz(mel: Float64[Array, " n"]) -> Float64[Array, " n"]:
    knee = MEL_KNEE_HZ / MEL_LINEAR_HZ
    return np.where(mel < knee, mel * MEL_LINEAR_HZ, MEL_KNEE_HZ * np.exp(MEL_LOG_STEP * (mel - knee)))
