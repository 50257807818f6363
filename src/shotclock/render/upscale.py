"""The spatial latent upscaler: a clip's latent at twice the rows and columns, between two stages of a render.

Un-normalises with the video VAE's statistics, upscales, normalises again (ltx25.md section 7). Tensors in, tensors out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.errors import RenderFailed
from shotclock.geometry import VIDEO_CHANNELS
from shotclock.render.decode import LatentStatistics, exact_float32, load_statistics
from shotclock.weights.header import Header
from shotclock.weights.identity import Kind
from shotclock.weights.load import load_module, require_match
from shotclock.weights.require import require
from shotclock.weights.stated import names_file, refusal

SCALE = 2  # of rows and columns
BLOCK = "res_blocks."  # a residual block before the upsampling
UPSAMPLER = "upsampler.0.weight"  # a per-frame convolution followed by pixel shuffle; other kinds name it otherwise
FIXED: Mapping[str, Any] = {"dims": 3, "spatial_upsample": True, "temporal_upsample": False, "spatial_scale": 2.0}


class Upscaler:
    """The upscaler of a file with the latent statistics of the video VAE, on a device."""

    def __init__(self, network: nn.Module, statistics: LatentStatistics, *, dtype: torch.dtype) -> None:
        self._network = network
        self._statistics = statistics
        self.dtype = dtype

    @classmethod
    def load(cls, header: Header, video_vae: Header, *, device: torch.device, dtype: torch.dtype) -> Upscaler:
        """Load it strictly. Raises :class:`CheckpointError`."""
        network = _on_meta(header)
        load_module(network, header, {key: key for key in header.tensors}, device=device, dtype=dtype)
        return cls(network.eval().requires_grad_(False), load_statistics(video_vae, "", device), dtype=dtype)

    def upscale(self, latent: Float[Tensor, "1 c f h w"]) -> Float[Tensor, "1 c f h2 w2"]:
        """A normalised latent to one of twice its rows and columns, in float32."""
        restored = self._statistics.restore(latent.to(self._statistics.mean.device), axis=1)
        with exact_float32(restored.device):
            larger: Tensor = self._network(restored.to(self.dtype))
        normalised = self._statistics.normalise(larger, axis=1)
        if not bool(normalised.isfinite().all()):
            raise RenderFailed(
                "the upscaled latent is not finite",
                allowed="finite latents",
                way_out="check the upscaler file with `shotclock inspect --sha256`; try --dtype float32",
            )
        return normalised


@names_file
def require_upscaler(header: Header) -> None:
    """Refuse what is no spatial upscaler x2 of this latent space; reads no weight."""
    require(header, Kind.SPATIAL_UPSCALER)
    require_match(_on_meta(header), header, {key: key for key in header.tensors})


def _on_meta(header: Header) -> nn.Module:
    first = header.tensors.get("initial_conv.weight")
    if first is None or len(first.shape) != 5 or first.shape[1] != VIDEO_CHANNELS or UPSAMPLER not in header.tensors:
        raise refusal("this is no upscaler x2 of video latents", f"initial_conv over {VIDEO_CHANNELS} channels")
    stated = header.config or {}
    for key, value in FIXED.items():
        if stated.get(key, value) != value:
            raise refusal(f"its config says {key} {stated[key]!r}", f"{value!r}")
    blocks = {name.split(".")[1] for name in header.tensors if name.startswith(BLOCK)}
    with torch.device("meta"):
        network: nn.Module = LTX2LatentUpsamplerModel(
            in_channels=VIDEO_CHANNELS,
            mid_channels=first.shape[0],
            num_blocks_per_stage=len(blocks),
            use_rational_resampler=False,
        )
    return network
