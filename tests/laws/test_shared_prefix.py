"""Sharing, grouping and batching of legs change nothing: float64, any perturbation, any subset, any grouping."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import random_transformer, streams, tiny_config
from shotclock.guidance import Leg, Perturbation
from shotclock.model.prefix import Prefix, fork, schedule
from shotclock.model.transformer import Kept

BLOCKS = 4
MODEL = random_transformer(tiny_config(BLOCKS), torch.float64)
EVERY = frozenset(range(BLOCKS))

some_blocks = st.frozensets(st.integers(0, BLOCKS - 1))
perturbations = st.builds(
    Perturbation,
    video_self=some_blocks,
    audio_self=some_blocks,
    audio_to_video=st.one_of(st.just(EVERY), st.just(frozenset()), some_blocks),
    video_to_audio=st.one_of(st.just(EVERY), st.just(frozenset()), some_blocks),
)
legs = st.builds(Leg, context=st.integers(0, 1), perturbation=perturbations)
leg_lists = st.lists(legs, min_size=1, max_size=4, unique=True)


def official(stg: frozenset[int]) -> list[Leg]:
    """The four legs of one_stage."""
    return [
        Leg(),
        Leg(context=1),
        Leg(perturbation=Perturbation(video_self=stg, audio_self=stg)),
        Leg(perturbation=Perturbation(audio_to_video=EVERY, video_to_audio=EVERY)),
    ]


def alone(chosen: list[Leg]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each leg in a forward of its own, sharing nothing."""
    return [MODEL(*streams(MODEL), [leg]) for leg in chosen]


def grouped(chosen: list[Leg], size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Legs in passes of ``size``, prefixes kept from pass to pass."""
    kept: Kept = {}
    found = []
    for start in range(0, len(chosen), size):
        stop = start + size
        video, audio = MODEL(*streams(MODEL), chosen[start:stop], kept=kept, later=chosen[stop:])
        found += [(video[i : i + 1], audio[i : i + 1]) for i in range(len(video))]
    return found


def assert_close(a: list[tuple[torch.Tensor, torch.Tensor]], b: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for one, other in zip(a, b, strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.shape == y.shape
            assert (x - y).abs().max() <= 1e-12 * y.abs().max()


@settings(max_examples=12, deadline=None)
@given(stg=st.frozensets(st.integers(0, BLOCKS - 1), min_size=1), size=st.integers(1, 4), subset=st.integers(1, 15))
def test_official_legs_agree_with_separate_forwards(stg: frozenset[int], size: int, subset: int) -> None:
    """Any STG block set, any subset of the four legs, any legs per pass."""
    chosen = [leg for i, leg in enumerate(official(stg)) if subset >> i & 1]
    with torch.inference_mode():
        assert_close(grouped(chosen, size), alone(chosen))


@settings(max_examples=16, deadline=None)
@given(chosen=leg_lists, size=st.integers(1, 4))
def test_any_legs_agree_with_separate_forwards(chosen: list[Leg], size: int) -> None:
    """All four kinds of perturbation in any blocks."""
    with torch.inference_mode():
        assert_close(grouped(chosen, size), alone(chosen))


@settings(max_examples=8, deadline=None)
@given(chosen=st.lists(perturbations, min_size=2, max_size=3))
def test_a_batch_of_samples_agrees_with_single_samples(chosen: list[Perturbation]) -> None:
    """Rows as samples of their own (training, goldens): each reads its sample and its text."""
    video, audio = streams(MODEL)
    rows = [Leg(context=i % 2, perturbation=p) for i, p in enumerate(chosen)]
    b = len(rows)

    def repeated(stream: object) -> object:
        from dataclasses import replace

        wanted = [leg.context for leg in rows]
        return replace(
            stream,
            tokens=stream.tokens.expand(b, -1, -1),
            sigma=stream.sigma.expand(b),
            context=stream.context[wanted],
            marker=None if stream.marker is None else stream.marker.expand(b, -1, -1),
        )

    own = [Leg(context=i, perturbation=leg.perturbation) for i, leg in enumerate(rows)]
    with torch.inference_mode():
        together = MODEL(repeated(video), repeated(audio), own)
        assert_close([(together[0][i : i + 1], together[1][i : i + 1]) for i in range(b)], alone(rows))


@settings(max_examples=200, deadline=None)
@given(chosen=leg_lists, later=st.lists(legs, max_size=3))
def test_schedule_computes_each_history_once(chosen: list[Leg], later: list[Leg]) -> None:
    """Segments join without gaps, rows are distinct histories, every leg arrives, and no two rows could be one."""
    segments = schedule(chosen, BLOCKS, later=later)
    assert [s.start for s in segments] == [0, *(s.stop for s in segments[:-1])] and segments[-1].stop == BLOCKS
    for segment in segments:
        histories = {row.history(segment.stop) for row in segment.rows}
        assert len(histories) == len(segment.rows)
        assert histories == {leg.history(segment.stop) for leg in chosen}
    assert set(segments[-1].rows) == set(chosen)
    kept = {prefix for segment in segments for _, prefix in segment.keep}
    for leg in later:
        deepest = max(fork(leg, other, BLOCKS) for other in chosen)
        assert deepest == 0 or Prefix(history=leg.history(deepest), block=deepest) in kept


def test_released_guidance_needs_164_block_passes() -> None:
    """48 + 48 + 20 + 48 of ltx25.md 1.7, in one pass and in four."""
    stg = frozenset({28})
    every = frozenset(range(48))
    four = [
        Leg(),
        Leg(context=1),
        Leg(perturbation=Perturbation(video_self=stg, audio_self=stg)),
        Leg(perturbation=Perturbation(audio_to_video=every, video_to_audio=every)),
    ]
    assert sum(len(s.rows) * (s.stop - s.start) for s in schedule(four, 48)) == 164
    kept: set[Prefix] = set()
    passes = 0
    for i, leg in enumerate(four):
        segments = schedule([leg], 48, kept=kept, later=four[i + 1 :])
        kept |= {prefix for segment in segments for _, prefix in segment.keep}
        passes += sum(len(s.rows) * (s.stop - s.start) for s in segments)
    assert passes == 164
