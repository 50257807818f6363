"""Pictures and sound to the latents that condition a render: the video encoder of either VAE file, the audio encoder.

Tensors in, tensors out. Must not know files of media (conditioning.py reads those), requests or run folders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import LTX2VideoEncoder3d
from diffusers.models.autoencoders.autoencoder_kl_ltx2_audio import AutoencoderKLLTX2Audio
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from shotclock.errors import CheckpointError, RenderFailed
from shotclock.geometry import AUDIO_CHANNELS, AUDIO_TIME_SCALE, VIDEO_CHANNELS, patchify_audio, unpatchify_audio
from shotclock.render.decode import LatentStatistics, exact_float32, load_statistics
from shotclock.weights import keys
from shotclock.weights.filters import mel_bank
from shotclock.weights.header import Header
from shotclock.weights.identity import Kind
from shotclock.weights.load import load_module

MEL_RATE_HZ = 16_000  # ltx25.md section 6, audio VAE
N_FFT, HOP = 1024, 160  # ltx25.md section 6, audio VAE
LOG_FLOOR = 1e-5  # ltx25.md section 6, audio VAE: log clamp
DEAD_SPREAD = 1e-6  # a latent of one single value: the encoder gave nothing (users.md row 41)


class VideoEncoder:
    """The video encoder of a VAE file, on a device."""

    def __init__(self, network: nn.Module, statistics: LatentStatistics, *, dtype: torch.dtype) -> None:
        self._network = network
        self._statistics = statistics
        self.dtype = dtype

    @classmethod
    def load(cls, header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoEncoder:
        """Load the encoder half of a video VAE file with either decoder. Raises :class:`CheckpointError`."""
        layout = keys.video_encoder(header)
        with torch.device("meta"):
            network = LTX2VideoEncoder3d(**layout.arguments)
        load_module(network, header, layout.names, device=device, dtype=dtype)
        return cls(network.eval().requires_grad_(False), load_statistics(header, "", device), dtype=dtype)

    def encode(self, pixels: Float[Tensor, "1 3 t height width"]) -> Float[Tensor, "1 c f h w"]:
        """Pixels in [-1, 1] to a normalised latent in float32 on the encoder's device; ``t`` is 8k + 1."""
        device = self._statistics.mean.device
        with exact_float32(device):
            moments: Tensor = self._network(pixels.to(device, self.dtype))
        latent = self._statistics.normalise(moments[:, :VIDEO_CHANNELS], axis=1)
        require_alive(latent, "an image")
        return latent


class AudioEncoder:
    """The log-mel front end and the encoder of an audio VAE file, in float32."""

    def __init__(self, network: nn.Module, statistics: LatentStatistics) -> None:
        self._network = network
        self._statistics = statistics

    @classmethod
    def load(cls, header: Header, *, device: torch.device) -> AudioEncoder:
        """Load the encoder half of an audio VAE file. Raises :class:`CheckpointError` where it has none."""
        require_audio_encoder(header)
        layout = keys.audio_vae(header)
        with torch.device("meta"):
            network = AutoencoderKLLTX2Audio(**layout.arguments).encoder
        load_module(network, header, layout.part("encoder."), device=device, dtype=torch.float32)
        return cls(network.eval().requires_grad_(False), load_statistics(header, keys.AUDIO_PREFIX, device))

    def encode(self, wave: Float[Tensor, "2 n"], latents: int) -> Float[Tensor, "1 8 m 16"]:
        """A waveform at 16 kHz to its first ``latents`` normalised latents, float32 on the encoder's device.

        The first latent holds one mel frame and the others four, and the encoder looks back only, so what lies behind
        the last of them does not count. A shorter waveform counts as followed by silence.
        """
        device = self._statistics.mean.device
        frames = AUDIO_TIME_SCALE * (latents - 1) + 1
        mel = log_mel(pad(wave, (0, max(0, max(frames * HOP, N_FFT) - wave.shape[1]))))[:, :, :frames]
        with exact_float32(device):
            moments: Tensor = self._network(mel.to(device))
        assert moments.shape[2] == latents, f"{latents} latents wanted, {moments.shape[2]} encoded"
        tokens = self._statistics.normalise(patchify_audio(moments[:, :AUDIO_CHANNELS]), axis=2)
        latent = unpatchify_audio(tokens)
        require_alive(latent, "the sound")
        return latent


def require_audio_encoder(header: Header) -> None:
    """Refuse an audio VAE file without its encoder, which only audio to video needs; reads no weight."""
    if not any(name.startswith(f"{keys.AUDIO_PREFIX}encoder.") for name in header.tensors):
        raise CheckpointError(
            f"{header.path.name} has no audio encoder",
            allowed="tensors under audio_vae.encoder. where a sound is given",
            way_out=f"fetch {Kind.AUDIO_VAE.official_file}, or leave --audio out",
        )


def require_alive(latent: Tensor, what: str) -> None:
    """Refuse a latent that is not finite or holds one single value: the clip would be black or of one colour."""
    spread = latent.std().item() if bool(latent.isfinite().all()) else float("nan")
    if not spread > DEAD_SPREAD:
        raise RenderFailed(
            f"{what} was encoded to a latent with deviation {spread:g}",
            allowed=f"finite values that deviate by more than {DEAD_SPREAD:g}",
            way_out="check the VAE file with `shotclock inspect --sha256`; try --dtype float32",
        )


def log_mel(wave: Float[Tensor, "2 n"]) -> Float[Tensor, "1 2 frames bins"]:
    """Log-mel amplitudes of a stereo waveform at 16 kHz: slaney bank of 64, Hann window, frames centred 10 ms apart."""
    spectrum = torch.stft(
        wave.float(),
        N_FFT,
        hop_length=HOP,
        window=torch.hann_window(N_FFT, device=wave.device),
        center=True,
        pad_mode="reflect",
        return_complex=True,
    ).abs()
    bank: Any = mel_bank(MEL_RATE_HZ, N_FFT, keys.MEL_BINS)
    weights = torch.from_numpy(bank.astype(np.float32)).to(wave.device)
    return torch.log((weights @ spectrum).clamp(min=LOG_FLOOR)).transpose(1, 2)[None]
