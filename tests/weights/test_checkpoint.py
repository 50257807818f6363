"""The four files are found by their headers, whatever they are called; nothing is guessed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from weight_files import changed_copy, refusal, write_headed

from shotclock.errors import CheckpointError
from shotclock.weights.checkpoint import PARTS, Checkpoints, find_checkpoints, read_headers
from shotclock.weights.header import METADATA_KEY
from shotclock.weights.identity import Kind, identify

FIRST = "model.diffusion_model.transformer_blocks.0.attn1.to_q.weight"


@pytest.fixture
def models(golden: Checkpoints, tmp_path: Path) -> Path:
    """A folder with links to the five golden files under meaningless names, in subfolders."""
    folder = tmp_path / "models"
    (folder / "deep" / "er").mkdir(parents=True)
    for number, path in enumerate(sorted(golden.transformer.parent.iterdir())):
        (folder / ("deep" if number % 2 else "deep/er") / f"{number}.safetensors").symlink_to(path)
    return folder


def test_names_do_not_matter(models: Path, golden: Checkpoints) -> None:
    """Files in subfolders under any name are found; the conv video VAE is chosen, the diffusion one is left."""
    found = find_checkpoints(models)
    for part in PARTS:
        assert getattr(found, part).resolve() == getattr(golden, part)


def test_each_decoder_has_its_own_file(models: Path, golden: Checkpoints) -> None:
    """Both video VAEs lie in one folder; what is asked for is taken, and the headers are checked as that."""
    diffusion = find_checkpoints(models, video_kind=Kind.VIDEO_VAE_DIFFUSION)
    conv = find_checkpoints(models)
    assert diffusion.video_vae.resolve() != conv.video_vae.resolve()
    headers = read_headers(diffusion, video_kind=Kind.VIDEO_VAE_DIFFUSION)
    assert identify(headers.video_vae) is Kind.VIDEO_VAE_DIFFUSION
    with pytest.raises(CheckpointError, match="diffusion decoder"):
        read_headers(diffusion)
    with pytest.raises(CheckpointError, match="convolutional decoder"):
        find_checkpoints(models, video_vae=golden.video_vae, video_kind=Kind.VIDEO_VAE_DIFFUSION)


@pytest.mark.parametrize(("wanted", "option"), [(Kind.VIDEO_VAE_CONV, "diffusion"), (Kind.VIDEO_VAE_DIFFUSION, "conv")])
def test_a_missing_decoder_names_the_one_that_is_there(models: Path, wanted: Kind, option: str) -> None:
    """Somebody who fetched one of the two files is told which option goes with it."""
    find_checkpoints(models, video_kind=wanted).video_vae.unlink()
    refusal(
        lambda: find_checkpoints(models, video_kind=wanted),
        found=wanted.words,
        allowed=wanted.official_file,
        way_out=f"--decoder {option}",
    )


def test_official_layout(tiny: Checkpoints) -> None:
    """The folders of the released repository are searched."""
    root = tiny.transformer.parents[1]
    others = {"latent_upscale_models", "loras", "model_patches"}  # for other recipes; the four are found all the same
    folders = {"diffusion_models", "text_encoders", "vae"} | others
    assert {path.parent.name for path in root.rglob("*.safetensors")} == folders
    assert find_checkpoints(root) == tiny


def test_two_transformers_are_not_guessed_between(models: Path, golden: Checkpoints) -> None:
    """Dev and distilled have equal headers: both are named and one must be passed."""
    second = models / "distilled.safetensors"
    shutil.copy(golden.transformer, second)
    error = refusal(
        lambda: find_checkpoints(models), found="distilled.safetensors", allowed="one file", way_out="name the file"
    )
    assert "2 files" in error.found
    assert "cannot be told apart" in error.found
    assert find_checkpoints(models, transformer=second).transformer == second


def test_two_names_of_one_file_are_one(models: Path, golden: Checkpoints) -> None:
    """Links to the same file, as in a download cache, are no choice."""
    (models / "again.safetensors").symlink_to(golden.transformer)
    assert find_checkpoints(models).transformer.resolve() == golden.transformer


def test_quantised_copies_beside_the_right_file_are_passed_over(models: Path, golden: Checkpoints) -> None:
    """A folder may hold an fp8 copy; the file that can be loaded is taken."""
    changed_copy(golden.transformer, models / "fp8.safetensors", lambda d: d[FIRST].update(dtype="F8_E4M3"))
    assert find_checkpoints(models).transformer.resolve() == golden.transformer


def test_the_only_candidate_says_why_it_is_refused(models: Path, golden: Checkpoints) -> None:
    """Where the one transformer is an old one, its own refusal is shown, not that none is there."""
    find_checkpoints(models).transformer.unlink()
    changed_copy(golden.transformer, models / "old.safetensors", lambda d: d[METADATA_KEY].update(model_version="2.3"))
    refusal(lambda: find_checkpoints(models), found="LTX version 2.3", allowed="2.5", way_out="2.5 file")


def test_missing_part_names_what_is_there(models: Path) -> None:
    """A folder without a transformer says what it has."""
    find_checkpoints(models).transformer.unlink()
    refusal(
        lambda: find_checkpoints(models),
        found="transformer with text connectors that can be loaded; .safetensors files there: deep/",
        allowed="ltx-2.5-22b-dev-transformer",
        way_out="put it there",
    )


def test_missing_part_names_broken_files(models: Path) -> None:
    """Where a part is missing and another file is a pointer, that is the likely reason."""
    path = find_checkpoints(models).transformer
    path.unlink()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 42018190584\n")
    refusal(lambda: find_checkpoints(models), found="Git-LFS pointer", allowed="one such file", way_out="name")


def test_broken_files_do_not_matter_where_all_parts_are_there(models: Path) -> None:
    """Other files in a models folder may be anything, also still being written."""
    (models / "junk.safetensors").write_bytes(b"junk")
    (models / ".part.safetensors").symlink_to(find_checkpoints(models).transformer)
    (models / "folder.safetensors").mkdir()
    assert len({getattr(find_checkpoints(models), part) for part in PARTS}) == 4


def test_empty_folder(tmp_path: Path) -> None:
    """An empty folder is said to be empty."""
    refusal(lambda: find_checkpoints(tmp_path), found="no .safetensors file", allowed="one such", way_out="there")


@pytest.mark.parametrize(("name", "found"), [("no", "is not there"), ("file", "is a file")])
def test_no_folder(tmp_path: Path, name: str, found: str) -> None:
    """A wrong --models is named."""
    (tmp_path / "file").touch()
    refusal(lambda: find_checkpoints(tmp_path / name), found=found, allowed="folder", way_out="name the folder")


def test_named_files_need_no_folder(golden: Checkpoints, tmp_path: Path) -> None:
    """Four named files are taken without looking anywhere."""
    found = find_checkpoints(
        tmp_path / "nowhere",
        transformer=golden.transformer,
        text_encoder=golden.text_encoder,
        video_vae=golden.video_vae,
        audio_vae=golden.audio_vae,
    )
    assert found == golden


def test_a_named_file_is_checked(models: Path, golden: Checkpoints) -> None:
    """A file named for the wrong part is refused before the folder is believed."""
    refusal(
        lambda: find_checkpoints(models, transformer=golden.audio_vae),
        found="audio VAE",
        allowed="transformer",
        way_out="ltx-2.5-22b-dev",
    )


def test_text_encoder_may_be_absent_where_contexts_are_given(models: Path) -> None:
    """Without a text encoder to run, none is looked for, and the headers have none."""
    path = find_checkpoints(models).text_encoder
    assert path is not None
    path.unlink()
    with pytest.raises(CheckpointError, match="Gemma text encoder"):
        find_checkpoints(models)
    found = find_checkpoints(models, text_encoder_wanted=False)
    assert found.text_encoder is None
    assert read_headers(found).text_encoder is None


def test_headers_are_checked_together(golden: Checkpoints, models: Path, tmp_path: Path) -> None:
    """read_headers returns the four headers, and refuses an encoder of another Gemma."""
    headers = read_headers(find_checkpoints(models))
    assert [identify(getattr(headers, part)) for part in PARTS] == list(PARTS.values())
    other = changed_copy(
        golden.transformer,
        tmp_path / "t.safetensors",
        lambda d: d[METADATA_KEY].update(gemma_source_checkpoint='{"gemma_version": "gemma3"}'),
    )
    with pytest.raises(CheckpointError, match="gemma3"):
        read_headers(find_checkpoints(models, transformer=other))


def test_pinned_config_reaches_the_check(models: Path, golden: Checkpoints) -> None:
    """A transformer without metadata is found only with the pinned config."""
    find_checkpoints(models).transformer.unlink()
    changed_copy(golden.transformer, models / "bare.safetensors", lambda d: d.pop(METADATA_KEY))
    with pytest.raises(CheckpointError, match="no config"):
        find_checkpoints(models)
    assert find_checkpoints(models, pinned_config=True).transformer.name == "bare.safetensors"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file_is_named(models: Path) -> None:
    """A file without read permission is reported as such where its part is missing."""
    path = find_checkpoints(models).transformer
    path.unlink()
    write_headed(path, {"a": ("BF16", (1,))}).chmod(0)
    refusal(lambda: find_checkpoints(models), found="cannot be read", allowed="one such", way_out="name")
