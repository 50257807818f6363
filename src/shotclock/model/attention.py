"""Gated multi-head attention with RMS-normed queries and keys (ltx25.md 1.4, "Attention").

Knows tensors only: which rows attend and which tables turn is told by the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from shotclock.model.linear import Linear
from shotclock.model.ops import gate_merge, norm_rotate, split_heads
from shotclock.model.rope import Rotary

# Fastest first on Hopper: 605 TFLOP/s through cuDNN, 311 to 357 through flash (performance.md, one H200).
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention_backends() -> AbstractContextManager[None]:
    """Within it, attention takes the first backend of :data:`BACKENDS` that can do the job."""
    return sdpa_kernel(BACKENDS, set_priority=True)


def additive(mask: Float[Tensor, "b n m"], dtype: torch.dtype) -> Float[Tensor, "b 1 n m"]:
    """Bias of a mask in [0, 1]: ``log(m)``, and the lowest finite value where ``m <= 0``."""
    floor = torch.finfo(dtype).min
    return torch.where(mask > 0, mask.clamp(min=torch.finfo(torch.float32).tiny).log(), floor).to(dtype)[:, None]


def attend(
    q: Float[Tensor, "r h n d"],
    k: Float[Tensor, "r h m d"],
    v: Float[Tensor, "r h m d"],
    bias: Float[Tensor, "r 1 #n m"] | None = None,
) -> Float[Tensor, "r h n d"]:
    """Softmax attention."""
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)


class Attention(nn.Module):
    """``o = softmax(q k / sqrt(d)) v``, each head times ``2 sigmoid(gate)``, then ``to_out``."""

    def __init__(self, *, query: int, context: int, heads: int, head_dim: int, eps: float) -> None:
        super().__init__()
        inner = heads * head_dim
        self.heads = heads
        self.eps = eps
        self.to_q = Linear(query, inner)
        self.to_k = Linear(context, inner)
        self.to_v = Linear(context, inner)
        self.q_norm = nn.RMSNorm(inner, eps=eps)
        self.k_norm = nn.RMSNorm(inner, eps=eps)
        self.to_gate_logits = Linear(query, heads)
        self.to_out = nn.ModuleList([Linear(inner, query)])

    def queries(self, x: Float[Tensor, "r n q"], table: Rotary | None) -> Float[Tensor, "r h n d"]:
        """Normed, split and turned queries."""
        return norm_rotate(self.to_q(x), self.q_norm.weight, self.heads, table, self.eps)

    def keys_values(
        self, context: Float[Tensor, "r m c"], table: Rotary | None
    ) -> tuple[Float[Tensor, "r h m d"], Float[Tensor, "r h m d"]]:
        """Normed, split and turned keys, and split values."""
        k = norm_rotate(self.to_k(context), self.k_norm.weight, self.heads, table, self.eps)
        return k, self.values(context)

    def values(self, x: Float[Tensor, "r n c"]) -> Float[Tensor, "r h n d"]:
        """Split values; alone for rows whose self-attention is passed over."""
        return split_heads(self.to_v(x), self.heads)

    def out(self, parts: Sequence[Float[Tensor, "_ h n d"]], x: Float[Tensor, "r n q"]) -> Float[Tensor, "r n o"]:
        """Gate each head by the query-side input ``x`` and project; ``parts`` are consecutive rows."""
        return self.to_out[0](gate_merge(parts, self.to_gate_logits(x)))  # type: ignore[no-any-return]
