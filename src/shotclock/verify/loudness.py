"""Loudness and true peak of a waveform by ITU-R BS.1770-5 and EBU Tech 3342, for the report.

Filters act on the spectrum instead of in time, which differs only at the first and last milliseconds.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex, Float

SHELF = ((1.53512485958697, -2.69169618940638, 1.19839281085285), (1.0, -1.69065929318241, 0.73248077421585))
HIGH_PASS = ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621))  # both BS.1770-5 annex 1, at 48 kHz
FILTER_RATE_HZ = 48000
OFFSET_DB = -0.691  # BS.1770-5 equation 2
BLOCK_S, HOP_S = 0.4, 0.1  # BS.1770-5 gating blocks, 75 % overlap
ABSOLUTE_GATE, RELATIVE_GATE = -70.0, -10.0  # LUFS, LU
RANGE_BLOCK_S, RANGE_GATE = 3.0, -20.0  # EBU Tech 3342
OVERSAMPLING = 4  # BS.1770-5 annex 2
TRUE_PEAK_SAMPLES = 1 << 22  # samples of a channel looked at, so that memory stays bounded

Waves = Float[np.ndarray, "c n"]


def numbers(waves: Waves, rate_hz: int) -> dict[str, float | None]:
    """Integrated loudness (LUFS), loudness range (LU) and true peak (dBTP); ``None`` where the clip is too short."""
    weighted = _k_weight(waves, rate_hz)
    return {
        "lufs": _integrated(_blocks(weighted, rate_hz, BLOCK_S)),
        "loudness_range_lu": _range(_blocks(weighted, rate_hz, RANGE_BLOCK_S)),
        "true_peak_db": 20 * float(np.log10(max(_true_peak(waves), 1e-9))),
    }


def _k_weight(waves: Waves, rate_hz: int) -> Waves:
    n = waves.shape[1]
    size = 1 << n.bit_length()
    turn = np.exp(-2j * np.pi * np.fft.rfftfreq(size, 1 / rate_hz) / FILTER_RATE_HZ)
    response = _response(SHELF, turn) * _response(HIGH_PASS, turn)
    return np.fft.irfft(np.fft.rfft(waves, size, axis=1) * response, size, axis=1)[:, :n]


def _response(
    taps: tuple[tuple[float, ...], tuple[float, ...]], turn: Complex[np.ndarray, " f"]
) -> Complex[np.ndarray, " f"]:
    above, below = ((part[0] + part[1] * turn + part[2] * turn**2) for part in taps)
    return above / below


def _blocks(weighted: Waves, rate_hz: int, block_s: float) -> Float[np.ndarray, " b"]:
    """Loudness of overlapping blocks in LUFS."""
    size, hop = round(block_s * rate_hz), round(HOP_S * rate_hz)
    power = np.concatenate([[0.0], (weighted**2).sum(axis=0).cumsum()])
    starts = np.arange(0, len(power) - size, hop)
    means = np.maximum(power[starts + size] - power[starts], 1e-18) / size
    levels: Float[np.ndarray, " b"] = OFFSET_DB + 10 * np.log10(means)
    return levels


def _integrated(blocks: Float[np.ndarray, " b"]) -> float | None:
    heard = blocks[blocks > ABSOLUTE_GATE]
    if not heard.size:
        return None
    return _mean(heard[heard > _mean(heard) + RELATIVE_GATE])


def _range(blocks: Float[np.ndarray, " b"]) -> float | None:
    heard = blocks[blocks > ABSOLUTE_GATE]
    if heard.size < 2:
        return None
    low, high = np.percentile(heard[heard > _mean(heard) + RANGE_GATE], [10, 95])
    return float(high - low)


def _mean(blocks: Float[np.ndarray, " b"]) -> float:
    """Mean of loudnesses, taken of their powers."""
    return float(10 * np.log10((10 ** (blocks / 10)).mean()))


def _true_peak(waves: Waves) -> float:
    """Largest sample after fourfold oversampling by zero-padding the spectrum."""
    peak = 0.0
    for wave in waves[:, :TRUE_PEAK_SAMPLES]:
        size = 1 << max(len(wave) - 1, 1).bit_length()
        spectrum = np.fft.rfft(wave, size)
        fine = np.fft.irfft(np.pad(spectrum, (0, size * OVERSAMPLING // 2 + 1 - len(spectrum))), size * OVERSAMPLING)
        peak = max(peak, float(np.abs(fine).max()) * OVERSAMPLING)
    return peak
