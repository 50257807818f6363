"""Exact tiles: any cut of a diffusion decode gives the untiled picture, and costs what the arithmetic says."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffusion_fakes import SMALL, alive, drawn
from shotclock.model.neighbourhood import Part, cells, seen, whole, windowed, within
from shotclock.render.exact_tiles import Cuts


def cut(length: int, step: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Any set of inner cuts, in multiples of ``step``."""
    if length <= step:
        return st.just(())
    inner = st.integers(1, length // step - 1).map(lambda n: n * step)
    return st.lists(inner, max_size=2, unique=True).map(lambda cuts: tuple(sorted(cuts)))


@st.composite
def clips(draw: st.DrawFn) -> tuple[tuple[int, int, int], Cuts]:
    shape = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = zip((8 * shape[0] - 7, 32 * shape[1], 32 * shape[2]), (1, 4, 4), strict=True)
    frames, rows, columns = (draw(cut(length, step)) for length, step in lengths)
    return shape, Cuts(frames=frames, rows=rows, columns=columns)


@given(clip=clips())
@settings(max_examples=6, deadline=None)
def test_any_cut_gives_the_untiled_picture(clip: tuple[tuple[int, int, int], Cuts]) -> None:
    """1e-5 in float32, down to tiles of one frame and one patch, and for latents below the floor of the windows."""
    shape, cuts = clip
    decoder = alive(SMALL)
    latent, noise = drawn(decoder, shape)
    untiled = decoder.decode(latent, None, noise)
    tiled = decoder.decode(latent, cuts, noise)
    assert tiled.shape == untiled.shape == (8 * (shape[0] - 1) + 1, 32 * shape[1], 32 * shape[2], 3)
    assert (tiled - untiled).abs().max() <= 1e-5
    assert untiled.std() > 0.05, "a picture that says nothing proves nothing"


def test_the_halo_is_as_wide_as_the_windows_reach_and_no_wider() -> None:
    """One patch of noise moves the picture just as far as the windows of two blocks reach: a shorter halo is seen."""
    decoder = alive(SMALL)
    latent, noise = drawn(decoder, (3, 3, 3))
    other = noise.clone()
    frame, row, column = 8, 12, 12
    other[0, :, frame, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 10
    moved = (decoder.decode(latent, None, other) - decoder.decode(latent, None, noise)).abs().amax(dim=3)
    cells_moved = moved.unflatten(2, (-1, 4)).unflatten(1, (-1, 4)).amax(dim=(2, 4))
    for axis, (at, window) in enumerate(zip((frame, row, column), SMALL.windows[4], strict=True)):
        along = cells_moved.amax(dim=[other for other in range(3) if other != axis])
        reach = 2 * (window // 2)
        assert along[at - reach] > 1e-5 and along[at + reach] > 1e-5
        assert along[: at - reach].max() < 1e-6 and along[at + reach + 1 :].max() < 1e-6


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_attention_over_a_part_is_the_part_of_the_attention(data: st.DataObject) -> None:
    """Any box of queries of any volume, float64, against a softmax over each cell's own window written out."""
    window = tuple(data.draw(st.sampled_from([1, 3, 5])) for _ in range(3))
    shape = tuple(data.draw(st.integers(n, n + 14)) for n in window)
    box = []
    for n in shape:
        start = data.draw(st.integers(0, n - 1))
        box.append(Part(start, data.draw(st.integers(start + 1, n)), n))
    volume, queries = whole(shape), (box[0], box[1], box[2])
    keys = seen(queries, window)
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(*shape, 2, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    found = windowed(
        q[within(queries, volume)], k[within(keys, volume)], v[within(keys, volume)], queries, keys, window
    )
    assert found.shape[:3].numel() == cells(queries)
    for _ in range(3):
        at = tuple(data.draw(st.integers(part.start, part.stop - 1)) for part in queries)
        near = tuple(
            slice(first := min(max(c - n // 2, 0), size - n), first + n)
            for c, n, size in zip(at, window, shape, strict=True)
        )
        weights = torch.softmax(torch.einsum("hd,fyxhd->hfyx", q[at], k[near]).flatten(1), dim=1)
        wanted = torch.einsum("hn,nhd->hd", weights, v[near].flatten(0, 2))
        mine = found[tuple(c - part.start for c, part in zip(at, queries, strict=True))]
        assert torch.allclose(mine, wanted, atol=1e-12)
