"""Names and shapes computed from a config are those of the official files."""

from __future__ import annotations

import hashlib
import json
from math import prod

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import read_header
from shotclock.weights.load import published_dtype
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.shapes import (
    Shapes,
    audio_vae_shapes,
    conv_vae_shapes,
    text_encoder_shapes,
    transformer_shapes,
)

# sha256 of the released transformer's {name: shape} as JSON with sorted keys and no spaces: the list of 4,349 tensors
# that was read from the official model and confirmed by its file size (ltx25.md section 1.2)
RELEASED_SHAPES_SHA256 = "63db2399ef56428acc09aad796b390bcb8c9a52c0220e5871ae6d2d5f79541ac"
NOT_TEXT = ("audio_projector.", "multi_modal_projector.", "hf_asset__", "tokenizer_json")


def shapes_of(path: object) -> Shapes:
    """Names and shapes in a file."""
    return {name: entry.shape for name, entry in read_header(path).tensors.items()}  # type: ignore[arg-type]


def test_released_transformer_tensor_by_tensor() -> None:
    """All 4,349 names and shapes of the release follow from its config."""
    shapes = transformer_shapes(PINNED_25_CONFIG)
    text = json.dumps({name: list(shape) for name, shape in shapes.items()}, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == RELEASED_SHAPES_SHA256


def test_released_counts() -> None:
    """4,349 tensors, 21,004,025,600 elements, 290 F32 tables of 4,730,880 elements (ltx25.md section 1.2)."""
    shapes = transformer_shapes(PINNED_25_CONFIG)
    tables = [prod(shape) for name, shape in shapes.items() if published_dtype(name) == "F32"]
    assert len(shapes) == 4349
    assert sum(map(prod, shapes.values())) == 21_004_025_600
    assert (len(tables), sum(tables)) == (290, 4_730_880)


def test_golden_transformer(golden: Checkpoints) -> None:
    """A file of other widths and blocks follows from its config too."""
    config = read_header(golden.transformer).config
    assert config is not None
    assert transformer_shapes(config["transformer"]) == shapes_of(golden.transformer)


def test_golden_text_encoder(golden: Checkpoints) -> None:
    """Gemma's tower with its global layers, and the projection."""
    config = read_header(golden.text_encoder).metadata["gemma_config"]  # type: ignore[arg-type]
    found = {name: shape for name, shape in shapes_of(golden.text_encoder).items() if not name.startswith(NOT_TEXT)}
    assert text_encoder_shapes(config["text_config"], 64, 32) == found


def test_golden_vaes(golden: Checkpoints) -> None:
    """Conv video VAE, audio decoder, vocoder and bandwidth extension."""
    video, audio = read_header(golden.video_vae).config, read_header(golden.audio_vae).config
    assert video is not None
    assert audio is not None
    assert conv_vae_shapes(video["vae"]) == shapes_of(golden.video_vae)
    assert audio_vae_shapes(audio) == shapes_of(golden.audio_vae)
