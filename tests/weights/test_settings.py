"""The config of a transformer file is checked value by value, and never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from weight_files import changed_config, changed_copy, refusal

from shotclock.weights import released
from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import METADATA_KEY, read_header
from shotclock.weights.identity import KEYFRAMES
from shotclock.weights.settings import transformer_settings


def test_settings_are_those_of_the_file(golden: Checkpoints) -> None:
    """A file's own numbers come through, such as the golden file's six blocks."""
    settings = transformer_settings(read_header(golden.transformer), pinned_config=False)
    assert settings["num_layers"] == 6
    assert settings["av_ca_timestep_scale_multiplier"] == 1000.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_type", "interleaved"),
        ("frequencies_precision", "float32"),
        ("apply_gated_attention", False),
        ("cross_attention_adaln", False),
        ("ff_bias", True),
        ("caption_proj_before_connector", False),
        ("connector_apply_gated_attention", False),
        ("qk_norm", "layer_norm"),
        ("activation_fn", "gelu"),
        ("share_ff", True),
        ("audio_ff_bias", False),
        ("use_prompt_adaln_single", False),
        ("caption_projection_first_linear", True),
    ],
)
def test_another_structure_is_refused(golden: Checkpoints, tmp_path: Path, key: str, value: object) -> None:
    """Each value that the model relies on is named with what was found and what is allowed."""
    path = changed_config(golden.transformer, tmp_path / "f", lambda c: c["transformer"].update({key: value}))
    refusal(
        lambda: transformer_settings(read_header(path), pinned_config=False),
        found=f"{key} = {value!r}",
        allowed=f"{key} = ",
        way_out="another architecture",
    )


@pytest.mark.parametrize("key", [*released.STRUCTURE, *released.NUMBERS])
def test_a_missing_value_is_not_replaced_by_a_default(golden: Checkpoints, tmp_path: Path, key: str) -> None:
    """The format's defaults are those of an older model (ltx25.md section 0)."""
    path = changed_config(golden.transformer, tmp_path / "f", lambda c: c["transformer"].pop(key))
    refusal(
        lambda: transformer_settings(read_header(path), pinned_config=False),
        found=f"lacks {key}",
        allowed="older model",
        way_out="ltx-2.5",
    )


@pytest.mark.parametrize("value", ["48", None, True, -1, [], [[20]], {}])
def test_a_number_must_be_one(golden: Checkpoints, tmp_path: Path, value: object) -> None:
    """Sizes are positive numbers or lists of such."""
    path = changed_config(golden.transformer, tmp_path / "f", lambda c: c["transformer"].update({"num_layers": value}))
    refusal(
        lambda: transformer_settings(read_header(path), pinned_config=False),
        found=f"num_layers = {value!r}",
        allowed="positive number",
        way_out="fetch",
    )


def test_missing_config_needs_the_pinned_one_by_name(golden: Checkpoints, tmp_path: Path) -> None:
    """Without metadata a file is refused; asking for the pinned 2.5 config gives exactly that table."""
    path = changed_copy(golden.transformer, tmp_path / "f", lambda document: document.pop(METADATA_KEY))
    header = read_header(path)
    refusal(
        lambda: transformer_settings(header, pinned_config=False),
        found="has no config",
        allowed="pinned config of LTX-2.5",
        way_out="2.5 repack",
    )
    assert transformer_settings(header, pinned_config=True) == released.PINNED_25_CONFIG


def test_a_config_for_something_else_is_none(golden: Checkpoints, tmp_path: Path) -> None:
    """A config without a transformer part is missing too, and not overruled by the pinned one."""
    path = changed_config(golden.transformer, tmp_path / "f", lambda c: c.pop("transformer"))
    refusal(
        lambda: transformer_settings(read_header(path), pinned_config=True),
        found="no config for transformer",
        allowed="metadata",
        way_out="fetch",
    )


def test_the_file_has_precedence_over_the_pinned_config(golden: Checkpoints) -> None:
    """Asking for the pinned config changes nothing where the file has one."""
    settings = transformer_settings(read_header(golden.transformer), pinned_config=True)
    assert settings["num_layers"] == 6


def test_keyframe_embedding_is_told_by_its_tensor(golden: Checkpoints, tmp_path: Path) -> None:
    """Repacks lose the config value or the tensor; the tensor decides (ltx25.md section 2)."""
    key = "use_keyframes_abs_pos_embedding"
    without_value = changed_config(golden.transformer, tmp_path / "a", lambda c: c["transformer"].pop(key))
    assert transformer_settings(read_header(without_value), pinned_config=False)[key] is True
    without_tensor = changed_copy(golden.transformer, tmp_path / "b", lambda document: document.pop(KEYFRAMES))
    assert transformer_settings(read_header(without_tensor), pinned_config=False)[key] is False


def test_pinned_config_has_every_value_that_is_checked() -> None:
    """The pinned table is complete and agrees with the structure that is demanded of files."""
    config = released.PINNED_25_CONFIG
    assert set(released.NUMBERS) <= config.keys()
    assert {key: config[key] for key in released.STRUCTURE} == dict(released.STRUCTURE)
    assert all(config.get(key, value) == value for key, value in released.STRUCTURE_IF_GIVEN.items())
