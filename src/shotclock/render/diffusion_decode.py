"""Latents to pictures with the diffusion video decoder, whole or in exact tiles.

One volume of noise is drawn for the whole clip, whatever the tiles; a tile takes its part of it. Must not know files
of media, run folders, clocks or the governor; which cuts to use is decided in exact_tiles.py.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from shotclock.errors import RenderFailed
from shotclock.geometry import AUDIO_BINS, AUDIO_CHANNELS, TIME_SCALE, VIDEO_CHANNELS
from shotclock.model.diffusion_decoder import DecoderConfig, DiffusionDecoder, Shape, plan_tile
from shotclock.model.neighbourhood import Attend, Box, Natten, largest_difference, windowed
from shotclock.render.decode import LatentStatistics, exact_float32, to_uint8
from shotclock.render.exact_tiles import Cuts, cores, padding
from shotclock.weights import keys
from shotclock.weights.diffusion_vae import diffusion_decoder
from shotclock.weights.header import Header
from shotclock.weights.load import load_module

logger = logging.getLogger(__name__)
AGREEMENT = {torch.float32: 1e-3, torch.bfloat16: 0.03, torch.float16: 5e-3}  # of values near 1; wrong windows: > 0.1

Finish = Callable[[Float[Tensor, "t height width 3"]], Tensor]


class DiffusionVideoDecoder:
    """The diffusion video decoder of a file, on a device; ``config`` describes it to exact_tiles.py."""

    def __init__(
        self, network: DiffusionDecoder, statistics: LatentStatistics, *, attend: Attend, dtype: torch.dtype
    ) -> None:
        self._network = network
        self._statistics = statistics
        self._attend = attend
        self.dtype = dtype

    @classmethod
    def load(cls, header: Header, *, device: torch.device, dtype: torch.dtype) -> DiffusionVideoDecoder:
        """Load the decoder half of a diffusion VAE file; the encoder stays on disk. Raises ``CheckpointError``."""
        layout, moments = diffusion_decoder(header), keys.statistics(header)
        with torch.device("meta"):
            network = DiffusionDecoder(layout.config)
            statistics = LatentStatistics(**moments.arguments)
        load_module(network, header, layout.names, device=device, dtype=dtype)
        load_module(statistics, header, moments.names, device=device, dtype=torch.float32)
        network.eval().requires_grad_(False)
        return cls(network, statistics, attend=attention_for(device, dtype), dtype=dtype)

    @property
    def config(self) -> DecoderConfig:
        """Sizes of the network."""
        return self._network.config

    @property
    def device(self) -> torch.device:
        """Where the decoder lies."""
        return self._statistics.mean.device

    @property
    def attention(self) -> str:
        """The implementation of attention; part of the numerics of a run."""
        return attention_name(self._attend)

    def noise(self, latent: Float[Tensor, "1 c f h w"], generator: torch.Generator) -> Float[Tensor, "1 3 t y x"]:
        """The noise of the whole clip, one draw in float32 from a CPU generator: a seed means the same everywhere.

        Covers the padding of a small latent too. Draw it once a render and keep it for every attempt.
        """
        return torch.randn(self.noise_shape(_shape(latent)), generator=generator)

    def noise_shape(self, latent: Shape) -> tuple[int, int, int, int, int]:
        """Shape of the draw for a latent's frames, rows and columns."""
        frames, rows, columns = self.config.grids(padding(self.config, latent).grid)[4]
        return 1, self.config.pixels, frames, rows * self.config.patch, columns * self.config.patch

    def frames(
        self, latent: Float[Tensor, "1 c f h w"], cuts: Cuts | None, noise: Float[Tensor, "1 3 t y x"]
    ) -> Iterator[UInt8[Tensor, "n height width 3"]]:
        """The pictures in order, uint8 RGB on the CPU, at most 8 at a time; a group of tiles is decoded at once.

        Values are rounded to the nearest level. Raises :class:`RenderFailed` naming the first frame that is not
        finite; frames before its group have been given out by then.
        """
        for group in self._groups(latent, cuts, noise, to_uint8, torch.uint8):
            for first in range(0, len(group), TIME_SCALE):
                yield group[first : first + TIME_SCALE]

    def decode(
        self, latent: Float[Tensor, "1 c f h w"], cuts: Cuts | None, noise: Float[Tensor, "1 3 t y x"]
    ) -> Float[Tensor, "n height width 3"]:
        """The whole clip in float32 on the CPU, values in [0, 1]; for comparisons, as it holds 12 bytes a pixel."""
        return torch.cat(list(self._groups(latent, cuts, noise, torch.Tensor.cpu, torch.float32)))

    def _groups(
        self, latent: Tensor, cuts: Cuts | None, noise: Tensor, finish: Finish, dtype: torch.dtype
    ) -> Iterator[Float[Tensor, "n height width 3"]]:
        """The pictures by temporal tile, finished and on the CPU."""
        shape = _shape(latent)
        assert noise.shape == self.noise_shape(shape), f"noise of {tuple(noise.shape)} for latents of {shape}"
        frames, rows, columns = cores(self.config, shape, cuts)
        with exact_float32(self.device):
            features = self._network.features(self._restored(latent), self._attend)
        grids = self.config.grids(padding(self.config, shape).grid)
        patch = self.config.patch
        height, width = (patch * (parts[-1].stop - parts[0].start) for parts in (rows, columns))
        for frame in frames:
            group = torch.empty(frame.length, height, width, self.config.pixels, dtype=dtype)
            wrong = torch.zeros(frame.length, dtype=torch.int64)
            for row, column in product(rows, columns):
                y, x = patch * (row.start - rows[0].start), patch * (column.start - columns[0].start)
                place = group[:, y : y + patch * row.length, x : x + patch * column.length]
                done = 0
                for picture in self._tile(features, noise, grids, (frame, row, column)):
                    here = slice(done, done + len(picture))
                    wrong[here] += (~torch.isfinite(picture)).sum(dim=(1, 2, 3)).cpu()
                    place[here] = finish(picture.add_(1).div_(2).clamp_(0, 1))
                    done = here.stop
            _require_finite(wrong, frame.start, frames[-1].stop)
            yield group
            del group  # frees the group while the next one is decoded

    def _restored(self, latent: Float[Tensor, "1 c f h w"]) -> Float[Tensor, "c f2 h2 w2"]:
        """Without normalisation, and with the padding of a small latent: time repeats the last, sides replicate."""
        padded = padding(self.config, _shape(latent))
        sides = zip(reversed(padded.before), reversed(padded.after), strict=True)
        restored = self._statistics.restore(latent.to(self.device), axis=1)
        whole = torch.nn.functional.pad(restored, [n for pair in sides for n in pair], mode="replicate")
        return whole[0].to(self.dtype)

    def _tile(
        self, features: Float[Tensor, "f h w c"], noise: Tensor, grids: list[Shape], core: Box
    ) -> Iterator[Float[Tensor, "n height width 3"]]:
        """A tile's pictures in float32, about [-1, 1], some frames at a time."""
        plan, patch = plan_tile(self.config, grids, core), self.config.patch
        frames, rows, columns = plan.stage_5[0]
        part = noise[
            0,
            :,
            frames.start : frames.stop,
            patch * rows.start : patch * rows.stop,
            patch * columns.start : patch * columns.stop,
        ]
        with exact_float32(self.device):
            context = self._network.context(features, grids, plan, self._attend)
            for picture in self._network.denoise(part, context, plan, self._attend):
                yield picture.permute(1, 2, 3, 0).float()


def decode_generator(seed: int, tokens: Sequence[tuple[int, int]]) -> torch.Generator:
    """The seed's generator as the initial noise left it (``latents.stage_noise``): the decode continues its stream.

    So the official one does too (golden e2e_t2v). ``tokens`` are (video, audio) of each stage, appended conditioning
    tokens included. A resume needs no state: it follows from seed and counts; ``get_state`` and ``set_state`` continue
    it exactly as well.
    """
    generator = torch.Generator().manual_seed(seed)
    for video, audio in tokens:
        torch.randn(1, video, VIDEO_CHANNELS, generator=generator)
        torch.randn(1, audio, AUDIO_CHANNELS * AUDIO_BINS, generator=generator)
    return generator


def attention_for(device: torch.device, dtype: torch.dtype) -> Attend:
    """NATTEN where it is installed with its kernels, on a CUDA device, and agrees with torch; else torch.

    A NATTEN that does not agree is named in a warning and not used.
    """
    if device.type != "cuda":
        return windowed
    try:
        library = importlib.import_module("natten")
    except ImportError:
        return windowed
    if not getattr(library, "HAS_LIBNATTEN", False):
        logger.warning("NATTEN is installed without its kernels; the diffusion decoder's attention runs in torch")
        return windowed
    return checked(Natten(library.na3d), device=device, dtype=dtype)


def attention_name(attend: Attend) -> str:
    """As the event log has it."""
    return "natten" if isinstance(attend, Natten) else "torch"


def checked(natten: Natten, *, device: torch.device, dtype: torch.dtype) -> Attend:
    """``natten`` where it agrees with torch on a small volume, else torch and a warning."""
    with exact_float32(device):
        difference = largest_difference(windowed, natten, device=device, dtype=dtype)
    if difference <= AGREEMENT[dtype]:
        return natten
    logger.warning(
        "NATTEN differs from torch by %.2g on %s in %s (%.2g allowed); the diffusion decoder's attention runs in torch",
        difference, device, dtype, AGREEMENT[dtype],
    )  # fmt: skip
    return windowed


def _shape(latent: Float[Tensor, "1 c f h w"]) -> Shape:
    return latent.shape[2], latent.shape[3], latent.shape[4]


def _require_finite(wrong: Tensor, done: int, total: int) -> None:
    bad = wrong.nonzero()
    if len(bad):
        first = int(bad[0])
        raise RenderFailed(
            f"frame {done + first} of {total} (counted from 0) has {int(wrong[first])} values that are not finite",
            allowed="finite pixels",
            way_out="check the latents of this run for NaN; decode again with the decoder in float32",
        )
