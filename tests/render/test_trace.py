"""Tracing names the first block, stream and legs that are not finite, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fakes import prepared, random_transformer, tiny_config
from shotclock.events import State
from shotclock.guidance import Guidance, Guider, LegName
from shotclock.model.transformer import Transformer
from shotclock.render.denoise import Prepared, denoise
from shotclock.render.trace import NonFiniteAt, tracing

ALL = tuple(LegName)
SIGMAS = torch.tensor([1.0, 0.4, 0.0])


@pytest.fixture
def model() -> Transformer:
    """Four blocks; the guidance perturbs block 1."""
    return random_transformer(tiny_config(4), torch.float32)


def _run(model: Transformer, *, per_pass: int = 4, both: tuple[Prepared, Prepared] | None = None) -> NonFiniteAt | None:
    """What a trace of two guided steps finds."""
    guider = Guider(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(1,))
    guidance = Guidance(video=guider, audio=guider, legs_per_pass=per_pass)
    both = both or prepared(model)
    start = State(step=0, video=both[0].latents.tokens, audio=both[1].latents.tokens)
    with torch.inference_mode(), tracing(model, guidance.legs(model.config.blocks)) as trace:
        for _ in denoise(model, both, SIGMAS, guidance, start):
            pass
    return trace.found


def test_a_finite_render_has_nothing_to_find(model: Transformer) -> None:
    """Two guided steps, every leg."""
    assert _run(model) is None


@pytest.mark.parametrize("per_pass", [1, 4])
@pytest.mark.parametrize(
    ("parameter", "where", "stream", "legs"),
    [
        ("transformer_blocks.2.audio_ff.net.2.weight", "block 2", "audio", ALL),
        ("transformer_blocks.0.attn1.to_v.weight", "block 0", "video", ALL),
        ("transformer_blocks.3.video_to_audio_attn.to_v.weight", "block 3", "audio", ("cond", "uncond", "perturbed")),
        ("transformer_blocks.2.scale_shift_table", "block 2", "video", ALL),
        ("audio_patchify_proj.weight", "audio_patchify_proj", "audio", ()),
        ("av_ca_v2a_gate_adaln_single.linear.weight", "av_ca_v2a_gate_adaln_single", "audio", ()),
        ("proj_out.bias", "velocity", "video", ALL),
    ],
)
def test_one_broken_weight_is_found_in_its_block_stream_and_legs(
    model: Transformer, per_pass: int, parameter: str, where: str, stream: str, legs: tuple[str, ...]
) -> None:
    """One NaN among the weights: the legs that use it, and no others; the weight is named.

    With one leg a pass the first pass finds it, in the legs whose states its row holds so far.
    """
    model.get_parameter(parameter).data.view(-1)[0] = torch.nan
    found = _run(model, per_pass=per_pass)
    assert found is not None
    assert (found.where, found.stream) == (where, stream)
    assert found.nans > 0
    assert [parameter.endswith(name) for name in found.weights] == [True]
    if per_pass == 4:
        assert found.legs == legs
    else:
        assert set(found.legs) <= set(legs)
        assert bool(found.legs) == bool(legs)


def test_an_overflow_is_told_from_a_broken_weight(model: Transformer) -> None:
    """Weights so large that float32 does not hold the product: they are finite."""
    model.get_parameter("transformer_blocks.3.ff.net.2.weight").data.fill_(3e38)
    found = _run(model)
    assert found is not None
    assert (found.where, found.stream, found.weights) == ("block 3", "video", ())
    assert found.nans + found.infinities > 0
    assert str(found).startswith("block 3, video stream, legs cond, uncond, perturbed, isolated: ")
    assert str(found).endswith("its weights are finite")


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda both: replace(both[1], context=both[1].context * torch.nan), "contexts"),
        (
            lambda both: replace(both[1], latents=replace(both[1].latents, tokens=both[1].latents.tokens * torch.inf)),
            "latents",
        ),
    ],
    ids=["contexts", "latents"],
)
def test_what_came_in_broken_is_not_blamed_on_a_block(
    model: Transformer, spoil: Callable[[tuple[Prepared, Prepared]], Prepared], where: str
) -> None:
    """A text encoder or a snapshot that gave NaN."""
    both = prepared(model)
    found = _run(model, both=(both[0], spoil(both)))
    assert found is not None
    assert (found.where, found.stream, found.legs) == (where, "audio", ())


def test_nothing_stays_on_the_model(model: Transformer) -> None:
    """No hook before or after, not even when the traced stretch raises."""

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    assert hooks() == 0
    with pytest.raises(KeyError), tracing(model, {}):
        assert hooks() > 0
        raise KeyError
    assert hooks() == 0
