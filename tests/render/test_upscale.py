"""The spatial upscaler against its formula, and the duration head against the library's; files that are neither."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from diffusers.pipelines.ltx2.duration_head import LTX2DurationHead
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import conv2d, conv3d, group_norm, pixel_shuffle, silu

from shotclock.errors import CheckpointError
from shotclock.render.duration import PREFIX, frames_of, predict_s
from shotclock.render.upscale import Upscaler, require_upscaler
from shotclock.weights.checkpoint import read_header
from shotclock.weights.tiny import write_tiny_checkpoints

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny_checkpoints(folder, 0)
    return folder


def only(folder: Path) -> Path:
    return next(folder.iterdir())


def by_formula(latent: Tensor, w: dict[str, Tensor], vae: dict[str, Tensor]) -> Tensor:
    """ltx25.md section 7, upsamplers, straight from the file."""
    mean, std = (vae[f"per_channel_statistics.{name}-of-means"].view(1, -1, 1, 1, 1) for name in ("mean", "std"))

    def block(x: Tensor, name: str) -> Tensor:
        y = conv3d(x, w[f"{name}.conv1.weight"], w[f"{name}.conv1.bias"], padding=1)
        y = silu(group_norm(y, 32, w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"]))
        y = conv3d(y, w[f"{name}.conv2.weight"], w[f"{name}.conv2.bias"], padding=1)
        return silu(group_norm(y, 32, w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"]) + x)

    x = conv3d(latent * std + mean, w["initial_conv.weight"], w["initial_conv.bias"], padding=1)
    x = block(silu(group_norm(x, 32, w["initial_norm.weight"], w["initial_norm.bias"])), "res_blocks.0")
    frames = [
        pixel_shuffle(conv2d(x[:, :, t], w["upsampler.0.weight"], w["upsampler.0.bias"], padding=1), 2)
        for t in range(x.shape[2])
    ]
    x = block(torch.stack(frames, dim=2), "post_upsample_res_blocks.0")
    return (conv3d(x, w["final_conv.weight"], w["final_conv.bias"], padding=1) - mean) / std


def test_the_upscaler_is_its_formula(models: Path) -> None:
    """Twice the rows and columns, the frames as they were, values to 1e-4."""
    path, vae = only(models / "latent_upscale_models"), next((models / "vae").glob("*video*"))
    latent = torch.randn(1, 128, 3, 2, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        upscaler = Upscaler.load(read_header(path), read_header(vae), device=CPU, dtype=torch.float32)
        found = upscaler.upscale(latent)
        expected = by_formula(
            latent,
            {name: value.float() for name, value in load_file(path).items()},
            {name: value.float() for name, value in load_file(vae).items() if "statistics" in name},
        )
    assert tuple(found.shape) == (1, 128, 3, 4, 6)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max() and found.std() > 0.1


def test_what_is_no_spatial_upscaler_is_refused(models: Path, tmp_path: Path) -> None:
    """Another kind of file, another kind of upsampling, a missing tensor, a config that says otherwise."""
    path = only(models / "latent_upscale_models")
    require_upscaler(read_header(path))
    tensors = load_file(path)
    renamed = {name.replace("upsampler.0", "upsampler.conv"): value for name, value in tensors.items()}
    lacking = {name: value for name, value in tensors.items() if name != "final_conv.bias"}
    for number, (content, metadata) in enumerate(
        ((renamed, {}), (lacking, {}), (tensors, {"config": '{"temporal_upsample": true}'}))
    ):
        wrong = tmp_path / f"{number}.safetensors"
        save_file(content, wrong, metadata=metadata)
        with pytest.raises(CheckpointError):
            require_upscaler(read_header(wrong))
    with pytest.raises(CheckpointError, match="duration head"):
        require_upscaler(read_header(only(models / "model_patches")))


def test_the_duration_head_is_the_librarys(models: Path) -> None:
    """The library's class with the fused attention weights taken apart predicts the same seconds."""
    path = only(models / "model_patches")
    w = {name.removeprefix(PREFIX): value.float() for name, value in load_file(path).items()}
    width = w["video_modality_emb"].shape[0]
    oracle = LTX2DurationHead(64, 32, width, 1, 4, w["mlp_out.weight"].shape[1])
    state = {name: value for name, value in w.items() if "cross_attn" not in name}
    for kind in ("weight", "bias"):
        parts = w[f"attention_pooler.cross_attn.in_proj_{kind}"].chunk(3)
        state |= {f"attention_pooler.to_{n}.{kind}": part for n, part in zip("qkv", parts, strict=True)}
        state[f"attention_pooler.to_out.{kind}"] = w[f"attention_pooler.cross_attn.out_proj.{kind}"]
    oracle.load_state_dict(state, strict=True)
    generator = torch.Generator().manual_seed(1)
    contexts = torch.randn(2, 24, 64, generator=generator), torch.randn(2, 24, 32, generator=generator)
    with torch.inference_mode():
        seconds = predict_s(read_header(path), contexts)
        expected = oracle(contexts[0][:1], contexts[1][:1]).item()
        other = predict_s(read_header(path), (contexts[0].flip(0), contexts[1].flip(0)))
    assert seconds == pytest.approx(expected, rel=1e-5) and other != pytest.approx(seconds, rel=1e-3)


def test_what_is_no_duration_head_is_refused(models: Path, tmp_path: Path) -> None:
    """Another file, and one that lacks a tensor."""
    contexts = torch.zeros(1, 4, 64), torch.zeros(1, 4, 32)
    tensors = load_file(only(models / "model_patches"))
    del tensors[f"{PREFIX}mlp_out.weight"]
    save_file(tensors, tmp_path / "a.safetensors")
    for path in (tmp_path / "a.safetensors", only(models / "loras")):
        with pytest.raises(CheckpointError):
            predict_s(read_header(path), contexts)


@settings(max_examples=15, deadline=None)
@given(seconds=st.floats(0.001, 1000), fps=st.sampled_from([Fraction(24), Fraction(24000, 1001), Fraction(60)]))
def test_predicted_frames_are_legal_and_bounded(seconds: float, fps: Fraction) -> None:
    """8k + 1, between 1 and 20 s, never more than what was predicted plus one grid step."""
    frames = frames_of(seconds, fps)
    assert (frames - 1) % 8 == 0 and round(fps) <= frames <= round(20 * fps)
    if 1.5 < seconds < 19:
        assert 0 <= round(seconds * float(fps)) - frames < 8


def test_five_seconds_are_113_frames() -> None:
    """120 frames, down to 8k + 1."""
    assert frames_of(5.0, Fraction(24)) == 113
