"""The decoders against the goldens, and the laws of tiling, streaming, memory and refusal."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import LTX2VideoDecoder3d
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shotclock.errors import RenderFailed
from shotclock.geometry import AUDIO_LATENTS_HZ, Geometry
from shotclock.render.decode import AudioDecoder, LatentStatistics, VideoDecoder, decoder_stages, fit_wave, to_uint8
from shotclock.render.tiling import Span, Tiling, activation_elements, decode_bytes, tiles
from shotclock.weights import keys
from shotclock.weights.header import read_header

GOLDENS = Path(__file__).parents[1] / "goldens"
CPU = torch.device("cpu")
SMALL = Tiling(frames=Span(size=16, overlap=8), height=Span(size=64, overlap=32), width=Span(size=64, overlap=32))


@pytest.fixture(scope="module")
def video() -> VideoDecoder:
    header = read_header(GOLDENS / "ckpt" / "tiny-ltx-2.5-video-vae-conv-bf16.safetensors")
    return VideoDecoder.load(header, device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def audio() -> AudioDecoder:
    return AudioDecoder.load(read_header(GOLDENS / "ckpt" / "tiny-ltx-2.5-audio-vae-bf16.safetensors"), device=CPU)


def golden(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a case and its entry in the index."""
    index = json.loads((GOLDENS / "cases" / "index.json").read_text())
    case = index["cases"][name]
    return load_file(GOLDENS / "cases" / case["file"]), case


def assert_close(found: Tensor, tensors: dict[str, Tensor], name: str, rtol: float) -> None:
    """max|x - ref| / max|ref| <= rtol, the rule of the golden index."""
    reference = tensors[f"out.{name}"]
    assert found.shape == reference.shape
    assert (found - reference).abs().max() <= rtol * reference.abs().max(), name


def test_untiled_decode_matches_the_official_frames(video: VideoDecoder) -> None:
    """Golden vae_conv_decode."""
    tensors, case = golden("vae_conv_decode")
    assert_close(video.decode(tensors["in.latent"], None), tensors, "frames", case["rtol"])


def test_tiled_decode_matches_the_official_tiling(video: VideoDecoder) -> None:
    """Golden vae_conv_decode_tiled: tile split, ramps in time and space, sums; and the same latent untiled."""
    tensors, case = golden("vae_conv_decode_tiled")
    spans = {
        axis: Span(size=case["params"][f"tile_{axis}"][0], overlap=case["params"][f"tile_{axis}"][1])
        for axis in ("frames", "height", "width")
    }
    offset, stride = case["params"]["offset"], case["params"]["stride"]
    for name, tiling in (("tiled_strided", Tiling(**spans)), ("untiled_strided", None)):
        frames = video.decode(tensors["in.latent"], tiling)
        assert_close(frames[:, offset::stride, offset::stride], tensors, name, case["rtol"])


def test_the_end_to_end_latents_decode_to_the_official_clip(video: VideoDecoder, audio: AudioDecoder) -> None:
    """Golden e2e_t2v from its latents on: conv frames and waveform, far below its tolerance of 1e-3."""
    tensors, case = golden("e2e_t2v")
    offset, stride = case["params"]["offset"], case["params"]["stride"]
    frames = video.decode(tensors["out.video_latent"], None)
    assert_close(frames[:, offset::stride, offset::stride], tensors, "conv_frames_strided", 2e-5)
    wave = audio.decode(tensors["out.audio_latent"])
    assert_close(wave[:, :: case["params"]["wave_stride"]], tensors, "waveform", 5e-5)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("mel", "mel"),
        ("wave_16k", "base_wave"),
        ("bwe_log_mel", "base_log_mel"),
        ("bwe_residual", "residual"),
        ("bwe_skip", "skip"),
        ("wave_48k", "wave"),
    ],
)
def test_every_stage_of_the_sound_matches(audio: AudioDecoder, name: str, part: str) -> None:
    """Golden audio_decode, from the mel to the 48 kHz waveform."""
    tensors, case = golden("audio_decode")
    assert_close(getattr(audio.sound(tensors["in.latent"]), part), tensors, name, case["rtol"])


def test_bfloat16_decodes_near_float32(video: VideoDecoder) -> None:
    """The dtype of a render on a card: within the 2 % that the official code shows."""
    tensors, _ = golden("vae_conv_decode")
    header = read_header(GOLDENS / "ckpt" / "tiny-ltx-2.5-video-vae-conv-bf16.safetensors")
    small = VideoDecoder.load(header, device=CPU, dtype=torch.bfloat16)
    frames = small.decode(tensors["in.latent"].bfloat16(), SMALL)
    exact = video.decode(tensors["in.latent"].bfloat16(), SMALL)
    assert frames.dtype == torch.float32
    assert 0 < (frames - exact).abs().max() < 0.05


class Copy(nn.Module):
    """A decoder without a receptive field: latent k fills frames 8k-7 to 8k with its own first three features."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, latent: Tensor, causal: bool) -> Tensor:
        assert causal is False
        self.forwards += 1
        wide = latent[:, :3].repeat_interleave(32, dim=3).repeat_interleave(32, dim=4)
        return torch.cat([wide[:, :, :1], wide[:, :, 1:].repeat_interleave(8, dim=2)], dim=2)


def copying(network: nn.Module | None = None) -> VideoDecoder:
    return VideoDecoder(network or Copy(), LatentStatistics(128), stages=(), dtype=torch.float32)


def noise(frames: int, rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(1, 128, frames, rows, columns, generator=torch.Generator().manual_seed(seed))


@st.composite
def spans(draw: st.DrawFn, scale: int) -> Span:
    size = draw(st.integers(2, 5))
    return Span(size=size * scale, overlap=draw(st.integers(1, size - 1)) * scale)


@given(
    frames=st.integers(1, 9), rows=st.integers(1, 6), columns=st.integers(1, 6),
    tiling=st.builds(Tiling, frames=spans(8), height=spans(32), width=spans(32)),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_decoder_without_receptive_field_gives_the_same_in_any_tiles(
    frames: int, rows: int, columns: int, tiling: Tiling
) -> None:
    """Splitting, weighting and streaming alone change nothing: no latent is shifted, lost or counted twice."""
    latent = noise(frames, rows, columns)
    untiled = copying().decode(latent, None)
    assert untiled.shape == (8 * (frames - 1) + 1, 32 * rows, 32 * columns, 3)
    assert torch.allclose(copying().decode(latent, tiling), untiled, atol=1e-6)


def test_pictures_leave_before_later_tiles_are_decoded() -> None:
    """The first frames come after the tiles of the first temporal position, not after all."""
    network = Copy()
    tiling = replace(SMALL, frames=Span(size=24, overlap=8))
    grid = tiles(tiling, Geometry(width=96, height=96, frames=41, fps=Fraction(24)))
    stream = copying(network).frames(noise(6, 3, 3), tiling)
    first = next(stream)
    assert network.forwards == len(grid.rows) * len(grid.columns) < grid.count
    rest = list(stream)
    assert network.forwards == grid.count
    assert sum(len(part) for part in [first, *rest]) == 41


def test_streamed_pictures_are_the_rounded_float_pictures(video: VideoDecoder) -> None:
    """uint8 on the CPU, at most 8 frames at a time, equal to rounding the whole."""
    latent = noise(3, 2, 3)
    parts = list(video.frames(latent, SMALL))
    assert all(part.dtype == torch.uint8 and part.device == CPU and 0 < len(part) <= 8 for part in parts)
    assert torch.equal(torch.cat(parts), to_uint8(video.decode(latent, SMALL)))


def test_rounding_goes_to_the_nearest_level() -> None:
    """Every level k/255 comes back as k; a truncation would lose the values just below."""
    levels = torch.arange(256) / 255
    for shift in (-0.49 / 255, 0.0, 0.49 / 255):
        moved = (levels + shift).clamp(0, 1)
        assert torch.equal(to_uint8(moved.view(1, 16, 16, 1).expand(1, 16, 16, 3))[..., 0].flatten().long(),
                           torch.arange(256))  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("latent_frame", "frame"), [(0, 0), (2, 9), (4, 25)])
@pytest.mark.parametrize("tiling", [None, SMALL])
def test_the_first_frame_that_is_not_finite_is_named(
    value: float, latent_frame: int, frame: int, tiling: Tiling | None
) -> None:
    """Before rounding would turn it into a black or white pixel; earlier groups have left."""
    latent = noise(5, 2, 2)
    latent[0, 1, latent_frame, 1, 0] = value
    seen = 0
    with pytest.raises(RenderFailed, match=f"frame {frame} of 33"):
        for part in copying().frames(latent, tiling):
            seen += len(part)
    assert seen <= frame


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that tensor operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._track(tensor.untyped_storage())
        return result

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def wide(layers: int) -> VideoDecoder:
    """A decoder as the released one, a quarter as wide, with random weights: its last residual blocks are the peak."""
    widths, factors = (64, 128, 128, 256), (2, 2, 1, 2)
    kinds = ("spatiotemporal", "spatiotemporal", "temporal", "spatial")
    network = LTX2VideoDecoder3d(
        block_out_channels=widths,
        spatio_temporal_scaling=(True,) * 4,
        layers_per_block=(layers,) * 5,
        upsample_type=kinds,
        inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=factors,
        spatial_padding_mode="zeros",
    )
    arguments = {
        "decoder_block_out_channels": widths,
        "decoder_layers_per_block": (layers,) * 5,
        "upsample_type": kinds,
        "upsample_factor": factors,
    }
    network.eval().requires_grad_(False)
    return VideoDecoder(network, LatentStatistics(128), stages=decoder_stages(arguments), dtype=torch.float32)


def forward_peak(decoder: VideoDecoder, size: tuple[int, int, int]) -> float:
    """Peak of live bytes of one forward of the network over the model's figure."""
    latent = noise(*size)
    with LiveBytes() as live:
        decoder._forward(latent)
    return live.peak / (4 * activation_elements(decoder.stages, *size))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("size", [(2, 2, 1), (5, 1, 2)])
def test_live_bytes_of_a_wide_forward_are_what_the_memory_model_says(size: tuple[int, int, int], layers: int) -> None:
    """Counted at every operation of the real network: 97 to 100 % of the figure where residual blocks are the peak."""
    assert 0.97 <= forward_peak(wide(layers), size) <= 1


@pytest.mark.parametrize("size", [(1, 2, 2), (2, 3, 2), (6, 2, 3), (12, 1, 1)])
def test_live_bytes_of_a_narrow_forward_are_below_the_memory_model(
    video: VideoDecoder, size: tuple[int, int, int]
) -> None:
    """Where the pixels are the peak, up to three copies are reckoned with; the layout decides how many there are."""
    assert 0.6 <= forward_peak(video, size) <= 1


@pytest.mark.parametrize("tiling", [None, SMALL])
def test_live_bytes_of_a_whole_decode_stay_below_the_model(video: VideoDecoder, tiling: Tiling | None) -> None:
    """A long clip, streamed: the peak is that of one temporal group, not of the clip."""
    latent = noise(12, 3, 2)
    geometry = Geometry(width=64, height=96, frames=89, fps=Fraction(24))
    with LiveBytes() as live:
        for _ in video.frames(latent, tiling):
            pass
    assert live.peak <= decode_bytes(tiling, geometry, stages=video.stages, element_bytes=4)
    assert live.now < 64 * 96 * 3 * 16  # nothing of the clip stays


def test_tiles_bound_the_memory_of_long_clips(video: VideoDecoder) -> None:
    """Twice the frames, the same peak."""
    peaks = []
    for frames in (9, 18):
        with LiveBytes() as live:
            for _ in video.frames(noise(frames, 2, 2), SMALL):
                pass
        peaks.append(live.peak - frames * 128 * 4 * 4 * 2)  # the latents themselves grow
    assert peaks[1] <= 1.02 * peaks[0]


class Blur(Copy):
    """A decoder that looks one latent around and sees zeros beyond its tile, as the real one, then interpolates."""

    def forward(self, latent: Tensor, causal: bool) -> Tensor:
        assert causal is False
        near = nn.functional.pad(latent[:, :3], (0, 0, 0, 0, 1, 1), mode="replicate")
        mean = nn.functional.conv3d(near, torch.full((3, 1, 3, 3, 3), 1 / 27), padding=(0, 1, 1), groups=3)
        wide = nn.functional.interpolate(mean, scale_factor=(1, 32, 32), mode="trilinear")
        return torch.cat([wide[:, :, :1], wide[:, :, 1:].repeat_interleave(8, dim=2)], dim=2)


def steps(picture: Tensor, dim: int) -> Tensor:
    """Largest mean step between neighbours along an axis, by the position after the step, in levels of 255."""
    others = tuple(axis for axis in range(4) if axis != dim)
    return 255 * picture.diff(dim=dim).abs().mean(dim=others)


def test_tile_edges_that_differ_by_28_levels_leave_no_step_of_2() -> None:
    """A bright picture that every tile darkens at its edges; averaged without ramps it would show steps of 17."""
    latent = torch.full((1, 128, 8, 10, 10), 0.9)
    tiling = Tiling(
        frames=Span(size=40, overlap=16), height=Span(size=160, overlap=64), width=Span(size=160, overlap=64)
    )
    edges = tiling.boundaries(Geometry(width=320, height=320, frames=57, fps=Fraction(24)))
    whole, tiled = copying(Blur()).decode(latent, None), copying(Blur()).decode(latent, tiling)
    alone = copying(Blur()).decode(latent[..., :5], None)
    assert 255 * (whole[20, 150, 159] - alone[20, 150, 159]).min() > 28
    assert len(edges.rows) == len(edges.columns) == 4
    for dim, places in ((1, edges.rows), (2, edges.columns)):
        growth = steps(tiled, dim) - steps(whole, dim)
        assert growth.max() < 2
        assert max(growth[place - 1] for place in places) < 1


def test_a_change_over_time_runs_through_tile_edges() -> None:
    """A slow brightening: no step grows by half a level; tiles averaged without ramps would show 1.4."""
    latent = torch.linspace(-0.8, 0.8, 12)[:, None, None].expand(1, 128, 12, 4, 4)
    tiling = replace(SMALL, frames=Span(size=40, overlap=16))
    edges = tiling.boundaries(Geometry(width=128, height=128, frames=89, fps=Fraction(24)))
    whole, tiled = copying(Blur()).decode(latent, None), copying(Blur()).decode(latent, tiling)
    growth = steps(tiled, 0) - steps(whole, 0)
    assert len(edges.frames) == 6
    assert growth.max() < 0.5


def test_stages_describe_the_network(video: VideoDecoder) -> None:
    """Widths and depths read off the arguments are those of the loaded weights."""
    header = read_header(GOLDENS / "ckpt" / "tiny-ltx-2.5-video-vae-conv-bf16.safetensors")
    assert decoder_stages(keys.video_vae(header).arguments) == video.stages
    assert [stage.channels for stage in video.stages] == [32, 16, 16, 8, 4]
    assert [(stage.time_scale, stage.side_scale) for stage in video.stages] == [(1, 1), (2, 2), (4, 4), (8, 4), (8, 8)]


def test_sound_is_float32_whatever_surrounds_it(audio: AudioDecoder) -> None:
    """bfloat16 latents and autocast around the call change no bit against float32 latents of the same values."""
    latent = golden("audio_decode")[0]["in.latent"].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = audio.decode(latent)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, audio.decode(latent.float()))


def test_a_waveform_that_is_not_finite_is_an_error(audio: AudioDecoder) -> None:
    """users.md row 63: NaN sound must fail, and the message says from when on."""
    latent = golden("audio_decode")[0]["in.latent"].clone()
    latent[0, 3, 5, 2] = float("nan")
    with pytest.raises(RenderFailed, match=r"not finite from 0\.\d+ s"):
        audio.decode(latent)


def geometries() -> Iterator[Geometry]:
    for fps in (Fraction(24), Fraction(24000, 1001), Fraction(25), Fraction(30), Fraction(50)):
        for frames in range(9, 258, 8):
            yield Geometry(width=64, height=64, frames=frames, fps=fps)


def test_sound_and_picture_last_equally_long() -> None:
    """A decoded wave is up to 50 ms short, more than an audio latent; fitted it is right to half a sample."""
    short = []
    for geometry in geometries():
        wave = torch.ones(2, (4 * geometry.audio_frames - 3) * 480)
        short.append(geometry.duration_s - Fraction(wave.shape[1], 48_000))
        fitted = fit_wave(wave, sample_rate=48_000, duration_s=geometry.duration_s)
        assert abs(geometry.duration_s - Fraction(fitted.shape[1], 48_000)) <= Fraction(1, 96_000)
        kept = min(wave.shape[1], fitted.shape[1])
        assert torch.equal(fitted[:, :kept], wave[:, :kept])
        assert not fitted[:, kept:].any()
    assert Fraction(1, AUDIO_LATENTS_HZ) < max(short) <= Fraction(1, 20)


def test_a_longer_wave_is_cropped() -> None:
    """Sound that outlasts the picture ends with it."""
    assert fit_wave(torch.ones(2, 100), sample_rate=10, duration_s=Fraction(3)).shape == (2, 30)
