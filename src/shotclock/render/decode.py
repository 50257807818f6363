"""Latents to pictures and sound: the conv video decoder, tiled or not, and the audio decoder with its vocoder.

Streams pictures one temporal group of tiles at a time. Must not know files of media, run folders, clocks or the
governor; which tiling to use is decided in tiling.py, what to do when memory runs out by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import AutoencoderKLLTX2Video
from diffusers.models.autoencoders.autoencoder_kl_ltx2_audio import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE, UpSample1d
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from shotclock.errors import RenderFailed
from shotclock.geometry import SPACE_SCALE, TIME_SCALE, Geometry, patchify_audio, unpatchify_audio
from shotclock.render.tiling import Stage, TileGrid, Tiling, side_weights, tiles, time_weights
from shotclock.weights import keys
from shotclock.weights.header import Header
from shotclock.weights.load import load_module

ANY_RATE = Fraction(24)  # a decode does not depend on the rate
WHITE = 255


class LatentStatistics(nn.Module):
    """Mean and standard deviation of latent features, float32 (the file's ``per_channel_statistics``)."""

    mean: Tensor
    std: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))

    def restore(self, latent: Tensor, *, axis: int) -> Tensor:
        """Undo the normalisation of features along ``axis``, in float32."""
        shape = self._shape(latent, axis)
        return latent.float() * self.std.view(shape) + self.mean.view(shape)

    def normalise(self, latent: Tensor, *, axis: int) -> Tensor:
        """Features along ``axis`` as the transformer knows them, in float32: the inverse of :meth:`restore`."""
        shape = self._shape(latent, axis)
        return (latent.float() - self.mean.view(shape)) / self.std.view(shape)

    def _shape(self, latent: Tensor, axis: int) -> list[int]:
        shape = [1] * latent.ndim
        shape[axis] = -1
        return shape


class VideoDecoder:
    """The conv video decoder of a file, on a device; ``stages`` describe it to :mod:`shotclock.render.tiling`."""

    def __init__(
        self, network: nn.Module, statistics: LatentStatistics, *, stages: tuple[Stage, ...], dtype: torch.dtype
    ) -> None:
        self._network = network
        self._statistics = statistics
        self.stages = stages
        self.dtype = dtype

    @classmethod
    def load(cls, header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
        """Load the decoder half of a conv video VAE file; the encoder stays on disk. Raises ``CheckpointError``."""
        layout = keys.video_vae(header)
        with torch.device("meta"):
            network = AutoencoderKLLTX2Video(**layout.arguments).decoder
        load_module(network, header, layout.part("decoder."), device=device, dtype=dtype)
        return cls(
            network.eval().requires_grad_(False),
            load_statistics(header, "", device),
            stages=decoder_stages(layout.arguments),
            dtype=dtype,
        )

    @property
    def device(self) -> torch.device:
        """Where the decoder lies."""
        return self._statistics.mean.device

    def frames(
        self, latent: Float[Tensor, "1 c f h w"], tiling: Tiling | None
    ) -> Iterator[UInt8[Tensor, "t height width 3"]]:
        """The pictures in order, uint8 RGB on the CPU, at most 8 at a time.

        Values are rounded to the nearest level. Raises :class:`RenderFailed` naming the first frame that is not
        finite, before it would be rounded; frames before its group have been given out by then.
        """
        for group in self.pictures(latent, tiling):
            for first in range(0, len(group), TIME_SCALE):
                yield to_uint8(group[first : first + TIME_SCALE])
            del group  # frees the group while the next one is decoded

    def decode(self, latent: Float[Tensor, "1 c f h w"], tiling: Tiling | None) -> Float[Tensor, "t height width 3"]:
        """The whole clip in float32, values in [0, 1]; for comparisons, as it holds 12 bytes a pixel."""
        return torch.cat(list(self.pictures(latent, tiling)))

    def pictures(
        self, latent: Float[Tensor, "1 c f h w"], tiling: Tiling | None
    ) -> Iterator[Float[Tensor, "t height width 3"]]:
        """The pictures in order in float32, values in [0, 1], by temporal group, on the decoder's device."""
        _, _, frames, rows, columns = latent.shape
        grid = tiles(tiling, _geometry(frames, rows, columns))
        restored = self._statistics.restore(latent.to(self.device), axis=1)
        total, done = grid.frames[-1].stop, 0
        for group in self._groups(restored.to(self.dtype), grid):
            _require_finite_frames(group, done, total)
            done += group.shape[1]
            yield group.add_(1).div_(2).clamp_(0, 1).permute(1, 2, 3, 0)
            del group  # frees the group while the next one is decoded

    def _groups(
        self, latent: Float[Tensor, "1 c f h w"], grid: TileGrid
    ) -> Iterator[Float[Tensor, "3 t height width"]]:
        """Weighted sums of tiles in float32, about [-1, 1]; frames leave once no later tile adds to them."""
        weights = [weight.to(latent.device) for weight in time_weights(grid.frames)]
        height, width = grid.rows[-1].stop, grid.columns[-1].stop
        sums = torch.zeros(3, 0, height, width, device=latent.device)
        done = 0
        for number, (tile, weight) in enumerate(zip(grid.frames, weights, strict=True)):
            sums = _extended(sums, tile.stop - done)
            self._add_group(sums[:, tile.start - done :], latent[:, :, tile.first : tile.last], weight, grid)
            ready = grid.frames[number + 1].start if number + 1 < len(grid.frames) else tile.stop
            if ready > done:
                finished, sums, done = sums[:, : ready - done], sums[:, ready - done :].clone(), ready
                yield finished
                del finished

    def _add_group(
        self,
        sums: Float[Tensor, "3 t height width"],
        latent: Float[Tensor, "1 c f h w"],
        weight: Float[Tensor, " t"],
        grid: TileGrid,
    ) -> None:
        """Add all tiles of one temporal position to ``sums``, weighted along each axis."""
        row_weights, column_weights = side_weights(grid.rows), side_weights(grid.columns)
        for row, row_weight in zip(grid.rows, row_weights, strict=True):
            for column, column_weight in zip(grid.columns, column_weights, strict=True):
                tile = self._forward(latent[..., row.first : row.last, column.first : column.last])
                tile.mul_(weight[:, None, None])
                tile.mul_(row_weight.to(tile.device)[:, None])
                tile.mul_(column_weight.to(tile.device))
                sums[:, :, row.start : row.stop, column.start : column.stop].add_(tile)

    def _forward(self, latent: Float[Tensor, "1 c f h w"]) -> Float[Tensor, "3 t height width"]:
        with exact_float32(latent.device):
            picture: Tensor = self._network(latent.contiguous(), causal=False)
        return picture[0].float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A decoded sound and what it was made of, all float32 on the decoder's device, batch of one."""

    mel: Float[Tensor, "1 2 frames bins"]
    base_wave: Float[Tensor, "1 2 n"]
    base_log_mel: Float[Tensor, "1 2 bins k"]
    residual: Float[Tensor, "1 2 m"]
    skip: Float[Tensor, "1 2 m"]
    wave: Float[Tensor, "1 2 m"]


class AudioDecoder:
    """The audio VAE's decoder and the vocoder of a file, always in float32, whatever the rest of the render uses."""

    def __init__(
        self,
        network: nn.Module,
        statistics: LatentStatistics,
        vocoder: LTX2VocoderWithBWE,
        *,
        arguments: Mapping[str, Any],
    ) -> None:
        self._network = network
        self._statistics = statistics
        self._vocoder = vocoder
        self._hop: int = arguments["hop_length"]
        self.sample_rate: int = arguments["output_sampling_rate"]
        self._ratio = self.sample_rate // arguments["input_sampling_rate"]

    @classmethod
    def load(cls, header: Header, *, device: torch.device) -> AudioDecoder:
        """Load decoder and vocoder of an audio VAE file in float32. Raises ``CheckpointError``."""
        layout, voice = keys.audio_vae(header), keys.vocoder(header)
        with torch.device("meta"):
            network = AutoencoderKLLTX2Audio(**layout.arguments).decoder
            vocoder = LTX2VocoderWithBWE(**voice.arguments)
        load_module(network, header, layout.part("decoder."), device=device, dtype=torch.float32)
        ratio = voice.arguments["output_sampling_rate"] // voice.arguments["input_sampling_rate"]
        # Its Hann-sinc filter is computed, not stored in files, so it must not be made on the meta device.
        vocoder.resampler = UpSample1d(ratio=ratio, window_type="hann", persistent=False).to(device)
        load_module(vocoder, header, voice.names, device=device, dtype=torch.float32)
        return cls(
            network.eval().requires_grad_(False),
            load_statistics(header, keys.AUDIO_PREFIX, device),
            vocoder.eval().requires_grad_(False),
            arguments=voice.arguments,
        )

    @property
    def device(self) -> torch.device:
        """Where the decoder lies."""
        return self._statistics.mean.device

    def decode(self, latent: Float[Tensor, "1 8 m 16"]) -> Float[Tensor, "2 n"]:
        """The waveform at ``sample_rate`` in float32 on the CPU, values in [-1, 1], ``(4m - 3) * 10 ms`` long.

        Raises :class:`RenderFailed` naming the first second that is not finite.
        """
        wave = self.sound(latent).wave[0]
        _require_finite_wave(wave, self.sample_rate)
        return wave.cpu()

    def sound(self, latent: Float[Tensor, "1 8 m 16"]) -> Sound:
        """The waveform with its stages: stereo log-mel, base wave, its log-mel, residual and resampled base."""
        tokens = self._statistics.restore(patchify_audio(latent.to(self.device)), axis=2)
        with exact_float32(self.device):
            return self._voice(self._network(unpatchify_audio(tokens)))

    def _voice(self, mel: Float[Tensor, "1 2 frames bins"]) -> Sound:
        """Vocoder, then bandwidth extension: a residual from the log-mel of the base wave, over the base resampled."""
        base: Tensor = self._vocoder.vocoder(mel)
        whole = nn.functional.pad(base, (0, -base.shape[2] % self._hop))
        log_mel = self._vocoder.mel_stft(whole.flatten(0, 1))[0].unflatten(0, whole.shape[:2])
        residual = self._vocoder.bwe_generator(log_mel.transpose(2, 3))
        skip = self._vocoder.resampler(whole)
        wave = (residual + skip).clamp(-1, 1)[..., : base.shape[2] * self._ratio]
        return Sound(mel=mel, base_wave=base, base_log_mel=log_mel, residual=residual, skip=skip, wave=wave)


def fit_wave(wave: Float[Tensor, "c n"], *, sample_rate: int, duration_s: Fraction) -> Float[Tensor, "c k"]:
    """The waveform cropped, or padded with silence, to the picture's duration rounded to a sample.

    Audio latents are counted by rounding and the first of them fills one mel frame of four, so a decoded waveform is
    10 to 50 ms shorter than the picture, which would be more than one audio latent (40 ms).
    """
    samples = round(duration_s * sample_rate)
    if wave.shape[1] >= samples:
        return wave[:, :samples]
    return nn.functional.pad(wave, (0, samples - wave.shape[1]))


def to_uint8(picture: Float[Tensor, "t height width 3"]) -> UInt8[Tensor, "t height width 3"]:
    """Values in [0, 1] to the nearest of 256 levels (halves to even), on the CPU."""
    return (picture * WHITE).round_().to(torch.uint8).cpu()


def decoder_stages(arguments: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The stages of ``AutoencoderKLLTX2Video``'s decoder in run order, from its constructor arguments."""
    widths = [*reversed(arguments["decoder_block_out_channels"])]
    last = widths[-1] // arguments["upsample_factor"][0]
    layers = [*reversed(arguments["decoder_layers_per_block"])]
    scales = [(1, 1)]
    for kind in arguments["upsample_type"]:
        time, side = keys.STRIDES[kind]
        scales.append((scales[-1][0] * time, scales[-1][1] * side))
    return tuple(
        Stage(channels=channels, layers=depth, time_scale=time, side_scale=side)
        for channels, depth, (time, side) in zip([*widths, last], layers, scales, strict=True)
    )


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Inside, float32 stays float32: no autocast, and no TF32, which convolutions use by default on CUDA."""
    if device.type != "cuda":
        with torch.autocast(device.type, enabled=False):
            yield
        return
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        convolutions.allow_tf32, products.allow_tf32 = before


def load_statistics(header: Header, prefix: str, device: torch.device) -> LatentStatistics:
    """Those of a video (``prefix`` empty) or audio (``audio_vae.``) VAE file."""
    layout = keys.statistics(header, prefix)
    with torch.device("meta"):
        module = LatentStatistics(**layout.arguments)
    load_module(module, header, layout.names, device=device, dtype=torch.float32)
    return module


def _geometry(frames: int, rows: int, columns: int) -> Geometry:
    return Geometry(
        width=columns * SPACE_SCALE, height=rows * SPACE_SCALE, frames=TIME_SCALE * (frames - 1) + 1, fps=ANY_RATE
    )


def _extended(sums: Float[Tensor, "3 t height width"], frames: int) -> Float[Tensor, "3 k height width"]:
    longer = sums.new_zeros(sums.shape[0], frames, *sums.shape[2:])
    longer[:, : sums.shape[1]] = sums
    return longer


def _require_finite_frames(group: Float[Tensor, "3 t height width"], done: int, total: int) -> None:
    finite = torch.isfinite(group)
    if finite.all():
        return
    wrong = (~finite).sum(dim=(0, 2, 3)).tolist()
    first = next(index for index, count in enumerate(wrong) if count)
    raise RenderFailed(
        f"frame {done + first} of {total} (counted from 0) has {wrong[first]} values that are not finite",
        allowed="finite pixels",
        way_out="check the latents of this run for NaN; decode again with the decoder in float32",
    )


def _require_finite_wave(wave: Float[Tensor, "c n"], sample_rate: int) -> None:
    wrong = (~torch.isfinite(wave)).any(dim=0).nonzero()
    if len(wrong):
        raise RenderFailed(
            f"the waveform is not finite from {wrong[0].item() / sample_rate:.3f} s on ({len(wrong)} samples)",
            allowed="finite samples",
            way_out="check the audio latents of this run for NaN and the audio VAE file with `shotclock inspect`",
        )
