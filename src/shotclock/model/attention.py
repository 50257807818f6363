"""Gated multi-head attention with RMS-normed queries and keys (ltx25.md 1.4, "Attention").

Knows tensors only: which rows attend and which tables turn is told by the block.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.model.rope import Rotary, rotate


def additive(mask: Float[Tensor, "b n m"], dtype: torch.dtype) -> Float[Tensor, "b 1 n m"]:
    """Bias of a mask in [0, 1]: ``log(m)``, and the lowest finite value where ``m <= 0``."""
    floor = torch.finfo(dtype).min
    return torch.where(mask > 0, mask.clamp(min=torch.finfo(torch.float32).tiny).log(), floor).to(dtype)[:, None]


class Attention(nn.Module):
    """``o = softmax(q k / sqrt(d)) v``, each head times ``2 sigmoid(gate)``, then ``to_out``."""

    def __init__(
        self, *, query: int, context: int, heads: int, head_dim: int, eps: float, out: int | None = None
    ) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.to_q = nn.Linear(query, inner)
        self.to_k = nn.Linear(context, inner)
        self.to_v = nn.Linear(context, inner)
        self.q_norm = nn.RMSNorm(inner, eps=eps)
        self.k_norm = nn.RMSNorm(inner, eps=eps)
        self.to_gate_logits = nn.Linear(query, heads)
        self.to_out = nn.ModuleList([nn.Linear(inner, out or query)])

    def split(self, x: Float[Tensor, "r n inner"]) -> Float[Tensor, "r h n d"]:
        """Heads apart."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # type: ignore[no-any-return, no-untyped-call]

    def queries(self, x: Float[Tensor, "r n q"], table: Rotary | None) -> Float[Tensor, "r h n d"]:
        """Normed, split and turned queries."""
        q = self.split(self.q_norm(self.to_q(x)))
        return q if table is None else rotate(q, table)

    def keys(self, context: Float[Tensor, "r m c"], table: Rotary | None) -> Float[Tensor, "r h m d"]:
        """Normed, split and turned keys."""
        k = self.split(self.k_norm(self.to_k(context)))
        return k if table is None else rotate(k, table)

    def values(self, context: Float[Tensor, "r m c"]) -> Float[Tensor, "r h m d"]:
        """Split values."""
        return self.split(self.to_v(context))

    def out(self, heads: Float[Tensor, "r h n d"], x: Float[Tensor, "r n q"]) -> Float[Tensor, "r n o"]:
        """Gate each head by the query-side input ``x`` and project."""
        gate = 2 * torch.sigmoid(self.to_gate_logits(x))
        merged = (heads.transpose(1, 2) * gate[..., None]).flatten(2)
        return self.to_out[0](merged)  # type: ignore[no-any-return]


def attend(
    q: Float[Tensor, "r h n d"],
    k: Float[Tensor, "r h m d"],
    v: Float[Tensor, "r h m d"],
    bias: Float[Tensor, "b 1 #n m"] | None = None,
) -> Float[Tensor, "r h n d"]:
    """Softmax attention."""
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
