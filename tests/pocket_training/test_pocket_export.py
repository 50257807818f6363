"""Pocket files are files of the official format: shotclock's own key maps load them, and they compute the same."""

from pathlib import Path

import pytest
import torch
from pocket.export import AUDIO_FILE, VIDEO_FILE, write_audio_vae, write_video_vae
from pocket.layout import build_audio_vae, build_video_vae, build_vocoder
from pocket.loop import round_to_bfloat16

from shotclock.render.decode import AudioDecoder, VideoDecoder
from shotclock.weights.header import read_header

CPU = torch.device("cpu")


def test_video_vae_file_loads_and_decodes_the_same(tmp_path: Path) -> None:
    """The exported decoder, loaded by shotclock, gives the pictures of the trained module."""
    torch.manual_seed(0)
    vae = build_video_vae().eval()
    vae.latents_mean.normal_()
    vae.latents_std.uniform_(0.5, 2)
    round_to_bfloat16(vae)
    write_video_vae(tmp_path / VIDEO_FILE, vae)
    decoder = VideoDecoder.load(read_header(tmp_path / VIDEO_FILE), device=CPU, dtype=torch.float32)
    latent = torch.randn(1, 128, 2, 1, 1)
    with torch.inference_mode():
        raw = latent * vae.latents_std[:, None, None, None] + vae.latents_mean[:, None, None, None]
        mine = ((vae.decode(raw).sample[0].permute(1, 2, 3, 0) + 1) / 2).clamp(0, 1)
        theirs = decoder.decode(latent, None)
    assert mine.shape == (9, 32, 32, 3)
    assert mine.std() > 1e-3
    assert torch.allclose(mine, theirs, atol=1e-5)


def test_audio_file_loads_and_decodes_the_same(tmp_path: Path) -> None:
    """The exported audio decoder and vocoder, loaded by shotclock, give the sound of the trained modules."""
    torch.manual_seed(0)
    vae, vocoder = build_audio_vae().eval(), build_vocoder().eval()
    vae.latents_std.uniform_(0.5, 2)
    round_to_bfloat16(vae)
    round_to_bfloat16(vocoder)
    write_audio_vae(tmp_path / AUDIO_FILE, vae, vocoder)
    decoder = AudioDecoder.load(read_header(tmp_path / AUDIO_FILE), device=CPU)
    latent = torch.randn(1, 8, 3, 16)
    with torch.inference_mode():
        stats = [s.view(1, 8, 1, 16) for s in (vae.latents_std, vae.latents_mean)]
        mine = vocoder(vae.decode(latent * stats[0] + stats[1]).sample)
        theirs = decoder.decode(latent)
    assert mine.std() > 1e-4
    assert torch.allclose(mine[0].flatten(), torch.as_tensor(theirs).flatten()[: mine.numel()], atol=1e-5)


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_every_trained_tensor_is_in_the_video_file(tmp_path: Path, part: str) -> None:
    """Both halves of the autoencoder are shipped: image conditioning needs the encoder."""
    vae = build_video_vae()
    write_video_vae(tmp_path / VIDEO_FILE, vae)
    header = read_header(tmp_path / VIDEO_FILE)
    stored = sum(1 for name in header.tensors if name.startswith(f"{part}."))
    assert stored == len(getattr(vae, part).state_dict())
