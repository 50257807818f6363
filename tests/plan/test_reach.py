"""Ledgers that sum, the largest clip that fits, and renders over several leases."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shotclock.errors import DoesNotFit
from shotclock.geometry import Geometry
from shotclock.plan.estimate import Estimate, around, exactly, floor_of, total
from shotclock.plan.law import AUDIO_WEIGHT
from shotclock.plan.ledger import Basis, Fit, Ledger, Row, default_reserve_s
from shotclock.plan.reach import Rung, candidates, search, split

LEASE_S = 4 * 3600.0
FORWARDS = 120
LAW_FREE_S = 1100 + 465 + 1435.0  # of a ledger below, but its denoising
LOAD_S, FIRST_S, TAIL_AND_RESERVE_S = 1100.0, 465.0, 1435.0  # of the GB10 run 20260820T223701Z
COEFFICIENT, EXPONENT = 1.52e-5, 1.929  # its law as printed
FITTED = 1.524406e-5, 1.929149  # and before rounding, tests/plan/test_law.py


def clip(width: int, height: int, frames: int) -> Geometry:
    """At 24 frames a second."""
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


def price(geometry: Geometry, law: tuple[float, float] = (COEFFICIENT, EXPONENT)) -> Ledger:
    """The published ledger: build, first forward, 120 forwards by the power law, tail and reserve."""
    return ledger(FORWARDS * law[0] * geometry.video_tokens ** law[1])


def ledger(denoise_s: float, *, lease_s: float | None = LEASE_S, high: float = 1.0) -> Ledger:
    """With a given denoise row, ``high`` times as long at its upper end."""
    denoise = Estimate(low_s=denoise_s, typical_s=denoise_s, high_s=denoise_s * high, source="law")
    rows = {
        "load": exactly(LOAD_S, "rate"),
        "first": exactly(FIRST_S, "measured"),
        "denoise": denoise,
        "tail": exactly(TAIL_AND_RESERVE_S - 135, "rate"),
    }
    listed = tuple(Row(name=name, estimate=estimate, basis=Basis.LAW) for name, estimate in rows.items())
    return Ledger(lease_s=lease_s, lease_source="--lease 4h", reserve_s=135.0, rows=listed)


def nothing(_: Geometry) -> None:
    """Memory holds everything."""


def legal(_: Geometry) -> bool:
    """Every clip is taken."""
    return True


def test_the_published_budget_is_95_s_a_forward() -> None:
    """14,400 - 1,100 - 465 = 12,835 s, of which 11,400 s = 120 x 95 s are forwards and 1,435 s tail and reserve."""
    assert LEASE_S - LOAD_S - FIRST_S == 12_835
    assert ledger(0.0).leaves_s("denoise") == 11_400 == FORWARDS * 95
    assert ledger(11_400.0).free_s == 0
    assert ledger(11_400.0).fit is Fit.FITS
    assert ledger(11_400.1).fit is Fit.TOO_LONG


def test_the_table_of_reachable_rungs_is_the_published_one() -> None:
    """768x448 and 896x512 fit a clean 4 h lease at 49 frames, the three 1024x576 clips do not."""
    rungs = [clip(768, 448, 49), clip(896, 512, 49), clip(1024, 576, 49), clip(1024, 576, 97), clip(1024, 576, 121)]
    found = [Rung(geometry=rung, ledger=price(rung, FITTED), refused=None) for rung in rungs]
    assert [rung.fits for rung in found] == [True, True, False, False, False]
    hours = [rung.ledger.row("denoise").typical_s / 3600 for rung in found]
    assert [round(h, 1) for h in hours] == [1.6, 2.8, 4.6, 15.1, 22.6]
    assert "2,352 tokens, denoise 5,838 s (1.6 h) <= 11,400 s that the lease leaves: fits" in found[0].line()
    assert "> 11,400 s that the lease leaves: too long" in found[2].line()


def test_a_larger_clip_than_the_published_largest_is_found() -> None:
    """928x512 with 49 frames, 3,248 tokens, above 896x512; that one is the runner-up at the same length."""
    reach = search(clip(1024, 576, 49), price, nothing, legal)
    assert reach.largest is not None
    assert reach.runner_up is not None
    assert str(reach.largest.geometry) == "928x512, 49 frames at 24"
    assert reach.largest.geometry.video_tokens == 3248
    assert str(reach.runner_up.geometry) == "896x512, 49 frames at 24"
    assert reach.same_length == reach.largest
    assert reach.same_size is not None
    assert reach.same_size.geometry == clip(1024, 576, 33)
    assert all(not rung.fits and rung.geometry.video_tokens > 3334 for rung in reach.rejected)
    assert len(reach.rejected) == 3
    assert reach.lines()[1].startswith("largest that fits: 928x512, 49 frames at 24: 3,248 tokens")


def test_the_refusal_says_need_room_and_largest() -> None:
    """With the prices of other ways out behind it, and exit code 3."""
    reach = search(clip(1024, 576, 49), price, nothing, legal)
    with pytest.raises(DoesNotFit) as caught:
        reach.require(["--leases 2 renders it in 2 leases"])
    assert caught.value.found == "1024x576, 49 frames at 24 needs 16,447 s of denoising"
    assert caught.value.allowed == "the lease leaves 11,400 s"
    assert caught.value.way_out == "largest that fits: 928x512, 49 frames at 24; --leases 2 renders it in 2 leases"
    assert caught.value.exit_code == 3


def test_a_wish_that_fits_is_the_largest_and_is_not_refused() -> None:
    """Nothing is rejected."""
    reach = search(clip(768, 448, 25), price, nothing, legal)
    assert reach.largest == reach.wish
    assert reach.rejected == ()
    reach.require([])


def test_memory_refuses_too() -> None:
    """The reason is in the line and in the refusal; the largest that memory holds is named."""
    too_big = "decode needs 40 GB of 24 GB"
    reach = search(clip(768, 448, 25), price, lambda wish: too_big if wish.video_tokens > 1000 else None, legal)
    assert reach.largest is not None
    assert reach.largest.geometry.video_tokens <= 1000
    assert reach.wish.line().endswith(too_big)
    with pytest.raises(DoesNotFit, match="and decode needs 40 GB of 24 GB"):
        reach.require([])


@settings(max_examples=25, deadline=None)
@given(
    columns=st.integers(2, 24),
    rows=st.integers(2, 16),
    latents=st.integers(1, 12),
    room_s=st.floats(1.0, 20_000.0),
    audio_s=st.floats(0.0, 2 * AUDIO_WEIGHT),
)
def test_halving_finds_what_pricing_every_candidate_finds(
    columns: int, rows: int, latents: int, room_s: float, audio_s: float
) -> None:
    """Costs that grow with tokens and, up to twice as much as it weighs, with the sound."""
    wish = clip(32 * columns, 32 * rows, 8 * latents + 1)

    def cost(geometry: Geometry) -> Ledger:
        return ledger(geometry.video_tokens + audio_s * geometry.audio_tokens, lease_s=LAW_FREE_S + room_s)

    fitting = [one for one in candidates(wish) if Rung(geometry=one, ledger=cost(one), refused=None).fits]
    found = search(wish, cost, nothing, legal)
    assert (found.largest.geometry if found.largest else None) == (fitting[0] if fitting else None)
    assert (found.runner_up.geometry if found.runner_up else None) == (fitting[1] if len(fitting) > 1 else None)


def test_a_huge_wish_is_not_priced_clip_by_clip() -> None:
    """Thousands of candidates, some hundred prices."""
    asked: list[Geometry] = []

    def counting(geometry: Geometry) -> Ledger:
        asked.append(geometry)
        return price(geometry)

    wish = clip(2048, 2048, 241)
    assert len(candidates(wish)) > 2000
    reach = search(wish, counting, nothing, legal)
    assert reach.largest is not None
    assert reach.largest.geometry.video_tokens <= 3334
    assert len(asked) < 400


def test_where_nothing_fits_the_refusal_says_so() -> None:
    """No largest, no runner-up."""
    reach = search(clip(1024, 576, 49), lambda _: ledger(1e6), nothing, legal)
    assert (reach.largest, reach.runner_up, reach.same_length, reach.same_size) == (None,) * 4
    with pytest.raises(DoesNotFit, match="no smaller clip fits either"):
        reach.require([])


@settings(max_examples=30, deadline=None)
@given(columns=st.integers(1, 40), rows=st.integers(1, 24), latents=st.integers(1, 16))
def test_candidates_are_legal_no_larger_than_the_wish_and_contain_it(columns: int, rows: int, latents: int) -> None:
    """Within 2 % of its aspect, most tokens first, each once."""
    wish = clip(32 * columns, 32 * rows, 8 * latents + 1)
    found = candidates(wish)
    assert found[0] == wish
    assert len(set(found)) == len(found)
    assert [one.video_tokens for one in found] == sorted((one.video_tokens for one in found), reverse=True)
    for one in found:
        assert one.width <= wish.width
        assert one.height <= wish.height
        assert one.frames <= wish.frames
        assert one.width / one.height == pytest.approx(wish.width / wish.height, rel=0.0201)


@given(
    parts=st.lists(st.floats(0, 1e5), min_size=1, max_size=9),
    lease_s=st.floats(1, 1e6),
    reserve_s=st.floats(0, 300),
    factor=st.floats(1, 3),
)
def test_a_ledger_sums_to_its_lease(parts: list[float], lease_s: float, reserve_s: float, factor: float) -> None:
    """Within 1 s, free seconds included; and its verdict follows from the sums."""
    rows = tuple(
        Row(name=str(k), estimate=around(part, factor, "rate"), basis=Basis.RATE) for k, part in enumerate(parts)
    )
    made = Ledger(lease_s=lease_s, lease_source="test", reserve_s=reserve_s, rows=rows)
    assert made.free_s is not None
    assert abs(math.fsum(row.estimate.typical_s for row in rows) + reserve_s + made.free_s - lease_s) < 1
    assert (made.fit is Fit.TOO_LONG) == (made.needs.typical_s + reserve_s > lease_s)
    assert (made.fit is Fit.FITS) == (made.needs.high_s + reserve_s <= lease_s)


def test_a_ledger_prints_its_sources_and_sums() -> None:
    """One line a part; between typical and upper end it says likely; without an end it has a sum."""
    lines = ledger(9000.0, high=1.5).lines()
    assert [line.split()[0] for line in lines] == ["load", "first", "denoise", "tail", "reserve", "free", "lease"]
    assert lines[2].split() == ["denoise", "9,000.0", "s", "9,000.0", "to", "13,500.0", "s", "law"]
    assert lines[-1].endswith("--lease 4h: likely")
    endless = ledger(9000.0, lease_s=None)
    assert (endless.fit, endless.free_s, endless.leaves_s("denoise")) == (Fit.FITS, None, None)
    assert endless.lines()[-1].split()[0] == "sum"


@pytest.mark.parametrize(
    ("basis", "lease_s", "fit"),
    [
        (Basis.GUESS, 150.0, Fit.UNKNOWN),
        (Basis.GUESS, 249.0, Fit.LIKELY),
        (Basis.GUESS, 90.0, Fit.TOO_LONG),
        (Basis.RATE, 150.0, Fit.TOO_LONG),
        (Basis.FLOOR, 9000.0, Fit.UNKNOWN),
        (Basis.FLOOR, 150.0, Fit.TOO_LONG),
    ],
)
def test_a_guess_refuses_nothing_and_a_floor_promises_nothing(basis: Basis, lease_s: float, fit: Fit) -> None:
    """A part of 50 to 250, typically 150 s, and one of exactly 50 s: what a lease is told of them."""
    parts = (
        Row(name="a", estimate=Estimate(low_s=30.0, typical_s=150.0, high_s=250.0, source="x"), basis=basis),
        Row(name="b", estimate=exactly(50.0, "measured"), basis=Basis.RATE),
    )
    assert Ledger(lease_s=lease_s, lease_source="test", reserve_s=20.0, rows=parts).fit is fit


def test_the_reserve_follows_the_lease_within_bounds() -> None:
    """2 %, at least 2 s, at most 300 s."""
    assert [default_reserve_s(s) for s in (None, 30.0, 3600.0, 86400.0)] == [2.0, 2.0, 72.0, 300.0]


def test_estimates_add_scale_and_stay_in_order() -> None:
    """Ends with ends; a floor is called one and has no room below."""
    one = around(10.0, 1.25, "law")
    assert (one.low_s, one.high_s) == (8.0, 12.5)
    both = total([one.times(4), exactly(2.0, "x")], "sum")
    assert (both.low_s, both.typical_s, both.high_s) == (34.0, 42.0, 52.0)
    floor = floor_of(774e12, 774e12)
    assert floor.typical_s == 1.0
    assert "floor at 774 TFLOP/s" in str(floor)
    with pytest.raises(ValidationError, match="does not hold"):
        Estimate(low_s=2.0, typical_s=1.0, high_s=3.0, source="x")


def test_the_23_h_clip_takes_seven_leases_of_four_hours() -> None:
    """1024x576, 121 frames: 22.6 h of denoising, 18 or 19 forwards a lease after loading."""
    forward_s = COEFFICIENT * 9216**EXPONENT
    shares = split(FORWARDS, forward_s, lease_s=LEASE_S, first_s=1565, resume_s=1100, tail_s=1300, reserve_s=135)
    assert [share.passes for share in shares] == [18, 19, 19, 19, 19, 19, 7]
    assert [share.finishes for share in shares] == [False] * 6 + [True]


def test_a_lease_that_gets_nowhere_is_refused() -> None:
    """A pass or a tail that is longer than what is left after setup; the least lease is named."""
    with pytest.raises(DoesNotFit, match=r"one pass of 450 s after 300 s of setup.*leases of 760 s or more"):
        split(10, 450.0, lease_s=700, first_s=300, resume_s=200, tail_s=5, reserve_s=10)
    with pytest.raises(DoesNotFit, match=r"the tail of 500 s after 200 s of setup.*leases of 710 s or more"):
        split(10, 50.0, lease_s=700, first_s=300, resume_s=200, tail_s=500, reserve_s=10)


@given(
    passes=st.integers(1, 500),
    pass_s=st.floats(0.1, 500),
    setup=st.tuples(st.floats(0, 300), st.floats(0, 300)),
    tail_s=st.floats(0, 300),
    lease_s=st.floats(900, 20_000),
)
def test_shares_hold_all_passes_and_end_within_their_leases(
    passes: int, pass_s: float, setup: tuple[float, float], tail_s: float, lease_s: float
) -> None:
    """Only the last finishes, and all but the last two could not have taken one pass more."""
    shares = split(passes, pass_s, lease_s=lease_s, first_s=setup[0], resume_s=setup[1], tail_s=tail_s, reserve_s=60)
    assert sum(share.passes for share in shares) == passes
    assert [share.finishes for share in shares] == [False] * (len(shares) - 1) + [True]
    assert all(share.used_s + 60 <= lease_s + 1e-6 for share in shares)
    assert all(share.used_s + pass_s + 60 > lease_s - 1e-6 for share in shares[:-2])
