"""The LTX-2.5 audio-video transformer: latents, times and contexts in, velocities of every leg out.

Written from ltx25.md section 1. Pure tensors: knows no file, clock, device choice or sampler. Parameter names are the
official ones without their prefix, so weights load without a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.guidance import Leg
from shotclock.model.adaln import AdaLayerNormSingle, Times
from shotclock.model.attention import additive
from shotclock.model.block import Block, Conditions, rows_of
from shotclock.model.config import TransformerConfig
from shotclock.model.exchange import Shards
from shotclock.model.linear import Linear
from shotclock.model.prefix import Prefix, Segment, schedule
from shotclock.model.rope import Rotary, fractions_of, rotary

Hidden = tuple[Tensor, Tensor]  # states of the video and audio rows
Kept = dict[Prefix, Hidden]  # states that later passes of the same step fork from


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One modality of a forward. b is 1 (all legs share it) or the number of rows.

    ``times`` are the per-token times (mask * sigma), ``sigma`` the stream's own. ``context`` holds k texts; a leg names
    the one it reads. Masks are in [0, 1]: ``self_mask`` (b n n), ``context_mask`` (k s). ``marker`` is video only.
    With ``shards``, n are the tokens of this rank, and ``self_mask`` is that of all tokens.
    """

    tokens: Float[Tensor, "b n c"]
    times: Times
    sigma: Float[Tensor, b]
    rotary: tuple[Rotary, Rotary]
    context: Float[Tensor, "k s d"]
    marker: Float[Tensor, "b n 1"] | None = None
    self_mask: Float[Tensor, "b all all"] | None = None
    context_mask: Tensor | None = None
    enabled: bool = True
    shards: Shards | None = None


@runtime_checkable
class Model(Protocol):
    """What a guided step needs of a transformer, on one rank or on several; see :class:`Transformer`."""

    @property
    def config(self) -> TransformerConfig: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def video_rotary(self, positions: Float[Tensor, "b 3 n 2"]) -> tuple[Rotary, Rotary]: ...
    def audio_rotary(self, positions: Float[Tensor, "b 1 m 2"]) -> tuple[Rotary, Rotary]: ...
    def __call__(
        self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept | None = None, later: Sequence[Leg] = ()
    ) -> tuple[Float[Tensor, "r n c"], Float[Tensor, "r m c"]]: ...
    def keep(self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept, later: Sequence[Leg]) -> None: ...


class Transformer(nn.Module):
    """``forward`` runs rows of legs; build on the meta device and load, or train."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        v, a = config.video.width, config.audio.width
        if config.keyframe_embedding:
            self.keyframes_abs_pos_embedding = nn.Parameter(torch.zeros(1, v))
        self.patchify_proj = Linear(config.video_in, v)
        self.audio_patchify_proj = Linear(config.audio_in, a)
        self.adaln_single = AdaLayerNormSingle(v, 9)
        self.audio_adaln_single = AdaLayerNormSingle(a, 9)
        self.prompt_adaln_single = AdaLayerNormSingle(v, 2)
        self.audio_prompt_adaln_single = AdaLayerNormSingle(a, 2)
        self.av_ca_video_scale_shift_adaln_single = AdaLayerNormSingle(v, 4)
        self.av_ca_audio_scale_shift_adaln_single = AdaLayerNormSingle(a, 4)
        self.av_ca_a2v_gate_adaln_single = AdaLayerNormSingle(v, 1)
        self.av_ca_v2a_gate_adaln_single = AdaLayerNormSingle(a, 1)
        self.transformer_blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.scale_shift_table = nn.Parameter(torch.zeros(2, v))
        self.audio_scale_shift_table = nn.Parameter(torch.zeros(2, a))
        self.proj_out = Linear(v, config.video_out)
        self.audio_proj_out = Linear(a, config.audio_out)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the linear layers, and so of states and latents."""
        return self.patchify_proj.weight.dtype

    def video_rotary(self, positions: Float[Tensor, "b 3 n 2"]) -> tuple[Rotary, Rotary]:
        """Self-attention and cross-modal tables of the video stream; constants of a render."""
        c = self.config
        own = rotary(
            fractions_of(positions, c.max_position),
            width=c.video.width,
            heads=c.video.heads,
            theta=c.theta,
            dtype=self.dtype,
        )
        return own, self._cross_rotary(positions)

    def audio_rotary(self, positions: Float[Tensor, "b 1 m 2"]) -> tuple[Rotary, Rotary]:
        """Self-attention and cross-modal tables of the audio stream; constants of a render."""
        c = self.config
        own = rotary(
            fractions_of(positions, [c.audio_max_position]),
            width=c.audio.width,
            heads=c.audio.heads,
            theta=c.theta,
            dtype=self.dtype,
        )
        return own, self._cross_rotary(positions)

    def _cross_rotary(self, positions: Float[Tensor, "b axes n 2"]) -> Rotary:
        """Time axis alone, in seconds: what aligns sound with picture."""
        c = self.config
        largest = max(c.max_position[0], c.audio_max_position)
        time = fractions_of(positions[:, :1], [largest])
        return rotary(time, width=c.audio.width, heads=c.audio.heads, theta=c.theta, dtype=self.dtype)

    def forward(
        self,
        video: Stream,
        audio: Stream,
        legs: Sequence[Leg],
        *,
        kept: Kept | None = None,
        later: Sequence[Leg] = (),
    ) -> tuple[Float[Tensor, "r n c"], Float[Tensor, "r m c"]]:
        """Velocities of both streams, a row for each of ``legs`` in their order.

        ``kept`` holds prefixes from earlier passes of the same step and receives those that ``later`` legs fork from.
        With b > 1 the rows are samples: leg i reads sample i and no prefix is shared.
        """
        kept = {} if kept is None else kept
        conditions, embedded = self._both_conditions(video, audio)
        batched = len(video.tokens) > 1
        blocks = self.config.blocks
        segments = (
            (Segment(start=0, stop=blocks, rows=tuple(legs), sources=tuple(range(len(legs)))),)
            if batched
            else schedule(legs, blocks, kept=kept, later=later)
        )
        hidden = self._run(segments, self.embed(video, audio), conditions, kept, batched=batched)
        rows = segments[-1].rows
        which = list(range(len(legs))) if batched else [rows.index(leg) for leg in legs]
        h_v, h_a = (rows_of(h, which) for h in hidden)
        return (
            self._head(h_v, video.times, embedded[0], self.scale_shift_table, self.proj_out),
            self._head(h_a, audio.times, embedded[1], self.audio_scale_shift_table, self.audio_proj_out),
        )

    def keep(self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept, later: Sequence[Leg]) -> None:
        """Put into ``kept`` what a forward with these arguments would, by the same launches and no others."""
        segments = schedule(legs, self.config.blocks, kept=kept, later=later)
        last = max((number for number, segment in enumerate(segments, start=1) if segment.keep), default=0)
        if last:
            conditions, _ = self._both_conditions(video, audio)
            self._run(segments[:last], self.embed(video, audio), conditions, kept, batched=False)

    def _run(
        self,
        segments: Sequence[Segment],
        embedded: Hidden,
        conditions: tuple[Conditions, Conditions],
        kept: Kept,
        *,
        batched: bool,
    ) -> Hidden:
        """States after the last segment; prefixes that a segment is told to keep go into ``kept``."""
        hidden = embedded
        for segment in segments:
            hidden = hidden if batched else _gather(segment, hidden, kept, embedded)
            for number in range(segment.start, segment.stop):
                hidden = self.transformer_blocks[number](*hidden, *conditions, segment.rows, number)
            for row, prefix in segment.keep:
                kept[prefix] = (hidden[0][row : row + 1], hidden[1][row : row + 1])
        return hidden

    def _both_conditions(
        self, video: Stream, audio: Stream
    ) -> tuple[tuple[Conditions, Conditions], tuple[Tensor, Tensor]]:
        """Conditions of the blocks and time embeddings of the heads, of both streams."""
        video_conditions, video_embedded = self._conditions(video, audio.sigma, is_video=True)
        audio_conditions, audio_embedded = self._conditions(audio, video.sigma, is_video=False)
        return (video_conditions, audio_conditions), (video_embedded, audio_embedded)

    def embed(self, video: Stream, audio: Stream) -> Hidden:
        """Patchified states before the first block, with the keyframe embedding where marked."""
        h_v = self.patchify_proj(video.tokens)
        if self.config.keyframe_embedding and video.marker is not None:
            h_v = h_v + (video.marker > 0).to(h_v.dtype) * self.keyframes_abs_pos_embedding
        return h_v, self.audio_patchify_proj(audio.tokens)

    def _conditions(
        self, stream: Stream, other_sigma: Float[Tensor, b], *, is_video: bool
    ) -> tuple[Conditions, Float[Tensor, "u w"]]:
        """Vectors of all blocks for the distinct times and sigmas, and biases of the masks."""
        scale = self.config.timestep_scale
        prefix = "" if is_video else "audio_"

        def tables(name: str) -> Float[Tensor, "blocks 1 k w"]:
            return torch.stack([getattr(block, name) for block in self.transformer_blocks]).to(self.dtype)[:, None]

        main, prompt, cross, gate = (
            (
                self.adaln_single,
                self.prompt_adaln_single,
                self.av_ca_video_scale_shift_adaln_single,
                self.av_ca_a2v_gate_adaln_single,
            )
            if is_video
            else (
                self.audio_adaln_single,
                self.audio_prompt_adaln_single,
                self.av_ca_audio_scale_shift_adaln_single,
                self.av_ca_v2a_gate_adaln_single,
            )
        )
        values = scale * stream.times.values
        modulation, embedded = main(values)
        crossing = tables(f"scale_shift_table_a2v_ca_{'video' if is_video else 'audio'}")
        mask = stream.context_mask
        conditions = Conditions(
            times=stream.times,
            modulation=tables(f"{prefix}scale_shift_table") + modulation,
            cross=crossing[:, :, :4] + cross(values)[0],
            gate=crossing[:, :, 4:] + gate(self.config.cross_timestep_scale * other_sigma)[0],
            prompt=tables(f"{prefix}prompt_scale_shift_table") + prompt(scale * stream.sigma)[0],
            context=stream.context,
            context_bias=None if mask is None else additive(mask.float()[:, None], self.dtype),
            self_bias=None if stream.self_mask is None else additive(stream.self_mask, self.dtype),
            self_rotary=stream.rotary[0],
            cross_rotary=stream.rotary[1],
            enabled=stream.enabled,
            shards=stream.shards,
        )
        return conditions, embedded

    def _head(
        self, h: Tensor, times: Times, embedded: Tensor, table: nn.Parameter, projection: Linear
    ) -> Float[Tensor, "r n c"]:
        """LayerNorm without weights, shift and scale from the time embedding, projection to the velocity."""
        rows = table.to(h.dtype)[None] + embedded[:, None]
        shift, scale = times.take(rows, 0), times.take(rows, 1)
        normed = nn.functional.layer_norm(h, h.shape[-1:], eps=self.config.norm_eps)
        return projection(torch.addcmul(shift, normed, 1 + scale))  # type: ignore[no-any-return]


def _gather(segment: Segment, hidden: Hidden, kept: Kept, embedded: Hidden) -> Hidden:
    """States of the segment's rows from where its sources say."""
    if segment.sources == tuple(range(len(hidden[0]))) and segment.start:
        return hidden

    def state(source: int | Prefix | None, stream: int) -> Tensor:
        if source is None:
            return embedded[stream]
        if isinstance(source, Prefix):
            return kept[source][stream]
        return hidden[stream][source : source + 1]

    video, audio = (torch.cat([state(source, stream) for source in segment.sources]) for stream in (0, 1))
    return video, audio
