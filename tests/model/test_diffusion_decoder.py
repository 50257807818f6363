"""The diffusion decoder's layers against the library's, with windows and strides that differ along every axis."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.autoencoders import ltx2_diffusion_decoder as library
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shotclock.model.diffusion_decoder import (
    Block,
    DiffusionBlock,
    Turns,
    Upsampler,
    patchify,
    pieces,
    turn,
    turned,
    unpatchify,
)
from shotclock.model.neighbourhood import Part, whole, windowed

SHAPE = (5, 6, 9)
WINDOW = (3, 5, 7)
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # tiny volumes


def randomised(module: nn.Module) -> nn.Module:
    """Random weights; norms near 1."""
    generator = torch.Generator().manual_seed(3)
    for name, weight in module.named_parameters():
        weight.requires_grad_(False)
        weight.copy_(torch.randn(weight.shape, generator=generator) * (0.2 if weight.ndim == 1 else 0.3))
        if "norm" in name:
            weight.add_(1)
    return module.eval()


def volume(width: int, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    return torch.randn(*shape, width, generator=torch.Generator().manual_seed(4))


def to_library(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Official names to the library's; q, k and v apart."""
    named = {}
    for key, value in weights.items():
        if ".qkv." in key:
            named |= {key.replace(".qkv.", f".to_{n}."): part for n, part in zip("qkv", value.chunk(3), strict=True)}
        else:
            key = key.replace("q_norm", "norm_q").replace("k_norm", "norm_k")
            named[key.replace("attn.proj", "attn.to_out.0")] = value
    return named


@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 64, 128])
def test_positions_turn_heads_as_the_library_does(head_dim: int) -> None:
    """The split over the axes, for every width it can have; (16, 24, 24) of 64 (ltx25.md section 6)."""
    theirs = library.LTX2VideoVaeRotaryPosEmbed3D(head_dim)
    assert turned(head_dim) == theirs.rope_dim_split
    x = volume(2 * head_dim).unflatten(-1, (2, head_dim))
    mine = turn(x, Turns(whole(SHAPE), head_dim, CPU).of(slice(0, 5), slice(0, 6)))
    assert torch.allclose(mine, theirs(x[None])[0], atol=1e-6)


def test_a_block_is_the_librarys() -> None:
    """Attention over windows of three different lengths, norms, feed-forward."""
    mine, theirs = randomised(Block(32, 16, WINDOW)), library.LTX2VideoVaeNABlock(32, WINDOW, head_dim=16)
    theirs.requires_grad_(False).load_state_dict(to_library(mine.state_dict()))
    x = volume(32)
    wanted = theirs(x[None], theirs.attn.build_block_mask(x[None]))[0]
    found = mine.run(x.clone(), whole(SHAPE), whole(SHAPE), windowed)
    assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()


def test_a_denoising_block_is_the_librarys() -> None:
    """Context, and which of the seven rows scale and shift what."""
    mine = randomised(DiffusionBlock(32, 16, WINDOW, 32))
    theirs = library.LTX2VideoVaeDiffusionNABlock(32, WINDOW, 32, head_dim=16)
    theirs.requires_grad_(False).load_state_dict(to_library(mine.state_dict()))
    x, context, rows = volume(32), volume(32).flip(0), torch.randn(7, 32, generator=torch.Generator().manual_seed(5))
    modulation = tuple(row.view(1, 1, 1, 1, -1) for row in rows)
    wanted = theirs(x[None], context[None], modulation, theirs.attn.build_block_mask(x[None]))[0]
    h = x.clone()
    mine.add_context(h, context)
    found = mine.run(h, whole(SHAPE), whole(SHAPE), windowed, mine.modulation(rows))
    assert (found - wanted).abs().max() <= 2e-6 * wanted.abs().max()


@pytest.mark.parametrize("stride", [(1, 2, 2), (2, 1, 1), (2, 2, 2), (2, 2, 1)])
def test_upsampling_is_the_librarys_and_of_a_part_its_part(stride: tuple[int, int, int]) -> None:
    """The first frame goes where time doubles; any box of the finer grid, from a box that reaches a little further."""
    mine = randomised(Upsampler(16, 8, stride))
    theirs = library.LTX2VideoVaePixelShuffleUpsampler(16, stride, out_channels_reduction_factor=2)
    theirs.requires_grad_(False).load_state_dict(mine.state_dict())
    x = volume(16)
    wanted = theirs(x[None])[0]
    shape = tuple(wanted.shape[:3])
    assert torch.allclose(mine.run(x, whole(SHAPE), whole(shape)), wanted, atol=1e-6)
    box = Part(1, 4, 5), Part(2, 5, 6), Part(3, 8, 9)
    given_part = x[1:4, 2:5, 3:8].contiguous()
    out = tuple(
        Part(part.start * n, min(part.stop * n, count) - (n - 1 if axis == 0 else 0), count)
        for axis, (part, n, count) in enumerate(zip(box, stride, shape, strict=True))
    )
    where = tuple(slice(part.start, part.stop) for part in out)
    assert torch.allclose(mine.run(given_part, box, out), wanted[where], atol=1e-6)


def test_patches_are_the_librarys_and_come_back() -> None:
    """Order (channel, column, row)."""
    x = torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(6))
    assert torch.equal(patchify(x, 4), library._patchify(x[None], 4)[0].permute(1, 2, 3, 0))
    assert torch.equal(unpatchify(patchify(x, 4), 4), x)


@given(shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), limit=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_pieces_cover_a_volume_once(shape: tuple[int, int, int], limit: int) -> None:
    """Every row of every frame once, none larger than the limit but for a single row."""
    counts = torch.zeros(*shape, dtype=torch.int64)
    for frames, rows in pieces(shape, limit):
        counts[frames, rows] += 1
        assert counts[frames, rows].numel() <= max(limit, shape[2])
    assert bool((counts == 1).all())
