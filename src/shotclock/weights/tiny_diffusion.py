"""Writes a tiny video VAE with the diffusion decoder in the official format, for tests; beside the files of tiny.py.

Same names, dtypes, metadata and structure as the released file, with its windows, small widths and random weights.
Knows no module: names and shapes are spelled out here (ltx25.md section 6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shotclock.weights.released import GEMMA_VERSION
from shotclock.weights.shapes import Shapes, conv_vae_shapes
from shotclock.weights.tiny import VERSION, VIDEO_VAE
from shotclock.weights.write import write_safetensors

NAME = "vae/tiny-ltx-2.5-video-vae-bf16.safetensors"
DECODER: Mapping[str, Any] = {
    "in_channels": 128,
    "out_channels": 3,
    "patch_size": 4,
    "head_dim": 16,
    "t_emb_dim": 16,
    "default_num_inference_steps": 1,
    "timestep_scale_multiplier": 1000.0,
    "stage_channels": [64, 32, 16, 16, 16],
    "stage_depths": [1, 1, 1, 1, 2],
    "stage_kernels": [[3, 3, 3], [3, 3, 3], [3, 3, 3], [3, 3, 3], [3, 3, 3]],
    "stage5_kernel": [3, 5, 5],
    "stage5_channels": 16,
    "upsamples": [[[1, 2, 2], 2], [[2, 1, 1], 2], [[2, 2, 2], 1], [[2, 2, 2], 1]],
}
DIFFUSION_VAE: Mapping[str, Any] = {
    "_class_name": "CausalDiffusionVAE",
    "latent_channels": 128,
    "model_output_type": "x0",
    "encoder": {
        "dims": 3,
        "in_channels": 3,
        "out_channels": 128,
        "patch_size": 4,
        "norm_layer": "pixel_norm",
        "latent_log_var": "uniform",
        "spatial_padding_mode": "zeros",
        "blocks": VIDEO_VAE["encoder_blocks"],
    },
    "decoder": DECODER,
}
ROWS = 7  # of the modulation tables, ltx25.md section 6
FOURIER = 256  # values of the time's sinusoid, ltx25.md section 6
GAIN = 1.2  # weight std times sqrt(fan in)
OUT_GAIN = 0.4  # of the last layer: pictures keep inside their range


def write_tiny_diffusion_vae(folder: Path, seed: int) -> Path:
    """Write the file below ``folder``, in the layout of the released repository; the same seed gives the same bytes.

    About 4 MB. Weights are drawn by name, from a generator of their own. Raises ``OSError`` where the disk refuses.
    """
    generator = torch.Generator().manual_seed(seed)
    source = {"ltx_version": VERSION, "gemma_version": GEMMA_VERSION}
    metadata = {
        "model_version": VERSION,
        "gemma_source_checkpoint": json.dumps(source),
        "config": json.dumps({"vae": DIFFUSION_VAE}),
    }
    shapes = diffusion_vae_shapes(DECODER)
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(path, {key: _drawn(key, shapes[key], generator) for key in sorted(shapes)}, metadata)
    return path


def diffusion_vae_shapes(decoder: Mapping[str, Any]) -> Shapes:
    """Every tensor of the file, from ``config["vae"]["decoder"]``; the encoder is that of the conv file."""
    widths, depths, patched = decoder["stage_channels"], decoder["stage_depths"], 3 * decoder["patch_size"] ** 2
    head, time = decoder["head_dim"], decoder["t_emb_dim"]
    shapes = _linear("conv_in", widths[0], decoder["in_channels"])
    for stage, (stride, _) in enumerate(decoder["upsamples"]):
        for block in range(depths[stage]):
            shapes |= _block(f"det_stages.{stage}.{block}", widths[stage], head)
        shapes |= _linear(f"upsamples.{stage}.proj", prod(stride) * widths[stage + 1], widths[stage])
    for block in range(depths[-1]):
        name = f"diff_blocks.{block}"
        shapes |= _block(name, widths[-1], head) | _linear(f"{name}.context_proj", widths[-1], widths[-1])
        shapes[f"{name}.scale_shift_table"] = (ROWS, widths[-1])
    shapes |= _linear("t_embedder.mlp.0", time, FOURIER) | _linear("t_embedder.mlp.2", time, time)
    shapes |= _linear("shared_adaln.proj", ROWS * widths[-1], time) | _linear("conv_in_x_t", widths[-1], patched)
    shapes |= _linear("conv_out", patched, widths[-1]) | {"norm_out.weight": (widths[-1],), "type_emb": (1, widths[-1])}
    others = ("encoder.", "per_channel_statistics.")
    return {f"decoder.{name}": shape for name, shape in shapes.items()} | {
        name: shape for name, shape in conv_vae_shapes(VIDEO_VAE).items() if name.startswith(others)
    }


def _linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _block(name: str, width: int, head: int) -> Shapes:
    hidden = -(-4 * width // 16) * 16
    return {
        **_linear(f"{name}.attn.qkv", 3 * width, width),
        **_linear(f"{name}.attn.proj", width, width),
        f"{name}.attn.q_norm.weight": (head,),
        f"{name}.attn.k_norm.weight": (head,),
        f"{name}.norm1.weight": (width,),
        f"{name}.norm2.weight": (width,),
        f"{name}.mlp.w_up.weight": (hidden, width),
        f"{name}.mlp.w_gate.weight": (hidden, width),
        f"{name}.mlp.w_down.weight": (width, hidden),
    }


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    if "norm" in name or name.endswith("std-of-means"):
        values = 1 + 0.1 * values
    elif name.endswith(("scale_shift_table", "mean-of-means")):
        values *= 0.3
    elif name.endswith("bias"):
        values *= 0.05
    else:
        values *= (OUT_GAIN if "conv_out" in name else GAIN) / prod(shape[1:]) ** 0.5
    return values.to(torch.bfloat16)
