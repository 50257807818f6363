"""Who runs which legs: the counts of performance.md, the least longest rank, and the choice among splits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.guidance import Guidance, Guider, Leg, Perturbation
from shotclock.model.config import transformer_config
from shotclock.model.exchange import bounds, even
from shotclock.model.split import share_legs, splits
from shotclock.plan.spread import choose, launches_of, names_of, split_of
from shotclock.weights.released import PINNED_25_CONFIG

BLOCKS = 48


def guidance(legs_per_pass: int, *, stg: float = 1.0, cfg: float = 3.0, modality: float = 3.0) -> Guidance:
    """The released one, or less."""
    guider = Guider(cfg=cfg, stg=stg, modality=modality, rescale=0.7, stg_blocks=(28,))
    return Guidance(video=guider, audio=guider, legs_per_pass=legs_per_pass)


def passes_of(legs_per_pass: int, **scales: float) -> list[list[Leg]]:
    """Launches of a step."""
    return launches_of(guidance(legs_per_pass, **scales), BLOCKS)


@pytest.mark.parametrize(("ranks", "longest", "total"), [(1, 164, 164), (2, 96, 164), (3, 68, 164), (4, 48, 192)])
def test_legs_of_the_released_step(ranks: int, longest: int, total: int) -> None:
    """164 block passes against 96 on the longer of two ranks: 1.71x at most (issue 10)."""
    share = share_legs(passes_of(4), ranks, BLOCKS)
    assert (share.longest, share.total) == (longest, total)


def test_the_perturbed_leg_lives_where_the_cond_leg_does() -> None:
    """In two passes of two legs too, so that each rank launches one leg at a time and nothing is computed twice."""
    for legs_per_pass in (2, 4):
        cond, uncond, perturbed, isolated = (leg for launch in passes_of(legs_per_pass) for leg in launch)
        share = share_legs(passes_of(legs_per_pass), 2, BLOCKS)
        assert share.homes == {cond: 0, perturbed: 0, uncond: 1, isolated: 1}
        assert (share.longest, share.total) == (96, 164)


@given(total=st.integers(0, 400), parts=st.integers(1, 9))
def test_even_shares_cover_all_once(total: int, parts: int) -> None:
    """Consecutive, nothing lost, sizes differ by one at most."""
    counts = even(total, parts)
    assert len(counts) == parts and max(counts) - min(counts) <= 1
    assert [n for start, stop in bounds(counts) for n in range(start, stop)] == list(range(total))


legs = st.builds(
    Leg,
    context=st.integers(0, 1),
    perturbation=st.builds(Perturbation, video_self=st.frozensets(st.integers(0, 5), max_size=2)),
)


@settings(max_examples=60, deadline=None)
@given(some=st.lists(legs, min_size=1, max_size=4, unique=True), ranks=st.integers(1, 4), size=st.integers(1, 4))
def test_no_rank_idles_and_work_is_never_less_than_its_share(some: list[Leg], ranks: int, size: int) -> None:
    """Every leg has a home, every rank a leg, and no split beats perfect division of what one process does."""
    ranks = min(ranks, len(some))
    passes = [some[start : start + size] for start in range(0, len(some), size)]
    one, share = share_legs(passes, 1, 6), share_legs(passes, ranks, 6)
    assert set(share.homes) == set(some)
    assert set(share.homes.values()) == set(range(ranks))
    assert share.total >= one.total
    assert share.longest * ranks >= one.total
    assert share.longest <= len(some) * 6


def test_sequence_parallel_wins_where_exchanges_are_cheap_and_legs_where_not() -> None:
    """Two ranks: 82 block passes against 96, until exchanging costs more than a third of a block pass."""
    for exchange, sequence in ((0.0, 2), (0.3, 2), (0.4, 1)):
        assert splits(passes_of(4), 2, BLOCKS, exchange=exchange, most_sequence=32)[0].sequence == sequence


def test_equal_legs_go_over_ranks() -> None:
    """Cond and uncond on two ranks halve the step without any exchange within blocks."""
    best, other = splits(passes_of(4, stg=0.0, modality=1.0), 2, BLOCKS, exchange=0.0, most_sequence=32)
    assert (best.sequence, best.step) == (1, 48)
    assert (other.sequence, other.step) == (2, 48)


def test_more_ranks_than_legs_combine_both() -> None:
    """Eight ranks: all shares of legs that divide them, tokens over the rest; a single leg leaves tokens alone."""
    found = splits(passes_of(4), 8, BLOCKS, exchange=0.5, most_sequence=32)
    assert sorted((split.share.ranks, split.sequence) for split in found) == [(1, 8), (2, 4), (4, 2)]
    assert all(split.ranks == 8 for split in found)
    assert found[0].step == min(split.step for split in found)
    single = splits([[Leg()]], 3, BLOCKS, exchange=0.5, most_sequence=32)
    assert [(split.share.ranks, split.sequence) for split in single] == [(1, 3)]


@pytest.mark.parametrize(
    ("gpus", "device", "wish", "name", "share"),
    [
        (2, "cuda", "auto", "tokens over 2", 1.05 / 2),
        (2, "cuda", "legs", "legs over 2", 96 / 164),
        (2, "cpu", "auto", "legs over 2", 96 / 164),
        (4, "cuda", "auto", "tokens over 4", 1.075 / 4),
        (8, "cuda", "legs", "legs over 4, tokens over 2", 1.05 * 48 / 164 / 2),
    ],
)
def test_the_plan_takes_the_quickest_split_or_the_one_asked_for(
    gpus: int, device: str, wish: str, name: str, share: float
) -> None:
    """The released step on 9,216 tokens; every rank makes the same of what the plan says."""
    config, of = transformer_config(PINNED_25_CONFIG), guidance(4)
    found = choose(of, (9216, 50), config, gpus=gpus, device_type=device, wish=wish)
    assert found.name == name and found.share == pytest.approx(share)
    split = split_of(found, of, BLOCKS)
    assert split.ranks == gpus and len(set(split.share.homes.values())) == found.legs
    assert names_of([found, found]) == name and names_of([]) == "none"


def test_where_no_split_is_nothing_is_planned() -> None:
    """One leg has no second rank to go to; 33 ranks would leave one of them without a head."""
    config = transformer_config(PINNED_25_CONFIG)
    for of, gpus, wish in ((guidance(4, stg=0.0, cfg=1.0, modality=1.0), 2, "legs"), (guidance(4), 33, "tokens")):
        with pytest.raises(RequestError, match=f"over {gpus} GPUs with --split {wish}"):
            choose(of, (9216, 50), config, gpus=gpus, device_type="cuda", wish=wish)


def test_a_stream_with_few_tokens_bounds_the_sequence() -> None:
    """No rank without a token or a head; where nothing is left, no split is offered."""
    assert [s.sequence for s in splits(passes_of(4), 8, BLOCKS, exchange=0.0, most_sequence=3)] == [2]
    assert splits([[Leg()]], 8, BLOCKS, exchange=0.0, most_sequence=4) == ()
