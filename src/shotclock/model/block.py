"""One transformer block: self, text and cross-modal attention and feed-forward of both streams (ltx25.md 1.4, "Block").

Works on rows, one a leg (or a sample); knows nothing of guidance beyond which rows a perturbation touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.guidance import Leg
from shotclock.model.adaln import Times, modulate
from shotclock.model.attention import Attention, attend
from shotclock.model.config import TransformerConfig
from shotclock.model.rope import Rotary

Rows = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All that a stream's blocks need beside its state; constant within a forward.

    ``times`` with ``modulation`` (u 9 w) and ``cross`` (u 4 w) are per distinct time; ``gate`` (b 1 w) comes from the other
    stream's sigma, ``prompt`` (b 2 w) from the own one. ``enabled`` False leaves the stream as it is (skip_step).
    """

    times: Times
    modulation: Float[Tensor, "u 9 w"]
    cross: Float[Tensor, "u 4 w"]
    gate: Float[Tensor, "b 1 w"]
    prompt: Float[Tensor, "b 2 w"]
    context: Float[Tensor, "k s c"]
    context_bias: Float[Tensor, "k 1 1 s"] | None
    self_bias: Float[Tensor, "b 1 n n"] | None
    self_rotary: Rotary
    cross_rotary: Rotary
    enabled: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One stream's modules and tables of a block, under the names that both streams share."""

    self_attention: Attention
    text_attention: Attention
    feed_forward: FeedForward
    table: Float[Tensor, "9 w"]
    prompt_table: Float[Tensor, "2 w"]
    cross_table: Float[Tensor, "5 w"]


def pick(x: Tensor, rows: Rows) -> Tensor:
    """The named rows; a single row stands for all."""
    if len(rows) == len(x) or len(x) == 1:
        return x
    if list(rows) == list(range(rows[0], rows[-1] + 1)):
        return x[rows[0] : rows[-1] + 1]
    return x[list(rows)]


def add_gated(h: Float[Tensor, "r n w"], gate: Tensor, y: Tensor, rows: Rows) -> Float[Tensor, "r n w"]:
    """``h + gate * y`` on the named rows, the others unchanged."""
    if len(rows) == len(h):
        return torch.addcmul(h, gate, y)
    changed = torch.addcmul(pick(h, rows), pick(gate, rows), y)
    number = {row: i for i, row in enumerate(rows)}
    return torch.stack([changed[number[i]] if i in number else h[i] for i in range(len(h))])


class Projection(nn.Module):
    """Linear layer and tanh-GELU."""

    def __init__(self, width: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(width, inner, bias=bias)

    def forward(self, x: Float[Tensor, "r n w"]) -> Float[Tensor, "r n inner"]:
        """Project and activate."""
        return nn.functional.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    """Four times as wide inside; ``net.0.proj`` and ``net.2`` are the official names."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.net = nn.ModuleList(
            [Projection(width, 4 * width, bias), nn.Identity(), nn.Linear(4 * width, width, bias=bias)]
        )

    def forward(self, x: Float[Tensor, "r n w"]) -> Float[Tensor, "r n w"]:
        """Apply both layers."""
        return self.net[2](self.net[0](x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Both streams of one block."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        v, a, eps = config.video, config.audio, config.norm_eps

        def attention(query: int, context: int, heads: int, head_dim: int) -> Attention:
            return Attention(query=query, context=context, heads=heads, head_dim=head_dim, eps=eps)

        self.attn1 = attention(v.width, v.width, v.heads, v.head_dim)
        self.attn2 = attention(v.width, config.video_context, v.heads, v.head_dim)
        self.audio_attn1 = attention(a.width, a.width, a.heads, a.head_dim)
        self.audio_attn2 = attention(a.width, config.audio_context, a.heads, a.head_dim)
        self.audio_to_video_attn = attention(v.width, a.width, a.heads, a.head_dim)
        self.video_to_audio_attn = attention(a.width, v.width, a.heads, a.head_dim)
        self.ff = FeedForward(v.width, config.ff_bias)
        self.audio_ff = FeedForward(a.width, config.audio_ff_bias)
        self.scale_shift_table = nn.Parameter(torch.zeros(9, v.width))
        self.audio_scale_shift_table = nn.Parameter(torch.zeros(9, a.width))
        self.prompt_scale_shift_table = nn.Parameter(torch.zeros(2, v.width))
        self.audio_prompt_scale_shift_table = nn.Parameter(torch.zeros(2, a.width))
        self.scale_shift_table_a2v_ca_video = nn.Parameter(torch.zeros(5, v.width))
        self.scale_shift_table_a2v_ca_audio = nn.Parameter(torch.zeros(5, a.width))
        self.eps = eps

    def forward(
        self,
        h_v: Float[Tensor, "r n w"],
        h_a: Float[Tensor, "r m a"],
        video: Conditions,
        audio: Conditions,
        legs: Sequence[Leg],
        block: int,
    ) -> tuple[Float[Tensor, "r n w"], Float[Tensor, "r m a"]]:
        """States of ``legs`` (one a row) after this block, the ``block``-th of the model."""
        p = [leg.perturbation for leg in legs]
        rows = range(len(legs))
        contexts = tuple(leg.context for leg in legs)
        video_side, audio_side = self._video(), self._audio()
        if video.enabled:
            keep = [i for i in rows if block not in p[i].video_self]
            h_v = self._self_and_text(h_v, video_side, video, keep, contexts)
        if audio.enabled:
            keep = [i for i in rows if block not in p[i].audio_self]
            h_a = self._self_and_text(h_a, audio_side, audio, keep, contexts)
        to_video = [i for i in rows if block not in p[i].audio_to_video] if video.enabled else []
        to_audio = [i for i in rows if block not in p[i].video_to_audio] if audio.enabled else []
        h_v, h_a = self._cross(h_v, h_a, video, audio, to_video, to_audio)
        if video.enabled:
            h_v = self._feed_forward(h_v, video_side, video)
        if audio.enabled:
            h_a = self._feed_forward(h_a, audio_side, audio)
        return h_v, h_a

    def _video(self) -> Side:
        return Side(
            self.attn1,
            self.attn2,
            self.ff,
            self.scale_shift_table,
            self.prompt_scale_shift_table,
            self.scale_shift_table_a2v_ca_video,
        )

    def _audio(self) -> Side:
        return Side(
            self.audio_attn1,
            self.audio_attn2,
            self.audio_ff,
            self.audio_scale_shift_table,
            self.audio_prompt_scale_shift_table,
            self.scale_shift_table_a2v_ca_audio,
        )

    def _self_and_text(
        self, h: Tensor, side: Side, c: Conditions, keep: Rows, contexts: Sequence[int]
    ) -> Float[Tensor, "r n w"]:
        """Self-attention on rows ``keep`` (value pass-through on the others), then text attention."""
        m = side.table.to(h.dtype) + c.modulation
        shift, scale, gate, *_, text_shift, text_scale, text_gate = (c.times.take(m, i) for i in range(9))
        rows = range(len(h))

        x = modulate(h, shift, scale, self.eps)
        attention = side.self_attention
        o = attention.values(x)
        if keep:
            kept = pick(x, keep)
            q, k = attention.queries(kept, c.self_rotary), attention.keys(kept, c.self_rotary)
            attended = attend(q, k, pick(o, keep), None if c.self_bias is None else pick(c.self_bias, keep))
            number = {row: i for i, row in enumerate(keep)}
            o = (
                attended
                if len(keep) == len(o)
                else torch.stack([attended[number[i]] if i in number else o[i] for i in rows])
            )
        h = add_gated(h, gate, attention.out(o, x), rows)

        x = modulate(h, text_shift, text_scale, self.eps)
        attention = side.text_attention
        prompt = side.prompt_table.to(h.dtype) + c.prompt
        context = torch.addcmul(prompt[:, :1], c.context, 1 + prompt[:, 1:])
        used = sorted(set(contexts))
        k, v = attention.keys(pick(context, used), None), attention.values(pick(context, used))
        number = {context: i for i, context in enumerate(used)}
        which = [number[i] for i in contexts]
        bias = None if c.context_bias is None else c.context_bias[list(contexts)]
        o = attend(attention.queries(x, None), pick_each(k, which), pick_each(v, which), bias)
        return add_gated(h, text_gate, attention.out(o, x), rows)

    def _cross(
        self, h_v: Tensor, h_a: Tensor, video: Conditions, audio: Conditions, to_video: Rows, to_audio: Rows
    ) -> tuple[Float[Tensor, "r n w"], Float[Tensor, "r m a"]]:
        """Each direction on its rows, both from the states before either update."""
        table_v, table_a = (
            table.to(h_v.dtype) for table in (self.scale_shift_table_a2v_ca_video, self.scale_shift_table_a2v_ca_audio)
        )
        x_v, x_a = table_v[:4] + video.cross, table_a[:4] + audio.cross
        new_v, new_a = h_v, h_a
        if to_video:
            q = self._modulated(h_v, video.times, x_v, 0, to_video)
            kv = self._modulated(h_a, audio.times, x_a, 0, to_video)
            y = _across(self.audio_to_video_attn, q, kv, video.cross_rotary, audio.cross_rotary, to_video)
            new_v = add_gated(h_v, table_v[4] + video.gate, y, to_video)
        if to_audio:
            q = self._modulated(h_a, audio.times, x_a, 2, to_audio)
            kv = self._modulated(h_v, video.times, x_v, 2, to_audio)
            y = _across(self.video_to_audio_attn, q, kv, audio.cross_rotary, video.cross_rotary, to_audio)
            new_a = add_gated(h_a, table_a[4] + audio.gate, y, to_audio)
        return new_v, new_a

    def _modulated(self, h: Tensor, times: Times, table: Tensor, row: int, rows: Rows) -> Float[Tensor, "k n w"]:
        """Norm and modulate the named rows by table rows (scale, shift) from ``row`` on."""
        scale, shift = pick(times.take(table, row), rows), pick(times.take(table, row + 1), rows)
        return modulate(pick(h, rows), shift, scale, self.eps)

    def _feed_forward(self, h: Tensor, side: Side, c: Conditions) -> Float[Tensor, "r n w"]:
        m = side.table.to(h.dtype) + c.modulation
        shift, scale, gate = (c.times.take(m, i) for i in (3, 4, 5))
        return add_gated(h, gate, side.feed_forward(modulate(h, shift, scale, self.eps)), range(len(h)))


def pick_each(x: Tensor, which: Sequence[int]) -> Tensor:
    """Row ``which[i]`` of ``x`` for each i; ``x`` itself where that is what is asked."""
    return x if list(which) == list(range(len(x))) else x[list(which)]


def _across(
    attention: Attention, q: Tensor, kv: Tensor, q_table: Rotary, k_table: Rotary, rows: Rows
) -> Float[Tensor, "k n w"]:
    """Attention from one stream to the other, times aligned by both tables."""
    q_table = Rotary(pick(q_table.cos, rows), pick(q_table.sin, rows))
    k_table = Rotary(pick(k_table.cos, rows), pick(k_table.sin, rows))
    heads = attend(attention.queries(q, q_table), attention.keys(kv, k_table), attention.values(kv))
    return attention.out(heads, q)
