"""What a file is, which version it has and which recipe follows, from its header."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from weight_files import changed_copy, refusal, write_headed

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import METADATA_KEY, read_header
from shotclock.weights.identity import FF_BIAS, KEYFRAMES, Kind, identify, recipe_for, version_of

CONV2D = ("BF16", (4096, 1024, 3, 3))
CONV3D = ("BF16", (1024, 512, 3, 3, 3))


def test_golden_files_are_what_they_are(golden: Checkpoints) -> None:
    """The five files that the official tools wrote are told by their names."""
    folder = golden.transformer.parent
    found = {identify(read_header(path)) for path in folder.iterdir()}
    assert found == {
        Kind.TRANSFORMER,
        Kind.TEXT_ENCODER,
        Kind.VIDEO_VAE_CONV,
        Kind.VIDEO_VAE_DIFFUSION,
        Kind.AUDIO_VAE,
    }
    assert identify(read_header(golden.video_vae)) is Kind.VIDEO_VAE_CONV


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ({"diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight": ("BF16", (8, 4))}, Kind.LORA),
        ({"diffusion_model.transformer_blocks.0.attn1.to_q.lokr_w1": ("BF16", (8, 4))}, Kind.LORA),
        ({"lora_unet_blocks_0.lora_up.weight": ("BF16", (8, 4))}, Kind.LORA),
        ({"duration_head.video_proj.weight": ("BF16", (256, 4096))}, Kind.DURATION_HEAD),
        ({"post_upsample_res_blocks.0.conv1.weight": CONV3D, "upsampler.0.weight": CONV2D}, Kind.SPATIAL_UPSCALER),
        ({"post_upsample_res_blocks.0.conv1.weight": CONV3D, "upsampler.0.weight": CONV3D}, Kind.TEMPORAL_UPSCALER),
        ({"model.layers.3.mlp.up_proj.weight": ("BF16", (8, 4))}, Kind.TEXT_ENCODER),
        ({"model.language_model.embed_tokens.weight": ("BF16", (8, 4))}, Kind.TEXT_ENCODER),
        ({"language_model.model.embed_tokens.weight": ("BF16", (8, 4))}, Kind.TEXT_ENCODER),
        ({"transformer_blocks.0.attn1.to_q.weight": ("BF16", (8, 4))}, Kind.UNKNOWN),
        ({}, Kind.UNKNOWN),
    ],
)
def test_other_files_are_told_by_their_names(
    tmp_path: Path, names: dict[str, tuple[str, tuple[int, ...]]], kind: Kind
) -> None:
    """LoRAs, upscalers, the duration head and parts of a stock Gemma; diffusers' names are of no kind."""
    assert identify(read_header(write_headed(tmp_path / "f", names))) is kind


@pytest.mark.parametrize(
    ("text", "version"), [("2.5.0", (2, 5, 0)), ("2.5-rc1", (2, 5)), ("2-3", (2, 3)), ("v2", ()), ("2.10", (2, 10))]
)
def test_version_reads_up_to_the_first_part_that_is_no_number(
    tmp_path: Path, text: str, version: tuple[int, ...]
) -> None:
    """A dash counts as a dot (ltx25.md section 2)."""
    path = write_headed(tmp_path / "f", {}, {"model_version": text})
    assert version_of(read_header(path)) == version


def test_version_without_metadata_is_told_by_what_is_new(golden: Checkpoints, tmp_path: Path) -> None:
    """A transformer without metadata is 2.5 when it has the keyframe embedding and no feed-forward bias."""
    bare = changed_copy(golden.transformer, tmp_path / "bare", lambda document: document.pop(METADATA_KEY))
    assert version_of(read_header(bare)) == (2, 5)
    biased = changed_copy(bare, tmp_path / "biased", lambda d: d.update({FF_BIAS: d[KEYFRAMES]}))
    assert version_of(read_header(biased)) is None
    plain = changed_copy(bare, tmp_path / "plain", lambda d: d.pop(KEYFRAMES))
    assert version_of(read_header(plain)) is None


@pytest.mark.parametrize(
    ("version", "steps", "block", "crf"),
    [("2.5.0", 30, 28, 18), ("2.4", 30, 28, 18), ("2.3", 30, 28, 33), ("2.0", 40, 29, 33)],
)
def test_recipe_follows_the_version(tmp_path: Path, version: str, steps: int, block: int, crf: int) -> None:
    """Steps, stg block and image CRF by version; the scales are the same for all (ltx25.md sections 2 and 5.2)."""
    recipe = recipe_for(read_header(write_headed(tmp_path / "f", {}, {"model_version": version})))
    assert (recipe.name, recipe.steps, recipe.stg_blocks, recipe.image_crf) == ("one_stage", steps, (block,), crf)
    assert (recipe.video_cfg, recipe.audio_cfg, recipe.stg, recipe.modality, recipe.rescale) == (3, 7, 1, 3, 0.7)
    assert recipe.forwards == 4 * steps


def test_a_file_may_name_its_stg_blocks(tmp_path: Path) -> None:
    """A shotclock entry in the metadata replaces the block of the released model."""
    metadata = {"model_version": "2.5.0", "shotclock": json.dumps({"stg_blocks": [1, 2]})}
    assert recipe_for(read_header(write_headed(tmp_path / "f", {}, metadata))).stg_blocks == (1, 2)


def test_malformed_stg_blocks_are_refused(tmp_path: Path) -> None:
    """A block must be a number."""
    metadata = {"model_version": "2.5.0", "shotclock": json.dumps({"stg_blocks": ["28"]})}
    header = read_header(write_headed(tmp_path / "f", {}, metadata))
    refusal(lambda: recipe_for(header), found="['28']", allowed="block numbers", way_out="write the file again")


def test_no_recipe_without_a_version(tmp_path: Path) -> None:
    """A file that says nothing has no recipe."""
    header = read_header(write_headed(tmp_path / "f", {}))
    refusal(lambda: recipe_for(header), found="no model_version", allowed="LTX-2.5", way_out="ltx-2.5-22b-dev")
