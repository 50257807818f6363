"""Tall, wide and long clips of equal tokens: which they are, and whether they cost alike."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.plan.law import LawKey, Sample, Timings
from shotclock.record.shapes import check_shapes, equal_shapes, shape_lines, shapes_of

BASE = Geometry(width=768, height=448, frames=25, fps=Fraction(24))
KEY = LawKey(
    device="cpu",
    build="x",
    model="x",
    dtype="float32",
    attention="math",
    quantisation="none",
    launch="eager",
    legs_per_pass=4,
    stg_blocks=(2,),
    gpus=1,
)


def timings(seconds: dict[str, tuple[float, ...]]) -> Timings:
    """Measured passes of the shapes of ``BASE``, by name."""
    shapes = equal_shapes(BASE)
    return Timings(
        key=KEY,
        audio_weight=0.25,
        samples=tuple(
            Sample(
                geometry=str(shapes[name]),
                video_tokens=shapes[name].video_tokens,
                audio_tokens=shapes[name].audio_tokens,
                kind="cond",
                warm_up_s=(99.0,),
                pass_s=passes,
                run=name,
            )
            for name, passes in seconds.items()
        ),
    )


def test_shapes_of_equal_tokens_are_tall_wide_and_long() -> None:
    """Of 768x448 with 25 frames."""
    shapes = {name: str(clip) for name, clip in equal_shapes(BASE).items()}
    assert shapes == {
        "base": "768x448, 25 frames at 24",
        "wide": "896x384, 25 frames at 24",
        "tall": "384x896, 25 frames at 24",
        "long": "384x224, 121 frames at 24",
    }


@settings(max_examples=50, deadline=None)
@given(columns=st.integers(1, 40), rows=st.integers(1, 40), latents=st.integers(0, 16))
def test_all_shapes_are_legal_and_have_the_same_video_tokens(columns: int, rows: int, latents: int) -> None:
    """Whatever the numbers allow; at least the clip itself."""
    base = Geometry(width=32 * columns, height=32 * rows, frames=8 * latents + 1, fps=Fraction(24))
    shapes = equal_shapes(base)
    assert shapes["base"] == base
    assert {clip.video_tokens for clip in shapes.values()} == {base.video_tokens}
    assert "tall" not in shapes or shapes["tall"].height > shapes["tall"].width


def test_shapes_that_cost_alike_uphold_the_claim_with_its_error() -> None:
    """1.8 % between tall and wide."""
    groups = check_shapes(timings({"base": (10.0, 10.1, 9.9), "tall": (10.18,) * 3, "wide": (10.0,) * 3}))
    (group,) = groups
    assert (group.holds, group.video_tokens) == (True, 1344)
    assert group.error == pytest.approx(0.018)
    assert shape_lines(groups)[-1] == "only the token count matters: holds within 1.8%"
    assert "384x896, 25 frames at 24 (26 audio tokens) 10.18 s" in shape_lines(groups)[0]
    assert group.alike == group.error


def test_a_shape_that_costs_more_withdraws_the_claim() -> None:
    """A long clip 12 % dearer than passes of one shape differ."""
    groups = check_shapes(timings({"base": (10.0, 10.1, 9.9), "long": (11.2,) * 3}))
    assert not groups[0].holds and groups[0].alike is None  # the long one has more audio tokens
    assert shape_lines(groups)[-1] == (
        "only the token count matters: withdrawn, shapes of 1,344 video tokens differ by 12.0%"
    )


def test_differences_within_the_spread_of_one_shape_are_noise() -> None:
    """8 % apart where passes of one shape are 15 % apart."""
    (group,) = check_shapes(timings({"base": (9.0, 10.0, 10.5), "tall": (10.8,) * 3}))
    assert group.error == pytest.approx(0.08)
    assert group.holds
    assert shape_lines((group,))[-1] == (
        "only the token count matters: not told here, shapes differ by 8.0% and passes of one shape by 13.5%"
    )


@pytest.mark.parametrize("size", ["32x32x1", "768x448", "768x448x25x3", "axbxc", "-64x64x9"])
def test_a_size_without_another_shape_is_refused(size: str) -> None:
    """And what is no size."""
    with pytest.raises(RequestError):
        shapes_of(size)


def test_without_two_shapes_nothing_is_claimed() -> None:
    """Neither for one shape nor for one that has only a warm-up."""
    assert check_shapes(timings({"base": (10.0,)})) == ()
    assert check_shapes(timings({"base": (10.0,), "tall": ()})) == ()
    assert "not checked" in shape_lines(())[0]
