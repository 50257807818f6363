"""A render at full size with random weights: ``python tests/gpu/full_size.py FOLDER [--size WxH --frames N ...]``.

Writes files of exactly the released shapes (transformer 42,018,190,584 bytes, conv video VAE, audio VAE) and random
contexts into FOLDER, times loading against a plain read through the same pinned ring, and runs `shotclock render` with
the given arguments. The text encoder is left out: its file and the transformer's do not fit one small disk together.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shotclock.model.config import transformer_config
from shotclock.model.transformer import Transformer
from shotclock.weights.checkpoint import read_header
from shotclock.weights.load import TORCH_DTYPES, load_module, published_dtype, raw_read_seconds
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.shapes import audio_vae_shapes, conv_vae_shapes, transformer_shapes
from shotclock.weights.tiny import AUDIO, SCHEDULER, VIDEO_VAE, _fixed, _spread
from shotclock.weights.transformer import split_names
from shotclock.weights.write import header_block

HEADER_BYTES = 677_616  # JSON of the released transformer's header (ltx25.md section 1.2)
COMMON = {
    "model_version": "2.5.0",
    "gemma_source_checkpoint": json.dumps({"ltx_version": "2.5.0", "gemma_version": "gemma4-12b-ltx-v1"}),
}
RELEASED_VIDEO_VAE = VIDEO_VAE | {  # ltx25.md section 6
    "encoder_blocks": [
        ["res_x", {"num_layers": 4}],
        ["compress_space_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 6}],
        ["compress_time_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 4}],
        ["compress_all_res", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
        ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 4}],
        ["compress_space", {"multiplier": 2}],
        ["res_x", {"num_layers": 6}],
        ["compress_time", {"multiplier": 2}],
        ["res_x", {"num_layers": 4}],
        ["compress_all", {"multiplier": 1}],
        ["res_x", {"num_layers": 2}],
        ["compress_all", {"multiplier": 2}],
        ["res_x", {"num_layers": 2}],
    ],
    "decoder_base_channels": 128,
}


def released_audio() -> dict[str, Any]:
    """The audio config at its released widths."""
    config: dict[str, Any] = json.loads(json.dumps(AUDIO))
    config["audio_vae"]["model"]["params"]["ddconfig"] |= {"ch": 128, "ch_mult": [1, 2, 4], "num_res_blocks": 2}
    config["vocoder"]["vocoder"]["upsample_initial_channel"] = 1536
    config["vocoder"]["bwe"] |= {"upsample_initial_channel": 512}
    return config


def write_random(
    path: Path, shapes: Mapping[str, tuple[int, ...]], metadata: Mapping[str, str], padded: int = 0
) -> None:
    """A file of random weights of sane scales, drawn on the GPU, tensor by tensor."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(0)
    order = sorted(shapes, key=lambda name: (-TORCH_DTYPES[published_dtype(name)].itemsize, name))
    described = {}
    for name in order:
        dtype = published_dtype(name)
        count = int(torch.Size(shapes[name]).numel())
        described[name] = (dtype, shapes[name], count * TORCH_DTYPES[dtype].itemsize)
    with path.open("wb") as file:
        file.write(header_block(described, metadata, padded_to=padded))
        for name in order:
            values = _fixed(name, shapes[name])
            if values is None or values.shape != shapes[name]:
                mean, std = _spread(name, shapes[name])
                values = torch.empty(shapes[name], device=device).normal_(mean, std, generator=generator)
            flat = values.to(TORCH_DTYPES[published_dtype(name)]).cpu().reshape(-1)
            file.write(memoryview(flat.view(torch.uint8).numpy()))


def write_all(folder: Path) -> None:
    """The three files and contexts."""
    folder.mkdir(parents=True, exist_ok=True)
    transformer = {"transformer": dict(PINNED_25_CONFIG), "scheduler": SCHEDULER}
    for name, shapes, config, padded in (
        ("transformer", transformer_shapes(PINNED_25_CONFIG), transformer, HEADER_BYTES),
        ("video-vae-conv", conv_vae_shapes(RELEASED_VIDEO_VAE), {"vae": RELEASED_VIDEO_VAE}, 0),
        ("audio-vae", audio_vae_shapes(released_audio()), released_audio(), 0),
    ):
        begun = time.perf_counter()
        path = folder / f"random-{name}.safetensors"
        write_random(path, shapes, COMMON | {"config": json.dumps(config)}, padded)
        print(f"{path.name}: {path.stat().st_size:,} bytes in {time.perf_counter() - begun:.1f} s", flush=True)
    generator = torch.Generator().manual_seed(2)
    save_file(
        {
            "video": torch.randn(2, 1024, 4096, generator=generator).to(torch.bfloat16),
            "audio": torch.randn(2, 1024, 2048, generator=generator).to(torch.bfloat16),
        },
        folder / "contexts.safetensors",
    )


def loading(path: Path, rounds: int) -> dict[str, Any]:
    """Seconds of loading the transformer and of reading its file plainly, alternating; from a warm page cache."""
    device = torch.device("cuda")
    raw, load = [], []
    raw_read_seconds(path, device)  # warms page cache, pinned memory and context
    for _ in range(rounds):
        raw.append(raw_read_seconds(path, device))
        begun = time.perf_counter()
        header = read_header(path)
        with torch.device("meta"):
            model = Transformer(transformer_config(header.metadata["config"]["transformer"]))
        load_module(model, header, split_names(header)[0], device=device, dtype=None)
        torch.cuda.synchronize()
        load.append(time.perf_counter() - begun)
        del model
        torch.cuda.empty_cache()
    ratio = statistics.median(load) / statistics.median(raw)
    return {"raw_s": raw, "load_s": load, "bytes": path.stat().st_size, "ratio": ratio}


def main() -> None:
    """Write, load, render."""
    folder, arguments = Path(sys.argv[1]), sys.argv[2:]
    if not (folder / "contexts.safetensors").exists():
        write_all(folder)
    if torch.cuda.is_available():
        print(json.dumps(loading(folder / "random-transformer.safetensors", 3)), flush=True)
        torch.cuda.empty_cache()
    command = [sys.executable, "-m", "shotclock", "render", "random weights"]
    command += ["--models", str(folder), "--contexts", str(folder / "contexts.safetensors"), "--json", *arguments]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
