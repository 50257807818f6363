"""One transformer block: self, text and cross-modal attention and feed-forward of both streams (ltx25.md 1.4, "Block").

Works on rows, one a leg (or a sample); knows nothing of guidance beyond which rows a perturbation touches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.guidance import Leg
from shotclock.model.adaln import Times
from shotclock.model.attention import Attention, attend
from shotclock.model.config import TransformerConfig
from shotclock.model.exchange import Shards, attend_spread
from shotclock.model.linear import Linear
from shotclock.model.ops import add_gated, add_modulate, linear_gelu, modulate
from shotclock.model.rope import Rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All that a stream's blocks need beside its state; constant within a forward.

    Vectors of all blocks, tables included: ``modulation`` and ``cross`` a distinct time, ``gate`` (from the other
    stream's sigma) and ``prompt`` (from the own one) a sample. A stream that is not ``enabled`` stays as it is.
    ``shards`` say how its tokens lie on several ranks; both streams have them or none.
    """

    times: Times
    modulation: Float[Tensor, "blocks u 9 w"]
    cross: Float[Tensor, "blocks u 4 w"]
    gate: Float[Tensor, "blocks b 1 w"]
    prompt: Float[Tensor, "blocks b 2 c"]
    context: Float[Tensor, "k s c"]
    context_bias: Float[Tensor, "k 1 1 s"] | None
    self_bias: Float[Tensor, "b 1 all all"] | None
    self_rotary: Rotary
    cross_rotary: Rotary
    enabled: bool
    shards: Shards | None


@dataclass(frozen=True, slots=True)
class Side:
    """One stream's modules of a block, under the names that both streams share."""

    self_attention: Attention
    text_attention: Attention
    feed_forward: FeedForward
    skipped: str  # the perturbation that passes this stream's self-attention over


def runs(flags: Sequence[object]) -> list[tuple[int, int]]:
    """Maximal stretches ``[start, stop)`` of equal neighbours."""
    edges = [0, *(i for i, (a, b) in enumerate(itertools.pairwise(flags), 1) if a != b), len(flags)]
    return list(itertools.pairwise(edges))


def rows_of(x: Tensor, which: Sequence[int]) -> Tensor:
    """The named rows in that order, joined from slices: an index list would be copied from the host at each call."""
    return x if list(which) == list(range(len(x))) else torch.cat([x[i : i + 1] for i in which])


def first_rows(x: Tensor, count: int) -> Tensor:
    """The first rows; a single row stands for all."""
    return x if len(x) == 1 else x[:count]


def head_of(table: Rotary, count: int) -> Rotary:
    """Tables of the first rows."""
    return Rotary(first_rows(table.cos, count), first_rows(table.sin, count))


class Projection(nn.Module):
    """Linear layer and tanh-GELU."""

    def __init__(self, width: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.proj = Linear(width, inner, bias=bias)

    def forward(self, x: Float[Tensor, "r n w"]) -> Float[Tensor, "r n inner"]:
        """Project and activate."""
        return linear_gelu(x, self.proj.weight, self.proj.bias)


class FeedForward(nn.Module):
    """Four times as wide inside; ``net.0.proj`` and ``net.2`` are the official names."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.net = nn.ModuleList(
            [Projection(width, 4 * width, bias), nn.Identity(), Linear(4 * width, width, bias=bias)]
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
        to_video = [i for i in range(len(p)) if video.enabled and block not in p[i].audio_to_video]
        to_audio = [i for i in range(len(p)) if audio.enabled and block not in p[i].video_to_audio]
        crossed = max([0, *(i + 1 for i in to_video), *(i + 1 for i in to_audio)])
        h_v, *x_v = self._own(h_v, video, self._video, legs, block, crossed)
        h_a, *x_a = self._own(h_a, audio, self._audio, legs, block, crossed)
        y_v, y_a = None, None
        if crossed:
            if to_video:
                y_v = across(self.audio_to_video_attn, x_v[0], x_a[0], video, audio, to_video)
            if to_audio:
                y_a = across(self.video_to_audio_attn, x_a[1], x_v[1], audio, video, to_audio)
        return self._feed(h_v, y_v, video, self.ff, block), self._feed(h_a, y_a, audio, self.audio_ff, block)

    @property
    def _video(self) -> Side:
        return Side(self.attn1, self.attn2, self.ff, "video_self")

    @property
    def _audio(self) -> Side:
        return Side(self.audio_attn1, self.audio_attn2, self.audio_ff, "audio_self")

    def _own(
        self, h: Tensor, c: Conditions, side: Side, legs: Sequence[Leg], block: int, crossed: int
    ) -> tuple[Tensor, ...]:
        """Self and text attention: the new state, and its first ``crossed`` rows modulated for each direction."""
        take, m = c.times.take, c.modulation[block]
        cross = c.cross[block]  # rows: a2v scale, a2v shift, v2a scale, v2a shift
        targets = [(take(cross, row + 1), take(cross, row), crossed) for row in (0, 2)] if crossed else []
        if not c.enabled:
            return h, *(modulate(h[:rows], shift[:rows], scale[:rows], self.eps) for shift, scale, rows in targets)
        x = modulate(h, take(m, 0), take(m, 1), self.eps)
        passed = [block in getattr(leg.perturbation, side.skipped) for leg in legs]
        y = self._self(x, side.self_attention, c, passed)
        h, (x,) = add_modulate(h, take(m, 2), y, [(take(m, 6), take(m, 7), len(h))], self.eps)
        y = self._text(x, side.text_attention, c, [leg.context for leg in legs], block)
        h, crossing = add_modulate(h, take(m, 8), y, targets, self.eps)
        return h, *crossing

    def _self(self, x: Tensor, attention: Attention, c: Conditions, passed: Sequence[bool]) -> Float[Tensor, "r n w"]:
        """Self-attention; rows that are passed over give their values instead."""
        if not any(passed):
            return attention.out([attend_within(attention, x, c.self_rotary, c.self_bias, c.shards)], x)
        parts = []
        for start, stop in runs(passed):
            rows = x[start:stop]
            if passed[start]:
                parts.append(attention.values(rows))
                continue
            table = c.self_rotary
            if len(table.cos) > 1:
                table = Rotary(table.cos[start:stop], table.sin[start:stop])
            bias = c.self_bias if c.self_bias is None or len(c.self_bias) == 1 else c.self_bias[start:stop]
            parts.append(attend_within(attention, rows, table, bias, c.shards))
        return attention.out(parts, x)

    def _text(
        self, x: Tensor, attention: Attention, c: Conditions, contexts: Sequence[int], block: int
    ) -> Float[Tensor, "r n w"]:
        """Text attention; neighbouring rows with one context attend as one long row, so keys are made once a text."""
        used = sorted(set(contexts))
        prompt = c.prompt[block]  # rows: shift, scale
        context = torch.addcmul(prompt[:, :1], c.context, 1 + prompt[:, 1:])
        context = rows_of(context, used)
        q, (k, v) = attention.queries(x, None), attention.keys_values(context, None)
        biases = None if c.context_bias is None else rows_of(c.context_bias, used)
        if list(contexts) == used:
            return attention.out([attend(q, k, v, biases)], x)
        parts = []
        for start, stop in runs(contexts):
            which = used.index(contexts[start])
            rows = stop - start
            long = q[start:stop].transpose(1, 2).flatten(0, 1)[None].transpose(1, 2)
            bias = None if biases is None else biases[which : which + 1]
            o = attend(long, k[which : which + 1], v[which : which + 1], bias)
            parts.append(o.transpose(1, 2).unflatten(1, (rows, -1))[0].transpose(1, 2))
        return attention.out(parts, x)

    def _feed(
        self, h: Tensor, y: Tensor | None, c: Conditions, feed_forward: FeedForward, block: int
    ) -> Float[Tensor, "r n w"]:
        """Add what came from the other stream, if anything, then the feed-forward."""
        if not c.enabled:
            return h
        m, take = c.modulation[block], c.times.take
        target = (take(m, 3), take(m, 4), len(h))
        if y is None:
            x = modulate(h, *target[:2], self.eps)
        else:
            h, (x,) = add_modulate(h, c.gate[block], y, [target], self.eps)
        return add_gated(h, take(m, 5), feed_forward(x))


def attend_within(
    attention: Attention,
    x: Float[Tensor, "r n w"],
    table: Rotary,
    bias: Float[Tensor, "#r 1 _ _"] | None = None,
    shards: Shards | None = None,
) -> Float[Tensor, "r h n d"]:
    """Self-attention before gate and projection; with ``shards`` among the tokens of all ranks."""
    q, (k, v) = attention.queries(x, table), attention.keys_values(x, table)
    return attend(q, k, v, bias) if shards is None else attend_spread(q, k, v, bias, (shards, shards))


def across(
    attention: Attention,
    x: Float[Tensor, "k n w"],
    other: Float[Tensor, "k m a"],
    own: Conditions,
    others: Conditions,
    rows: Sequence[int],
) -> Float[Tensor, "j n w"]:
    """Attention from one stream to the other on ``rows``; rows between them that do not take part give zeros."""
    gaps = list(rows) != list(range(len(rows)))
    if not gaps:
        x, other = x[: len(rows)], other[: len(rows)]
    q = attention.queries(x, head_of(own.cross_rotary, len(x)))
    k, v = attention.keys_values(other, head_of(others.cross_rotary, len(x)))
    if own.shards is None or others.shards is None:
        o = attend(q, k, v)
    else:
        o = attend_spread(q, k, v, None, (own.shards, others.shards))
    y = attention.out([o], x)
    return torch.cat([y[i : i + 1] if i in rows else torch.zeros_like(y[:1]) for i in range(len(y))]) if gaps else y
