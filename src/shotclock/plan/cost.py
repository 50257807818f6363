"""How much arithmetic a render needs: floating-point operations of a guided step and of the video decoder.

Counts, not seconds (a rate makes them seconds). Knows shapes only: no file, weight, device or clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Leg, Pass
from shotclock.model.config import TransformerConfig
from shotclock.model.prefix import Prefix, Segment, schedule

TEXT_TOKENS = 1024  # positions of a context, registers included (ltx25.md section 3)
PATCH = 4  # pixels a side of the decoder's output patch (ltx25.md section 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Tokens of a forward: video, audio and text."""

    video: int
    audio: int
    text: int


def step_flops(config: TransformerConfig, geometry: Geometry, guidance: Guidance, text_tokens: int) -> int:
    """Operations of one full guided step, shared prefixes counted once (ltx25.md 1.6, 1.7)."""
    return sum(pass_flops(config, geometry, guidance, text_tokens, step=0))


def pass_flops(
    config: TransformerConfig, geometry: Geometry, guidance: Guidance, text_tokens: int, *, step: int
) -> tuple[int, ...]:
    """Operations of each pass of 0-based ``step``: matrix products of the blocks, prefixes taken from earlier passes.

    Left out are the embeddings, heads and gate logits, below 1 % at the released widths.
    """
    sizes = Sizes(video=geometry.video_tokens, audio=geometry.audio_tokens, text=text_tokens)
    legs = guidance.legs(config.blocks)
    passes = guidance.passes(step, config.blocks)
    kept: set[Prefix] = set()
    counted = []
    for number, launch in enumerate(passes):
        later = [legs[name] for after in passes[number + 1 :] for name in after.legs]
        segments = schedule([legs[name] for name in launch.legs], config.blocks, kept=kept, later=later)
        counted.append(sum(_segment_flops(config, sizes, segment, launch) for segment in segments))
        kept |= {prefix for segment in segments for _, prefix in segment.keep}
    return tuple(counted)


def alone_flops(
    config: TransformerConfig, geometry: Geometry, legs: Sequence[Leg], launch: Pass, text_tokens: int
) -> int:
    """Operations of one pass that finds no kept prefix; ``legs`` are its legs in order."""
    sizes = Sizes(video=geometry.video_tokens, audio=geometry.audio_tokens, text=text_tokens)
    return sum(_segment_flops(config, sizes, segment, launch) for segment in schedule(legs, config.blocks))


def _segment_flops(config: TransformerConfig, sizes: Sizes, segment: Segment, launch: Pass) -> int:
    """Rows of the segment in all of its blocks; text keys and values are made once a context."""
    contexts = len({row.context for row in segment.rows})
    keys = 0
    for runs, context, width in (
        (launch.video, config.video_context, config.video.width),
        (launch.audio, config.audio_context, config.audio.width),
    ):
        keys += 4 * sizes.text * contexts * context * width if runs else 0
    total = keys * (segment.stop - segment.start)
    for block in range(segment.start, segment.stop):
        total += sum(row_flops(config, sizes, row, block, launch) for row in segment.rows)
    return total


def row_flops(config: TransformerConfig, sizes: Sizes, leg: Leg, block: int, launch: Pass) -> int:
    """Operations of one leg in one block, without the text keys and values."""
    n, m, d, a = sizes.video, sizes.audio, config.video.width, config.audio.width
    p = leg.perturbation
    total = 0
    if launch.video:
        total += stream_flops(n, sizes.text, d, passed_over=block in p.video_self)
        total += 0 if block in p.audio_to_video else 4 * n * d * a + 4 * m * a * a + 4 * n * m * a
    if launch.audio:
        total += stream_flops(m, sizes.text, a, passed_over=block in p.audio_self)
        total += 0 if block in p.video_to_audio else 4 * m * a * a + 4 * n * d * a + 4 * n * m * a
    return total


def stream_flops(tokens: int, text_tokens: int, width: int, *, passed_over: bool) -> int:
    """Self-attention (only values and output where it is passed over), text attention and feed-forward of a stream."""
    own = 4 * tokens * width**2 if passed_over else 8 * tokens * width**2 + 4 * tokens**2 * width
    return own + 4 * tokens * width**2 + 4 * tokens * text_tokens * width + 16 * tokens * width**2


def decode_flops(shapes: Mapping[str, Sequence[int]], vae_config: Mapping[str, Any], geometry: Geometry) -> int:
    """Operations of the untiled conv video decoder: every 3-D convolution at the size of its level.

    ``shapes`` are those of the VAE file's tensors by official name, ``vae_config`` is its ``config["vae"]``.
    """
    blocks = _decoder_blocks(vae_config)
    total = 0
    for name, shape in shapes.items():
        if not name.startswith("decoder.") or len(shape) != 5:
            continue
        level = _level(name, len(blocks))
        frames, side = 1, 1
        for kind in blocks[:level]:
            frames *= 2 if kind in ("compress_time", "compress_all") else 1
            side *= 2 if kind in ("compress_space", "compress_all") else 1
        positions = ((geometry.latent_frames - 1) * frames + 1) * geometry.rows * geometry.columns * side**2
        total += 2 * positions * prod(shape)
    return total


def _decoder_blocks(vae_config: Mapping[str, Any]) -> Sequence[str]:
    """Kinds of the decoder's blocks in the order they run; the config lists them in reverse."""
    return [kind for kind, _ in reversed(vae_config["decoder_blocks"])]


def _level(name: str, blocks: int) -> int:
    """How many blocks run before the convolution ``name``."""
    part = name.split(".")
    return int(part[2]) if part[1] == "up_blocks" else (0 if part[1] == "conv_in" else blocks)
