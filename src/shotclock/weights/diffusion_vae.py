"""The diffusion decoder of a video VAE file: its sizes from the config, its tensors under their official names.

From a header alone. Every tensor of the decoder is taken or listed as deliberately unused; anything unknown is refused.
Must not read weights or build modules. Source: ltx25.md section 6, shared reference ``key_mapping.md``, the goldens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from shotclock.geometry import SPACE_SCALE, TIME_SCALE, VIDEO_CHANNELS
from shotclock.model.diffusion_decoder import DecoderConfig
from shotclock.weights.header import Header
from shotclock.weights.keys import MEAN_KEY, STD_KEY, VIDEO_PATCH
from shotclock.weights.stated import Stated, names_file, refusal, require_equal, section

DECODER = "decoder."
STAGES = 5
UNUSED = re.compile(r"decoder\.(.*\.)?(type_emb|coarse_\w*)(\..*)?")  # ltx25.md section 6
GATES = re.compile(r"decoder\.(.*\.)?gate_\w*(\..*)?")  # files of before their gates were folded into the weights
_VAE_FIXED: Mapping[str, tuple[Any, bool]] = {
    "_class_name": ("CausalDiffusionVAE", True),
    "latent_channels": (VIDEO_CHANNELS, False),
    "model_output_type": ("x0", True),
}
_DECODER_FIXED: Mapping[str, tuple[Any, bool]] = {
    "in_channels": (VIDEO_CHANNELS, False),
    "out_channels": (3, False),
    "patch_size": (VIDEO_PATCH, False),
    "default_num_inference_steps": (1, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayout:
    """How the network is built and filled: sizes, file name -> module name, file names left alone."""

    config: DecoderConfig
    names: Mapping[str, str]
    unused: tuple[str, ...]


@names_file
def diffusion_decoder(header: Header) -> DecoderLayout:
    """The network of a diffusion video VAE file (statistics: :func:`shotclock.weights.keys.statistics`).

    Raises :class:`CheckpointError` for an option or tensor that the network cannot represent.
    """
    require_equal(section(header, "vae"), "vae", _VAE_FIXED)
    decoder = section(header, "vae", "decoder")
    require_equal(decoder, "vae.decoder", _DECODER_FIXED)
    names, unused = dict[str, str](), list[str]()
    for key in header.tensors:
        if not key.startswith(DECODER):
            if not (key.startswith("encoder.") or key in (MEAN_KEY, STD_KEY)):
                raise refusal(f"unknown tensor {key}", "the tensors of key_mapping: every one must have a place")
            continue
        if UNUSED.fullmatch(key):
            unused.append(key)
        elif GATES.fullmatch(key):
            raise refusal(f"{key}: a gate of its own", "gates folded into the weights, as in the released file")
        else:
            names[key] = key.removeprefix(DECODER)
    return DecoderLayout(config=_config(decoder), names=names, unused=tuple(unused))


def _config(decoder: Stated) -> DecoderConfig:
    widths, depths = _numbers(decoder, "stage_channels", STAGES), _numbers(decoder, "stage_depths", STAGES)
    windows = [*_windows(decoder["stage_kernels"])[: STAGES - 1], *_windows([decoder["stage5_kernel"]])]
    strides = _strides(decoder["upsamples"], widths)
    if len(windows) != STAGES:
        raise refusal(f"vae.decoder.stage_kernels {decoder['stage_kernels']}", f"at least {STAGES - 1} kernels")
    if decoder.get("stage5_channels", widths[-1]) != widths[-1]:
        raise refusal(f"vae.decoder.stage5_channels {decoder['stage5_channels']}", f"{widths[-1]}, the context's width")
    head_dim = decoder["head_dim"]
    if type(head_dim) is not int or head_dim < 8 or head_dim % 8 or any(width % head_dim for width in widths):
        raise refusal(f"vae.decoder.head_dim {head_dim!r}", f"a multiple of 8 that divides {widths}")
    return DecoderConfig(
        latents=VIDEO_CHANNELS,
        pixels=3,
        patch=VIDEO_PATCH,
        head_dim=head_dim,
        widths=widths,  # type: ignore[arg-type]
        depths=depths,  # type: ignore[arg-type]
        windows=tuple(windows),  # type: ignore[arg-type]
        strides=strides,  # type: ignore[arg-type]
        time_width=_numbers({"t_emb_dim": [decoder["t_emb_dim"]]}, "t_emb_dim", 1)[0],
        time_scale=float(decoder["timestep_scale_multiplier"]),
    )


def _numbers(values: Mapping[str, Any], key: str, count: int) -> tuple[int, ...]:
    found = values[key]
    if not isinstance(found, list) or len(found) != count or any(type(n) is not int or n < 1 for n in found):
        raise refusal(f"vae.decoder.{key} {found!r}", f"{count} positive whole numbers")
    return tuple(found)


def _windows(listed: Any) -> list[tuple[int, int, int]]:
    def good(window: Any) -> bool:
        return isinstance(window, list) and len(window) == 3 and all(type(n) is int and n > 0 and n % 2 for n in window)

    if not isinstance(listed, list) or not all(map(good, listed)):
        raise refusal(f"vae.decoder: kernels {listed!r}", "three odd positive numbers each")
    return [(window[0], window[1], window[2]) for window in listed]


def _strides(listed: Any, widths: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Strides of the upsamplings, which must lead from width to width and from the latent grid to patches."""
    try:
        strides = tuple((int(t), int(h), int(w)) for (t, h, w), _ in listed)
        reductions = [int(reduction) for _, reduction in listed]
    except (TypeError, ValueError) as error:
        raise refusal(f"vae.decoder.upsamples {listed!r}", "a list of [[time, height, width], reduction]") from error
    expected = tuple(width // reduction for width, reduction in zip(widths, reductions, strict=False))
    if len(strides) != STAGES - 1 or expected != widths[1:]:
        raise refusal(f"vae.decoder.upsamples {listed!r} between widths {list(widths)}", "reductions that agree")
    scales = [prod(stride[axis] for stride in strides) for axis in range(3)]
    if scales != [TIME_SCALE, SPACE_SCALE // VIDEO_PATCH, SPACE_SCALE // VIDEO_PATCH] or max(s[0] for s in strides) > 2:
        raise refusal(f"vae.decoder.upsamples scale by {scales}", f"{TIME_SCALE} and {SPACE_SCALE}: the latent grid")
    return strides
