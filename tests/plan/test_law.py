"""The cost law against the figures of its first measurement, against a second fitter, and its laws."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.guidance import LegName, Pass
from shotclock.plan.law import (
    MIN_GEOMETRIES,
    Curve,
    Law,
    LawKey,
    Point,
    Sample,
    Timings,
    fit_curve,
    fit_form,
    fit_law,
    kind_of,
    read_timings,
    spread,
)

# Three rungs of one guided render on a GB10, run 20260820T223701Z: video tokens, seconds a forward, forwards.
RUNGS = [
    Point(tokens=1344, seconds=16.61, n=119),
    Point(tokens=4032, seconds=135.77, n=3),
    Point(tokens=7488, seconds=458.24, n=3),
]
FORWARDS = 120  # 30 steps x 4 legs
# The in-process series of run 20260820T084103Z at 768x448, 25 frames: forwards 2 to 8.
SERIES_S = (16.848, 16.418, 16.331, 16.429, 16.571, 16.614, 16.269)
FORWARD_BUDGET_S = 95.0  # of a 4 h lease, after load, first forward, tail and reserve
KEY = LawKey(
    device="GB10",
    build="shotclock 0.1.0, torch 2.13.0",
    model="48 blocks of 4096 + 2048",
    dtype="bfloat16",
    attention="flash",
    quantisation="none",
    launch="eager",
    legs_per_pass=1,
    stg_blocks=(28,),
    gpus=1,
)


def clip(width: int, height: int, frames: int) -> Geometry:
    """At 24 frames a second."""
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


def sample(size: tuple[int, int, int], seconds: float, **changes: object) -> Sample:
    """Three equal passes after a slow one."""
    geometry = clip(*size)
    fields: dict[str, object] = {
        "geometry": str(geometry),
        "video_tokens": geometry.video_tokens,
        "audio_tokens": geometry.audio_tokens,
        "kind": "cond",
        "warm_up_s": (10 * seconds,),
        "pass_s": (seconds,) * 3,
        "run": "a",
    }
    return Sample.model_validate(fields | changes)


def timings(*samples: Sample, audio_weight: float = 0.25) -> Timings:
    """Of the key above."""
    return Timings(key=KEY, audio_weight=audio_weight, samples=samples)


SIZES = {(768, 448, 25): 16.61, (1024, 576, 49): 135.77, (1024, 576, 97): 458.24}


def second_fitter(tokens: list[float], seconds: list[float]) -> tuple[float, float]:
    """Coefficient and exponent by the normal equations of [1, log n] and Cramer's rule, nothing shared with law.py."""
    x, y = [math.log(n) for n in tokens], [math.log(s) for s in seconds]
    count, sx, sy = len(x), sum(x), sum(y)
    sxx, sxy = sum(a * a for a in x), sum(a * b for a, b in zip(x, y, strict=True))
    determinant = count * sxx - sx * sx
    return math.exp((sxx * sy - sx * sxy) / determinant), (count * sxy - sx * sy) / determinant


def test_three_rungs_give_the_published_power_law() -> None:
    """Exponent 1.929 +- 0.005 and coefficient 1.52e-5 +- 1 %, and the table's fitted column and errors."""
    fit = fit_form("power", RUNGS)
    assert fit.terms[1] == pytest.approx(1.929, abs=0.005)
    assert fit.terms[0] == pytest.approx(1.52e-5, rel=0.01)
    for point, fitted, error in zip(RUNGS, (16.53, 137.62, 454.29), (-0.5, 1.4, -0.9), strict=True):
        assert fit.seconds(point.tokens) == pytest.approx(fitted, abs=0.02)
        assert 100 * (fit.seconds(point.tokens) / point.seconds - 1) == pytest.approx(error, abs=0.05)


def test_a_second_fitter_agrees_to_four_digits() -> None:
    """On all rungs and on every pair of them."""
    for points in (RUNGS, RUNGS[:2], RUNGS[1:], RUNGS[::2]):
        coefficient, exponent = second_fitter([p.tokens for p in points], [p.seconds for p in points])
        # Three points suffice for the public function; pairs are met as left-out fits below.
        if len(points) == MIN_GEOMETRIES:
            terms = fit_form("power", points).terms
            assert terms == pytest.approx((coefficient, exponent), rel=1e-4)
        else:
            (missing,) = [p for p in RUNGS if p not in points]
            error = fit_form("power", RUNGS).left_out[RUNGS.index(missing)]
            assert 1 + error == pytest.approx(coefficient * missing.tokens**exponent / missing.seconds, rel=1e-4)


def test_a_second_quadratic_fitter_agrees_to_four_digits() -> None:
    """Four exact points of a + b n + c n^2, solved by Gauss elimination in numpy."""
    tokens = np.array([500.0, 1000.0, 3000.0, 9000.0])
    seconds = 0.3 + 2e-3 * tokens + 5e-7 * tokens**2
    weighted = np.vander(tokens, 3, increasing=True) / seconds[:, None]
    expected = np.linalg.solve(weighted.T @ weighted, weighted.T @ np.ones(4))
    points = [Point(tokens=float(n), seconds=float(s)) for n, s in zip(tokens, seconds, strict=True)]
    assert fit_form("quadratic", points).terms == pytest.approx(tuple(expected), rel=1e-4)


def test_the_middle_rung_is_predicted_before_it_is_seen() -> None:
    """Without it the power law says 138.6 s; 135.77 s was measured."""
    left_out = fit_form("power", RUNGS).left_out[1]
    assert 135.77 * (1 + left_out) == pytest.approx(138.6, abs=0.05)


def test_left_out_error_prefers_linear_plus_quadratic_on_the_rungs() -> None:
    """It predicts the middle rung to 0.2 % and the outer ones to 1 %, where the power law is 2 to 6 % off."""
    curve = fit_curve(RUNGS)
    assert (curve.chosen.form, curve.other.form) == ("quadratic", "power")
    assert curve.chosen.worst < 0.01 < 0.02 < curve.other.error
    assert min(curve.chosen.terms) >= 0
    assert curve.ceiling_tokens(FORWARD_BUDGET_S) == pytest.approx(3300, rel=0.02)


@pytest.mark.parametrize(
    ("size", "tokens", "hours"),
    [
        ((768, 448, 49), 2352, 1.6),
        ((896, 512, 49), 3136, 2.8),
        ((1024, 576, 49), 4032, 4.6),
        ((1024, 576, 97), 7488, 15.1),
        ((1024, 576, 121), 9216, 22.6),
    ],
)
def test_denoise_hours_are_those_of_the_published_table(size: tuple[int, int, int], tokens: int, hours: float) -> None:
    """120 forwards at the power law, as printed with one decimal."""
    assert clip(*size).video_tokens == tokens
    assert round(FORWARDS * fit_form("power", RUNGS).seconds(tokens) / 3600, 1) == hours


def test_a_forward_budget_of_95_s_is_a_ceiling_of_3300_tokens() -> None:
    """And of about 4,800 with half the coefficient."""
    power = fit_form("power", RUNGS)
    curve = Curve(chosen=power, other=power, points=tuple(RUNGS))
    assert curve.ceiling_tokens(FORWARD_BUDGET_S) == pytest.approx(3300, rel=0.02)
    assert curve.ceiling_tokens(2 * FORWARD_BUDGET_S) == pytest.approx(4800, rel=0.01)


def test_the_series_of_seven_forwards_has_its_median_and_spread() -> None:
    """16.429 s, and (max - min) / median 3.5 %; the spread of a law leaves the extremes out and is smaller."""
    assert np.median(SERIES_S) == 16.429
    assert round(100 * (max(SERIES_S) - min(SERIES_S)) / float(np.median(SERIES_S)), 1) == 3.5
    assert 0.02 < spread(SERIES_S) < 0.035


def test_fewer_than_three_geometries_are_refused() -> None:
    """Two points; and three clips of nearly the same token count, which are one geometry."""
    with pytest.raises(RequestError, match=r"2 geometries.*3 or more"):
        fit_curve(RUNGS[:2])
    near = [Point(tokens=1344 + extra, seconds=16) for extra in (0, 5, 40)]
    with pytest.raises(RequestError, match="1 geometries"):
        fit_curve(near)
    two = timings(*(sample(size, seconds) for size, seconds in list(SIZES.items())[:2]))
    with pytest.raises(RequestError, match="cond: 2 of 3 geometries"):
        fit_law(two)
    with pytest.raises(RequestError, match="no pass at all"):
        fit_law(timings())


def test_a_kind_with_too_few_geometries_is_named_and_not_predicted() -> None:
    """The others are fitted."""
    law = fit_law(timings(*(sample(*item) for item in SIZES.items()), sample((768, 448, 25), 9.0, kind="perturbed")))
    assert law.unfit == ("perturbed: 1 of 3 geometries",)
    with pytest.raises(RequestError, match=r"no passes of perturbed.*allowed: cond"):
        law.predict("perturbed", clip(768, 448, 25))


def test_video_and_audio_tokens_both_count() -> None:
    """Sound adds a quarter of a token each; at weight 0 the law is that of video tokens alone."""
    samples = [sample(*item) for item in SIZES.items()]
    both, video = fit_law(timings(*samples)), fit_law(timings(*samples, audio_weight=0.0))
    long = clip(768, 448, 97)
    assert both.tokens(long) == long.video_tokens + 0.25 * 101
    assert video.tokens(long) == long.video_tokens
    assert both.curves["cond"].points[0].tokens == 1344 + 0.25 * 26
    assert video.curves["cond"].points[0].tokens == 1344


def test_warm_up_is_kept_and_left_out_of_the_fit() -> None:
    """Ten times slower first passes change nothing, and lie in the file as they were."""
    law = fit_law(timings(*(sample(*item) for item in SIZES.items())))
    assert [point.seconds for point in law.curves["cond"].points] == list(SIZES.values())
    assert {point.n for point in law.curves["cond"].points} == {3}
    again = read_timings(timings(sample((768, 448, 25), 0.1 + 0.2)).to_json())
    assert again.samples[0].warm_up_s == (10 * (0.1 + 0.2),)
    assert again.samples[0].pass_s == (0.1 + 0.2,) * 3, "nothing is rounded in storage"


def test_the_warm_up_is_bounded_by_what_was_measured() -> None:
    """Twice the largest extra time: seconds of capture weigh little on a long pass. Without a measurement, None."""
    samples = [sample(size, seconds, warm_up_s=(seconds + 3.0,)) for size, seconds in SIZES.items()]
    law = fit_law(timings(*samples))
    assert law.curves["cond"].warm_up_extra_s == pytest.approx(3.0)
    assert law.warm_up_ratio("cond", clip(768, 448, 25)) == pytest.approx(1 + 6 / 16.61, rel=1e-3)
    cold = fit_law(timings(*(sample(*item, warm_up_s=()) for item in SIZES.items())))
    assert cold.warm_up_ratio("cond", clip(768, 448, 25)) is None


def test_runs_of_one_geometry_are_pooled() -> None:
    """Two runs of three passes are one point of six, at the median of all, with their spread."""
    samples = [sample(*item) for item in SIZES.items()]
    law = fit_law(timings(*samples, sample((768, 448, 25), 18.0, run="b")))
    first = law.curves["cond"].points[0]
    assert (first.n, first.seconds) == (6, (16.61 + 18.0) / 2)
    assert first.spread_ratio == pytest.approx((18 - 16.61) / first.seconds)


def test_inside_the_range_nothing_is_marked_and_outside_it_is() -> None:
    """The interval grows with the distance from what was measured."""
    curve = fit_curve(RUNGS)
    inside, near, far = (curve.predict(tokens) for tokens in (4032, 9216, 32640))
    assert "extrapolated" not in inside.source
    assert "extrapolated from 1,344 to 7,488 tokens" in near.source
    assert "extrapolated" in curve.predict(1000).source
    width = [found.high_s / found.low_s for found in (inside, near, far)]
    assert width == sorted(width)
    assert width[0] < width[1] < width[2]


def test_another_key_is_stale_and_says_which_fields_differ() -> None:
    """Only these; the same key is fine."""
    law = fit_law(timings(*(sample(*item) for item in SIZES.items())))
    law.require(KEY)
    other = KEY.model_copy(update={"device": "NVIDIA H200", "legs_per_pass": 4})
    with pytest.raises(RequestError, match=r"STALE.*device GB10, not NVIDIA H200; legs_per_pass 1, not 4;") as caught:
        law.require(other)
    assert "dtype" not in str(caught.value)


@pytest.mark.parametrize("field", list(LawKey.model_fields))
def test_every_field_of_the_key_makes_stale(field: str) -> None:
    """None is decoration."""
    changed: dict[str, object] = {"launch": "graph", "legs_per_pass": 2, "gpus": 2, "stg_blocks": (1,)}
    other = KEY.model_copy(update={field: changed.get(field, "another")})
    assert len(KEY.differences(other)) == 1
    assert KEY.differences(other)[0].startswith(field)


@pytest.mark.parametrize("bad", ["", "{}", "[]", "NaN"])
def test_a_file_that_is_no_law_is_refused(bad: str) -> None:
    """With what to do."""
    with pytest.raises(RequestError, match=r"not a law.*calibrate"):
        read_timings(bad)


@pytest.mark.parametrize("value", ["NaN", "0", "-1.5", "Infinity", '"16"'])
def test_a_law_file_with_an_impossible_timing_is_refused(value: str) -> None:
    """The field is named."""
    text = timings(sample((768, 448, 25), 0.123456789)).to_json().replace("0.123456789", value)
    assert value in text
    with pytest.raises(RequestError, match=r"not a law: samples\.0\.pass_s\.0"):
        read_timings(text)


def test_kinds_are_named_by_legs_and_by_a_stream_that_runs_alone() -> None:
    """As skip_step makes them."""
    legs = (LegName.COND, LegName.UNCOND)
    assert kind_of(Pass(legs=legs)) == "cond+uncond"
    assert kind_of(Pass(legs=legs, audio=False)) == "cond+uncond video alone"
    assert kind_of(Pass(legs=legs, video=False)) == "cond+uncond audio alone"


TOKENS = st.tuples(st.integers(200, 2000), st.lists(st.floats(1.2, 3.0), min_size=2, max_size=6)).map(
    lambda drawn: [float(n) for n in accumulate(drawn[1], lambda n, ratio: round(n * ratio), initial=drawn[0])]
)


@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS, exponent=st.floats(0.8, 2.2), coefficient=st.floats(1e-6, 1e-2))
def test_a_power_law_is_found_from_its_own_points(tokens: list[float], exponent: float, coefficient: float) -> None:
    """To 4 digits, and its inverse inverts it."""
    points = [Point(tokens=n, seconds=coefficient * n**exponent) for n in tokens]
    curve = fit_curve(points)
    power = fit_form("power", points)
    assert power.terms == pytest.approx((coefficient, exponent), rel=1e-4)
    assert curve.chosen.error <= max(power.error, 1e-6)
    middle = math.sqrt(tokens[0] * tokens[-1])
    assert curve.ceiling_tokens(curve.chosen.seconds(middle)) == pytest.approx(middle, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(tokens=TOKENS, noise=st.lists(st.floats(0.9, 1.1), min_size=7, max_size=7))
def test_terms_are_never_negative_and_more_tokens_never_cost_less(tokens: list[float], noise: list[float]) -> None:
    """Whatever the measurement error; the interval holds the typical value."""
    points = [Point(tokens=n, seconds=(0.05 + 1e-4 * n) * f) for n, f in zip(tokens, noise, strict=False)]
    curve = fit_curve(points)
    for fit in (curve.chosen, curve.other):
        assert min(fit.terms) >= 0
    said = [curve.predict(n) for n in np.geomspace(100, 100_000, 20)]
    assert all(a.typical_s <= b.typical_s * (1 + 1e-12) for a, b in pairwise(said))
    assert all(0 < one.low_s <= one.typical_s <= one.high_s for one in said)


def test_a_law_is_made_of_one_key() -> None:
    """What the curves were fitted to stays beside them."""
    law = fit_law(timings(*(sample(*item) for item in SIZES.items())))
    assert isinstance(law, Law)
    assert law.key == KEY
    assert law.predict("cond", clip(1024, 576, 49)).typical_s == pytest.approx(135.77, rel=0.01)
