"""The diffusion decoder's file: what is taken, what is left, what is refused; and the tiny one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from shotclock.errors import CheckpointError
from shotclock.render.diffusion_decode import DiffusionVideoDecoder
from shotclock.render.encode import VideoEncoder
from shotclock.weights import keys
from shotclock.weights.diffusion_vae import diffusion_decoder
from shotclock.weights.header import Header, TensorEntry, read_header
from shotclock.weights.identity import Kind, identify
from shotclock.weights.load import load_tensors
from shotclock.weights.require import require
from shotclock.weights.tiny_diffusion import write_tiny_diffusion_vae

GOLDEN = Path(__file__).parents[1] / "goldens" / "ckpt" / "tiny-ltx-2.5-video-vae-bf16.safetensors"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def header() -> Header:
    return read_header(GOLDEN)


def with_tensor(header: Header, name: str) -> Header:
    """The same file with one more tensor, header only."""
    entry = TensorEntry(dtype="BF16", shape=(4,), start=0, end=8)
    return replace(header, tensors=MappingProxyType({**header.tensors, name: entry}))


def with_config(header: Header, **changes: Any) -> Header:
    """The same file with other decoder options."""
    vae = header.metadata["config"]["vae"]
    stated = {**vae, "decoder": {**vae["decoder"], **changes}}
    return replace(header, metadata=MappingProxyType({**header.metadata, "config": {"vae": stated}}))


def test_every_tensor_of_the_decoder_is_taken(header: Header) -> None:
    """Names stay the official ones; encoder and statistics belong to others."""
    layout = diffusion_decoder(header)
    assert set(layout.names) == {name for name in header.tensors if name.startswith("decoder.")}
    assert layout.names["decoder.det_stages.0.0.attn.qkv.weight"] == "det_stages.0.0.attn.qkv.weight"
    assert layout.unused == ()
    assert layout.config.windows[4] == (3, 5, 5)


@pytest.mark.parametrize(
    "name", ["decoder.type_emb", "decoder.diff_blocks.0.type_emb.weight", "decoder.coarse_head.weight"]
)
def test_what_inference_has_no_use_for_is_left(header: Header, name: str) -> None:
    """ltx25.md section 6: type_emb is unused, coarse_* is dropped."""
    layout = diffusion_decoder(with_tensor(header, name))
    assert layout.unused == (name,)
    assert name not in layout.names


@pytest.mark.parametrize(
    ("name", "words"),
    [("decoder.diff_blocks.0.gate_msa", "gate"), ("vocoder.x", "unknown tensor vocoder.x")],
)
def test_tensors_without_a_place_are_refused(header: Header, name: str, words: str) -> None:
    """Gates that were not folded change the picture; the rest is of another file."""
    with pytest.raises(CheckpointError, match=words):
        diffusion_decoder(with_tensor(header, name))


def test_an_unknown_decoder_tensor_is_refused_before_weights_are_read(header: Header) -> None:
    """It has no place in the network."""
    with pytest.raises(CheckpointError, match="has tensors for new"):
        DiffusionVideoDecoder.load(with_tensor(header, "decoder.new"), device=CPU, dtype=torch.float32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"default_num_inference_steps": 4}, "default_num_inference_steps is 4"),
        ({"stage5_kernel": [3, 4, 5]}, "odd"),
        ({"stage_kernels": [[3, 3, 3]]}, "stage_kernels"),
        ({"stage_channels": [64, 32, 32, 32]}, "stage_channels"),
        ({"stage_depths": [1, 0, 1, 1, 2]}, "stage_depths"),
        ({"stage5_channels": 32}, "stage5_channels 32"),
        ({"head_dim": 12}, "head_dim 12"),
        ({"upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 1], [[2, 2, 2], 1], [[2, 2, 2], 1]]}, "reductions"),
        ({"upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 1], [[2, 2, 2], 1], [[2, 2, 1], 2]]}, "latent grid"),
        ({"upsamples": 3}, "upsamples 3"),
        ({"patch_size": 8}, "patch_size is 8"),
    ],
)
def test_options_that_the_network_has_not_are_refused(header: Header, changes: dict[str, Any], words: str) -> None:
    """By name, with the file's."""
    with pytest.raises(CheckpointError, match=words) as caught:
        diffusion_decoder(with_config(header, **changes))
    assert GOLDEN.name in str(caught.value)


def test_the_conv_file_is_named_as_what_it_is(header: Header) -> None:
    """Either decoder refuses the other's file."""
    conv = read_header(GOLDEN.with_name("tiny-ltx-2.5-video-vae-conv-bf16.safetensors"))
    with pytest.raises(CheckpointError, match="CausalVideoAutoencoder"):
        diffusion_decoder(conv)
    with pytest.raises(CheckpointError):
        keys.video_vae(header)
    require(header, Kind.VIDEO_VAE_DIFFUSION)
    with pytest.raises(CheckpointError, match="diffusion decoder"):
        require(header, Kind.VIDEO_VAE_CONV)


def test_the_tiny_file_is_one_of_its_kind(tmp_path: Path, header: Header) -> None:
    """Same names as the golden file but for block numbers and the unused tensor; small; same seed, same bytes."""
    path = write_tiny_diffusion_vae(tmp_path / "a", seed=0)
    tiny = read_header(path)
    require(tiny, Kind.VIDEO_VAE_DIFFUSION)
    assert identify(tiny) is Kind.VIDEO_VAE_DIFFUSION
    assert path.stat().st_size < 4.5e6
    layout = diffusion_decoder(tiny)
    assert layout.unused == ("decoder.type_emb",)
    mine, official = set(layout.names), set(diffusion_decoder(header).names)
    assert mine == {name for name in official if ".1.1." not in name}
    digests = [
        hashlib.sha256(write_tiny_diffusion_vae(tmp_path / str(seed), seed=seed).read_bytes()).hexdigest()
        for seed in (0, 1)
    ]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digests[0] != digests[1]
    tensors = load_tensors(tiny, {name: name for name in tiny.tensors}, device=CPU, dtype=torch.float32)
    assert all(tensor.isfinite().all() and 0 < tensor.std() < 2 for tensor in tensors.values())


def test_the_tiny_encoder_loads(tmp_path: Path) -> None:
    """Pictures are encoded with the file that decodes them."""
    encoder = VideoEncoder.load(
        read_header(write_tiny_diffusion_vae(tmp_path, seed=0)), device=CPU, dtype=torch.float32
    )
    latent = encoder.encode(torch.zeros(1, 3, 1, 64, 96))
    assert latent.shape == (1, 128, 1, 2, 3)
    assert latent.isfinite().all()


def test_the_tiny_decoder_is_alive(tmp_path: Path) -> None:
    """Frames vary in space and time within their range, and follow the latent."""
    path = write_tiny_diffusion_vae(tmp_path, seed=0)
    decoder = DiffusionVideoDecoder.load(read_header(path), device=CPU, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(1, 128, 2, 2, 2, generator=generator)
    noise = decoder.noise(latent, generator)
    frames = decoder.decode(latent, None, noise)
    assert frames.shape == (9, 64, 64, 3)
    assert 0.02 < float(frames.std()) < 0.4
    assert float(frames.diff(dim=0).abs().mean()) > 0.01
    assert float((decoder.decode(latent.flip(3), None, noise) - frames).abs().mean()) > 0.01
