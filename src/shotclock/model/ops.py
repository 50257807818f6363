"""The memory-bound operations of a block: norms, modulations, rotations, gates and residuals.

Each is one function with one definition in torch; on a CUDA device without gradients it runs as one fused kernel
(:mod:`shotclock.model.fused`), which reads and writes each tensor once. Norms are computed in float32 or wider.
Shapes: r rows, n tokens, w width; ``#`` axes broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.model.rope import Rotary, rotate

try:
    from shotclock.model import fused as _fused

    FUSED: ModuleType | None = _fused
except ImportError:  # triton is not part of the CPU builds of torch
    FUSED = None

Vectors = Float[Tensor, "#r #n w"]


def fused_for(x: Tensor) -> ModuleType | None:
    """The fused kernels, where ``x`` lies on a device that has them and no gradient is asked for."""
    usable = x.is_cuda and not torch.is_grad_enabled() and x.dtype != torch.float64
    return FUSED if usable else None


def modulate(x: Float[Tensor, "r n w"], shift: Vectors, scale: Vectors, eps: float) -> Float[Tensor, "r n w"]:
    """``rms(x) * (1 + scale) + shift``."""
    if fused := fused_for(x):
        return fused.modulate(x, shift, scale, eps)  # type: ignore[no-any-return]
    return torch.addcmul(shift, torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps), 1 + scale)


def add_gated(h: Float[Tensor, "r n w"], gate: Vectors, y: Float[Tensor, "k n w"]) -> Float[Tensor, "r n w"]:
    """``h + gate * y`` on the first k rows, the others as they are."""
    if fused := fused_for(h):
        return fused.add_gated(h, gate, y)  # type: ignore[no-any-return]
    k = len(y)
    changed = torch.addcmul(h[:k], gate[:k], y)
    return changed if k == len(h) else torch.cat([changed, h[k:]])


def add_modulate(
    h: Float[Tensor, "r n w"],
    gate: Vectors,
    y: Float[Tensor, "k n w"],
    targets: Sequence[tuple[Vectors, Vectors, int]],
    eps: float,
) -> tuple[Float[Tensor, "r n w"], list[Tensor]]:
    """:func:`add_gated`, and of its result one :func:`modulate` a target (shift, scale, number of first rows)."""
    if fused := fused_for(h):
        return fused.add_modulate(h, gate, y, targets, eps)  # type: ignore[no-any-return]
    h = add_gated(h, gate, y)
    return h, [modulate(h[:rows], shift[:rows], scale[:rows], eps) for shift, scale, rows in targets]


def norm_rotate(
    x: Float[Tensor, "r n inner"], weight: Float[Tensor, " inner"], heads: int, table: Rotary | None, eps: float
) -> Float[Tensor, "r h n d"]:
    """``rms(x) * weight`` over all heads together, split into heads, turned by ``table`` if there is one."""
    if fused := fused_for(x):
        return fused.norm_rotate(x, weight, heads, table, eps)  # type: ignore[no-any-return]
    normed = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    split = split_heads(normed, heads)
    return split if table is None else rotate(split, table)


def split_heads(x: Float[Tensor, "r n inner"], heads: int) -> Float[Tensor, "r h n d"]:
    """Heads apart, as a view."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)  # type: ignore[no-any-return]


def gate_merge(parts: Sequence[Float[Tensor, "_ h n d"]], logits: Float[Tensor, "r n h"]) -> Float[Tensor, "r n inner"]:
    """Parts are consecutive rows: each head times ``2 sigmoid(logit)``, heads side by side again."""
    if fused := fused_for(logits):
        return fused.gate_merge(parts, logits)  # type: ignore[no-any-return]
    heads = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return (heads.transpose(1, 2) * (2 * torch.sigmoid(logits))[..., None]).flatten(2)


def linear_gelu(
    x: Float[Tensor, "r n w"], weight: Float[Tensor, "inner w"], bias: Float[Tensor, " inner"] | None
) -> Float[Tensor, "r n inner"]:
    """Linear layer and tanh-GELU."""
    if fused := fused_for(x):
        return fused.linear_gelu(x, weight, bias)  # type: ignore[no-any-return]
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias), approximate="tanh")
