"""How much arithmetic a render needs: floating-point operations of a guided step and of the video decoder.

Counts, not seconds (a rate makes them seconds). Knows shapes only: no file, weight, device or clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
    return tuple(_launch_flops(config, sizes, *counted) for counted in _step_rows(guidance, config.blocks, step))


def alone_flops(
    config: TransformerConfig, geometry: Geometry, legs: Sequence[Leg], launch: Pass, text_tokens: int
) -> int:
    """Operations of one pass that finds no kept prefix; ``legs`` are its legs in order."""
    sizes = Sizes(video=geometry.video_tokens, audio=geometry.audio_tokens, text=text_tokens)
    return _launch_flops(config, sizes, launch, *_rows(schedule(legs, config.blocks)))


@lru_cache(maxsize=64)
def step_segments(guidance: Guidance, blocks: int, step: int) -> tuple[tuple[Pass, tuple[Segment, ...]], ...]:
    """The passes of 0-based ``step`` with what each computes, prefixes of earlier passes taken off."""
    legs, passes = guidance.legs(blocks), guidance.passes(step, blocks)
    kept: set[Prefix] = set()
    found = []
    for number, launch in enumerate(passes):
        later = [legs[name] for after in passes[number + 1 :] for name in after.legs]
        segments = schedule([legs[name] for name in launch.legs], blocks, kept=kept, later=later)
        found.append((launch, segments))
        kept |= {prefix for segment in segments for _, prefix in segment.keep}
    return tuple(found)


@lru_cache(maxsize=64)
def _step_rows(guidance: Guidance, blocks: int, step: int) -> tuple[tuple[Pass, Mapping[_Flags, int], int], ...]:
    return tuple((launch, *_rows(segments)) for launch, segments in step_segments(guidance, blocks, step))


_Flags = tuple[bool, bool, bool, bool]  # what a row passes over in a block, in the order of Perturbation


def _rows(segments: Sequence[Segment]) -> tuple[Mapping[_Flags, int], int]:
    """Rows in all blocks by what they pass over, and texts in all blocks."""
    rows: Counter[_Flags] = Counter()
    texts = 0
    for segment in segments:
        texts += len({row.context for row in segment.rows}) * (segment.stop - segment.start)
        for block in range(segment.start, segment.stop):
            for row in segment.rows:
                p = row.perturbation
                over = (p.video_self, p.audio_self, p.audio_to_video, p.video_to_audio)
                rows[block in over[0], block in over[1], block in over[2], block in over[3]] += 1
    return rows, texts


def _launch_flops(config: TransformerConfig, sizes: Sizes, launch: Pass, rows: Mapping[_Flags, int], texts: int) -> int:
    """Rows of a pass in all of its blocks; text keys and values are made once a context."""
    total = 0
    for runs, context, width in (
        (launch.video, config.video_context, config.video.width),
        (launch.audio, config.audio_context, config.audio.width),
    ):
        total += 4 * sizes.text * texts * context * width if runs else 0
    return total + sum(count * _row_flops(config, sizes, flags, launch) for flags, count in rows.items())


def _row_flops(config: TransformerConfig, sizes: Sizes, over: _Flags, launch: Pass) -> int:
    """Operations of one leg in one block, without the text keys and values."""
    n, m, d, a = sizes.video, sizes.audio, config.video.width, config.audio.width
    video_self, audio_self, audio_to_video, video_to_audio = over
    total = 0
    if launch.video:
        total += stream_flops(n, sizes.text, d, passed_over=video_self)
        total += 0 if audio_to_video else 4 * n * d * a + 4 * m * a * a + 4 * n * m * a
    if launch.audio:
        total += stream_flops(m, sizes.text, a, passed_over=audio_self)
        total += 0 if video_to_audio else 4 * m * a * a + 4 * n * d * a + 4 * n * m * a
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
