"""The trained, frozen autoencoders of the pocket model: clips to normalised tokens and back.

Loads the official-format files through shotclock's key maps. Must not know words, the transformer or training.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from jaxtyping import Float
from torch import Tensor, nn

from pocket.export import AUDIO_FILE, VIDEO_FILE
from pocket.layout import build_audio_vae, build_video_vae, build_vocoder
from pocket.scenes import FRAMES, HEIGHT, WIDTH
from pocket.sound import log_mel
from shotclock.geometry import patchify_audio, patchify_video, unpatchify_audio
from shotclock.weights import keys
from shotclock.weights.header import Header, read_header
from shotclock.weights.load import mapped_tensors

GRID = ((FRAMES - 1) // 8 + 1, HEIGHT // 32, WIDTH // 32)
VIDEO_BATCH, AUDIO_BATCH = 8, 32  # clips decoded at a time


def _load(module: nn.Module, header: Header, names: dict[str, str]) -> None:
    """Fill a module from an official file, statistics included."""
    tensors = mapped_tensors(header, names, dtype=torch.float32)
    missing = set(module.state_dict()) - set(tensors)
    module.load_state_dict(dict(tensors), strict=False)
    assert not missing, f"the file gives no {sorted(missing)[:3]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoencoders:
    """Video VAE, audio VAE and vocoder, on one device."""

    video: AutoencoderKLLTX2Video
    audio: AutoencoderKLLTX2Audio
    vocoder: nn.Module
    device: str

    @classmethod
    def load(cls, folder: Path, device: str) -> "Autoencoders":
        """From the files of the first stage."""
        video, audio, vocoder = build_video_vae(), build_audio_vae(), build_vocoder()
        header = read_header(folder / VIDEO_FILE)
        mine = {keys.MEAN_KEY: "latents_mean", keys.STD_KEY: "latents_std"}
        _load(video, header, dict(keys.video_vae(header).names) | mine)
        header = read_header(folder / AUDIO_FILE)
        mine = {keys.AUDIO_PREFIX + k: v for k, v in mine.items()}
        _load(audio, header, dict(keys.audio_vae(header).names) | mine)
        _load(vocoder, header, dict(keys.vocoder(header).names))
        for module in (video, audio, vocoder):
            module.to(device).eval().requires_grad_(False)
        return cls(video=video.to(memory_format=torch.channels_last_3d), audio=audio, vocoder=vocoder, device=device)

    @torch.no_grad()
    def encode(self, clip: Float[Tensor, "b 3 f h w"], wave: Float[Tensor, "b 2 n"]) -> tuple[Tensor, Tensor]:
        """Normalised video (b 160 128) and audio (b 26 128) tokens."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            v = self.video.encoder(clip)[:, :128].float()
            a = self.audio.encoder(log_mel(wave))[:, :8].float()
        v = (v - self.video.latents_mean[:, None, None, None]) / self.video.latents_std[:, None, None, None]
        return patchify_video(v), (patchify_audio(a) - self.audio.latents_mean) / self.audio.latents_std

    @torch.no_grad()
    def decode(self, video: Float[Tensor, "b n 128"], audio: Float[Tensor, "b m 128"]) -> tuple[Tensor, Tensor]:
        """Frames (b f h w 3) in [0, 1] and waves (b 2 n) at 48 kHz, in float32."""
        v = video.transpose(1, 2).unflatten(2, GRID)
        v = v * self.video.latents_std[:, None, None, None] + self.video.latents_mean[:, None, None, None]
        a = unpatchify_audio(audio * self.audio.latents_std + self.audio.latents_mean)
        frames = torch.cat([self.video.decode(part).sample for part in v.split(VIDEO_BATCH)])
        waves = torch.cat([self.vocoder(self.audio.decode(part).sample) for part in a.split(AUDIO_BATCH)])
        return ((frames + 1) / 2).clamp(0, 1).permute(0, 2, 3, 4, 1), waves
