"""Good sounds made in code, and the damage that is planted in them. Stereo float32, full scale 1. Knows no metric."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from shotclock.verify.reader import Sound

RATE_HZ = 48000

Wave = Float[np.ndarray, " n"]
Stereo = Float[np.ndarray, "2 n"]
Maker = Callable[[np.random.Generator, int], Stereo]


def coloured(rng: np.random.Generator, n: int, slope: float) -> Wave:
    """Noise of unit rms whose power falls as f^-slope: 0 white, 1 pink, 2 brown."""
    spectrum = np.fft.rfft(rng.normal(size=n))
    hz = np.maximum(np.fft.rfftfreq(n, 1 / RATE_HZ), 20.0)
    wave: Wave = np.fft.irfft(spectrum * hz ** (-slope / 2), n)
    return wave / float(wave.std())


def _stereo(rng: np.random.Generator, wave: Wave, level_db: float) -> Stereo:
    """Two channels at ``level_db`` dBFS rms that differ by a soft noise, peaks kept under full scale."""
    rms = 10 ** (level_db / 20)
    unit = wave / max(float(np.sqrt((wave**2).mean())), 1e-9)
    pair = np.stack([unit, 0.85 * unit]) + 0.05 * np.stack([coloured(rng, len(wave), 1) for _ in range(2)])
    stereo: Stereo = (pair * min(rms, 0.9 / float(np.abs(pair).max()))).astype(np.float32)
    return stereo


def _seconds(n: int) -> Wave:
    seconds: Wave = np.arange(n) / RATE_HZ
    return seconds


def _notes(rng: np.random.Generator, n: int, every_s: float) -> list[tuple[int, float]]:
    """(first sample, pitch in Hz) of a run of notes on a five-tone scale."""
    scale = 220 * 2 ** (np.array([0, 2, 4, 7, 9, 12]) / 12)
    starts = range(0, n, int(every_s * RATE_HZ))
    return [(start, float(rng.choice(scale))) for start in starts]


def melody(rng: np.random.Generator, n: int) -> Stereo:
    """Plucked notes with vibrato."""
    wave = np.zeros(n)
    for start, hz in _notes(rng, n, 0.19):
        t = _seconds(n - start)
        phase = 2 * np.pi * hz * t + 0.6 * np.sin(2 * np.pi * 5 * t)
        wave[start:] += np.exp(-t * 7) * (np.sin(phase) + 0.4 * np.sin(2 * phase) + 0.2 * np.sin(3 * phase))
    return _stereo(rng, wave, -18)


def clicks(rng: np.random.Generator, n: int) -> Stereo:
    """A clock: short resonances over a soft room."""
    wave = 0.01 * coloured(rng, n, 1)
    for start in range(0, n, RATE_HZ // 6):
        t = _seconds(min(n - start, RATE_HZ // 8))
        wave[start : start + len(t)] += np.exp(-t * 90) * np.sin(2 * np.pi * rng.uniform(900, 2600) * t)
    return _stereo(rng, wave, -28)


def drums(rng: np.random.Generator, n: int) -> Stereo:
    """Bursts of noise and falling thuds."""
    wave = 0.003 * coloured(rng, n, 1)
    for beat, start in enumerate(range(0, n, RATE_HZ // 7)):
        t = _seconds(min(n - start, RATE_HZ // 5))
        thud = np.sin(2 * np.pi * (55 * t + 9 * (1 - np.exp(-t * 30))))
        hit = thud if beat % 2 == 0 else 0.5 * coloured(rng, len(t), 0.3)
        wave[start : start + len(t)] += np.exp(-t * 22) * hit
    return _stereo(rng, wave, -20)


def chords(rng: np.random.Generator, n: int) -> Stereo:
    """Strummed chords with a tremolo."""
    wave, t = np.zeros(n), _seconds(n)
    for start, hz in _notes(rng, n, 0.34):
        late = _seconds(n - start)
        for ratio in (1, 1.26, 1.5, 2.01):
            wave[start:] += np.exp(-late * 3.5) * np.sin(2 * np.pi * hz * ratio * late + rng.random() * 6)
    return _stereo(rng, wave * (0.7 + 0.3 * np.sin(2 * np.pi * 6 * t)), -17)


def speech(rng: np.random.Generator, n: int) -> Stereo:
    """Syllables: a buzzing source through moving resonances, with pauses."""
    t = _seconds(n)
    pitch = 110 + 20 * np.sin(2 * np.pi * 0.9 * t) + 6 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
    formants = (500 + 250 * np.sin(2 * np.pi * 2.3 * t), 1500 + 500 * np.sin(2 * np.pi * 1.7 * t + 1))
    wave = np.zeros(n)
    for harmonic in range(1, 30):
        gain = sum(np.exp(-(((harmonic * pitch - formant) / 220) ** 2)) for formant in formants)
        wave += gain * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * 3.7 * t + rng.random()) * 1.6, 0.02, 1)
    return _stereo(rng, wave * syllables + 0.02 * coloured(rng, n, 1), -21)


def birds(rng: np.random.Generator, n: int) -> Stereo:
    """Chirps over wind."""
    wave = 0.05 * coloured(rng, n, 1.6)
    for start in range(RATE_HZ // 20, n, RATE_HZ // 5):
        t = _seconds(min(n - start, RATE_HZ // 12))
        sweep = rng.uniform(2000, 3500) * t + rng.uniform(-9000, 9000) * t**2
        wave[start : start + len(t)] += np.hanning(len(t)) * np.sin(2 * np.pi * sweep)
    return _stereo(rng, wave, -24)


def rain(rng: np.random.Generator, n: int) -> Stereo:
    """Hard but legitimate: nearly white noise, with drops."""
    wave = 0.5 * coloured(rng, n, 0.25)
    for start in rng.integers(0, n - 2000, n // 900):
        t = _seconds(int(rng.integers(200, 1500)))
        wave[start : start + len(t)] += rng.exponential(1.2) * np.exp(-t * 900) * rng.normal(size=len(t))
    return _stereo(rng, wave, -26)


def quiet_room(rng: np.random.Generator, n: int) -> Stereo:
    """Hard but legitimate: a room at -50 dBFS that breathes a little."""
    breath = 1 + 0.25 * np.interp(np.arange(n), np.linspace(0, n, 9), rng.normal(size=9))
    return _stereo(rng, coloured(rng, n, 1.4) * breath, -50)


def wind(rng: np.random.Generator, n: int) -> Stereo:
    """Hard but legitimate: slow gusts of dark noise."""
    gust = 1 + 0.4 * np.interp(np.arange(n), np.linspace(0, n, 7), rng.normal(size=7))
    return _stereo(rng, coloured(rng, n, 1.8) * gust, -30)


SOUNDS: dict[str, Maker] = {
    "melody": melody,
    "clicks": clicks,
    "drums": drums,
    "chords": chords,
    "speech": speech,
    "birds": birds,
}
HARD_SOUNDS: dict[str, Maker] = {"rain": rain, "quiet_room": quiet_room, "wind": wind}


def make(maker: Maker, rng: np.random.Generator, seconds: float) -> Sound:
    """A sound of a given length."""
    return Sound(waveform=maker(rng, round(seconds * RATE_HZ)), rate_hz=RATE_HZ)


def _plant(sound: Sound, waveform: Stereo) -> Sound:
    return Sound(waveform=waveform.astype(np.float32), rate_hz=sound.rate_hz)


def silent(sound: Sound, _: np.random.Generator) -> Sound:
    """Digital silence."""
    return _plant(sound, np.zeros_like(sound.waveform))


def dead_channel(sound: Sound, _: np.random.Generator) -> Sound:
    """The right channel is zero."""
    return _plant(sound, sound.waveform * np.array([[1], [0]]))


def inverted_channel(sound: Sound, _: np.random.Generator) -> Sound:
    """The right channel is the left one upside down."""
    return _plant(sound, sound.waveform[:1] * np.array([[1], [-1]]))


def white(sound: Sound, rng: np.random.Generator) -> Sound:
    """White noise at -20 dBFS instead of the sound."""
    return _plant(sound, 0.1 * rng.normal(size=sound.waveform.shape))


def hum(sound: Sound, _: np.random.Generator) -> Sound:
    """A steady 50 Hz hum with harmonics instead of the sound."""
    t = np.arange(sound.waveform.shape[1]) / sound.rate_hz
    wave = sum(np.sin(2 * np.pi * 50 * k * t) / k**2 for k in (1, 2, 3))
    return _plant(sound, 0.15 * np.stack([wave, wave]))


def clipped(sound: Sound, _: np.random.Generator) -> Sound:
    """The sound 20 dB over what fits, flat at full scale."""
    peak = float(np.abs(sound.waveform).max())
    return _plant(sound, np.clip(sound.waveform * (10 * max(1.0, 0.5 / peak)), -1, 1))


def offset(sound: Sound, _: np.random.Generator) -> Sound:
    """A constant of 0.1 is added."""
    return _plant(sound, np.clip(sound.waveform * 0.8 + 0.1, -1, 1))


def zero_tail(sound: Sound, _: np.random.Generator) -> Sound:
    """The last 42 % are zero."""
    keep = round(sound.waveform.shape[1] * 0.58)
    return _plant(sound, np.where(np.arange(sound.waveform.shape[1]) < keep, sound.waveform, 0))


def dropouts(sound: Sound, rng: np.random.Generator) -> Sound:
    """Five holes of 15 ms a second, where there is sound."""
    wave = sound.waveform.copy()
    size = sound.rate_hz * 15 // 1000
    loud = np.abs(wave[0]) > 0.02
    near = np.convolve(loud, np.ones(sound.rate_hz // 200), mode="same") > 0
    both = near[: -2 * size] & near[2 * size :]
    places = np.flatnonzero(both)
    count = max(3, round(5 * wave.shape[1] / sound.rate_hz))
    for start in rng.choice(places, count) + size // 2:
        wave[:, start : start + size] = 0
    return _plant(sound, wave)


def not_a_number(sound: Sound, _: np.random.Generator) -> Sound:
    """NaN from the middle on."""
    half = sound.waveform.shape[1] // 2
    return _plant(sound, np.where(np.arange(sound.waveform.shape[1]) < half, sound.waveform, np.nan))
