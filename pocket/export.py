"""Pocket weights to files in the official LTX-2.5 format.

Run as `python -m pocket.export --state DIR --out DIR` to make the transformer and text encoder files from the averaged
weights of a state. Must not know data or training. The names are the inverse of shotclock.weights.keys, which a test
holds.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pocket.layout import audio_config, video_config

MODEL_VERSION = "2.5.0"
GEMMA_VERSION = "gemma4-12b-ltx-v1"
SOURCE = {"ltx_version": MODEL_VERSION, "gemma_version": GEMMA_VERSION}
VIDEO_FILE = "pocket-ltx-2.5-video-vae-conv-bf16.safetensors"
AUDIO_FILE = "pocket-ltx-2.5-audio-vae-bf16.safetensors"
TRANSFORMER_FILE = "pocket-ltx-2.5-transformer-bf16.safetensors"
TEXT_FILE = "pocket-gemma4-with-proj-ltx-2.5-bf16.safetensors"
FLOAT32_MARK = "scale_shift_table"  # the released files keep these tables in float32
LICENCE = "Apache-2.0"
PREFIX = "model.diffusion_model."  # of transformer and connectors

_VIDEO_RULES = (
    (r"^latents_mean$", "per_channel_statistics.mean-of-means"),
    (r"^latents_std$", "per_channel_statistics.std-of-means"),
    (r"^encoder\.mid_block\.resnets", "encoder.down_blocks.8.res_blocks"),
    (r"^decoder\.mid_block\.resnets", "decoder.up_blocks.0.res_blocks"),
)
_AUDIO_RULES = (
    (r"^latents_mean$", "per_channel_statistics.mean-of-means"),
    (r"^latents_std$", "per_channel_statistics.std-of-means"),
)
_VOCODER_RULES = (
    (r"\.act_out\.", ".act_post."),
    (r"\.conv_in\.", ".conv_pre."),
    (r"\.conv_out\.", ".conv_post."),
    (r"\.resnets\.", ".resblocks."),
    (r"\.upsamplers\.", ".ups."),
    (r"\.downsample\.filter$", ".downsample.lowpass.filter"),
)


def _numbered(name: str) -> str:
    """Stage numbers of the library class to block numbers of the file."""
    name = re.sub(r"down_blocks\.(\d+)\.resnets", lambda m: f"down_blocks.{2 * int(m[1])}.res_blocks", name)
    name = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", lambda m: f"down_blocks.{2 * int(m[1]) + 1}", name)
    name = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"up_blocks.{2 * int(m[1]) + 1}", name)
    return re.sub(r"up_blocks\.(\d+)\.resnets", lambda m: f"up_blocks.{2 * int(m[1]) + 2}.res_blocks", name)


def _renamed(tensors: dict[str, Tensor], rules: tuple[tuple[str, str], ...], prefix: str = "") -> dict[str, Tensor]:
    out = {}
    for name, tensor in tensors.items():
        for pattern, value in rules:
            if re.search(pattern, name):
                name = re.sub(pattern, value, name)
                if pattern.startswith("^"):
                    break
        else:
            name = name if rules is not _VIDEO_RULES else _numbered(name)
        out[prefix + name] = tensor
    return out


def video_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Official names of a video VAE's state."""
    return _renamed(model.state_dict(), _VIDEO_RULES)


def audio_tensors(vae: nn.Module, vocoder: nn.Module) -> dict[str, Tensor]:
    """Official names of an audio VAE's and a vocoder's state."""
    return _renamed(vae.state_dict(), _AUDIO_RULES, "audio_vae.") | _renamed(
        vocoder.state_dict(), _VOCODER_RULES, "vocoder."
    )


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
    """Write bfloat16 (float32 for the tables, bytes as they are), metadata as JSON strings, aside and renamed."""
    stored = {}
    for name, tensor in tensors.items():
        dtype = torch.float32 if FLOAT32_MARK in name else torch.bfloat16
        stored[name] = (tensor.to(dtype) if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
    strings = {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}
    aside = path.with_suffix(".part")
    save_file(stored, aside, metadata=strings)
    aside.rename(path)


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    return {"config": config, "model_version": MODEL_VERSION, "gemma_source_checkpoint": SOURCE, "license": LICENCE}


def write_video_vae(path: Path, model: nn.Module) -> None:
    """The conv video VAE file."""
    write(path, video_tensors(model), _metadata(video_config()))


def write_audio_vae(path: Path, vae: nn.Module, vocoder: nn.Module) -> None:
    """The audio VAE and vocoder file."""
    write(path, audio_tensors(vae, vocoder), _metadata(audio_config()))


def write_transformer(path: Path, transformer: nn.Module, connectors: nn.Module) -> None:
    """The transformer file with both connectors, and what official metadata has no field for."""
    from pocket import network

    tensors = {PREFIX + k: v for m in (transformer, connectors) for k, v in m.state_dict().items()}
    geometry = network.GEOMETRY
    mine = {
        "stg_blocks": [network.STG_BLOCK],
        "width": geometry.width,
        "height": geometry.height,
        "frames": geometry.frames,
        "fps": int(geometry.fps),
        "negative_prompt": "",
    }
    write(path, tensors, _metadata(network.config()) | {"shotclock": mine})


def write_text(path: Path, gemma: nn.Module, projection: nn.Module) -> None:
    """The text encoder file: Gemma, projection, tokenizer."""
    from pocket.text import gemma_config, text_tensors

    write(path, text_tensors(gemma, projection), {"gemma_config": gemma_config(), "format": "pt", "license": LICENCE})


def main() -> None:
    """Command line."""
    from pocket.whole import Whole, write_official

    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--state", type=Path, required=True, help="folder with dit_average.*.safetensors")
    p.add_argument("--out", type=Path, required=True)
    args = p.parse_args()
    write_official(args.out, Whole.load(args.state))


if __name__ == "__main__":
    main()
