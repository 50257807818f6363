"""The guided loop: planned passes run, states do not depend on where a run begins, streams can wait or stay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import prepared, random_transformer, tiny_config
from shotclock.events import PassBegins, PassEnds, State, StepEnds
from shotclock.guidance import Guidance, Guider
from shotclock.render.denoise import Prepared, denoise
from shotclock.render.samplers import euler
from shotclock.schedule import sigmas

MODEL = random_transformer(tiny_config(2), torch.float64)


def guidance(*, per_pass: int = 4, skip: tuple[int, int] = (0, 0), stg: float = 1.0, cfg: float = 3.0) -> Guidance:
    video, audio = (Guider(cfg=cfg, stg=stg, modality=3.0, rescale=0.7, stg_blocks=(1,), skip_step=s) for s in skip)
    return Guidance(video=video, audio=audio, legs_per_pass=per_pass)


def run(of: Guidance, steps: int, start: State | None = None, both: tuple[Prepared, Prepared] | None = None) -> list:
    both = both or prepared(MODEL)
    begin = start or State(step=0, video=both[0].latents.tokens, audio=both[1].latents.tokens)
    with torch.inference_mode():
        return list(denoise(MODEL, both, sigmas(steps), of, begin))


def last(events: list) -> State:
    return next(event.state for event in reversed(events) if isinstance(event, StepEnds))


@settings(max_examples=8, deadline=None)
@given(per_pass=st.integers(1, 4), skip=st.tuples(st.integers(0, 2), st.integers(0, 2)), steps=st.integers(2, 4))
def test_passes_run_are_the_passes_planned(per_pass: int, skip: tuple[int, int], steps: int) -> None:
    """users.md row 60: planned and executed forwards are one list; every begin has its end; indices have no gap."""
    of = guidance(per_pass=per_pass, skip=skip)
    events = run(of, steps)
    planned = [(step + 1, launch.legs) for step in range(steps) for launch in of.passes(step, MODEL.config.blocks)]
    begins = [event for event in events if isinstance(event, PassBegins)]
    assert [(event.step, event.legs) for event in begins] == planned
    assert [event.index for event in begins] == list(range(1, len(planned) + 1))
    ends = [event for event in events if isinstance(event, PassEnds)]
    assert [event.index for event in ends] == [event.index for event in begins]
    assert [event.state.step for event in events if isinstance(event, StepEnds)] == list(range(1, steps + 1))


@settings(max_examples=6, deadline=None)
@given(per_pass=st.integers(1, 4), skip=st.tuples(st.integers(0, 2), st.integers(0, 2)), stop=st.integers(1, 4))
def test_a_loop_continued_from_any_step_ends_in_the_same_bits(per_pass: int, skip: tuple[int, int], stop: int) -> None:
    """The state after a step is all that the next one needs, last denoised states of skip_step included."""
    of = guidance(per_pass=per_pass, skip=skip)
    whole = run(of, 5)
    middle = next(event.state for event in whole if isinstance(event, StepEnds) and event.state.step == stop)
    rest = run(of, 5, start=middle)
    assert torch.equal(last(rest).video, last(whole).video) and torch.equal(last(rest).audio, last(whole).audio)
    first = next(event for event in [*rest, None] if event is None or isinstance(event, PassBegins))
    if first is not None:
        assert first.index == sum(len(of.passes(step, MODEL.config.blocks)) for step in range(first.step - 1)) + 1


def test_grouping_changes_nothing_in_float64() -> None:
    """One to four legs a pass over a whole loop."""
    ends = [last(run(guidance(per_pass=n), 4)) for n in (1, 2, 3, 4)]
    for other in ends[1:]:
        assert (other.video - ends[0].video).abs().max() < 1e-11 and (other.audio - ends[0].audio).abs().max() < 1e-11


def test_each_leg_matters() -> None:
    """Switching a term off changes the clip: no leg is computed and dropped."""
    full = last(run(guidance(), 3)).video
    for other in (guidance(stg=0.0), guidance(cfg=1.0)):
        assert (last(run(other, 3)).video - full).abs().max() > 1e-3


def test_a_frozen_stream_stays_and_is_heard() -> None:
    """Audio to video: frozen sound keeps its bits and still changes the picture."""
    video, audio = prepared(MODEL)

    def with_sound(scale: float) -> tuple[Prepared, Prepared]:
        latents = replace(
            audio.latents,
            tokens=audio.latents.tokens * scale,
            clean=audio.latents.tokens * scale,
            mask=torch.zeros_like(audio.latents.mask),
            frozen=True,
        )
        mask = replace(audio.mask, values=torch.zeros(1))
        return video, replace(audio, latents=latents, mask=mask)

    ends = []
    for scale in (1.0, -1.0):
        both = with_sound(scale)
        ends.append(last(run(guidance(), 3, both=both)))
        assert torch.equal(ends[-1].audio, both[1].latents.tokens)
    assert (ends[0].video - ends[1].video).abs().max() > 1e-3


def test_tokens_with_mask_zero_stay_clean() -> None:
    """An image at strength 1: its tokens never leave the clean latent."""
    video, audio = prepared(MODEL)
    mask = torch.ones_like(video.latents.mask)
    mask[:, :2] = 0
    clean = torch.randn_like(video.latents.tokens)
    tokens = torch.where(mask > 0, video.latents.tokens, clean)
    from shotclock.model.adaln import Times

    both = (
        replace(
            video, latents=replace(video.latents, tokens=tokens, clean=clean, mask=mask), mask=Times.of(mask[..., 0])
        ),
        audio,
    )
    end = last(run(guidance(), 3, both=both, start=State(step=0, video=tokens, audio=audio.latents.tokens)))
    assert torch.allclose(end.video[:, :2], clean[:, :2], atol=1e-12)
    assert (end.video[:, 2:] - tokens[:, 2:]).abs().min() > 0


def test_the_last_step_lands_on_the_denoised_state() -> None:
    """A schedule that ends at 0 ends at x0."""
    x, x0 = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    assert torch.allclose(euler(x, x0, 0.1, 0.0), x0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_states_keep_their_dtype(dtype: torch.dtype) -> None:
    """Work is done in float32 or wider, states stay as they came."""
    x, x0 = torch.randn(1, 4, 8).to(dtype), torch.randn(1, 4, 8).to(dtype)
    assert euler(x, x0, 0.5, 0.25).dtype == dtype
