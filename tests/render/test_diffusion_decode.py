"""The diffusion decoder against the goldens; its noise, streaming, memory, attention and refusals."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save
from test_decode import LiveBytes
from torch import Tensor

from diffusion_fakes import RELEASED, SMALL, alive, drawn
from shotclock.errors import DoesNotFit, RenderFailed, RequestError
from shotclock.geometry import Geometry
from shotclock.latents import noise as initial_noise
from shotclock.model import diffusion_decoder, neighbourhood
from shotclock.model.diffusion_decoder import TilePlan, plan_tile
from shotclock.model.neighbourhood import Attend, Natten, Part, largest_difference, seen, windowed
from shotclock.render import exact_tiles
from shotclock.render.decode import to_uint8
from shotclock.render.diffusion_decode import (
    AGREEMENT,
    DiffusionVideoDecoder,
    attention_for,
    checked,
    decode_generator,
)
from shotclock.render.exact_tiles import (
    Cuts,
    choose_cuts,
    decode_bytes,
    decode_elements,
    decode_flops,
    host_bytes,
    smaller_cuts,
)
from shotclock.weights.header import read_header

GOLDENS = Path(__file__).parents[1] / "goldens"
FILE = GOLDENS / "ckpt" / "tiny-ltx-2.5-video-vae-bf16.safetensors"
CPU = torch.device("cpu")
CUTS = Cuts(frames=(5, 11), rows=(36,), columns=(40, 44))


@pytest.fixture(scope="module")
def video() -> DiffusionVideoDecoder:
    return DiffusionVideoDecoder.load(read_header(FILE), device=CPU, dtype=torch.float32)


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a case and its entry in the index."""
    case = json.loads((GOLDENS / "cases" / "index.json").read_text())["cases"][name]
    return load_file(GOLDENS / "cases" / case["file"]), case


def strided(frames: Tensor, params: dict[str, Any]) -> Tensor:
    return frames[:, params["offset"] :: params["stride"], params["offset"] :: params["stride"]]


def formula(shape: tuple[int, ...]) -> Tensor:
    """Noise of the first draw, as the golden index describes it."""
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (3**0.5 * (2 * torch.frac(index * 0.6180339887498949 + 0.7548776662466927) - 1)).float().view(shape)


@pytest.mark.parametrize("cuts", [None, CUTS])
def test_exact_attention_gives_the_official_frames(video: DiffusionVideoDecoder, cuts: Cuts | None) -> None:
    """Golden vae_diffusion_decode, noise from its seed, whole and in tiles alike."""
    tensors, case = golden("vae_diffusion_decode")
    noise = video.noise(tensors["in.latent"], torch.Generator().manual_seed(case["params"]["seed"]))
    assert list(noise.shape) == case["params"]["noise_shape"]
    assert torch.equal(noise.flatten()[:4096], tensors["in.noise_head"])
    frames = strided(video.decode(tensors["in.latent"], cuts, noise), case["params"])
    reference = tensors["out.combined_frames_strided"]
    assert (frames - reference).abs().max() <= case["rtol"] * reference.abs().max()


def test_a_latent_below_the_floor_is_padded_as_the_official_one(video: DiffusionVideoDecoder) -> None:
    """Golden vae_diffusion_decode_small, exact attention: 2x2x2 latents decode as 3x3x3, then are cropped."""
    tensors, case = golden("vae_diffusion_decode_small")
    noise = formula(video.noise_shape((2, 2, 2)))
    assert [list(noise.shape)] == case["params"]["noise_shapes"]
    frames = strided(video.decode(tensors["in.latent"], None, noise), case["params"])
    reference = tensors["out.combined_frames_strided"]
    assert (frames - reference).abs().max() <= case["rtol"] * reference.abs().max()


def test_our_tiles_give_the_official_untiled_frames(video: DiffusionVideoDecoder) -> None:
    """Golden vae_diffusion_decode_tiled, untiled; the official tiles differ from it by 0.9."""
    tensors, case = golden("vae_diffusion_decode_tiled")
    noise = formula(video.noise_shape((3, 3, 4)))
    frames = strided(video.decode(tensors["in.latent"], CUTS, noise), case["params"])
    reference = tensors["out.combined_untiled_strided"]
    assert (frames - reference).abs().max() <= case["rtol"] * reference.abs().max()
    assert (tensors["out.combined_tiled_strided"] - reference).abs().max() > 0.5


def test_the_decode_continues_the_noise_of_the_seed_as_the_official_one(video: DiffusionVideoDecoder) -> None:
    """Golden e2e_t2v: frames agree away from the left and right border, where the official default is inexact."""
    tensors, case = golden("e2e_t2v")
    latent = tensors["out.video_latent"]
    tokens = latent.shape[2:].numel()
    generator = decode_generator(case["params"]["seed"], [(tokens, tensors["out.audio_latent"].shape[2])])
    frames = strided(video.decode(latent, None, video.noise(latent, generator)), case["params"])
    difference = (frames - tensors["out.diffusion_chunked_frames_strided"]).abs().amax(dim=(0, 1, 3))
    assert difference[6:-6].max() < 3e-5
    assert difference.max() > 1e-2


def test_one_stream_of_noise_that_a_resume_continues() -> None:
    """The decode's generator stands where the initial noise left it; its state, saved, goes on alike."""
    geometry = Geometry(width=96, height=64, frames=17, fps=Fraction(24))
    generator = torch.Generator().manual_seed(5)
    first = [torch.randn(part.shape, generator=generator) for part in initial_noise(geometry, 5)]
    assert all(torch.equal(a, b) for a, b in zip(first, initial_noise(geometry, 5), strict=True))
    ours = decode_generator(5, [(geometry.video_tokens, geometry.audio_tokens)])
    assert torch.equal(ours.get_state(), generator.get_state())
    state = load(save({"generator": ours.get_state()}))["generator"]
    decoder, latent = alive(SMALL), torch.zeros(1, 128, 3, 2, 3)
    noise = decoder.noise(latent, ours)
    resumed = torch.Generator()
    resumed.set_state(state)
    assert torch.equal(decoder.noise(latent, resumed), noise)
    assert not torch.equal(decoder.noise(latent, resumed), noise), "a stream goes on"


def test_pictures_leave_before_later_tiles_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frames come after the tiles of the first temporal position, at most 8 at a time, as rounded floats."""
    decoder = alive(SMALL)
    latent, noise = drawn(decoder, (3, 3, 3))
    contexts: list[int] = []
    inner = decoder._network.context
    monkeypatch.setattr(decoder._network, "context", lambda *given: contexts.append(1) or inner(*given))
    cuts = Cuts(frames=(10,), rows=(36,))
    stream = decoder.frames(latent, cuts, noise)
    parts = [next(stream)]
    assert len(contexts) == 2 < cuts.count == 4
    parts += stream
    assert len(contexts) == 4
    assert all(part.dtype == torch.uint8 and part.device == CPU and 0 < len(part) <= 8 for part in parts)
    assert torch.equal(torch.cat(parts), to_uint8(decoder.decode(latent, cuts, noise)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_frame_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Before rounding would turn it into a black or white pixel; whichever tile of the group it is in."""
    decoder = alive(SMALL)
    latent, noise = drawn(decoder, (3, 3, 3))
    cuts = Cuts(frames=(4,), columns=(48,))
    inner = decoder._network.denoise

    def poisoned(noise: Tensor, context: Tensor, plan: TilePlan, attend: Attend) -> Iterator[Tensor]:
        core, done = plan.stage_5[-1], 0
        for picture in inner(noise, context, plan, attend):
            if core[0].start == 4 and done:
                picture[0, 1 if core[2].start else 2, 7, 9] = value
            done += picture.shape[1]
            yield picture

    monkeypatch.setattr(decoder._network, "denoise", poisoned)
    given = 0
    with pytest.raises(RenderFailed, match=r"frame 13 of 17 \(counted from 0\) has 1 values"):
        for part in decoder.frames(latent, cuts, noise):
            given += len(part)
    assert given == 4


def test_bfloat16_decodes_near_float32() -> None:
    """The dtype of a render on a card: within the 6 % that the official code shows."""
    tensors, case = golden("vae_diffusion_decode")
    small = DiffusionVideoDecoder.load(read_header(FILE), device=CPU, dtype=torch.bfloat16)
    noise = small.noise(tensors["in.latent"], torch.Generator().manual_seed(77))
    frames = small.decode(tensors["in.latent"].bfloat16(), CUTS, noise)
    assert frames.dtype == torch.float32
    difference = (strided(frames, case["params"]) - tensors["out.combined_frames_strided"]).abs()
    assert 0 < difference.max() < 0.15
    assert difference.mean() < 0.01


@pytest.mark.parametrize(("limits", "cuts"), [((2**25, 2**27), None), ((2**16, 2**20), Cuts(columns=(112,)))])
def test_live_bytes_are_those_that_the_arithmetic_says(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], cuts: Cuts | None
) -> None:
    """Never 5 % above what tiles are chosen by, and not far below; with large and with small pieces."""
    for module in (diffusion_decoder, exact_tiles):
        monkeypatch.setattr(module, "PIECE", limits[0])
    for module in (neighbourhood, exact_tiles):
        monkeypatch.setattr(module, "SCORES", limits[1])
    config = replace(
        SMALL, head_dim=16, widths=(128, 64, 32, 32, 16), depths=(1, 1, 1, 1, 2),
        windows=((3, 7, 7), (3, 7, 7), (3, 5, 5), (3, 5, 5), (5, 5, 5)),
    )  # fmt: skip
    decoder = alive(config)
    latent, noise = drawn(decoder, (3, 7, 7))
    with torch.inference_mode(), LiveBytes() as live:
        live._known.add(noise.untyped_storage()._cdata)  # of the caller, on the host
        group = sum(part.numel() for part in decoder.frames(latent, cuts, noise))
    found = (live.peak - group) / 4
    wanted = decode_elements(config, (3, 7, 7), cuts)
    assert 0.5 * wanted < found < 1.05 * wanted


@pytest.mark.parametrize("cuts", [None, Cuts(frames=(9,), columns=(192,))])
def test_the_released_sizes_hold_what_the_arithmetic_says(monkeypatch: pytest.MonkeyPatch, cuts: Cuts | None) -> None:
    """The real code in bf16 on tensors without values, 17 frames of 384x224: within what tiles are chosen by."""

    def attention(q: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.empty_like(q)  # stores no scores, as the fused kernels do not

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    shape, grids = (3, 7, 12), RELEASED.grids((3, 7, 12))
    with torch.device("meta"):
        network = diffusion_decoder.DiffusionDecoder(RELEASED).bfloat16().requires_grad_(False)
        latent, noise = torch.empty(128, *shape, dtype=torch.bfloat16), torch.empty(3, 17, 224, 384)
    frames, rows, columns = exact_tiles.cores(RELEASED, shape, cuts)
    plan = plan_tile(RELEASED, grids, (frames[0], rows[0], columns[0]))
    with torch.inference_mode(), LiveBytes() as live:
        live._known.add(noise.untyped_storage()._cdata)  # of the caller, on the host
        features = network.features(latent, windowed)
        context = network.context(features, grids, plan, windowed)
        time, height, width = (
            slice(n * part.start, n * part.stop) for n, part in zip((1, 4, 4), plan.stage_5[0], strict=True)
        )
        for picture in network.denoise(noise[:, time, height, width], context, plan, windowed):
            assert picture.shape[0] == 3
    needed = decode_bytes(cuts, clip(384, 224, 17), config=RELEASED, element_bytes=2)
    assert 0.7 * needed < live.peak < needed


def clip(width: int, height: int, frames: int) -> Geometry:
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


@pytest.mark.parametrize(
    ("geometry", "whole_gb", "least_gb"), [(clip(768, 448, 25), 1.8, 1.1), (clip(1920, 1088, 121), 24.6, 4.1)]
)
def test_full_sizes_fit_a_card(geometry: Geometry, whole_gb: float, least_gb: float) -> None:
    """Bytes in bf16 at the released sizes: whole where it fits, with little more arithmetic in two thirds of it."""

    def needed(cuts: Cuts | None) -> int:
        return decode_bytes(cuts, geometry, config=RELEASED, element_bytes=2)

    def choose(free: float) -> Cuts | None:
        return choose_cuts(geometry, free_bytes=int(free), config=RELEASED, element_bytes=2)

    assert needed(None) == pytest.approx(whole_gb * 1e9, rel=0.03)
    assert choose(needed(None)) is None
    cuts = choose(needed(None) * 0.67)
    assert cuts is not None and needed(cuts) <= needed(None) * 0.67
    flops = [decode_flops(each, geometry, config=RELEASED) for each in (None, cuts)]
    assert 1 < flops[1] / flops[0] < 3.1
    assert needed(choose(least_gb * 1e9)) <= least_gb * 1e9
    with pytest.raises(DoesNotFit, match="free"):
        choose(0.2e9)
    noise = 4 * 3 * geometry.frames * geometry.height * geometry.width
    assert host_bytes(None, geometry, config=RELEASED) == noise + noise // 4


def test_after_out_of_memory_each_try_needs_less_until_none_does() -> None:
    """Ends in a refusal, never in the same tiles again."""
    geometry, cuts, before = clip(768, 448, 25), None, 10**12
    with pytest.raises(DoesNotFit):
        for _ in range(20):
            needed = decode_bytes(cuts, geometry, config=RELEASED, element_bytes=2)
            assert needed < 0.76 * before
            before = needed
            cuts = smaller_cuts(cuts, geometry, config=RELEASED, element_bytes=2)
    assert cuts is not None and cuts.boundaries(geometry).columns == cuts.columns


@pytest.mark.parametrize("wrong", [{"rows": (6,)}, {"frames": (0,)}, {"columns": (8, 8)}, {"frames": (9, 4)}])
def test_cuts_that_are_none_are_refused(wrong: dict[str, tuple[int, ...]]) -> None:
    """Off the patches, at the start, twice or out of order."""
    with pytest.raises(RequestError):
        Cuts(**wrong)


def na3d(q: Tensor, k: Tensor, v: Tensor, *, kernel_size: tuple[int, int, int], scale: float) -> Tensor:
    """NATTEN's function, written out: every query of a whole volume over its shifted window."""
    out = torch.empty_like(q)
    shape = q.shape[1:4]
    for at in torch.cartesian_prod(*map(torch.arange, shape)).tolist():
        firsts = [min(max(c - w // 2, 0), n - w) for c, w, n in zip(at, kernel_size, shape, strict=True)]
        near = tuple(slice(f, f + w) for f, w in zip(firsts, kernel_size, strict=True))
        keys, values = (each[0][near].flatten(0, 2) for each in (k, v))
        weights = torch.softmax(scale * torch.einsum("hd,nhd->hn", q[0][tuple(at)], keys), dim=1)
        out[0][tuple(at)] = torch.einsum("hn,nhd->hd", weights, values)
    return out


def test_natten_and_torch_agree() -> None:
    """Through the same check that a card's NATTEN has to pass; a part at a corner, one at an edge."""
    assert largest_difference(windowed, Natten(na3d), device=CPU, dtype=torch.float32) < 1e-5
    natten = Natten(na3d)
    assert checked(natten, device=CPU, dtype=torch.float32) is natten


def test_the_installed_natten_agrees() -> None:
    """The real library, where it is there (its kernels need a card; on the CPU it computes without them)."""
    natten = pytest.importorskip("natten", reason="NATTEN is optional")
    assert largest_difference(windowed, Natten(natten.na3d), device=CPU, dtype=torch.float32) < 1e-5


def test_a_natten_with_other_windows_is_named_and_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """Windows one cell narrower are far outside the tolerance: the check can fail."""

    def narrow(q: Tensor, k: Tensor, v: Tensor, *, kernel_size: tuple[int, int, int], scale: float) -> Tensor:
        return na3d(q, k, v, kernel_size=(kernel_size[0], kernel_size[1] - 1, kernel_size[2]), scale=scale)

    with caplog.at_level(logging.WARNING):
        assert checked(Natten(narrow), device=CPU, dtype=torch.float32) is windowed
    assert "NATTEN differs" in caplog.text
    assert largest_difference(windowed, Natten(narrow), device=CPU, dtype=torch.float32) > 3 * max(AGREEMENT.values())
    assert attention_for(CPU, torch.float32) is windowed


def test_windows_shift_inward_at_the_borders() -> None:
    """A part's view: centred inside, of full width at the borders."""
    assert Part(0, 1, 20).seen(11) == Part(0, 11, 20)
    assert Part(19, 20, 20).seen(11) == Part(9, 20, 20)
    assert Part(8, 10, 20).seen(11) == Part(3, 15, 20)
    assert seen((Part(0, 1, 5), Part(2, 3, 5), Part(4, 5, 5)), (3, 3, 3)) == (
        Part(0, 3, 5),
        Part(1, 4, 5),
        Part(2, 5, 5),
    )


def test_the_floor_is_where_every_window_fits() -> None:
    """Released: 17 frames and 7 latents a side; one less and a window is wider than its grid."""
    assert RELEASED.floor == (3, 7, 7)
    assert [grid[0] for grid in RELEASED.grids((3, 7, 7))] == [5, 5, 9, 17, 17]
    assert sum(weight.numel() for weight in _meta().parameters()) == 417_133_616
    assert len(_meta().state_dict()) == 309  # 310 in the file, with the unused type_emb


def _meta() -> diffusion_decoder.DiffusionDecoder:
    with torch.device("meta"):
        return diffusion_decoder.DiffusionDecoder(RELEASED)
