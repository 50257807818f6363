"""Streamed blocks: the bits of resident weights, once over the bus a pass, no slot overwritten while it is needed."""

from __future__ import annotations

import gc
import weakref
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fakes import random_transformer, streams, tiny_config
from shotclock.errors import RequestError
from shotclock.guidance import Guidance, Guider
from shotclock.model.transformer import Kept, Transformer
from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.header import read_header
from shotclock.weights.stream import SLOTS, Copies, HostCopies, Passage, stream, streamed_blocks
from shotclock.weights.transformer import load_apart, load_transformer

CPU = torch.device("cpu")
BLOCKS = 6


class FakeDevice:
    """A device whose copies happen as late as they may: when the block is needed, or the source is reused.

    Refuses what a real one would silently compute wrongly: a copy into a slot that is in use.
    """

    def __init__(self) -> None:
        self.queued: dict[int, tuple[Tensor, Tensor]] = {}
        self.in_use: set[int] = set()

    def sent(self, slot: int) -> None:
        if slot in self.queued:
            target, source = self.queued.pop(slot)
            target.copy_(source)

    def send(self, slot: int, target: Tensor, source: Tensor) -> None:
        assert slot not in self.in_use, "the block in this slot is still computed"
        assert slot not in self.queued
        target.fill_(255)  # NaN in every floating dtype
        self.queued[slot] = (target, source)

    def arrived(self, slot: int) -> None:
        self.sent(slot)
        self.in_use.add(slot)

    def used(self, slot: int) -> None:
        self.in_use.remove(slot)


def steps(model: Transformer, legs_per_pass: int, count: int = 2) -> list[Tensor]:
    """Velocities of guided steps one after the other; the perturbed leg forks at block 3, so passes may begin there."""
    guider = Guider(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(3,))
    of = Guidance(video=guider, audio=guider, legs_per_pass=legs_per_pass)
    legs, found = of.legs(BLOCKS), []
    with torch.inference_mode():
        for step in range(count):
            kept: Kept = {}
            passes = [[legs[name] for name in launch.legs] for launch in of.passes(step, BLOCKS)]
            for number, launch in enumerate(passes):
                later = [leg for after in passes[number + 1 :] for leg in after]
                found += model(*streams(model, 0.9 - 0.3 * step), launch, kept=kept, later=later)
    return found


def assert_equal(a: list[Tensor], b: list[Tensor]) -> None:
    for x, y in zip(a, b, strict=True):
        assert bool(x.isfinite().all())
        assert torch.equal(x, y)


@cache
def original(dtype: torch.dtype) -> Transformer:
    return random_transformer(tiny_config(BLOCKS), dtype)


@cache
def expected(dtype: torch.dtype, legs_per_pass: int) -> list[Tensor]:
    return steps(original(dtype), legs_per_pass)


@pytest.mark.parametrize("legs_per_pass", [4, 1])
@pytest.mark.parametrize(
    ("dtype", "from_file", "resident", "copies"),
    [
        (torch.float32, False, 2, HostCopies),
        (torch.float32, True, 2, FakeDevice),
        (torch.bfloat16, False, 3, FakeDevice),
        (torch.bfloat16, True, 5, FakeDevice),
    ],
)
def test_streamed_is_resident_bit_for_bit(
    dtype: torch.dtype, from_file: bool, resident: int, copies: Any, legs_per_pass: int
) -> None:
    """Copied at once and at the last moment; with one leg a pass the perturbed one begins in the middle."""
    model = deepcopy(original(dtype))
    assert stream(model, CPU, copies(), resident=resident, from_file=from_file) is not None
    assert_equal(steps(model, legs_per_pass), expected(dtype, legs_per_pass))


@pytest.mark.parametrize("resident", [2, 4])
def test_weights_cross_once_a_pass_for_all_legs(resident: int) -> None:
    """Each step of four legs sends every streamed block once; two are on their way for the step after."""
    model = deepcopy(original(torch.float32))
    passage = stream(model, CPU, HostCopies(), resident=resident, from_file=False)
    assert passage is not None
    for count in (1, 2, 3):
        steps(model, 4, 1)
        assert passage.copied == count * len(streamed_blocks(BLOCKS, resident)) + SLOTS


def test_all_blocks_resident_streams_nothing() -> None:
    """As many as there are: the model stays as it was."""
    model = deepcopy(original(torch.float32))
    assert stream(model, CPU, HostCopies(), resident=BLOCKS, from_file=False) is None
    assert_equal(steps(model, 4, 1), steps(original(torch.float32), 4, 1))


def test_what_is_left_in_the_model_is_what_was_asked_for() -> None:
    """Layers of streamed blocks are gone from the module; with the slots there are ``resident`` blocks of them."""
    whole = deepcopy(original(torch.float32))
    layers = sum(p.numel() for name, p in whole.transformer_blocks[0].named_parameters() if "." in name)
    everything = sum(p.numel() for p in whole.parameters())
    stream(whole, CPU, HostCopies(), resident=4, from_file=False)
    assert sum(p.numel() for p in whole.parameters()) == everything - (BLOCKS - 4 + SLOTS) * layers


@given(blocks=st.integers(3, 64), spare=st.integers(0, 62))
def test_streamed_blocks_are_spread_evenly(blocks: int, spare: int) -> None:
    """Residents and slots make up the number asked for; distances between streamed blocks differ by one at most."""
    resident = SLOTS + spare % (blocks - SLOTS)
    order = streamed_blocks(blocks, resident)
    assert len(order) == len(set(order)) == blocks - resident + SLOTS
    assert list(order) == sorted(order) and order[0] >= 0 and order[-1] < blocks
    gaps = {b - a for a, b in zip(order, [*order[1:], order[0] + blocks], strict=True)}
    assert max(gaps) - min(gaps) <= 1


def test_one_resident_block_is_refused() -> None:
    """Nothing could be copied while it computes."""
    with pytest.raises(RequestError, match="1 resident blocks"):
        streamed_blocks(48, 1)


def test_a_source_that_fails_fails_the_forward() -> None:
    """The error of the copying thread reaches whoever asked for the block."""

    class Broken:
        def bytes_of(self, block: int, slot: int) -> Tensor:
            raise OSError(f"cannot read block {block} for slot {slot}")

    shells = [(torch.empty(0), torch.nn.Identity()) for _ in range(SLOTS)]
    copies: Copies = HostCopies()
    with pytest.raises(OSError, match="cannot read block 1"):
        Passage((0, 1, 2), shells, Broken(), copies).run(1, torch.zeros(1))


def test_slots_go_with_the_model() -> None:
    """Nothing keeps the passage alive, so its memory is free when the decoders come."""
    model: Any = deepcopy(original(torch.float32))
    passage = weakref.ref(stream(model, CPU, HostCopies(), resident=2, from_file=False))
    steps(model, 4, 1)
    assert passage() is not None
    del model
    gc.collect()
    assert passage() is None


def test_a_file_streams_as_it_loads(tiny: Checkpoints) -> None:
    """Blocks left in the mapped file, the rest loaded: the forwards of the model loaded whole."""
    header = read_header(tiny.transformer)
    for dtype in (torch.float32, torch.bfloat16):
        whole = load_transformer(header, device=CPU, dtype=dtype, pinned_config=False)
        blocks = len(whole.transformer_blocks)
        apart = load_apart(
            header,
            device=CPU,
            dtype=dtype,
            pinned_config=False,
            on_host=streamed_blocks(blocks, blocks - 1),
            as_stored=True,
        )
        assert apart.state_dict().keys() == whole.state_dict().keys()
        stored = {p.dtype for n, p in apart.transformer_blocks[0].named_parameters() if "." in n}
        assert stored == {torch.bfloat16}, "as in the file: nothing was read or cast"
        stream(apart, CPU, HostCopies(), resident=blocks - 1, from_file=True, dtype=dtype)
        leg = Guidance(
            video=Guider(cfg=1.0, stg=0.0, modality=1.0, rescale=0.0, stg_blocks=()),
            audio=Guider(cfg=1.0, stg=0.0, modality=1.0, rescale=0.0, stg_blocks=()),
            legs_per_pass=1,
        ).legs(blocks)
        with torch.inference_mode():
            assert_equal(
                list(apart(*streams(apart), list(leg.values()))), list(whole(*streams(whole), list(leg.values())))
            )
