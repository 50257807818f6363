"""Legs, passes and their combination."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.guidance import Guidance, Guider, LegName, combine

OFFICIAL = {"stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (28,)}


def guidance(*, legs_per_pass: int = 4, skip: tuple[int, int] = (0, 0), **scales: float) -> Guidance:
    cfg = (scales.pop("cfg", 3.0), scales.pop("audio_cfg", 7.0))
    both = OFFICIAL | scales
    video, audio = (Guider(cfg=c, skip_step=s, **both) for c, s in zip(cfg, skip, strict=True))
    return Guidance(video=video, audio=audio, legs_per_pass=legs_per_pass)


def forwards(of: Guidance, steps: int = 30) -> int:
    return sum(len(launch.legs) for step in range(steps) for launch in of.passes(step, 48))


def test_official_defaults_are_120_forwards() -> None:
    """The seeds' 120, and what each switch makes of it."""
    assert forwards(guidance()) == 120
    assert forwards(guidance(stg=0.0)) == 90
    assert forwards(guidance(modality=1.0)) == 90
    assert forwards(guidance(cfg=1.0, audio_cfg=1.0)) == 90
    assert forwards(guidance(cfg=1.0)) == 120  # audio alone still asks for the unconditional leg
    assert forwards(guidance(stg=0.0, modality=1.0)) == 60  # the seeds' 60
    assert forwards(guidance(stg=0.0, modality=1.0, cfg=1.0, audio_cfg=1.0)) == 30


@given(per_pass=st.integers(1, 4), skip=st.tuples(st.integers(0, 3), st.integers(0, 3)), steps=st.integers(1, 12))
def test_every_needed_leg_runs_once_in_each_running_step(per_pass: int, skip: tuple[int, int], steps: int) -> None:
    """Whatever the grouping; no pass where both streams skip; no pass wider than asked."""
    of = guidance(legs_per_pass=per_pass, skip=skip)
    for step in range(steps):
        launches = of.passes(step, 48)
        runs = [step % (s + 1) == 0 for s in skip]
        counted = Counter(leg for launch in launches for leg in launch.legs)
        assert counted == (Counter(LegName) if any(runs) else Counter())
        for launch in launches:
            assert len(launch.legs) <= per_pass and (launch.video, launch.audio) == tuple(runs)


def test_a_stream_without_stg_is_not_perturbed() -> None:
    """Each stream's self-attention is passed over only where its own guider asks for it."""
    video = Guider(cfg=3, stg=1, modality=3, rescale=0, stg_blocks=(2,))
    audio = Guider(cfg=7, stg=0, modality=3, rescale=0, stg_blocks=(3,))
    leg = Guidance(video=video, audio=audio, legs_per_pass=4).legs(4)[LegName.PERTURBED]
    assert leg.perturbation.video_self == {2} and leg.perturbation.audio_self == frozenset()


def test_an_stg_block_that_does_not_exist_is_refused() -> None:
    """users.md: 28 of a model with 4 blocks would silently be an unperturbed leg."""
    with pytest.raises(RequestError, match=r"stg blocks \[28\] of a model with 4 blocks"):
        guidance().legs(4)


@given(st.integers(0, 2**32 - 1))
def test_a_switched_off_guider_returns_the_conditional_prediction(seed: int) -> None:
    """cfg 1, stg 0, modality 1, rescale 0 is the identity whatever the other legs say."""
    generator = torch.Generator().manual_seed(seed)
    legs = {name: torch.randn(1, 3, 4, generator=generator) for name in LegName}
    off = Guider(cfg=1, stg=0, modality=1, rescale=0, stg_blocks=())
    assert torch.equal(combine(legs, off), legs[LegName.COND])


def test_full_rescale_keeps_the_spread_of_the_conditional_prediction() -> None:
    """r = 1 gives the guided state the standard deviation of the conditional one."""
    generator = torch.Generator().manual_seed(0)
    legs = {name: torch.randn(2, 30, 8, generator=generator) for name in LegName}
    guided = combine(legs, Guider(cfg=7, stg=1, modality=3, rescale=1, stg_blocks=(0,)))
    assert guided.std() == pytest.approx(float(legs[LegName.COND].std()), rel=1e-5)
