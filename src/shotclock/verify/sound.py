"""The audio arm's numbers: level, spectrum, damage, of the loudest channel, each channel and the mono sum.

Formulas of verify.md section 1, Audio. A float waveform in, one flat dict of numbers out; ``None`` is "cannot be told".
Knows no file and no threshold.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from shotclock.verify import loudness
from shotclock.verify.reader import Sound

FRAME_S = 0.02  # envelope window (verify.md env_cv)
WELCH_SAMPLES = 2048  # verify.md spectral crest
FLAT_LOW_HZ, FLAT_HIGH_SHARE = 100.0, 0.4  # verify.md flat_mid_db
FULL_SCALE = 0.995  # verify.md clipping
TAIL_DB, ZERO_LEVEL, ZERO_SHARE = -60.0, 1e-5, 0.2  # verify.md zero tail; AAC leaves 1e-6 of digital zero
GAP_DB, LOUD_DB, GAP_MS, NEAR_MS = -70.0, -45.0, 5, 10  # verify.md dropouts
LOOP_FROM_S, LOOP_TO_S = 0.01, 0.4  # verify.md stuck loop
HUM_HZ, HUM_HARMONICS, HUM_WIDTH_HZ = (50.0, 60.0), 10, 5.0  # mains and its harmonics
CLICK_RATIO = 12.0  # a second difference this many times its median is a click; report only
FLOOR = 1e-9  # -180 dBFS: the level of digital silence
LEAST_S = 0.1  # shorter sounds have no envelope

Wave = Float[np.ndarray, " n"]
Envelope = Float[np.ndarray, " frames"]
Spectrum = Float[np.ndarray, " f"]
Numbers = dict[str, float | None]


def sound_numbers(sound: Sound) -> Numbers:
    """Every number of the audio arm; dBFS and seconds. Non-finite samples are counted, then zeroed."""
    bad = ~np.isfinite(sound.waveform)
    waves = np.where(bad, 0, sound.waveform).astype(np.float64)
    numbers: Numbers = {"nonfinite_samples": float(bad.sum()), "sound_s": waves.shape[1] / sound.rate_hz}
    if waves.shape[1] < LEAST_S * sound.rate_hz:
        return numbers
    levels = [decibels(float(np.sqrt((wave**2).mean()))) for wave in waves]
    loudest = waves[int(np.argmax(levels))]
    numbers |= {f"rms_db_channel{index}": level for index, level in enumerate(levels)}
    numbers["rms_db_mono"] = decibels(float(np.sqrt((waves.mean(axis=0) ** 2).mean())))
    numbers["rms_db"] = max(levels)
    return (
        numbers
        | _all_channels(waves, levels)
        | _one_channel(loudest, sound.rate_hz)
        | loudness.numbers(waves, sound.rate_hz)
    )


def decibels(amplitude: float) -> float:
    """20 log10, at least -180."""
    return 20 * float(np.log10(max(amplitude, FLOOR)))


def _all_channels(waves: Float[np.ndarray, "c n"], levels: list[float]) -> Numbers:
    """Clipping, offset, balance and polarity."""
    pair = len(waves) == 2 and min(levels) > GAP_DB
    return {
        "peak_db": decibels(float(np.abs(waves).max())),
        "clipped_share": float((np.abs(waves) >= FULL_SCALE).mean(axis=1).max()),
        "dc": float(np.abs(waves.mean(axis=1)).max()),
        "imbalance_db": abs(levels[0] - levels[1]) if len(waves) == 2 and max(levels) > GAP_DB else None,
        "channel_correlation": float(np.corrcoef(waves[0], waves[1])[0, 1]) if pair else None,
    }


def _one_channel(x: Wave, rate_hz: int) -> Numbers:
    envelope = frame_rms(x, round(FRAME_S * rate_hz))
    mean = float(envelope.mean())
    audible = mean > FLOOR
    return {
        "env_cv": float(envelope.std()) / mean if audible else None,
        "sample_kurtosis": _kurtosis(x) if audible else None,
        "zero_tail_s": zero_tail_s(x, envelope, rate_hz),
        "dropouts_hz": dropouts_hz(x, rate_hz),
        "clicks_hz": clicks_hz(x, rate_hz) if audible else None,
        "loop_correlation": loop_correlation(x, rate_hz) if audible else None,
        **(_spectral_numbers(x, rate_hz) if audible else {}),
    }


def frame_rms(x: Wave, size: int) -> Envelope:
    """RMS of consecutive whole frames."""
    whole = len(x) // size
    rms: Envelope = np.sqrt((x[: whole * size].reshape(whole, size) ** 2).mean(axis=1))
    return rms


def _kurtosis(x: Wave) -> float:
    centred = x - x.mean()
    square = centred**2
    return float((square**2).mean() / max(square.mean() ** 2, 1e-30))


def power_spectrum(x: Wave, rate_hz: int, size: int) -> tuple[Spectrum, Spectrum]:
    """(frequencies in Hz, power) by Welch's method: Hann windows, half overlapping, mean removed from each."""
    size = min(size, len(x))
    starts = range(0, len(x) - size + 1, max(size // 2, 1))
    window = np.hanning(size)
    power = np.zeros(size // 2 + 1)
    for start in starts:
        part = x[start : start + size]
        power += np.abs(np.fft.rfft((part - part.mean()) * window)) ** 2
    return np.fft.rfftfreq(size, 1 / rate_hz), power / len(starts)


def _spectral_numbers(x: Wave, rate_hz: int) -> Numbers:
    """Crest, flatness of the middle band, and the share of mains hum."""
    hz, power = power_spectrum(x, rate_hz, WELCH_SAMPLES)
    middle = power[(hz >= FLAT_LOW_HZ) & (hz <= FLAT_HIGH_SHARE * rate_hz)]
    flat = None
    if middle.size and middle.mean() > 0:
        flat = 10 * float(np.mean(np.log10(np.maximum(middle, 1e-30))) - np.log10(middle.mean()))
    fine_hz, fine = power_spectrum(x, rate_hz, WELCH_SAMPLES * 8)
    return {
        "spectral_crest": float(power.max() / max(power.mean(), 1e-30)),
        "flat_mid_db": flat,
        "hum_share": max(_hum_share(fine_hz, fine, mains) for mains in HUM_HZ),
    }


def _hum_share(hz: Spectrum, power: Spectrum, mains_hz: float) -> float:
    nearest = np.clip(np.round(hz / mains_hz), 1, HUM_HARMONICS) * mains_hz
    return float(power[np.abs(hz - nearest) <= HUM_WIDTH_HZ].sum() / max(float(power.sum()), 1e-30))


def zero_tail_s(x: Wave, envelope: Envelope, rate_hz: int) -> float:
    """Length of the silence at the end when it is made of zeros, not of a quiet room."""
    quiet = 20 * np.log10(np.maximum(envelope, FLOOR)) < TAIL_DB
    run = len(quiet) if quiet.all() else int(np.argmin(quiet[::-1]))
    if not run:
        return 0.0
    tail = x[-run * round(FRAME_S * rate_hz) :]
    return run * FRAME_S if (np.abs(tail) < ZERO_LEVEL).mean() > ZERO_SHARE else 0.0


def dropouts_hz(x: Wave, rate_hz: int) -> float:
    """Holes a second: 5 ms and more under -70 dB with more than -45 dB within 10 ms on both sides."""
    level = 20 * np.log10(np.maximum(frame_rms(x, max(rate_hz // 1000, 1)), FLOOR))
    quiet = np.concatenate([[False], level < GAP_DB, [False]])
    begins, ends = np.flatnonzero(quiet[1:] & ~quiet[:-1]), np.flatnonzero(~quiet[1:] & quiet[:-1])
    holes = 0
    for begin, end in zip(begins, ends, strict=True):
        before, after = level[max(0, begin - NEAR_MS) : begin], level[end : end + NEAR_MS]
        loud_sides = before.size and after.size and min(before.max(), after.max()) > LOUD_DB
        holes += bool(end - begin >= GAP_MS and loud_sides)
    return holes * rate_hz / len(x)


def clicks_hz(x: Wave, rate_hz: int) -> float:
    """Groups of samples whose second difference is far over the median, a second, counted once in 10 ms."""
    bend = np.abs(np.diff(x, 2))
    found = np.flatnonzero(bend > CLICK_RATIO * max(float(np.median(bend)), 1e-6))
    groups = int(found.size > 0) + int((np.diff(found) > rate_hz // 100).sum())
    return groups * rate_hz / len(x)


def loop_correlation(x: Wave, rate_hz: int) -> float | None:
    """The largest autocorrelation at lags of 10 to 400 ms: near 1 for a stuck buffer, and for a held note."""
    low, high = int(LOOP_FROM_S * rate_hz), min(int(LOOP_TO_S * rate_hz), len(x) // 2)
    if high <= low:
        return None
    size = 1 << (2 * len(x) - 1).bit_length()
    product = np.fft.irfft(np.abs(np.fft.rfft(x - x.mean(), size)) ** 2, size)[: high + 1]
    scale = len(x) / (len(x) - np.arange(high + 1))
    return float((product * scale)[low:].max() / max(float(product[0]), 1e-30))
