"""The wrong text encoder is told from headers: size, projection, version, and the transformer it belongs to."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from weight_files import Document, changed_config, changed_copy, refusal, write_headed

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.gemma import require_gemma, require_pair
from shotclock.weights.header import METADATA_KEY, Header, read_header

PROJECTIONS = ("text_embedding_projection.video_aggregate_embed", "text_embedding_projection.audio_aggregate_embed")


def gemma_tensors(width: int, layers: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What tells a Gemma apart: its embedding and one tensor of each layer."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (262144, width))}
    for layer in range(layers):
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = ("BF16", (width,))
    return tensors


def projections(states: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The two projections of the release, for ``states`` values a token."""
    return {f"{name}.weight": ("BF16", (out, states)) for name, out in zip(PROJECTIONS, (4096, 2048), strict=True)}


def encoder(checkpoints: Checkpoints) -> Path:
    """The text encoder file, which the fixtures always have."""
    assert checkpoints.text_encoder is not None
    return checkpoints.text_encoder


def pair(transformer: Path, text_encoder: Path) -> tuple[Header, Header]:
    """Both headers."""
    return read_header(transformer), read_header(text_encoder)


@pytest.mark.parametrize(
    ("width", "name"), [(2560, "Gemma 4B"), (3840, "Gemma 12B"), (1152, "Gemma 1B"), (999, "unknown size")]
)
def test_stock_gemma_lacks_the_projection(tmp_path: Path, width: int, name: str) -> None:
    """A Gemma from elsewhere is named with its size."""
    header = read_header(write_headed(tmp_path / "f", gemma_tensors(width, 2)))
    error = refusal(
        lambda: require_gemma(header),
        found=f"{name}, width {width:,}" if width != 999 else name,
        allowed="Gemma 12B, width 3,840",
        way_out="gemma4-12b-with-proj",
    )
    assert "text_embedding_projection" in error.found


def test_small_gemma_with_the_projection_of_the_large_one(tmp_path: Path) -> None:
    """Gemma 4B, 34 layers, gives 89,600 values a token; the projection takes 188,160."""
    tensors = gemma_tensors(2560, 34) | projections(188_160)
    header = read_header(write_headed(tmp_path / "f", tensors))
    error = refusal(
        lambda: require_gemma(header), found="Gemma 4B, width 2,560", allowed="188,160 values", way_out="wrong Gemma"
    )
    assert "89,600" in error.found


def test_released_dimensions_fit(tmp_path: Path) -> None:
    """48 layers of width 3,840 give the 188,160 values of the projection; what is missing then is the config."""
    tensors = gemma_tensors(3840, 48) | projections(188_160)
    header = read_header(write_headed(tmp_path / "f", tensors))
    refusal(lambda: require_gemma(header), found="no gemma_config", allowed="metadata", way_out="repack")


def test_one_part_of_a_split_gemma(tmp_path: Path) -> None:
    """A shard without the embedding is called a part."""
    header = read_header(write_headed(tmp_path / "f", {"model.layers.9.mlp.up_proj.weight": ("BF16", (4, 4))}))
    refusal(lambda: require_gemma(header), found="one part", allowed="one file", way_out="gemma4-12b")


def test_no_tokenizer(golden: Checkpoints, tmp_path: Path) -> None:
    """The tokenizer travels in the file; without it no prompt can be read."""
    path = changed_copy(encoder(golden), tmp_path / "f", lambda d: d.pop("tokenizer_json"))
    refusal(lambda: require_gemma(read_header(path)), found="no tokenizer", allowed="tokenizer_json", way_out="gemma4")


def test_config_of_another_gemma(golden: Checkpoints, tmp_path: Path) -> None:
    """A gemma_config that does not describe the weights is refused."""
    path = changed_config(
        encoder(golden), tmp_path / "f", lambda c: c["text_config"].update(hidden_size=64), "gemma_config"
    )
    error = refusal(
        lambda: require_gemma(read_header(path)), found="says width 64", allowed="weights", way_out="gemma4"
    )
    assert "embedding has 48" in error.found


def test_files_that_belong_together_pass(golden: Checkpoints, tiny: Checkpoints) -> None:
    """Both sets have matching pairs; a mixed pair differs in nothing that is checked, as widths are equal."""
    require_pair(*pair(golden.transformer, encoder(golden)))
    require_pair(*pair(tiny.transformer, encoder(tiny)))


def test_text_encoder_of_another_width_than_trained(golden: Checkpoints, released: Path) -> None:
    """The released transformer was trained with width 3,840."""
    refusal(
        lambda: require_pair(*pair(released, encoder(golden))),
        found="width 48",
        allowed="width 3,840 (Gemma 12B)",
        way_out="gemma4-12b",
    )


def test_projection_for_another_connector(golden: Checkpoints, tmp_path: Path) -> None:
    """The projection's output must be what the connector takes in, for both streams."""
    for stream, name, width in (("video", PROJECTIONS[0], 64), ("audio", PROJECTIONS[1], 32)):

        def widen(document: Document, name: str = name, width: int = width) -> None:
            document[f"{name}.weight"]["shape"][0] = width * 2

        path = changed_copy(encoder(golden), tmp_path / stream, widen)
        refusal(
            lambda path=path: require_pair(*pair(golden.transformer, path)),
            found=f"{stream} projection of {stream} gives {width * 2}",
            allowed=f"the {width} that the {stream} connector",
            way_out="published with",
        )


def test_another_gemma_version(golden: Checkpoints, tmp_path: Path) -> None:
    """gemma_source_checkpoint and gemma_config must name the same version (ltx25.md section 2, check a)."""
    path = changed_config(encoder(golden), tmp_path / "f", lambda c: c.update(gemma_version="other"), "gemma_config")
    refusal(
        lambda: require_pair(*pair(golden.transformer, path)),
        found="gemma_version other",
        allowed="gemma4-12b-ltx-v1",
        way_out="gemma4-12b",
    )


def test_a_version_on_one_side_only(golden: Checkpoints, tmp_path: Path) -> None:
    """A transformer that names none cannot be matched with an encoder that does (check b), and the reverse."""

    def drop(document: Document) -> None:
        del document[METADATA_KEY]["gemma_source_checkpoint"]

    transformer = changed_copy(golden.transformer, tmp_path / "t", drop)
    text_encoder = changed_config(encoder(golden), tmp_path / "e", lambda c: c.pop("gemma_version"), "gemma_config")
    refusal(
        lambda: require_pair(*pair(transformer, encoder(golden))),
        found="gemma4-12b-ltx-v1",
        allowed="unnamed",
        way_out="transformer that belongs",
    )
    refusal(
        lambda: require_pair(*pair(golden.transformer, text_encoder)),
        found="unnamed",
        allowed="gemma4-12b-ltx-v1",
        way_out="gemma4",
    )


def test_no_version_on_either_side_warns(golden: Checkpoints, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nobody names a version the render goes on with a warning (check b)."""

    def drop(document: Document) -> None:
        del document[METADATA_KEY]["gemma_source_checkpoint"]

    transformer = changed_copy(golden.transformer, tmp_path / "t", drop)
    text_encoder = changed_config(encoder(golden), tmp_path / "e", lambda c: c.pop("gemma_version"), "gemma_config")
    with caplog.at_level(logging.WARNING):
        require_pair(*pair(transformer, text_encoder))
    assert "neither t nor e names its Gemma version" in caplog.text


def test_pinned_config_pins_the_gemma_too(golden: Checkpoints, released: Path, tmp_path: Path) -> None:
    """A repack without metadata still gets the Gemma width and version of the release checked."""
    bare = changed_copy(released, tmp_path / "t", lambda d: d.pop(METADATA_KEY))
    refusal(
        lambda: require_pair(*pair(bare, encoder(golden)), pinned_config=True),
        found="width 48",
        allowed="width 3,840",
        way_out="gemma4-12b",
    )
