"""Which part of LTX-2.5 a file is, of which version, and the recipe that follows: told from the header alone.

Reads tensor names, shapes and metadata (ltx25.md sections 1 to 3). Judges nothing: refusals are in require.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from shotclock.errors import CheckpointError
from shotclock.weights import released
from shotclock.weights.header import Header
from shotclock.weights.released import Recipe

DIT = "model.diffusion_model."  # prefix of every tensor in a transformer file, ltx25.md section 1.3
KEYFRAMES = f"{DIT}keyframes_abs_pos_embedding"  # new in 2.5, ltx25.md section 1.1
FF_BIAS = f"{DIT}transformer_blocks.0.ff.net.0.proj.bias"  # gone in 2.5, ltx25.md section 1.1
PROJECTION = "text_embedding_projection."  # ltx25.md section 3
EMBEDDING = re.compile(r"(language_model\.)?model\.(language_model\.)?embed_tokens\.weight")
LAYER = re.compile(r"(language_model\.)?model\.(language_model\.)?layers\.(\d+)\.")
LORA = re.compile(r"\.(lora_[AB]|lora_(up|down)|lokr_w\d|hada_w\d)\w*(\.|$)")


class Kind(StrEnum):
    """What a file of weights is."""

    TRANSFORMER = "transformer"
    TEXT_ENCODER = "text_encoder"
    VIDEO_VAE_CONV = "video_vae_conv"
    VIDEO_VAE_DIFFUSION = "video_vae_diffusion"
    AUDIO_VAE = "audio_vae"
    SPATIAL_UPSCALER = "spatial_upscaler"
    TEMPORAL_UPSCALER = "temporal_upscaler"
    DURATION_HEAD = "duration_head"
    LORA = "lora"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        """The kind as a user would say it."""
        return _WORDS[self]

    @property
    def official_file(self) -> str:
        """Name of a released file of this kind."""
        return _OFFICIAL[self]


_WORDS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.TRANSFORMER: "a transformer with text connectors",
        Kind.TEXT_ENCODER: "a Gemma text encoder",
        Kind.VIDEO_VAE_CONV: "a video VAE with the convolutional decoder",
        Kind.VIDEO_VAE_DIFFUSION: "a video VAE with the diffusion decoder",
        Kind.AUDIO_VAE: "an audio VAE with vocoder",
        Kind.SPATIAL_UPSCALER: "a spatial latent upscaler",
        Kind.TEMPORAL_UPSCALER: "a temporal latent upscaler",
        Kind.DURATION_HEAD: "a duration head",
        Kind.LORA: "a LoRA",
        Kind.UNKNOWN: "of no kind known here",
    }
)
_OFFICIAL: Mapping[Kind, str] = MappingProxyType(  # ltx25.md section 2
    {
        Kind.TRANSFORMER: "ltx-2.5-22b-dev-transformer-bf16.safetensors",
        Kind.TEXT_ENCODER: "gemma4-12b-with-proj-ltx-2.5-bf16.safetensors",
        Kind.VIDEO_VAE_CONV: "ltx-2.5-video-vae-conv-bf16.safetensors",
        Kind.VIDEO_VAE_DIFFUSION: "ltx-2.5-video-vae-bf16.safetensors",
        Kind.AUDIO_VAE: "ltx-2.5-audio-vae-bf16.safetensors",
        Kind.SPATIAL_UPSCALER: "an ltx-2.5 spatial upscaler x2",
        Kind.TEMPORAL_UPSCALER: "an ltx-2.5 temporal upscaler",
        Kind.DURATION_HEAD: "ltx-2.5-duration-head-bf16.safetensors",
        Kind.LORA: "ltx-2.5-22b-distilled-lora-450-bf16.safetensors",
        Kind.UNKNOWN: "a released ltx-2.5 file",
    }
)


def identify(header: Header) -> Kind:
    """What a file is, from its tensor names (and, for upscalers, shapes). Says nothing about version or dtype."""
    names = header.tensors.keys()
    if any(LORA.search(name) for name in names):
        return Kind.LORA
    if any(name.startswith(f"{DIT}transformer_blocks.") for name in names):
        return Kind.TRANSFORMER
    if any(name.startswith(PROJECTION) or EMBEDDING.fullmatch(name) or LAYER.match(name) for name in names):
        return Kind.TEXT_ENCODER
    for prefix, kind in (
        ("audio_vae.", Kind.AUDIO_VAE),
        ("vocoder.", Kind.AUDIO_VAE),
        ("duration_head.", Kind.DURATION_HEAD),
        ("decoder.diff_blocks.", Kind.VIDEO_VAE_DIFFUSION),
        ("decoder.up_blocks.", Kind.VIDEO_VAE_CONV),
    ):
        if any(name.startswith(prefix) for name in names):
            return kind
    return _upscaler(header)


def _upscaler(header: Header) -> Kind:
    if not any(name.startswith("post_upsample_res_blocks.") for name in header.tensors):
        return Kind.UNKNOWN
    weights = [
        entry for name, entry in header.tensors.items() if name.startswith("upsampler.") and len(entry.shape) > 3
    ]
    return Kind.TEMPORAL_UPSCALER if any(len(entry.shape) == 5 for entry in weights) else Kind.SPATIAL_UPSCALER


def version_of(header: Header) -> tuple[int, ...] | None:
    """``model_version`` as numbers; "-" counts as "." and reading stops at the first part that is no number.

    Where the metadata is lost, a transformer that carries what is new in 2.5 is 2.5; otherwise None.
    """
    if header.model_version is not None:
        return _version(header.model_version)
    is_new = identify(header) is Kind.TRANSFORMER and old_features(header) is None
    return released.MODEL_VERSION if is_new else None


def _version(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.replace("-", ".").split("."):
        if not re.fullmatch(r"[0-9]{1,9}", part):
            break
        numbers.append(int(part))
    return tuple(numbers)


def old_features(header: Header) -> str | None:
    """What shows that a transformer is older than 2.5, or None."""
    if FF_BIAS in header.tensors:
        return "its feed-forward layers have biases, those of LTX-2.5 have none"
    if KEYFRAMES not in header.tensors:
        return "it has no keyframes_abs_pos_embedding, which LTX-2.5 adds to every first frame"
    return None


def recipe_for(header: Header) -> Recipe:
    """The guided recipe that follows from a transformer's version; a ``shotclock`` metadata entry may name stg blocks.

    Raises :class:`CheckpointError` where no version can be told.
    """
    version = version_of(header)
    if version is None:
        raise CheckpointError(
            f"{header.path.name} names no model_version and is no LTX-2.5 transformer by its tensors",
            allowed="a transformer of LTX-2.5",
            way_out=f"fetch {Kind.TRANSFORMER.official_file}",
        )
    own = header.metadata.get("shotclock")
    blocks = own.get("stg_blocks") if isinstance(own, Mapping) else None
    if blocks is None:
        return released.one_stage(version, None)
    if not isinstance(blocks, list) or not all(type(block) is int and block >= 0 for block in blocks):
        raise CheckpointError(
            f"{header.path.name} has the stg_blocks {blocks!r} in its shotclock metadata",
            allowed="a list of block numbers",
            way_out="write the file again",
        )
    return released.one_stage(version, tuple(blocks))
