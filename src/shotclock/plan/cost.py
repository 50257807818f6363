"""How much arithmetic a render needs: floating-point operations of a guided step and of the video decoder.

Counts, not seconds (a rate makes them seconds). Knows shapes only: no weights, device or clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Leg
from shotclock.model.config import TransformerConfig
from shotclock.model.prefix import schedule
from shotclock.weights.checkpoint import Header

PATCH = 4  # pixels a side of the decoder's output patch (ltx25.md section 6)


def leg_block_flops(config: TransformerConfig, video_tokens: int, audio_tokens: int, *, crossed: bool) -> int:
    """Operations of one leg in one block, text keys and values excluded (they are shared by context)."""
    d, a = config.video.width, config.audio.width
    own = 2 * video_tokens * (4 * d * d + 2 * d * d + 8 * d * d) + 2 * audio_tokens * 14 * a * a
    attention = 4 * (video_tokens**2 * d + audio_tokens**2 * a)
    if not crossed:
        return own + attention
    linear = 2 * video_tokens * (2 * d * a + 2 * d * a) + 2 * audio_tokens * 4 * a * a
    return own + attention + linear + 8 * video_tokens * audio_tokens * a


def text_flops(config: TransformerConfig, video_tokens: int, audio_tokens: int, text_tokens: int) -> int:
    """Operations of one leg's text attention in one block, without the keys and values."""
    return 4 * text_tokens * (video_tokens * config.video.width + audio_tokens * config.audio.width)


def step_flops(config: TransformerConfig, geometry: Geometry, guidance: Guidance, text_tokens: int) -> int:
    """Operations of one full guided step, shared prefixes counted once (ltx25.md 1.6, 1.7)."""
    legs = list(guidance.legs(config.blocks).values())
    total = 0
    for segment in schedule(legs, config.blocks):
        contexts = len({row.context for row in segment.rows})
        keys = 4 * text_tokens * contexts * (config.video_context * config.video.width)
        keys += 4 * text_tokens * contexts * (config.audio_context * config.audio.width)
        rows = sum(_row_flops(config, geometry, row, segment.start, text_tokens) for row in segment.rows)
        total += (segment.stop - segment.start) * (rows + keys)
    return total


def _row_flops(config: TransformerConfig, geometry: Geometry, leg: Leg, block: int, text_tokens: int) -> int:
    tokens = geometry.video_tokens, geometry.audio_tokens
    crossed = block not in leg.perturbation.audio_to_video
    return leg_block_flops(config, *tokens, crossed=crossed) + text_flops(config, *tokens, text_tokens)


def decode_flops(video_vae: Header, geometry: Geometry) -> int:
    """Operations of the untiled conv video decoder: every 3-D convolution at the size of its level."""
    blocks = _decoder_blocks(video_vae)
    total = 0
    for name, entry in video_vae.tensors.items():
        if not name.startswith("decoder.") or len(entry.shape) != 5:
            continue
        level = _level(name, len(blocks))
        frames, side = 1, 1
        for kind in blocks[:level]:
            frames *= 2 if kind in ("compress_time", "compress_all") else 1
            side *= 2 if kind in ("compress_space", "compress_all") else 1
        positions = ((geometry.latent_frames - 1) * frames + 1) * geometry.rows * geometry.columns * side**2
        total += 2 * positions * _product(entry.shape)
    return total


def _decoder_blocks(video_vae: Header) -> Sequence[str]:
    """Kinds of the decoder's blocks in the order they run; the config lists them in reverse."""
    config: Mapping[str, Any] = video_vae.metadata["config"]["vae"]
    return [kind for kind, _ in reversed(config["decoder_blocks"])]


def _level(name: str, blocks: int) -> int:
    """How many blocks run before the convolution ``name``."""
    part = name.split(".")
    return int(part[2]) if part[1] == "up_blocks" else (0 if part[1] == "conv_in" else blocks)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
