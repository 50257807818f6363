"""Tile arithmetic: coverage, weights, boundaries, and the choice of tiles by memory."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from shotclock.errors import DoesNotFit, RequestError
from shotclock.geometry import Geometry
from shotclock.render import tiling as module
from shotclock.render.tiling import (
    LADDER,
    OFFICIAL,
    Span,
    Stage,
    Tile,
    Tiling,
    activation_elements,
    choose_tiling,
    decode_bytes,
    side_tiles,
    side_weights,
    smaller,
    tiles,
    time_tiles,
    time_weights,
)

RELEASED = (  # the released decoder: base 128, multipliers 2, 1, 2, 2 in run order (ltx25.md section 6)
    Stage(channels=1024, layers=2, time_scale=1, side_scale=1),
    Stage(channels=512, layers=2, time_scale=2, side_scale=2),
    Stage(channels=512, layers=4, time_scale=4, side_scale=4),
    Stage(channels=256, layers=6, time_scale=8, side_scale=4),
    Stage(channels=128, layers=4, time_scale=8, side_scale=8),
)
BF16 = 2
GIB = 2**30


def clip(width: int = 768, height: int = 448, frames: int = 25) -> Geometry:
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Latents of an axis, tile size and overlap: every legal combination of small numbers."""
    size = draw(st.integers(2, 12))
    return draw(st.integers(1, 40)), size, draw(st.integers(1, size - 1))


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    def span(scale: int) -> Span:
        size = draw(st.integers(2, 8))
        return Span(size=size * scale, overlap=draw(st.integers(1, size - 1)) * scale)

    return Tiling(frames=span(8), height=span(32), width=span(32))


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    return Geometry(
        width=32 * draw(st.integers(1, 48)),
        height=32 * draw(st.integers(1, 48)),
        frames=8 * draw(st.integers(0, 30)) + 1,
        fps=Fraction(24),
    )


@given(axis=axes())
def test_tiles_of_time_cover_every_latent_and_every_frame(axis: tuple[int, int, int]) -> None:
    """No latent and no frame is left out, whatever the sizes; no tile reaches past the clip."""
    count, size, overlap = axis
    cut = time_tiles(count, size, overlap)
    assert {latent for tile in cut for latent in range(tile.first, tile.last)} == set(range(count))
    assert {frame for tile in cut for frame in range(tile.start, tile.stop)} == set(range(8 * (count - 1) + 1))
    assert cut[-1].stop == 8 * (count - 1) + 1


@given(axis=axes())
def test_tiles_of_space_cover_every_latent_and_every_pixel(axis: tuple[int, int, int]) -> None:
    """No latent and no pixel is left out, whatever the sizes."""
    count, size, overlap = axis
    cut = side_tiles(count, size, overlap)
    assert {latent for tile in cut for latent in range(tile.first, tile.last)} == set(range(count))
    assert {pixel for tile in cut for pixel in range(tile.start, tile.stop)} == set(range(32 * count))


@given(axis=axes())
def test_tiles_are_in_order_and_a_finished_frame_gets_nothing_more(axis: tuple[int, int, int]) -> None:
    """Begins and ends never go back: that is what lets frames be given out group by group."""
    for cut in (time_tiles(*axis), side_tiles(*axis)):
        assert [tile.start for tile in cut] == sorted(tile.start for tile in cut)
        assert [tile.stop for tile in cut] == sorted(tile.stop for tile in cut)


@given(axis=axes())
def test_no_tile_is_longer_than_asked(axis: tuple[int, int, int]) -> None:
    """At most ``size`` latents, one more in time after the first tile."""
    count, size, overlap = axis
    assert all(tile.last - tile.first <= size for tile in side_tiles(count, size, overlap))
    first, *later = time_tiles(count, size, overlap)
    assert first.last - first.first <= size
    assert all(tile.last - tile.first <= size + 1 for tile in later)


def summed(cut: tuple[Tile, ...], weights: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(cut[-1].stop)
    for tile, weight in zip(cut, weights, strict=True):
        total[tile.start : tile.stop] += weight
    return total


@given(axis=axes())
def test_weights_add_up_to_one_everywhere(axis: tuple[int, int, int]) -> None:
    """Every frame and every pixel gets weight 1 in total, so no mask sum was zero."""
    for cut, weights in (
        (time_tiles(*axis), time_weights(time_tiles(*axis))),
        (side_tiles(*axis), side_weights(side_tiles(*axis))),
    ):
        total = summed(cut, weights)
        assert torch.allclose(total, torch.ones_like(total), atol=1e-6)
        assert all(bool((weight >= 0).all()) for weight in weights)


@given(axis=axes())
def test_the_first_frame_of_a_later_tile_has_no_weight(axis: tuple[int, int, int]) -> None:
    """It comes from a latent decoded as if the clip began there, and must not be seen."""
    cut = time_tiles(*axis)
    for weight in time_weights(cut)[1:]:
        assert weight[0] == 0


def test_ramps_are_the_official_trapezoids() -> None:
    """Three latents in tiles of two: i/9 in and 1 - i/9 out in time, i/33 in space (ltx25.md section 6)."""
    first, second = time_weights(time_tiles(3, 2, 1))
    assert torch.allclose(second, torch.tensor([*(i / 9 for i in range(9)), *([1.0] * 8)]))
    assert torch.allclose(first, torch.tensor([1.0, *(1 - i / 9 for i in range(1, 9))]))
    left, right = side_weights(side_tiles(3, 2, 1))
    assert torch.allclose(right[:32], torch.arange(1, 33) / 33)
    assert torch.equal(left, right.flip(0))


def test_official_tiles_of_a_long_clip() -> None:
    """121 frames in 80/24: latents [0, 10), [6, 16); the frames of one group are 73 and 73."""
    grid = tiles(OFFICIAL, clip(1536, 1024, 121))
    assert [(tile.first, tile.last) for tile in grid.frames] == [(0, 10), (6, 16)]
    assert [(tile.start, tile.stop) for tile in grid.frames] == [(0, 73), (48, 121)]
    assert [(tile.first, tile.last) for tile in grid.columns] == [(0, 24), (22, 46), (44, 48)]
    assert grid.count == 2 * 3 * 2


@given(geometry=geometries())
def test_untiled_is_one_tile(geometry: Geometry) -> None:
    """None means one decoder forward over the whole latent."""
    grid = tiles(None, geometry)
    assert grid.count == 1
    assert grid.largest == (geometry.latent_frames, geometry.rows, geometry.columns)


@given(tiling=tilings(), geometry=geometries())
def test_boundaries_are_the_tile_edges_inside_the_picture(tiling: Tiling, geometry: Geometry) -> None:
    """Every edge of every tile is reported once, in order, and the picture's own edges are not."""
    found = tiling.boundaries(geometry)
    grid = tiles(tiling, geometry)
    for edges, cut, end in (
        (found.frames, grid.frames, geometry.frames),
        (found.rows, grid.rows, geometry.height),
        (found.columns, grid.columns, geometry.width),
    ):
        assert list(edges) == sorted(set(edges))
        assert all(0 < edge < end for edge in edges)
        assert set(edges) | {0, end} == {tile.start for tile in cut} | {tile.stop for tile in cut}
        assert bool(edges) == (len(cut) > 1)


@pytest.mark.parametrize(("size", "overlap"), [(8, 0), (8, 8), (16, 4), (20, 8), (16, 0), (16, 24), (0, 0), (16, -8)])
def test_tiles_without_a_latent_of_overlap_are_refused(size: int, overlap: int) -> None:
    """Off the latent grid, without overlap, or with nothing but overlap: refused with the rule."""
    side = Span(size=64, overlap=32)
    with pytest.raises(RequestError, match="overlap"):
        Tiling(frames=Span(size=size, overlap=overlap), height=side, width=side)


def test_the_released_peak_is_295_thousand_values_a_latent() -> None:
    """4 copies of the last stage and the stage before: (4 * 128 * 8 * 64 + 256 * 8 * 16) values a latent position."""
    frames = 1000  # long enough for the two padded frames and the missing seven not to matter
    each = activation_elements(RELEASED, frames, 4, 4) / (frames * 16)
    assert each == pytest.approx(4 * 65_536 + 32_768, rel=0.002)


@given(frames=st.integers(1, 20), rows=st.integers(1, 30), columns=st.integers(1, 30), axis=st.integers(0, 2))
def test_a_larger_tile_needs_more_memory(frames: int, rows: int, columns: int, axis: int) -> None:
    """Growing a tile along any axis raises the estimate."""
    size = [frames, rows, columns]
    larger = [side + (index == axis) for index, side in enumerate(size)]
    assert activation_elements(RELEASED, *larger) > activation_elements(RELEASED, *size)


@given(geometry=geometries(), free=st.integers(10**7, 10**13))
def test_the_choice_fits_and_nothing_larger_on_the_ladder_does(geometry: Geometry, free: int) -> None:
    """What is chosen needs at most the free bytes; each larger rung needs more; the refusal names both numbers."""
    rungs = [None, *LADDER]
    need = [decode_bytes(rung, geometry, stages=RELEASED, element_bytes=BF16) for rung in rungs]
    try:
        chosen = choose_tiling(geometry, free_bytes=free, stages=RELEASED, element_bytes=BF16)
    except DoesNotFit as error:
        assert min(need) > free
        assert f"{free:,}" in error.found
        return
    index = rungs.index(chosen)
    assert need[index] <= free
    assert all(bytes_needed > free for bytes_needed in need[:index])


def test_small_clips_are_not_tiled_and_large_ones_take_the_official_tiles() -> None:
    """768x448x25 in one piece on any card; 1536x1024x121 in official tiles in 12 GiB, smaller ones in 4 GiB."""
    assert choose_tiling(clip(), free_bytes=8 * GIB, stages=RELEASED, element_bytes=BF16) is None
    large = clip(1536, 1024, 121)
    assert choose_tiling(large, free_bytes=12 * GIB, stages=RELEASED, element_bytes=BF16) == OFFICIAL
    assert choose_tiling(large, free_bytes=4 * GIB, stages=RELEASED, element_bytes=BF16) in LADDER[1:]


def test_every_rung_keeps_two_latents_of_overlap_in_space_and_one_in_time() -> None:
    """Down to the floor: 64 pixels, and at least 8 frames (users.md row 57)."""
    for rung in LADDER:
        assert rung.height.overlap == rung.width.overlap == 64
        assert rung.frames.overlap >= 8


@given(geometry=geometries(), start=st.sampled_from([None, *LADDER]))
def test_out_of_memory_leads_down_to_the_floor_in_a_few_steps(geometry: Geometry, start: Tiling | None) -> None:
    """Each retry decodes strictly smaller tiles; at the floor it is refused, never repeated."""
    tiling, volumes = start, [volume(start, geometry)]
    with pytest.raises(DoesNotFit, match="ran out of memory"):
        while True:
            tiling = smaller(tiling, geometry)
            volumes.append(volume(tiling, geometry))
    assert volumes == sorted(set(volumes), reverse=True)
    assert volumes[-1] == min(volume(rung, geometry) for rung in (None, *LADDER))


@given(tiling=tilings(), geometry=geometries())
def test_a_retry_after_tiles_of_ones_own_is_smaller_too(tiling: Tiling, geometry: Geometry) -> None:
    """Custom tiles go to the first rung that is really smaller."""
    assume(volume(tiling, geometry) > volume(LADDER[-1], geometry))
    assert volume(smaller(tiling, geometry), geometry) < volume(tiling, geometry)


def volume(tiling: Tiling | None, geometry: Geometry) -> int:
    frames, rows, columns = tiles(tiling, geometry).largest
    return frames * rows * columns


def test_the_ladder_begins_with_the_official_tiles() -> None:
    """768 / 64 pixels and 80 / 24 frames (ltx25.md section 6)."""
    assert module.LADDER[0] == OFFICIAL
    assert str(OFFICIAL) == "80/24 frames, 768/64 px high, 768/64 px wide"
