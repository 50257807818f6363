"""A render that stops at any steps or legs, any number of times, ends in the bits of one that never stopped."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import prepared, random_transformer, some_identity, tiny_config
from shotclock.events import LegsEnd, PassBegins, State, StepEnds
from shotclock.guidance import Guidance, Guider
from shotclock.render.denoise import denoise
from shotclock.render.snapshot import newest_snapshot, placed, save_snapshot, tensors_of
from shotclock.rundir import RunDir
from shotclock.schedule import sigmas

STEPS = 4
MODELS = {dtype: random_transformer(tiny_config(3), dtype) for dtype in (torch.float32, torch.bfloat16)}


def guidance(per_pass: int, skip: tuple[int, int]) -> Guidance:
    """All four legs; the perturbed one forks late, so that passes share a prefix."""
    video, audio = (Guider(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(2,), skip_step=s) for s in skip)
    return Guidance(video=video, audio=audio, legs_per_pass=per_pass)


def until(dtype: torch.dtype, of: Guidance, start: State | None, boundaries: int | None) -> tuple[State, int, bool]:
    """Run on from ``start`` for some boundaries or to the end: the last state, passes begun, whether it ended."""
    model = MODELS[dtype]
    both = prepared(model)
    fresh = State(step=0, video=both[0].latents.tokens, audio=both[1].latents.tokens)
    state, passes, seen = start or fresh, 0, 0
    with torch.inference_mode():
        for event in denoise(model, both, sigmas(STEPS), of, state):
            passes += isinstance(event, PassBegins)
            if isinstance(event, StepEnds | LegsEnd):
                state, seen = event.state, seen + 1
                if seen == boundaries:
                    return state, passes, False
    return state, passes, True


def bits(state: State) -> list[bytes]:
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in (state.video, state.audio)]


@settings(max_examples=12, deadline=None)
@given(
    dtype=st.sampled_from(list(MODELS)),
    per_pass=st.integers(1, 4),
    skip=st.tuples(st.integers(0, 1), st.integers(0, 2)),
    leases=st.lists(st.integers(1, 5), min_size=1, max_size=5),
)
def test_any_leases_end_in_the_same_bits(
    dtype: torch.dtype, per_pass: int, skip: tuple[int, int], leases: list[int]
) -> None:
    """Every stop goes through a file; passes that ended are not begun again, so that all leases begin each once."""
    of = guidance(per_pass, skip)
    whole, all_passes, _ = until(dtype, of, None, None)
    identity = some_identity()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        state, passes, ended = None, 0, False
        for boundaries in [*leases, None]:
            if ended:
                break
            state, more, ended = until(dtype, of, state, boundaries)
            passes += more
            save_snapshot(run, state, identity)
            found = newest_snapshot(run)
            assert found is not None and found.identity == identity
            assert {name: t.dtype for name, t in tensors_of(found.state).items()} == {
                name: t.dtype for name, t in tensors_of(state).items()
            }
            state = placed(found.state, state.video)
    assert ended and state is not None
    assert bits(state) == bits(whole)
    assert passes == all_passes
