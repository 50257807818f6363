"""The encoders: log-mel frames where they belong, causal latents, dead latents and files without an encoder refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shotclock.errors import CheckpointError, RenderFailed
from shotclock.render.encode import HOP, LOG_FLOOR, AudioEncoder, log_mel, require_alive, require_audio_encoder
from shotclock.weights.checkpoint import Header, read_header
from shotclock.weights.tiny import write_tiny_checkpoints


@pytest.fixture(scope="module")
def audio_vae(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read_header(write_tiny_checkpoints(tmp_path_factory.mktemp("models"), 0).audio_vae)


def tone(hz: float, seconds: float = 0.5) -> torch.Tensor:
    moments = torch.arange(round(seconds * 16_000)) / 16_000
    return torch.stack([torch.sin(2 * math.pi * hz * moments)] * 2)


def test_a_tone_lights_its_bin() -> None:
    """Higher tones, higher bins, on the slaney scale; both channels alike; frames 10 ms apart, the first at 0."""
    peaks = []
    for hz in (300, 1_000, 4_000):
        mel = log_mel(tone(hz))
        assert tuple(mel.shape) == (1, 2, 51, 64) and torch.equal(mel[:, 0], mel[:, 1])
        peaks.append(int(mel[0, 0, 25].argmax()))
    knee, top = 15.0, 15 + math.log(8) / (math.log(6.4) / 27)  # mels at 1 kHz and at 8 kHz
    places = [300 / (1000 / 15), knee, knee + math.log(4) / (math.log(6.4) / 27)]
    expected = [round(65 * place / top) - 1 for place in places]
    assert all(abs(a - b) <= 1 for a, b in zip(peaks, expected, strict=True)), (peaks, expected)


def test_silence_is_the_floor() -> None:
    """The logarithm is clamped at 1e-5."""
    assert torch.allclose(log_mel(torch.zeros(2, 4_000)), torch.tensor(math.log(LOG_FLOOR)))


def test_a_click_is_where_it_was() -> None:
    """Frame k is centred at k * 10 ms."""
    wave = torch.zeros(2, 16_000)
    wave[:, 40 * HOP] = 1
    assert int(log_mel(wave)[0, 0].sum(dim=1).argmax()) == 40


def test_latents_look_back_only(audio_vae: Header) -> None:
    """The first latents of a longer sound are those of a shorter one; what lies behind does not count."""
    wave = torch.randn(2, 16_000, generator=torch.Generator().manual_seed(0)) * 0.1
    with torch.inference_mode():
        encoder = AudioEncoder.load(audio_vae, device=torch.device("cpu"))
        long, short = encoder.encode(wave, 20), encoder.encode(wave, 8)
        tail = encoder.encode(torch.cat([wave[:, : 30 * HOP], -wave[:, 30 * HOP :]], dim=1), 6)
        tiny = encoder.encode(wave[:, :100], 1)
    assert tuple(long.shape) == (1, 8, 20, 16) and torch.allclose(long[:, :, :8], short, atol=1e-5)
    assert torch.allclose(tail, long[:, :, :6], atol=1e-5) and tuple(tiny.shape) == (1, 8, 1, 16)


def test_a_file_without_an_encoder_is_named(audio_vae: Header) -> None:
    """Only a given sound needs it; a decoder alone is a legal file."""
    require_audio_encoder(audio_vae)
    kept = {name: entry for name, entry in audio_vae.tensors.items() if "audio_vae.encoder." not in name}
    with pytest.raises(CheckpointError, match="has no audio encoder"):
        require_audio_encoder(replace(audio_vae, path=Path("a.safetensors"), tensors=kept))


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
def test_dead_latents_are_refused(value: float) -> None:
    """users.md row 41: zeros, one single value, or what is not finite would be a black clip."""
    with pytest.raises(RenderFailed, match="an image was encoded to a latent"):
        require_alive(torch.full((1, 128, 1, 2, 2), value), "an image")
    require_alive(torch.randn(1, 128, 1, 2, 2), "an image")
