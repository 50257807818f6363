"""What inspect says, first of all about the released transformer, exactly."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest
from weight_files import RELEASED_BYTES, changed_copy, write_headed

from shotclock.errors import CheckpointError
from shotclock.weights import released as facts
from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import METADATA_KEY
from shotclock.weights.identity import Kind
from shotclock.weights.inspect import inspect
from shotclock.weights.released import known_digest


def test_released_transformer_exactly(released: Path) -> None:
    """42,018,190,584 bytes, 4,349 tensors, 21,004,025,600 elements, from the header alone (ltx25.md section 1.2)."""
    found = inspect(released, sha256=False)
    assert found.file_bytes == RELEASED_BYTES
    assert found.header_bytes == 677_616
    assert found.tensors == 4349
    assert found.elements == 21_004_025_600
    assert found.dtypes == {"BF16": 4059, "F32": 290}
    assert found.model_version == "2.5.0"
    assert found.kind is Kind.TRANSFORMER
    assert found.blocks == 48
    assert found.refusal is None
    assert found.sha256 is None


def test_released_transformer_as_printed(released: Path) -> None:
    """The lines hold the numbers, the kind and the recipe that follows."""
    text = "\n".join(inspect(released, sha256=False).lines())
    for words in (
        "ltx-2.5-22b-dev-transformer-bf16.safetensors",
        "42,018,190,584",
        "4,349",
        "21,004,025,600",
        "BF16 4,059, F32 290",
        "2.5.0",
        "one_stage: 30 steps, cfg 3 / 7, stg 1 @ block 28, modality 3, rescale 0.7: 120 forwards",
        "transformer",
        "only the digest tells",
    ):
        assert words in text


def test_fixture_takes_no_disk(released: Path) -> None:
    """The fixture is a header and a hole."""
    assert released.stat().st_blocks * 512 < 2 * 2**20


def test_inspecting_the_release_takes_less_than_a_second(released: Path) -> None:
    """The header of 4,349 tensors is read, checked and described in under a second of processor time."""
    begun = time.process_time()  # the wall clock would measure what else the machine does
    inspect(released, sha256=False).lines()
    assert time.process_time() - begun < 1


def test_json_is_a_document(released: Path) -> None:
    """The document has plain numbers and can be written."""
    document = json.loads(json.dumps(inspect(released, sha256=False).to_json()))
    assert document["elements"] == 21_004_025_600
    assert document["recipe"]["forwards"] == 120
    assert document["recipe"]["stg_blocks"] == [28]
    assert document["kind"] == "transformer"
    assert document["format"].startswith("shotclock")
    assert document["sha256_known_as"] is None


def test_digest_of_a_file(tiny: Checkpoints) -> None:
    """With sha256 the whole file is read, and progress says how far."""
    assert tiny.text_encoder is not None
    seen: list[int] = []
    found = inspect(tiny.text_encoder, sha256=True, progress=seen.append)
    assert found.sha256 == hashlib.sha256(tiny.text_encoder.read_bytes()).hexdigest()
    assert seen[-1] == tiny.text_encoder.stat().st_size
    assert any(str(found.sha256) in line and "no digest known" in line for line in found.lines())


def test_known_digests_say_how_much_of_them_is_known() -> None:
    """Prefix and suffix must both match, and the text does not claim more."""
    for name, (prefix, suffix) in facts.DIGESTS.items():
        middle = "0" * (64 - len(prefix) - len(suffix))
        assert known_digest(prefix + middle + suffix) == f"{name} (digest prefix and suffix match)"
        assert known_digest(prefix + middle + "0" * len(suffix)) is None
        assert known_digest("0" * len(prefix) + middle + suffix) is None


def test_a_file_with_fewer_blocks_than_the_recipe_needs(golden: Checkpoints) -> None:
    """The golden file has 6 blocks, and block 28 is not among them."""
    assert any("this file has 6 blocks" in line for line in inspect(golden.transformer, sha256=False).lines())


def test_own_stg_blocks_are_shown(tiny: Checkpoints) -> None:
    """The tiny file names a block that it has."""
    lines = inspect(tiny.transformer, sha256=False).lines()
    assert any("@ block 2," in line and "this file has" not in line for line in lines)


@pytest.mark.parametrize("part", ["text_encoder", "video_vae", "audio_vae"])
def test_other_parts_have_no_recipe(golden: Checkpoints, part: str) -> None:
    """Only a transformer says how to render; all parts say that they can be loaded."""
    found = inspect(getattr(golden, part), sha256=False)
    assert found.recipe is None
    assert found.refusal is None
    assert not any("recipe" in line for line in found.lines())


def test_what_cannot_be_loaded_is_described_with_the_reason(golden: Checkpoints, tmp_path: Path) -> None:
    """A file without metadata is inspected, and the reason why it is refused is part of the answer."""
    path = changed_copy(golden.transformer, tmp_path / "f", lambda d: d.pop(METADATA_KEY))
    found = inspect(path, sha256=False)
    assert found.refusal is not None
    assert "no config" in found.refusal
    assert found.model_version is None
    assert any("not stated" in line for line in found.lines())


def test_another_format_than_lora_is_named(tmp_path: Path) -> None:
    """users.md row 77: LoKr is called LoKr from its header alone."""
    path = write_headed(tmp_path / "f", {"diffusion_model.x.lokr_w1": ("BF16", (8, 4))})
    found = inspect(path, sha256=False)
    assert found.refusal is not None and "LoKr" in found.refusal


def test_a_lora_is_not_claimed_to_be_loadable(tmp_path: Path) -> None:
    """Kinds without a check are said to be unchecked."""
    path = write_headed(tmp_path / "f", {"diffusion_model.x.lora_A.weight": ("BF16", (8, 4))})
    lines = inspect(path, sha256=False).lines()
    assert any("a LoRA" in line for line in lines)
    assert any("not checked" in line for line in lines)


def test_what_is_no_safetensors_file_is_refused(tmp_path: Path) -> None:
    """Inspecting needs a header."""
    (tmp_path / "f").write_text("<html>")
    with pytest.raises(CheckpointError, match="HTML"):
        inspect(tmp_path / "f", sha256=False)
