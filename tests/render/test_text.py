"""Text: goldens of tokens, hidden states and features; prompts from files; lifetime and refusals of the encoder."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel

from shotclock.errors import CheckpointError, RequestError
from shotclock.render.text import (
    DEFAULT_NEGATIVE_PROMPT,
    SEQUENCE,
    FeatureProjection,
    PromptTokenizer,
    TextEncoder,
    read_prompt,
    read_prompts,
    unused_tokens,
)
from shotclock.weights.checkpoint import read_header

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = json.loads((GOLDENS / "cases" / "index.json").read_text())["cases"]
TEXT_FILE = GOLDENS / "ckpt" / "tiny-gemma4-with-proj-ltx-2.5-bf16.safetensors"
CPU = torch.device("cpu")


def _golden(name: str) -> dict[str, Tensor]:
    return load_file(GOLDENS / "cases" / f"{name}.safetensors")


def _relative_error(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def _prompts(name: str) -> list[str]:
    params = CASES[name]["params"]
    text, times = params.get("long_prompt", ["", 0])
    return params["prompts"] + [text * times] * bool(times)


def _rewritten(path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    with safe_open(TEXT_FILE, "pt") as file:
        metadata = file.metadata()
    save_file(change(load_file(TEXT_FILE)), path, metadata)
    return path


@pytest.fixture(scope="module")
def encoder() -> Iterator[TextEncoder]:
    with torch.inference_mode(), TextEncoder.load(read_header(TEXT_FILE), device=CPU, dtype=torch.float32) as opened:
        yield opened


def test_tokens_match_the_golden_ids_and_mask() -> None:
    """Stripped, BOS first, truncated to 1,024 and padded on the left: equal to the official ids, bit by bit."""
    golden = _golden("text_tokens")
    ids, mask = PromptTokenizer.load(read_header(TEXT_FILE)).padded(_prompts("text_tokens"))
    assert torch.equal(ids, golden["out.input_ids"].long())
    assert torch.equal(mask, golden["out.attention_mask"].long())


def test_a_prompt_over_1024_tokens_is_cut_and_counted() -> None:
    """Nothing is cut silently: a render says the count (contexts.encode)."""
    header = read_header(TEXT_FILE)
    tokenizer = PromptTokenizer.load(header)
    prompt = "x " * 2000
    whole = len(tokenizer.tokenizer.encode(prompt.strip(), add_special_tokens=False).ids)
    assert len(tokenizer.ids(prompt)) == SEQUENCE
    assert unused_tokens(header, prompt) == tokenizer.unused(prompt) == whole + 1 - SEQUENCE > 0
    assert unused_tokens(header, "a red circle") == 0


def test_bos_is_there_once_even_where_the_prompt_spells_it() -> None:
    """BOS is prepended only where it is missing."""
    tokenizer = PromptTokenizer.load(read_header(TEXT_FILE))
    assert tokenizer.ids("<bos>fox") == tokenizer.ids("fox")
    assert tokenizer.ids("fox").count(tokenizer.bos) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_hidden_states_of_unpadded_prompts_match_the_padded_golden(encoder: TextEncoder, index: int) -> None:
    """All layers within 5e-5, though only the real tokens are encoded."""
    prompt = _prompts("text_hidden")[index]
    hidden = encoder.hidden_states(encoder.tokenizer.ids(prompt))
    error = _relative_error(hidden, _golden("text_hidden")[f"out.hidden_{index}"])
    assert error <= CASES["text_hidden"]["rtol"]


def test_features_match_the_golden(encoder: TextEncoder) -> None:
    """Both streams of both prompts."""
    golden = _golden("text_hidden")
    for index, features in enumerate(encoder.encode(_prompts("text_hidden"))):
        assert features.valid == golden[f"out.hidden_{index}"].shape[1]
        for stream, found in (("video", features.video), ("audio", features.audio)):
            error = _relative_error(found, golden[f"out.{stream}_features_{index}"])
            assert error <= CASES["text_hidden"]["rtol"], stream


def test_features_of_a_padded_batch_match_the_golden(encoder: TextEncoder) -> None:
    """Masked rows count as zeros: they hold the bias, and no value of theirs reaches a feature (users.md row 53)."""
    golden = _golden("connectors")
    hidden, mask = golden["in.hidden_states"], golden["in.attention_mask"]
    video, audio = encoder.projection(hidden, mask)
    assert _relative_error(video, golden["out.video_features"]) <= CASES["connectors"]["rtol"]
    assert _relative_error(audio, golden["out.audio_features"]) <= CASES["connectors"]["rtol"]
    assert torch.equal(video[mask == 0], encoder.projection.video_aggregate_embed.bias.expand_as(video[mask == 0]))


def test_a_wide_projection_in_parts_is_one_product() -> None:
    """Summing over parts of the rows equals the formula in float64."""
    generator = torch.Generator().manual_seed(0)
    projection = FeatureProjection(inputs=12 * 5, video_width=700, audio_width=300).requires_grad_(False)
    hidden = torch.randn(1, 3, 12, 5, generator=generator)
    video, _ = projection(hidden, torch.ones(1, 3, dtype=torch.int64))
    exact = hidden.double()
    exact = (exact / (exact.square().mean(2, keepdim=True) + 1e-6).sqrt()).flatten(2) * (700 / 12) ** 0.5
    linear = projection.video_aggregate_embed.double()
    assert _relative_error(video.double(), linear(exact)) < 1e-6


@given(factor=st.floats(0.1, 100), layer=st.integers(0, 4))
def test_features_do_not_depend_on_the_scale_of_a_layer(factor: float, layer: int) -> None:
    """Each layer's vector is brought to unit RMS, whatever its size."""
    generator = torch.Generator().manual_seed(1)
    projection = FeatureProjection(inputs=60, video_width=8, audio_width=4).requires_grad_(False)
    hidden = torch.randn(1, 2, 12, 5, generator=generator) + 0.5
    scaled = hidden.clone()
    scaled[..., layer] *= factor
    mask = torch.ones(1, 2, dtype=torch.int64)
    # The epsilon in the RMS is the only difference: 1e-6 / (0.1**2 * mean square) at most.
    assert torch.allclose(projection(hidden, mask)[0], projection(scaled, mask)[0], rtol=0, atol=2e-3)


def test_closing_frees_the_model_before_the_next_stage() -> None:
    """After the context manager no reference to Gemma or the projection is left (users.md row 35)."""
    with TextEncoder.load(read_header(TEXT_FILE), device=CPU, dtype=torch.float32) as opened, torch.inference_mode():
        assert opened._modules is not None
        gone = [weakref.ref(module) for module in opened._modules]
        weight = weakref.ref(opened.projection.video_aggregate_embed.weight)
        features = opened.encode(["fox"])
    assert [reference() for reference in [*gone, weight]] == [None, None, None]
    assert features[0].video.isfinite().all()
    with pytest.raises(AssertionError, match="closed"):
        opened.encode(["fox"])


def test_weights_are_views_of_one_mapping_of_the_file() -> None:
    """Loading in the file's dtype on the CPU makes no second copy."""
    with TextEncoder.load(read_header(TEXT_FILE), device=CPU, dtype=torch.bfloat16) as opened:
        assert opened._modules is not None
        storages = {weight.untyped_storage().data_ptr() for part in opened._modules for weight in part.parameters()}
    assert len(storages) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_encoder_by_layer_has_the_bits_of_one_loaded_whole(dtype: torch.dtype) -> None:
    """And between two prompts every layer lies in the file's mapping, as stored."""
    header = read_header(TEXT_FILE)
    with TextEncoder.load(header, device=CPU, dtype=dtype) as whole, torch.inference_mode():
        expected = whole.encode(["fox", "a red circle"])
    with TextEncoder.load(header, device=CPU, dtype=dtype, by_layer=True) as opened, torch.inference_mode():
        found = opened.encode(["fox", "a red circle"])
        assert opened._modules is not None
        layers = opened._modules[0].layers
        assert {weight.dtype for weight in layers.parameters()} == {torch.bfloat16}
        assert len({weight.untyped_storage().data_ptr() for weight in layers.parameters()}) == 1
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.video, theirs.video) and torch.equal(ours.audio, theirs.audio)


def test_rope_frequencies_stay_float32_in_a_bfloat16_encoder() -> None:
    """Buffers that no file holds are made anew, not cast with the weights."""
    header = read_header(TEXT_FILE)
    with TextEncoder.load(header, device=CPU, dtype=torch.bfloat16) as opened, torch.inference_mode():
        assert opened._modules is not None
        kinds = {value.dtype for _, value in opened._modules[0].rotary_emb.named_buffers()}
        hidden = opened.hidden_states(opened.tokenizer.ids("fox"))
        features = opened.encode(["fox"])[0]
    assert kinds == {torch.float32}
    assert hidden.dtype == torch.bfloat16
    assert features.video.dtype == torch.float32


def test_progress_ticks_after_every_layer_and_projection(encoder: TextEncoder) -> None:
    """A long encode is heard of layer by layer (users.md row 11), 7 steps a prompt with 6 layers."""
    ticks: list[tuple[int, int]] = []
    encoder.encode(["fox", "snow"], lambda done, total: ticks.append((done, total)))
    assert ticks == [(step, 14) for step in range(1, 15)]


def test_a_failing_progress_leaves_no_hook_behind(encoder: TextEncoder) -> None:
    """The encoder is as it was, and gives the same features afterwards."""

    def fail(_done: int, _total: int) -> None:
        raise RuntimeError("stop")

    before = encoder.encode(["fox"])[0].video
    with pytest.raises(RuntimeError, match="stop"):
        encoder.encode(["fox"], fail)
    assert encoder._modules is not None
    assert not any(module._forward_hooks for module in encoder._modules[0].modules())
    assert torch.equal(encoder.encode(["fox"])[0].video, before)


def test_names_under_language_model_load_the_same(encoder: TextEncoder, tmp_path: Path) -> None:
    """``model.language_model.*`` is the other layout in use."""

    def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        start = "model."
        return {
            f"{start}language_model.{key.removeprefix(start)}" if key.startswith(start) else key: value
            for key, value in tensors.items()
        }

    header = read_header(_rewritten(tmp_path / "renamed.safetensors", rename))
    with TextEncoder.load(header, device=CPU, dtype=torch.float32) as other:
        assert torch.equal(other.encode(["fox"])[0].video, encoder.encode(["fox"])[0].video)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors | {"extra.weight": torch.zeros(2)}, "extra.weight"),
        (lambda tensors: tensors | {"model.layers.3.mlp.more.weight": torch.zeros(2)}, "mlp.more"),
        (lambda tensors: _without(tensors, "model.layers.3.self_attn.q_norm.weight"), "q_norm"),
        (lambda tensors: _without(tensors, "text_embedding_projection.audio_aggregate_embed.bias"), "audio_aggregate"),
        (lambda tensors: tensors | {"model.norm.weight": torch.zeros(7, dtype=torch.bfloat16)}, "norm.weight"),
        (lambda tensors: tensors | {"tokenizer_json": torch.zeros(9, dtype=torch.uint8)}, "tokenizer"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], named: str
) -> None:
    """Extra, missing and misshapen tensors, each named; nothing is loaded around them."""
    header = read_header(_rewritten(tmp_path / "changed.safetensors", change))
    with pytest.raises(CheckpointError) as refusal:
        TextEncoder.load(header, device=CPU, dtype=torch.float32)
    assert named in str(refusal.value)


def _without(tensors: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if name != key}


def test_a_prompt_is_read_from_the_file_that_follows_an_at_sign(tmp_path: Path) -> None:
    """``@FILE`` is the text of the file, ``@@`` the character itself, anything else the prompt."""
    file = tmp_path / "no.txt"
    file.write_text("grain, Café\n", encoding="utf-8")
    assert read_prompt(f"@{file}") == "grain, Café\n"
    assert read_prompt("@@home by the sea") == "@home by the sea"
    assert read_prompt("mail me @ home") == "mail me @ home"


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_an_unreadable_prompt_file_is_refused_with_its_name(tmp_path: Path, content: bytes | None) -> None:
    """Missing, or no UTF-8."""
    file = tmp_path / "gone.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RequestError, match=r"gone\.txt"):
        read_prompt(f"@{file}")


def test_an_empty_negative_prompt_is_legal_and_an_empty_prompt_is_not(encoder: TextEncoder) -> None:
    """An empty negative prompt is one BOS token; without one the default is taken."""
    assert read_prompts("fox", "") == ("fox", "")
    assert read_prompts("fox", None) == ("fox", DEFAULT_NEGATIVE_PROMPT)
    assert encoder.encode([""])[0].valid == 1
    for empty in ("", "  \n"):
        with pytest.raises(RequestError, match="empty"):
            read_prompts(empty, None)


def test_the_default_negative_prompt_is_not_truncated(encoder: TextEncoder) -> None:
    """It fits even where nearly every letter is a token of its own."""
    assert 1 < len(encoder.tokenizer.ids(DEFAULT_NEGATIVE_PROMPT)) < SEQUENCE


def test_a_deeper_encoder_gives_what_the_library_gives_with_padding(tmp_path: Path) -> None:
    """12 layers of another width, from their own file: all 13 states equal the library's, run padded to 1,024."""
    with safe_open(TEXT_FILE, "pt") as file:
        metadata = file.metadata()
    gemma_config = json.loads(metadata["gemma_config"])
    config = gemma_config["text_config"]
    config |= {"num_hidden_layers": 12, "hidden_size": 32, "layer_types": config["layer_types"] * 2}
    torch.manual_seed(5)
    library = Gemma4UnifiedTextModel(Gemma4UnifiedTextConfig(**config)).eval()
    tensors = {f"model.{name}": value.bfloat16() for name, value in library.state_dict().items()}
    library.load_state_dict({name: tensors[f"model.{name}"] for name in library.state_dict()})
    for stream, width in (("video", 24), ("audio", 16)):
        tensors[f"text_embedding_projection.{stream}_aggregate_embed.weight"] = torch.randn(width, 32 * 13).bfloat16()
        tensors[f"text_embedding_projection.{stream}_aggregate_embed.bias"] = torch.randn(width).bfloat16()
    tensors["tokenizer_json"] = load_file(TEXT_FILE)["tokenizer_json"]
    path = tmp_path / "deep.safetensors"
    save_file(tensors, path, metadata | {"gemma_config": json.dumps(gemma_config)})
    with TextEncoder.load(read_header(path), device=CPU, dtype=torch.float32) as deep, torch.inference_mode():
        ids, mask = deep.tokenizer.padded(["snow"])
        found = deep.hidden_states(deep.tokenizer.ids("snow"))
        features = deep.encode(["snow"])[0]
        padded = library(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)
    wanted = torch.stack(padded.hidden_states, dim=-1)[:, mask[0] == 1]
    assert found.shape == wanted.shape == (1, int(mask.sum()), 32, 13)
    assert _relative_error(found, wanted) < 5e-6
    assert features.video.shape == (1, features.valid, 24)
    assert features.audio.shape == (1, features.valid, 16)
