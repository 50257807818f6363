"""The memory plan against peaks measured on one H200, and against live bytes of the real network on the CPU."""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fakes import contexts, random_transformer, tiny_config
from shotclock.errors import DoesNotFit
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.latents import noise, text_to_video
from shotclock.model.config import transformer_config
from shotclock.model.quantise import quantise_in_place, reference_product
from shotclock.model.transformer import Transformer
from shotclock.plan.cost import TEXT_TOKENS
from shotclock.plan.memory import GIB, WORKSPACE_BYTES, Needs, Room, Weights, pass_bytes
from shotclock.render.denoise import prepare
from shotclock.weights.fp8 import quantised_bytes
from shotclock.weights.header import Header, read_header
from shotclock.weights.lora import fuse, fuse_bytes, read_lora
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.tiny import write_tiny_checkpoints
from shotclock.weights.transformer import load_transformer

RELEASED = transformer_config(PINNED_25_CONFIG)


def clip(width: int, height: int, frames: int) -> Geometry:
    """At 24 frames a second."""
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


def guidance(legs_per_pass: int = 4, block: int = 28, **changes: float) -> Guidance:
    """All four legs, the perturbed one forking off at ``block``."""
    scales: dict[str, Any] = {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (block,)}
    one = Guider(**(scales | changes))
    return Guidance(video=one, audio=one, legs_per_pass=legs_per_pass)


@pytest.mark.parametrize(
    ("size", "measured_gib"), [((768, 448, 25), 0.64), ((1024, 576, 49), 1.87), ((1024, 576, 121), 4.23)]
)
def test_peaks_of_one_h200_are_met(size: tuple[int, int, int], measured_gib: float) -> None:
    """dev/LOG.md 2026-11-30: four legs a pass in bf16, over weights and workspaces; torch operations ran too, and
    they are the wider ones. Required: 10 %; reached: 1 %."""
    modelled = pass_bytes(RELEASED, clip(*size), guidance(), element_bytes=2, fused=False)
    assert modelled / GIB == pytest.approx(measured_gib, rel=0.01)


def test_the_peak_of_a_whole_run_is_met() -> None:
    """38,626,509,824 bytes allocated at most over 30 steps at 768x448, 25 frames, fused kernels; within 0.1 %."""
    with torch.device("meta"):
        model = Transformer(RELEASED)
    weights = sum(2 * p.numel() for p in model.parameters())
    weights += sum(2 * p.numel() for name, p in model.named_parameters() if "scale_shift_table" in name)  # float32
    beside = pass_bytes(RELEASED, clip(768, 448, 25), guidance(), element_bytes=2, fused=True)
    assert weights + beside + WORKSPACE_BYTES == pytest.approx(38_626_509_824, rel=1e-3)
    assert beside + WORKSPACE_BYTES == pytest.approx(38_626_509_824 - weights, rel=0.1)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and (key := leaf.untyped_storage()._cdata) not in self._known:
                storage = leaf.untyped_storage()
                self._known.add(key)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._forget, key, storage.nbytes())
        return result

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def live_peak(geometry: Geometry, wanted: Guidance) -> int:
    """Most live bytes of a guided step of a real network, constants of the render included."""
    config = tiny_config()
    model = random_transformer(config, torch.float32)
    legs = wanted.legs(config.blocks)
    with torch.inference_mode(), LiveBytes() as live:
        latents = text_to_video(geometry, *noise(geometry, 3))
        given = prepare(model, latents, contexts(config, torch.float32, TEXT_TOKENS))
        streams = (
            given[0].stream(latents.video.tokens, 0.5, enabled=True),
            given[1].stream(latents.audio.tokens, 0.5, enabled=True),
        )
        live.peak = live.now
        kept: dict[Any, Any] = {}
        done = []
        passes = wanted.passes(0, config.blocks)
        for number, launch in enumerate(passes):
            later = [legs[name] for after in passes[number + 1 :] for name in after.legs]
            done.append(model(*streams, [legs[name] for name in launch.legs], kept=kept, later=later))
    return live.peak


@pytest.mark.parametrize("size", [(256, 160, 25), (512, 320, 17)])
@pytest.mark.parametrize("legs_per_pass", [1, 2, 3, 4])
@pytest.mark.parametrize("off", [{}, {"stg": 0.0}, {"modality": 1.0}, {"stg": 0.0, "modality": 1.0, "cfg": 1.0}])
def test_live_bytes_of_a_step_are_what_the_model_says(
    size: tuple[int, int, int], legs_per_pass: int, off: dict[str, float]
) -> None:
    """Every way of grouping legs, within 10 %."""
    wanted = guidance(legs_per_pass, block=2, **off)
    modelled = pass_bytes(tiny_config(), clip(*size), wanted, element_bytes=4, fused=False)
    assert live_peak(clip(*size), wanted) == pytest.approx(modelled, rel=0.1)


WEIGHTS = Weights(text_bytes=24 * GIB, text_states_bytes=2 * GIB, transformer_bytes=36 * GIB, decoder_bytes=4 * GIB)


def tiles(geometry: Geometry, free: int | None) -> tuple[int, str]:
    """A decode that takes 400 bytes a pixel untiled, 1 GiB in tiles, and nothing less."""
    whole = 400 * prod((geometry.width, geometry.height, geometry.frames))
    if free is None or whole <= free:
        return whole, "untiled"
    if free < GIB:
        raise DoesNotFit(f"decoding {geometry} needs 1 GiB", allowed="", way_out="")
    return GIB, "in tiles"


def needs(device_gib: float | None, host_gib: float | None = 64, *, shared: bool = False) -> Needs:
    """Of the released transformer in bf16."""
    room = Room(
        device_bytes=None if device_gib is None else int(device_gib * GIB),
        host_bytes=None if host_gib is None else int(host_gib * GIB),
        shared=shared,
    )
    return Needs(
        jobs=lambda *job: [(*job, 0)],
        config=RELEASED,
        weights=WEIGHTS,
        room=room,
        tiles=tiles,
        element_bytes=2,
        fused=True,
    )


def test_every_phase_has_its_need_and_what_is_free() -> None:
    """Weights, states, tiles, host frames; the parts sum to the need."""
    demands = {demand.phase: demand for demand in needs(80).demands(clip(768, 448, 25), guidance())}
    assert list(demands) == ["text", "denoise", "decode untiled", "host"]
    assert all(sum(one.parts.values()) == one.need_bytes and one.fits for one in demands.values())
    assert demands["text"].need_bytes == 26 * GIB
    assert 36.5 * GIB < demands["denoise"].need_bytes < 37 * GIB
    assert demands["host"].free_bytes == 64 * GIB
    assert demands["host"].parts["frames"] == 768 * 448 * (24 + 90)
    assert "36.61 GiB of 80.00 GiB on the device (weights 36.00" in demands["denoise"].line()


def test_a_device_that_shares_the_hosts_memory_pays_for_both() -> None:
    """No host row; staging, frames and process count in each phase."""
    demands = needs(80, 80, shared=True).demands(clip(768, 448, 25), guidance())
    assert [demand.where for demand in demands] == ["host"] * 3
    assert demands[0].need_bytes > 26 * GIB + GIB


@pytest.mark.parametrize(
    ("device_gib", "host_gib", "said"),
    [
        (80, 64, None),
        (None, None, None),
        (25, 64, r"text needs 26\.00 GiB of 25\.00 GiB free \(device\)"),
        (36.5, 64, r"denoise needs 36\.6\d GiB of 36\.50 GiB free \(device\)"),
        (80, 1, r"host needs 1\.\d\d GiB of 1\.00 GiB free \(host\)"),
    ],
)
def test_what_cannot_fit_is_refused_with_phase_need_and_free(
    device_gib: float | None, host_gib: float | None, said: str | None
) -> None:
    """And what cannot be read refuses nothing."""
    found = needs(device_gib, host_gib).refuses(clip(768, 448, 25), guidance())
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert re.fullmatch(said, found)


def test_a_decode_that_cannot_be_tiled_small_enough_is_refused() -> None:
    """In the decoder's own words."""
    small = replace(needs(80), weights=replace(WEIGHTS, decoder_bytes=int(79.5 * GIB)))
    assert small.refuses(clip(1024, 576, 121), guidance()) == "decoding 1024x576, 121 frames at 24 needs 1 GiB"


def test_memory_picks_the_most_legs_a_pass_that_fit() -> None:
    """1024x576 with 121 frames: four legs need 3.6 GiB beside the weights, one leg 1.3; with less, exit 3 says so."""
    wish = clip(1024, 576, 121)
    picked = [needs(36 + room).legs_per_pass(wish, guidance()) for room in (4.0, 3.0, 2.3, 1.4)]
    assert picked == [4, 3, 2, 1]
    with pytest.raises(DoesNotFit, match=r"one leg a pass: denoise needs .* smaller --size") as caught:
        needs(36.5).legs_per_pass(wish, guidance())
    assert caught.value.exit_code == 3


def test_more_legs_and_more_tokens_need_more() -> None:
    """In every step of either."""
    by_legs = [pass_bytes(RELEASED, clip(768, 448, 25), guidance(k), element_bytes=2, fused=True) for k in (1, 2, 3, 4)]
    assert by_legs == sorted(by_legs)
    by_frames = [
        pass_bytes(RELEASED, clip(768, 448, frames), guidance(), element_bytes=2, fused=True)
        for frames in (9, 25, 49, 121)
    ]
    assert by_frames == sorted(by_frames)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny set's files."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoints(folder, 0)
    return folder


def loaded(tiny: Path) -> tuple[Header, Transformer]:
    """The tiny transformer as it is stored."""
    (path,) = (tiny / "diffusion_models").glob("*.safetensors")
    header = read_header(path)
    return header, load_transformer(header, device=torch.device("cpu"), dtype=torch.bfloat16, pinned_config=False)


def test_fusing_holds_what_the_plan_says(tiny: Path) -> None:
    """Live bytes of a LoRA of every layer: at most what is planned, at least half of it."""
    header, transformer = loaded(tiny)
    lora = read_lora(next(tiny.rglob("*distilled-lora*")), 1.0, header)
    live = LiveBytes()
    live._known |= {parameter.untyped_storage()._cdata for parameter in transformer.parameters()}  # there before
    with live:
        fuse(transformer, [lora], torch.device("cpu"))
    assert 0.5 * fuse_bytes(header) < live.peak <= fuse_bytes(header)


def test_quantised_weights_take_what_the_header_says(tiny: Path) -> None:
    """To the byte, of the tiny file; half and a few tables of the released one."""
    header, transformer = loaded(tiny)
    assert quantise_in_place(transformer, reference_product).bytes_after == quantised_bytes(header)


def test_a_load_that_is_wider_than_the_passes_is_a_row() -> None:
    """What is quantised or fused once it was read, and the upscaler beside the transformer of the stage before."""
    plain = needs(80)
    assert {"load", "upscale"}.isdisjoint(demand.phase for demand in plain.demands(clip(768, 448, 25), guidance()))
    weights = replace(
        plain.weights, unquantised_bytes=38 * GIB, transformer_bytes=20 * GIB, fuse_bytes=4 * GIB, upscaler_bytes=GIB
    )
    found = replace(plain, weights=weights, noise=lambda _: 3 * GIB)
    rows = {demand.phase: demand for demand in found.demands(clip(768, 448, 25), guidance())}
    assert rows["load"].need_bytes == 42 * GIB and rows["denoise"].parts["weights"] == 20 * GIB
    assert rows["upscale"].parts["upscaler"] == GIB and rows["upscale"].parts["weights"] == 20 * GIB
    assert rows["host"].parts["noise"] == 3 * GIB
    tight = replace(found, room=Room(device_bytes=41 * GIB, host_bytes=None, shared=False))
    assert str(tight.refuses(clip(768, 448, 25), guidance())).startswith("load needs 42.00 GiB of 41.00 GiB free")
