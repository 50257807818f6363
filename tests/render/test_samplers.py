"""The samplers: exact resume with their noise, order of accuracy, marginals on the path, counts that agree."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fakes import contexts, random_transformer, tiny_config
from shotclock.events import LegsEnd, PassBegins, State, StepEnds
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.latents import Latents, noise, text_to_video
from shotclock.model.transformer import Transformer
from shotclock.plan.planner import count_forwards
from shotclock.render.denoise import Prepared, denoise, prepare
from shotclock.render.samplers import NOISE, begin, move, normalised, res_2s_end, res_2s_middle, sde
from shotclock.schedule import DISTILLED, RES_2S_LAST, Sampler, evaluations, sigmas

SMALLEST = Geometry(width=32, height=32, frames=9, fps=Fraction(24))
LEVELS = {
    Sampler.EULER: torch.tensor([1.0, 0.9, 0.5, 0.0]),
    Sampler.ANCESTRAL: torch.tensor([1.0, 0.9, 0.5, 0.0]),
    Sampler.RES_2S: torch.tensor([1.0, 0.7, 0.0]),
}


def prepared(model: Transformer) -> tuple[Prepared, Prepared]:
    latents = text_to_video(SMALLEST, *noise(SMALLEST, 3)).to(torch.device("cpu"), model.dtype)
    return prepare(model, latents, contexts(model.config, model.dtype, tokens=8))


MODELS = {dtype: random_transformer(tiny_config(2), dtype) for dtype in (torch.float32, torch.bfloat16)}
PREPARED = {dtype: prepared(model) for dtype, model in MODELS.items()}


def guidance(per_pass: int, full: bool) -> Guidance:
    guider = Guider(
        cfg=3.0, stg=float(full), modality=3.0 if full else 1.0, rescale=0.45, stg_blocks=(1,) if full else ()
    )
    return Guidance(video=guider, audio=guider, legs_per_pass=per_pass)


def begun(both: tuple[Prepared, Prepared], sampler: Sampler, seed: int = 5) -> State:
    return begin(sampler, Latents(video=both[0].latents, audio=both[1].latents), seed)


def run(dtype: torch.dtype, sampler: Sampler, of: Guidance, start: State | None = None) -> list:
    both = PREPARED[dtype]
    state = start or begun(both, sampler)
    with torch.inference_mode():
        return list(denoise(MODELS[dtype], both, LEVELS[sampler], of, state, sampler))


def last(events: list) -> State:
    return next(event.state for event in reversed(events) if isinstance(event, StepEnds))


def rebuilt(state: State) -> State:
    """What a file would hold: copies of every tensor and nothing else."""
    fields = {name: getattr(state, name) for name in State.__slots__}

    def copied(value: object) -> object:
        if isinstance(value, Tensor):
            return value.clone()
        return {key: copied(one) for key, one in value.items()} if isinstance(value, dict) else value

    return State(**{name: copied(value) for name, value in fields.items()})


@settings(max_examples=10, deadline=None)
@given(
    sampler=st.sampled_from(list(Sampler)),
    dtype=st.sampled_from(list(MODELS)),
    per_pass=st.integers(1, 4),
    full=st.booleans(),
    at=st.floats(0, 1, exclude_max=True),
)
def test_a_render_stopped_at_any_pass_ends_in_the_same_bits(
    sampler: Sampler, dtype: torch.dtype, per_pass: int, full: bool, at: float
) -> None:
    """The state alone, with the generator's and anchors where a sampler has them, is all that the rest needs."""
    of = guidance(per_pass, full)
    whole = run(dtype, sampler, of)
    states = [event.state for event in whole if isinstance(event, LegsEnd | StepEnds)]
    end = last(run(dtype, sampler, of, rebuilt(states[int(at * (len(states) - 1))])))
    assert torch.equal(end.video, last(whole).video) and torch.equal(end.audio, last(whole).audio)
    assert bool(end.video.isfinite().all()) and end.video.dtype == dtype


@pytest.mark.parametrize("sampler", list(Sampler))
def test_evaluations_counted_are_evaluations_run(sampler: Sampler) -> None:
    """users.md row 60: forwards of the plan are forwards of the loop, also where a step has two evaluations."""
    of = guidance(2, full=True)
    count = len(evaluations(sampler, LEVELS[sampler].tolist()))
    begins = [event for event in run(torch.float32, sampler, of) if isinstance(event, PassBegins)]
    planned = count_forwards(of, count, 2)
    assert sum(planned.values()) == sum(len(event.legs) for event in begins) == 4 * count
    assert {event.steps for event in begins} == {count}


def test_res_2s_evaluates_2n_and_one_times() -> None:
    """15 steps are 31 evaluations, at falling levels, from 1 to 0.0011."""
    levels = evaluations(Sampler.RES_2S, sigmas(15).tolist())
    assert len(levels) == 31 and levels[0] == pytest.approx(1) and levels[-1] == RES_2S_LAST
    assert all(b < a for a, b in pairwise(levels))
    assert evaluations(Sampler.ANCESTRAL, DISTILLED) == DISTILLED[:-1]


@pytest.mark.parametrize("sampler", [Sampler.ANCESTRAL, Sampler.RES_2S])
def test_noise_has_a_seed_of_its_own(sampler: Sampler) -> None:
    """Another noise seed is another clip; the same one is the same."""
    of = guidance(4, full=False)
    ends = [last(run(torch.float32, sampler, of, begun(PREPARED[torch.float32], sampler, seed))) for seed in (5, 5, 6)]
    assert torch.equal(ends[0].video, ends[1].video)
    assert (ends[0].video - ends[2].video).abs().max() > 1e-2


@pytest.mark.parametrize("sampler", list(Sampler))
def test_states_stay_on_the_path_of_a_perfect_model(sampler: Sampler) -> None:
    """With the true x0 found at every level, x is (1 - s) x0 + s n with n of deviation 1, and ends at x0."""
    generator = torch.Generator().manual_seed(0)
    both = prepared(MODELS[torch.float32])
    side = both[0].latents
    shape = (1, 2000, 128)
    mask, clean = torch.ones(1, 2000, 1), torch.zeros(shape)
    truth = torch.randn(shape, generator=generator) * 0.5
    sides = (replace(side, mask=mask, clean=clean),) * 2
    levels = [1.0, 0.9, 0.6, 0.2, 0.0] if sampler is not Sampler.RES_2S else [1.0, 0.8, 0.5, 0.0]
    start = torch.randn(shape, generator=generator)
    state = replace(begun(both, sampler), video=start, audio=start)
    reached = [*evaluations(sampler, levels)[1:], 0.0]
    for level in reached:
        state = move(sampler, levels, state, (truth, truth), sides)
        if level:
            spread = ((state.video - (1 - level) * truth) / level).std().item()
            assert spread == pytest.approx(1, abs=0.02), f"{sampler} at {level}"
    assert (state.video - truth).abs().max() < 1e-6


def exact(x: float, sigma: float, end: float, data_std: float) -> float:
    """The flow of data that is normal with ``data_std``: x scales with the deviation of the marginal."""
    return x * math.hypot((1 - end) * data_std, end) / math.hypot((1 - sigma) * data_std, sigma)


def test_res_2s_without_noise_is_of_second_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the step, a quarter of the error, on a flow whose solution is known; a wrong weight would show."""
    from shotclock.render import samplers

    monkeypatch.setattr(samplers, "RES_2S_ETA", 0.0)
    data_std = 0.4
    side = replace(prepared(MODELS[torch.float32])[0].latents, mask=torch.ones(1, 1, 1), clean=torch.zeros(1, 1, 1))
    none = torch.zeros(1, 1, 1, dtype=torch.float64)

    def x0_of(x: Tensor, sigma: float) -> Tensor:
        variance = ((1 - sigma) * data_std) ** 2 + sigma**2
        return x * (1 - sigma) * data_std**2 / variance

    def error(steps: int) -> float:
        levels = torch.logspace(math.log10(0.9), math.log10(0.05), steps + 1).tolist()
        x = torch.full((1, 1, 1), 0.7, dtype=torch.float64)
        for sigma, end in pairwise(levels):
            first = x0_of(x, sigma)
            middle, anchor = res_2s_middle(x, first, sigma, end, none, side)
            assert torch.allclose(anchor, x, atol=1e-12), "without noise the anchor is where the step began"
            x = sde(
                anchor, res_2s_end(anchor, first, x0_of(middle, math.sqrt(sigma * end)), sigma, end), sigma, end, none
            )
        return abs(x.item() - exact(0.7, 0.9, 0.05, data_std))

    coarse, fine = error(16), error(32)
    assert 3.4 < coarse / fine < 4.6


def test_the_refined_anchor_is_where_100_iterations_come_to() -> None:
    """ltx25.md 5.3 iterates anchor = middle - h a21 (x0 - anchor); the fixed point has a closed form."""
    generator = torch.Generator().manual_seed(1)
    x, x0, n = (torch.randn(1, 4, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    side = replace(prepared(MODELS[torch.float32])[0].latents, mask=torch.ones(1, 4, 1), clean=torch.zeros(1, 4, 8))
    sigma, end = 0.6, 0.45
    middle, anchor = res_2s_middle(x, x0, sigma, end, n, side)
    weight, iterated = 1 - math.sqrt(sigma * end) / sigma, x
    for _ in range(100):
        iterated = middle - weight * (x0 - iterated)
    assert torch.allclose(iterated, anchor, rtol=0, atol=1e-12) and (anchor - x).abs().max() > 1e-2
    assert torch.equal(res_2s_middle(x, x0, 0.6, 0.2, n, side)[1], x), "long steps are not refined"


def test_noise_is_normalised_by_channel() -> None:
    """Every channel has mean 0 and deviation 1 over its tokens."""
    n = normalised(torch.randn(1, 50, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 3 + 1)
    assert n.mean(dim=1).abs().max() < 1e-12 and (n.std(dim=1) - 1).abs().max() < 1e-12


def test_conditioned_tokens_get_no_noise() -> None:
    """Where the mask is 0, every sampler leaves the clean latent, bit for bit, for all the render."""
    both = prepared(MODELS[torch.float32])
    video = both[0].latents
    mask = torch.ones_like(video.mask)
    mask[:, :1] = 0
    clean = torch.randn(video.tokens.shape, generator=torch.Generator().manual_seed(4))
    sides = (replace(video, mask=mask, clean=clean), both[1].latents)
    for sampler in (Sampler.ANCESTRAL, Sampler.RES_2S):
        levels = LEVELS[sampler].tolist()
        state = replace(begun(both, sampler), video=torch.where(mask > 0, video.tokens, clean))
        for _ in evaluations(sampler, levels):
            found = torch.where(mask > 0, state.video * 0.5, clean)
            state = move(sampler, levels, state, (found, state.audio * 0.5), sides)
            assert torch.equal(state.video[:, :1], clean[:, :1])
        assert (NOISE in state.carried) and set(state.carried) == {NOISE}


@pytest.mark.parametrize("sampler", list(Sampler))
def test_no_two_tensors_of_a_state_share_memory(sampler: Sampler) -> None:
    """A state goes to disk as it is, and its file format refuses shared tensors."""
    for event in run(torch.float32, sampler, guidance(4, full=False)):
        if isinstance(event, StepEnds):
            state = event.state
            held = [state.video, state.audio, state.video_x0, state.audio_x0, *state.carried.values()]
            addresses = [tensor.data_ptr() for tensor in held if tensor is not None]
            assert len(set(addresses)) == len(addresses)
