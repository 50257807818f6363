"""The sound of pocket clips and its log-mel picture.

Must not know pixels, words or models. Tones and click partials are multiples of 100 Hz and clicks start on multiples of
10 ms, so that every hop of 160 samples at 16 kHz looks the same to a convolution: the vocoder has no phase to guess.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pocket.scenes import FPS, FRAMES, WIDTH, Scenes

MEL_RATE_HZ, OUTPUT_RATE_HZ = 16000, 48000
MEL_FRAMES = 101  # 4 * 26 - 3: what 26 audio latents decode to
HOP, WINDOW, MEL_BINS = 160, 1024, 64  # LTX-2.5 audio front end
LOG_FLOOR = 1e-5
TONE_HZ = (300.0, 600.0, 1200.0)
CLICK_HZ = (2400.0, 3600.0, 5200.0)
CLICK_HIGH_HZ = (9600.0, 12400.0)  # only the bandwidth extension can make these
TONE_GAIN = (0.12, 0.20)  # constant part, part that grows with the radius
CLICK_GAIN, CLICK_HIGH_GAIN = 0.15, 0.06
CLICK_DECAY_S, FADE_IN_S = 0.012, 0.01
LARGEST_RADIUS_PX = 48.0
HOP_S = HOP / MEL_RATE_HZ


def _at_samples(per_frame: Float[Tensor, "b f"], time_s: Float[Tensor, " n"]) -> Float[Tensor, "b n"]:
    """Linear interpolation of per-frame values at sample times."""
    position = (time_s * FPS).clamp(0, FRAMES - 1)
    left = position.floor().long().clamp(max=FRAMES - 2)
    share = position - left
    return per_frame[:, left] * (1 - share) + per_frame[:, left + 1] * share


def _cosine(frequency_hz: float | Int[Tensor, "..."], sample: Int[Tensor, "..."], rate_hz: int) -> Float[Tensor, "..."]:
    """Cosine at a whole frequency, phase reduced in integers: float32 seconds would add audible noise."""
    whole = frequency_hz if isinstance(frequency_hz, Tensor) else round(frequency_hz)
    return torch.cos((sample * whole % rate_hz).float() * (2 * torch.pi / rate_hz))


def _clicks(scenes: Scenes, samples: int, rate_hz: int) -> Float[Tensor, "b n"]:
    """Decaying partials that start at each event, rounded to a hop."""
    start = (scenes.event_frame / FPS / HOP_S).round().long() * (HOP * rate_hz // MEL_RATE_HZ)
    after = torch.arange(samples, device=start.device) - start[..., None]
    alive = (scenes.event_frame[..., None] >= 0) & (after >= 0)
    wave = sum(CLICK_GAIN * _cosine(f, after, rate_hz) for f in CLICK_HZ)
    if rate_hz > MEL_RATE_HZ:
        wave = wave + sum(CLICK_HIGH_GAIN * _cosine(f, after, rate_hz) for f in CLICK_HIGH_HZ)
    decay = torch.exp(-after.clamp(min=0) / (CLICK_DECAY_S * rate_hz))
    return torch.where(alive, wave * decay, 0.0).sum(1)


def render_sound(scenes: Scenes, rate_hz: int) -> Float[Tensor, "b 2 n"]:
    """Stereo waves of MEL_FRAMES hops at 16 or 48 kHz: the moving shape's tone and a click per event, panned by x."""
    device = scenes.x_px.device
    samples = MEL_FRAMES * HOP * rate_hz // MEL_RATE_HZ
    time_s = torch.arange(samples, device=device, dtype=torch.float32) / rate_hz
    pan = _at_samples(scenes.x_px[:, 0] / WIDTH, time_s) * (torch.pi / 2)
    loud = TONE_GAIN[0] + TONE_GAIN[1] * scenes.radius_px[:, 0] / LARGEST_RADIUS_PX
    loud = _at_samples(loud * scenes.visible[:, 0], time_s) * (time_s / FADE_IN_S).clamp(0, 1)
    tone_hz = torch.tensor(TONE_HZ, device=device).long()[scenes.tone][:, None]
    tone = _cosine(tone_hz, torch.arange(samples, device=device), rate_hz)
    wave = loud * tone + _clicks(scenes, samples, rate_hz)
    return torch.stack([wave * torch.cos(pan), wave * torch.sin(pan)], 1)


def _to_mel(hz: Tensor) -> Tensor:
    """Slaney's scale: linear to 1 kHz, logarithmic above."""
    return torch.where(
        hz < 1000, hz * 3 / 200, 15 + torch.log(hz.clamp(min=1) / 1000) * (27 / torch.log(torch.tensor(6.4)))
    )


def _to_hz(mel: Tensor) -> Tensor:
    """Inverse of `_to_mel`."""
    return torch.where(mel < 15, mel * 200 / 3, 1000 * torch.exp((mel - 15) * torch.log(torch.tensor(6.4)) / 27))


def mel_filters(window: int, bins: int = MEL_BINS, rate_hz: int = MEL_RATE_HZ) -> Float[Tensor, "m k"]:
    """Triangular filters on Slaney's mel scale with Slaney's area normalisation, 0 Hz to rate/2."""
    top = _to_mel(torch.tensor(rate_hz / 2.0))
    edges = _to_hz(torch.linspace(0, 1, bins + 2) * top)
    frequency = torch.linspace(0, rate_hz / 2, window // 2 + 1)
    rising = (frequency[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequency[None]) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0) * (2 / (edges[2:] - edges[:-2]))[:, None]


def log_mel(wave: Float[Tensor, "b c n"]) -> Float[Tensor, "b c t m"]:
    """Causal log-mel of a 16 kHz wave: frame k ends with sample 160 (k+1); magnitudes, log clamped at 1e-5."""
    padded = torch.nn.functional.pad(wave.flatten(0, 1), (WINDOW - HOP, 0))
    window = torch.hann_window(WINDOW, device=wave.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True).abs()
    mel = mel_filters(WINDOW).to(wave.device) @ spectrum
    return mel.clamp(min=LOG_FLOOR).log().transpose(1, 2).unflatten(0, wave.shape[:2])
