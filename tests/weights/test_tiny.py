"""The tiny checkpoint: official format, small, the same bytes for the same seed, and alive when it is run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from shotclock.render.decode import AudioDecoder, VideoDecoder
from shotclock.render.text import TextEncoder
from shotclock.weights.checkpoint import PARTS, Checkpoints, read_headers, recipe_for
from shotclock.weights.header import Header, read_header
from shotclock.weights.load import load_tensors, published_dtype, read_blob
from shotclock.weights.tiny import GEMMA, STG_BLOCK, TRANSFORMER, write_tiny_checkpoints

CPU = torch.device("cpu")


def paths(checkpoints: Checkpoints) -> list[Path]:
    """The four files."""
    return [getattr(checkpoints, part) for part in PARTS]


def header(path: Path | None) -> Header:
    """Header of a file that is there."""
    assert path is not None
    return read_header(path)


def test_all_checks_pass(tiny: Checkpoints) -> None:
    """The four files are accepted and belong together."""
    headers = read_headers(tiny)
    assert recipe_for(headers.transformer).stg_blocks == (STG_BLOCK,)
    assert TRANSFORMER["num_layers"] > STG_BLOCK


def test_small(tiny: Checkpoints) -> None:
    """Less than 14 MB together."""
    assert sum(path.stat().st_size for path in paths(tiny)) < 14e6


def test_same_seed_same_bytes(tiny: Checkpoints, tmp_path: Path) -> None:
    """Written twice, every file is the same; another seed changes every file."""

    def digests(checkpoints: Checkpoints) -> list[str]:
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths(checkpoints)]

    assert digests(write_tiny_checkpoints(tmp_path / "again", seed=0)) == digests(tiny)
    assert not set(digests(write_tiny_checkpoints(tmp_path / "other", seed=1))) & set(digests(tiny))


@pytest.mark.parametrize("part", list(PARTS))
def test_same_names_as_the_official_format(tiny: Checkpoints, golden: Checkpoints, part: str) -> None:
    """Names are those of the golden file, apart from block numbers and the towers that are not for text."""
    found, official = header(getattr(tiny, part)), header(getattr(golden, part))
    blocks = ("transformer_blocks.4.", "transformer_blocks.5.")
    left_out = {name for name in official.tensors if any(block in name for block in blocks)} | {
        name for name in official.tensors if name.startswith("multi_modal_projector.")
    }
    own = {name for name in found.tensors if not name.startswith("audio_vae.encoder.")}  # the golden file has none
    assert own <= official.tensors.keys()
    assert official.tensors.keys() - found.tensors.keys() <= left_out


@pytest.mark.parametrize("part", list(PARTS))
def test_published_dtypes(tiny: Checkpoints, part: str) -> None:
    """BF16 but for the transformer's tables and the tokenizer's bytes."""
    for name, entry in header(getattr(tiny, part)).tensors.items():
        is_blob = name == "tokenizer_json" or name.startswith("hf_asset__")
        assert entry.dtype == ("U8" if is_blob else published_dtype(name))


@pytest.mark.parametrize("part", list(PARTS))
def test_weights_are_finite_and_vary(tiny: Checkpoints, part: str) -> None:
    """No tensor with more than one value is constant, none is extreme."""
    file = header(getattr(tiny, part))
    for name, tensor in load_tensors(file, {key: key for key in file.tensors}, device=CPU, dtype=torch.float32).items():
        if tensor.dtype == torch.float32 and tensor.numel() > 1:
            assert tensor.isfinite().all(), name
            assert 0 < float(tensor.std()) < 2, name


def test_tokenizer_reads_any_text(tiny: Checkpoints) -> None:
    """Words become pieces, anything else bytes; text comes back; every id has an embedding."""
    tokenizer = Tokenizer.from_str(read_blob(header(tiny.text_encoder), "tokenizer_json").decode())
    text = "A red circle moves, the naïve 日本 cat\n\tand 🎬"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < GEMMA["vocab_size"]
    assert tokenizer.encode("the", add_special_tokens=False).tokens != list("the")
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<eos>", "<bos>")] == [0, 1, 2]


def test_text_encoder_tells_prompts_apart(tiny: Checkpoints) -> None:
    """Features are finite and differ between prompts."""
    with (
        torch.inference_mode(),
        TextEncoder.load(header(tiny.text_encoder), device=CPU, dtype=torch.float32) as encoder,
    ):
        one, two = encoder.encode(["a red circle", "a blue square"])
    assert one.video.isfinite().all()
    assert one.audio.isfinite().all()
    assert not torch.allclose(one.video[:, -1], two.video[:, -1], atol=1e-2)


def test_decoded_clip_is_alive(tiny: Checkpoints) -> None:
    """Frames vary in space and time within their range; sound is neither silent nor clipped throughout."""
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        video = VideoDecoder.load(header(tiny.video_vae), device=CPU, dtype=torch.float32)
        frames = video.decode(torch.randn(1, 128, 2, 2, 2, generator=generator), None)
        audio = AudioDecoder.load(header(tiny.audio_vae), device=CPU)
        wave = audio.decode(torch.randn(1, 8, 5, 16, generator=generator))
    assert 0.02 < float(frames.std()) < 0.4
    assert float(frames.diff(dim=0).abs().mean()) > 0.01
    assert 0.01 < float(wave.std()) < 0.5
    assert float((wave.abs() > 0.99).float().mean()) < 0.05
