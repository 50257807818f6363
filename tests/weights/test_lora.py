"""LoRA files: what applies is told from headers, other formats are named, several are fused in float32 exactly once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.errors import CheckpointError, RequestError
from shotclock.model.config import transformer_config
from shotclock.model.transformer import Transformer
from shotclock.weights.checkpoint import Checkpoints, Header, read_header, transformer_settings
from shotclock.weights.identity import DIT
from shotclock.weights.load import load_module
from shotclock.weights.lora import Lora, fuse, parse_lora, read_lora

CPU = torch.device("cpu")
LAYER = "transformer_blocks.0.attn1.to_q"


@pytest.fixture(scope="module")
def transformer(tiny: Checkpoints) -> Header:
    return read_header(tiny.transformer)


@pytest.fixture(scope="module")
def distilled(tiny: Checkpoints) -> Path:
    return next((tiny.transformer.parents[1] / "loras").iterdir())


def loaded(header: Header, dtype: torch.dtype | None) -> Transformer:
    with torch.device("meta"):
        model = Transformer(transformer_config(transformer_settings(header, pinned_config=False)))
    names = {key: key.removeprefix(DIT) for key in header.tensors if "_connector." not in key}
    load_module(model, header, names, device=CPU, dtype=dtype)
    return model.requires_grad_(False)


def pair(width: int = 64, rank: int = 2, layer: str = LAYER, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"diffusion_model.{layer}.lora_A.weight": torch.randn(rank, width, generator=generator).bfloat16(),
        f"diffusion_model.{layer}.lora_B.weight": torch.randn(width, rank, generator=generator).bfloat16(),
    }


def written(path: Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    save_file(tensors, path, metadata=metadata or None)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.safetensors", ("a.safetensors", 1.0)), ("a.safetensors:0.25", ("a.safetensors", 0.25)), ("a:-1", ("a", -1.0))],
)
def test_a_strength_follows_the_last_colon(text: str, expected: tuple[str, float]) -> None:
    """FILE[:STRENGTH]."""
    assert parse_lora(text) == (Path(expected[0]), expected[1])


@pytest.mark.parametrize("strength", ["0", "nan", "11", "strong", ""])
def test_a_strength_out_of_range_is_refused(strength: str) -> None:
    """0 would do nothing."""
    with pytest.raises(RequestError, match="LoRA strength"):
        parse_lora(f"a.safetensors:{strength}")


def test_the_distilled_lora_applies_to_every_linear_layer(distilled: Path, transformer: Header) -> None:
    """A pair a layer, as 1,660 of the released one: none left over, none forgotten."""
    lora = read_lora(distilled, 0.5, transformer)
    linear = [key for key, entry in transformer.tensors.items() if key.endswith(".weight") and len(entry.shape) == 2]
    wanted = {key.removeprefix(DIT).removesuffix(".weight") for key in linear if "_connector." not in key}
    assert lora.pairs.keys() == wanted and lora.total == len(wanted) == 164 and lora.whole and not lora.warnings
    assert lora.line().endswith("at strength 0.5: 164 of 164 layers of it apply")


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_several_are_summed_in_float32_and_rounded_once(
    tmp_path: Path, distilled: Path, transformer: Header, dtype: torch.dtype | None
) -> None:
    """Against the formula in float64, alpha and other names for the two matrices included; the rest stays as it was."""
    own = pair()
    own[f"diffusion_model.{LAYER}.alpha"] = torch.tensor(1.0).bfloat16()
    kohya = {key.replace("lora_A", "lora_down").replace("lora_B", "lora_up"): value for key, value in own.items()}
    one = read_lora(written(tmp_path / "one.safetensors", kohya), -0.7, transformer)
    two = read_lora(distilled, 0.5, transformer)
    before, model = loaded(transformer, dtype), loaded(transformer, dtype)
    assert fuse(model, [one, two], CPU) == 164
    tensors = load_file(distilled)
    for name, weight in model.named_parameters():
        base = dict(before.named_parameters())[name]
        layer = name.removesuffix(".weight")
        expected = base.double()
        if layer in two.pairs:
            up, down = (tensors[f"diffusion_model.{layer}.lora_{side}.weight"].double() for side in "BA")
            expected = expected + 0.5 * up @ down
        if layer == LAYER:
            up, down = (own[f"diffusion_model.{layer}.lora_{side}.weight"].double() for side in "BA")
            expected = expected - 0.7 * (1 / 2) * up @ down
        assert weight.dtype == base.dtype
        if layer in two.pairs:
            assert (weight.double() - expected).abs().max() <= expected.abs().max() * torch.finfo(weight.dtype).eps
        else:
            assert torch.equal(weight, base)


def test_fusing_changes_no_file(transformer: Header, distilled: Path) -> None:
    """Weights on the CPU are views of the file: writing to them must stay in this process."""
    before = transformer.path.read_bytes()
    fuse(loaded(transformer, None), [read_lora(distilled, 1.0, transformer)], CPU)
    assert transformer.path.read_bytes() == before


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"diffusion_model.a.lokr_w1": (2, 2)}, "LoKr"),
        ({"diffusion_model.a.hada_w1_a": (2, 2)}, "LoHa"),
        ({f"diffusion_model.{LAYER}.lora_magnitude_vector": (64,)}, "DoRA"),
        ({f"diffusion_model.{LAYER}.diff": (64, 64)}, "full-weight"),
    ],
)
def test_other_formats_are_named(
    tmp_path: Path, transformer: Header, extra: dict[str, tuple[int, ...]], found: str
) -> None:
    """users.md row 77: 3,264 unmatched keys say nothing, a name does."""
    tensors = pair() | {key: torch.ones(shape) for key, shape in extra.items()}
    with pytest.raises(CheckpointError, match=found):
        read_lora(written(tmp_path / "a.safetensors", tensors), 1.0, transformer)


def test_what_does_not_fit_is_refused_from_the_header(tmp_path: Path, transformer: Header) -> None:
    """Another width, layers of another model, one matrix alone, no LoRA at all, a reference LoRA."""
    lone = {key: value for key, value in pair().items() if "lora_A" in key}
    cases = (
        (pair(width=48), {}, "for diffusion_model.transformer_blocks.0.attn1.to_q"),
        (pair(layer="blocks.0.q"), {}, "applies 0 of 1 layers"),
        (lone, {}, "has no two matrices"),
        (pair(), {"reference_downscale_factor": "2"}, "IC-LoRA"),
    )
    for number, (tensors, metadata, found) in enumerate(cases):
        with pytest.raises(CheckpointError, match=found):
            read_lora(written(tmp_path / f"{number}.safetensors", tensors, **metadata), 1.0, transformer)
    with pytest.raises(CheckpointError, match="is a transformer with text connectors"):
        read_lora(transformer.path, 1.0, transformer)


def test_part_of_another_model_is_refused_and_little_is_warned_of(tmp_path: Path, transformer: Header) -> None:
    """users.md row 76: fewer than half of the layers is an error, a few are left out by name."""
    strange = {key: value for i in range(3) for key, value in pair(layer=f"other.{i}").items()}
    with pytest.raises(CheckpointError, match="applies 1 of 4"):
        read_lora(written(tmp_path / "a.safetensors", pair() | strange), 1.0, transformer)
    layers = [f"transformer_blocks.{i}.attn1.to_q" for i in range(3)]
    mine = {key: value for layer in layers for key, value in pair(layer=layer).items()}
    lora = read_lora(written(tmp_path / "b.safetensors", mine | pair(layer="other.0")), 1.0, transformer)
    assert len(lora.pairs) == 3 and lora.total == 4 and "1 of its layers have no place" in lora.warnings[0]
    assert not lora.whole


def test_another_version_is_warned_of(tmp_path: Path, transformer: Header) -> None:
    """users.md row 78: what the metadata says is compared with the transformer's."""
    for version, count in (("2.3.0", 1), ("2.5.1", 0)):
        path = written(tmp_path / f"{version}.safetensors", pair(), model_version=version)
        assert len(read_lora(path, 1.0, transformer).warnings) == count


def test_order_of_fusing_does_not_matter(transformer: Header, distilled: Path, tmp_path: Path) -> None:
    """The same set gives the same clip to 1e-6, whatever order it was given in."""
    a = read_lora(distilled, 0.5, transformer)
    b: Lora = replace(read_lora(written(tmp_path / "b.safetensors", pair(seed=3)), 1.0, transformer), strength=0.3)
    models = [loaded(transformer, torch.float32) for _ in range(2)]
    fuse(models[0], [a, b], CPU)
    fuse(models[1], [b, a], CPU)
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)
