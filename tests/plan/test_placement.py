"""Where weights lie: the most that fits, what is tried when that was too much, and what copies make of a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_memory import RELEASED, WEIGHTS, clip, guidance, needs

from shotclock.guidance import Guidance
from shotclock.plan.copies import Copies
from shotclock.plan.cost import TEXT_TOKENS, pass_flops
from shotclock.plan.estimate import around, exactly
from shotclock.plan.memory import GIB, Needs, Room
from shotclock.plan.placement import Placement, smaller
from shotclock.render.capacity import capped

BLOCK_BYTES = 790 * 2**20
APART = replace(WEIGHTS, block_bytes=BLOCK_BYTES, text_layers_bytes=20 * GIB, text_layer_bytes=GIB // 2)
SIZES = [(1024, 576, 49), (1024, 576, 121)]


def streaming(device_gib: float | None, host_gib: float | None = 64, *, shared: bool = False) -> Needs:
    """Of weights that may be apart."""
    return replace(needs(device_gib, host_gib, shared=shared), weights=APART)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cap_gib", [12, 16, 24, 32, 48, 80])
def test_the_most_blocks_that_fit_stay(cap_gib: int, size: tuple[int, int, int]) -> None:
    """The need is within the cap, one more block is not, but for what is kept free; 48 GiB hold all."""
    wish, found = clip(*size), streaming(cap_gib)
    placed = found.place(wish, guidance())
    denoise = next(one for one in found.demands(wish, guidance()) if one.phase == "denoise")
    assert denoise.fits and found.refuses(wish, guidance()) is None
    spare = denoise.parts["states"] // 4
    if cap_gib >= 48:
        assert (placed.resident, placed.source, placed.streamed) == (48, "device", 0)
        assert placed.lines() == []
    else:
        assert 2 <= placed.resident < 48 and placed.source == "host"
        assert placed.streamed == 48 - placed.resident + 2
        assert denoise.need_bytes + spare <= cap_gib * GIB < denoise.need_bytes + spare + BLOCK_BYTES
        assert denoise.parts["weights"] == 36 * GIB - (48 - placed.resident) * BLOCK_BYTES


def test_a_host_that_cannot_hold_the_blocks_leaves_them_in_the_file() -> None:
    """Two staging buffers then; where it can, they count as its need. What LoRAs were fused into is not in the file."""
    wish = clip(*SIZES[0])
    small = streaming(12, 16)
    placed = small.place(wish, guidance())
    host = small.demands(wish, guidance())[-1]
    assert placed.source == "file" and host.parts["blocks"] == 2 * BLOCK_BYTES and host.fits
    large = streaming(12, 64)
    placed = large.place(wish, guidance())
    assert placed.source == "host"
    assert large.demands(wish, guidance())[-1].parts["blocks"] == placed.streamed * BLOCK_BYTES
    adapted = replace(small, adapts=True)
    assert adapted.place(wish, guidance()).source == "host"
    assert adapted.refuses(wish, guidance()) is not None


def test_one_memory_streams_from_the_file_and_says_that_the_host_is_no_help() -> None:
    """A GB10 held to 20 GiB; with a LoRA nothing can be apart there, which is refused."""
    wish = clip(*SIZES[0])
    shared = streaming(20, 20, shared=True)
    placed = shared.place(wish, guidance())
    assert placed.source == "file" and placed.streams
    assert any("streaming from host memory is pointless" in line for line in placed.lines())
    assert replace(shared, adapts=True).place(wish, guidance()).resident == 48
    assert replace(shared, adapts=True).refuses(wish, guidance()) is not None
    assert not streaming(120, 120, shared=True).place(wish, guidance()).streams


@pytest.mark.parametrize(("device_gib", "way"), [(12, "layers"), (12, "cpu"), (80, "device"), (None, "device")])
def test_an_encoder_that_does_not_fit_is_apart(device_gib: float | None, way: str) -> None:
    """One layer at a time beside what is no layer, or nothing at all on the device."""
    found = replace(streaming(device_gib), text_apart="cpu" if way == "cpu" else "layers")
    assert found.place(clip(*SIZES[0]), guidance()).text == way
    text = [one for one in found.demands(clip(*SIZES[0]), guidance()) if one.phase == "text"]
    if way == "cpu":
        assert text == []
    else:
        assert text[0].parts["weights"] == (int(4.5 * GIB) if way == "layers" else 24 * GIB) and text[0].fits


def test_a_cap_is_the_smaller_of_what_is_allowed_and_what_is_free() -> None:
    """And leaves the tiles of a decode what it leaves beside the decoders."""
    room = Room(device_bytes=80 * GIB, host_bytes=64 * GIB, shared=False)
    assert capped(room, None) == room
    assert capped(room, 100 * GIB).device_bytes == 80 * GIB
    held = replace(streaming(80), room=capped(room, 12 * GIB))
    placed = held.place(clip(*SIZES[0]), guidance())
    assert placed.cap_bytes == 12 * GIB
    assert placed.tile_bytes is not None and 7 * GIB < placed.tile_bytes < 8 * GIB
    assert "memory: at most 12.88 GB (--memory)" in placed.lines()


def test_legs_a_pass_are_those_of_the_fastest_step() -> None:
    """Four legs with blocks streamed, where copies hide behind computing; fewer and resident, where they do not."""
    wish = clip(*SIZES[1])
    found = streaming(38.5)

    def step_s(bytes_per_s: float) -> int:
        def seconds(asked: Guidance, placement: Placement) -> float:
            copies = Copies.of(placement, bytes_per_s, factor=1.0, source="a bus")
            copied_s = 0.0 if copies is None else copies.a_pass().typical_s
            computed = pass_flops(RELEASED, wish, asked, TEXT_TOKENS, step=0)
            return sum(max(flops / 700e12, copied_s) for flops in computed)

        return found.legs_per_pass(wish, guidance(), seconds)

    assert found.place(wish, guidance()).streams and not found.place(wish, guidance(1)).streams
    assert step_s(50e9) == 4
    assert step_s(1e8) < 3
    assert found.legs_per_pass(wish, guidance()) == 4


@given(resident=st.integers(2, 48), legs=st.integers(1, 4), most=st.integers(1, 4), seam=st.booleans())
def test_what_is_tried_next_is_smaller(resident: int, legs: int, most: int, seam: bool) -> None:
    """Fewer legs where that is no seam or an accepted one, else fewer blocks; nothing below one leg and two blocks."""
    placed = streaming(12).place(clip(*SIZES[0]), guidance()).model_copy(update={"resident": resident})
    found = smaller(placed, legs, most, seam=seam)
    if seam and min(legs, most) > 1:
        assert found == ((min(legs, most) + 1) // 2, resident) and found[0] < min(legs, most)
    elif resident > 2:
        assert found is not None and found[0] == legs and 2 <= found[1] < resident
    else:
        assert found is None


def test_a_pass_takes_as_long_as_its_computing_or_its_copies() -> None:
    """At each end the longer; a pass that begins at a kept prefix copies the blocks behind it only."""
    placed = streaming(12).place(clip(*SIZES[0]), guidance())
    copies = Copies.of(placed, 50e9, factor=1.15, source="measured")
    assert copies is not None
    whole_s = placed.streamed * BLOCK_BYTES / 50e9
    assert copies.a_pass().typical_s == pytest.approx(whole_s)
    assert copies.a_pass(28).typical_s == pytest.approx(whole_s * sum(b >= 28 for b in copies.order) / placed.streamed)
    slow, fast = exactly(10.0, "law"), around(whole_s, 1.2, "law")
    assert copies.bound(slow, 0).typical_s == 10.0 and "copies hide" in copies.bound(slow, 0).source
    assert copies.bound(fast, 0).high_s == pytest.approx(1.2 * whole_s)
    assert copies.bound(exactly(0.1, "law"), 0).typical_s == pytest.approx(whole_s)
    assert Copies.of(streaming(80).place(clip(*SIZES[0]), guidance()), 1.0, factor=1.0, source="") is None
