"""A file that cannot be loaded is refused from its header, each kind of wrong file in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from weight_files import Document, changed_config, changed_copy, refusal, write_headed

from shotclock.weights.checkpoint import PARTS, Checkpoints
from shotclock.weights.header import METADATA_KEY, read_header
from shotclock.weights.identity import FF_BIAS, KEYFRAMES, Kind
from shotclock.weights.require import require

FIRST = "model.diffusion_model.transformer_blocks.0.attn1.to_q.weight"


def requires(path: Path, kind: Kind = Kind.TRANSFORMER, *, pinned: bool = False) -> object:
    """Read and check, as a render does."""
    return require(read_header(path), kind, pinned_config=pinned)


@pytest.mark.parametrize("part", list(PARTS))
def test_good_files_pass(golden: Checkpoints, tiny: Checkpoints, part: str) -> None:
    """The golden files and our own tiny ones are accepted as what they are."""
    for checkpoints in (golden, tiny):
        requires(getattr(checkpoints, part), PARTS[part])


def test_released_header_passes(released: Path) -> None:
    """The released transformer is accepted from its header; there are no weights in the fixture."""
    requires(released)


@pytest.mark.parametrize("part", list(PARTS))
def test_wrong_kind_is_named_with_the_file_that_is_wanted(golden: Checkpoints, part: str) -> None:
    """Each file given for another part says what it is and which file is meant."""
    for other, kind in PARTS.items():
        if other != part:
            path = getattr(golden, part)
            refusal(
                lambda path=path, kind=kind: requires(path, kind),
                found=PARTS[part].words,
                allowed=kind.words,
                way_out=kind.official_file,
            )


def test_diffusion_vae_is_not_the_conv_vae(golden: Checkpoints) -> None:
    """The two video VAE files look alike from outside."""
    path = golden.video_vae.with_name("tiny-ltx-2.5-video-vae-bf16.safetensors")
    refusal(
        lambda: requires(path, Kind.VIDEO_VAE_CONV),
        found="diffusion decoder",
        allowed="convolutional decoder",
        way_out="ltx-2.5-video-vae-conv",
    )


def test_unknown_file_shows_its_tensors(tmp_path: Path) -> None:
    """A file in diffusers' names is of no kind, and the first names say why."""
    path = write_headed(tmp_path / "f", {"transformer_blocks.0.attn1.to_q.weight": ("BF16", (2, 2))})
    refusal(lambda: requires(path), found="transformer_blocks.0.attn1.to_q", allowed="connectors", way_out="ltx-2.5")


@pytest.mark.parametrize("version", ["2.3", "2.0.1", "2-4", "one"])
def test_older_version(golden: Checkpoints, tmp_path: Path, version: str) -> None:
    """A 2.3 file is called that."""
    path = changed_copy(golden.transformer, tmp_path / "f", lambda d: d[METADATA_KEY].update(model_version=version))
    refusal(lambda: requires(path), found=f"LTX version {version}", allowed="2.5 or newer", way_out="2.5 file")


@pytest.mark.parametrize("part", ["video_vae", "audio_vae"])
def test_older_vae(golden: Checkpoints, tmp_path: Path, part: str) -> None:
    """VAEs have versions too."""
    path = changed_copy(getattr(golden, part), tmp_path / "f", lambda d: d[METADATA_KEY].update(model_version="2.3"))
    refusal(lambda: requires(path, PARTS[part]), found="LTX version 2.3", allowed="2.5", way_out="vae")
    refusal(lambda: requires(path, PARTS[part]), found="would need Gemma 3", allowed="2.5", way_out="vae")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d: d.update({FF_BIAS: d[KEYFRAMES]}), "feed-forward layers have biases"),
        (lambda d: d.pop(KEYFRAMES), "no keyframes_abs_pos_embedding"),
    ],
)
@pytest.mark.parametrize("with_metadata", [True, False])
def test_older_tensors(golden: Checkpoints, tmp_path: Path, change: object, found: str, with_metadata: bool) -> None:
    """What 2.5 added or dropped tells a 2.3 file, whatever its metadata says, also with the pinned config."""

    def edit(document: Document) -> None:
        change(document)  # type: ignore[operator]  # parametrised callables are objects to mypy
        if not with_metadata:
            document.pop(METADATA_KEY)

    path = changed_copy(golden.transformer, tmp_path / "f", edit)
    refusal(lambda: requires(path, pinned=True), found=found, allowed="tensors of LTX-2.5", way_out="2.5 file")


def test_missing_config_is_refused_unless_pinned(golden: Checkpoints, tmp_path: Path) -> None:
    """A repack without metadata loads only when the user says which model it is."""
    path = changed_copy(golden.transformer, tmp_path / "f", lambda d: d.pop(METADATA_KEY))
    refusal(lambda: requires(path), found="has no config", allowed="pinned config", way_out="repack")
    requires(path, pinned=True)


@pytest.mark.parametrize(("part", "key"), [("video_vae", "vae"), ("audio_vae", "audio_vae"), ("audio_vae", "vocoder")])
def test_missing_vae_config(golden: Checkpoints, tmp_path: Path, part: str, key: str) -> None:
    """VAEs and vocoder are built from their configs; there is no pinned one."""
    path = changed_config(getattr(golden, part), tmp_path / "f", lambda c: c.pop(key))
    refusal(lambda: requires(path, PARTS[part]), found=f"config for {key}", allowed="metadata", way_out="repack")
    bare = changed_copy(getattr(golden, part), tmp_path / "g", lambda d: d.pop(METADATA_KEY))
    refusal(lambda: requires(bare, PARTS[part]), found="no config in", allowed="metadata", way_out="repack")


def test_audio_file_without_vocoder(golden: Checkpoints, tmp_path: Path) -> None:
    """Half of an audio file is named as such."""

    def drop(document: Document) -> None:
        for name in [name for name in document if name.startswith("vocoder.")]:
            del document[name]

    path = changed_copy(golden.audio_vae, tmp_path / "f", drop)
    refusal(lambda: requires(path, Kind.AUDIO_VAE), found="vocoder.vocoder.", allowed="complete", way_out="audio-vae")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda d: d[FIRST].update(dtype="F8_E4M3"), "F8_E4M3"),
        (lambda d: d[FIRST].update(dtype="U8"), "U8"),
        (lambda d: d[FIRST].update(dtype="I8"), "I8"),
        (lambda d: d.update({f"{FIRST}_scale": {"dtype": "F32", "shape": []}}), f"{FIRST}_scale"),
        (lambda d: d.update({f"{FIRST}_scale_2": {"dtype": "F32", "shape": []}}), f"{FIRST}_scale_2"),
    ],
)
def test_quantised_weights(golden: Checkpoints, tmp_path: Path, change: object, found: str) -> None:
    """fp8, nvfp4 and int8 files are told by dtype or by their scale siblings; the bf16 file is wanted."""

    def edit(document: Document) -> None:
        change(document)  # type: ignore[operator]  # parametrised callables are objects to mypy

    path = changed_copy(golden.transformer, tmp_path / "f", edit)
    refusal(lambda: requires(path), found=found, allowed="BF16 weights", way_out="bf16 file")


def test_quantised_text_encoder_but_not_its_tokenizer(golden: Checkpoints, tmp_path: Path) -> None:
    """Tokenizer files are bytes by nature; a byte-typed weight is quantised."""

    def edit(document: Document) -> None:
        document["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I8"

    assert golden.text_encoder is not None
    requires(golden.text_encoder, Kind.TEXT_ENCODER)
    path = changed_copy(golden.text_encoder, tmp_path / "f", edit)
    refusal(lambda: requires(path, Kind.TEXT_ENCODER), found="(I8)", allowed="BF16", way_out="gemma4-12b")


def test_all_in_one_file(golden: Checkpoints, tmp_path: Path) -> None:
    """A monolith holds more than a transformer."""
    path = changed_copy(golden.transformer, tmp_path / "f", lambda d: d.update({"vae.decoder.x": d[KEYFRAMES]}))
    refusal(lambda: requires(path), found="also vae", allowed="model.diffusion_model.", way_out="split files")
