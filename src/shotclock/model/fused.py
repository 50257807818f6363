"""Fused Triton kernels of the operations in :mod:`shotclock.model.ops`: one read and one write of each tensor.

One program a token: a row of 2,048 to 4,096 values stays in registers between norm, modulation and residual.
Arithmetic is float32 whatever the tensors are; each result is rounded once. Knows nothing of blocks or legs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from shotclock.model.rope import Rotary

WARPS = 8  # 256 threads, 16 values each at width 4,096: two 16-byte loads a tensor


@triton.jit
def _row(x, offset, index, mask):
    return tl.load(x + offset + index, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _modulate_kernel(
    h, y, out, gate, x1, shift1, scale1, x2, shift2, scale2,
    tokens, width, y_rows, rows1, rows2, eps,
    gate_r, gate_n, shift1_r, shift1_n, scale1_r, scale1_n, shift2_r, shift2_n, scale2_r, scale2_n,
    ADD: tl.constexpr, NORM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, token = program // tokens, program % tokens
    index = tl.arange(0, BLOCK)
    mask = index < width
    value = _row(h, program * width, index, mask)
    if ADD:
        if row < y_rows:
            value += _row(gate, row * gate_r + token * gate_n, index, mask) * _row(y, program * width, index, mask)
            rounded = value.to(out.dtype.element_ty)
            value = rounded.to(tl.float32)
        tl.store(out + program * width + index, value.to(out.dtype.element_ty), mask=mask)
    if NORM:
        normed = value * tl.rsqrt(tl.sum(value * value, axis=0) / width + eps)
        if row < rows1:
            scale = _row(scale1, row * scale1_r + token * scale1_n, index, mask)
            shift = _row(shift1, row * shift1_r + token * shift1_n, index, mask)
            tl.store(x1 + program * width + index, (normed * (1 + scale) + shift).to(x1.dtype.element_ty), mask=mask)
        if row < rows2:
            scale = _row(scale2, row * scale2_r + token * scale2_n, index, mask)
            shift = _row(shift2, row * shift2_r + token * shift2_n, index, mask)
            tl.store(x2 + program * width + index, (normed * (1 + scale) + shift).to(x2.dtype.element_ty), mask=mask)


def _strides(vectors: Tensor, h: Tensor) -> tuple[int, int]:
    """Row and token strides of broadcast vectors whose last axis is contiguous."""
    wide = vectors.expand(*h.shape[:2], -1) if vectors.shape[0] in (1, h.shape[0]) else vectors
    assert wide.stride(2) == 1, "vectors must be contiguous in their last axis"
    return wide.stride(0), wide.stride(1)


def _launch(
    h: Tensor,
    residual: tuple[Tensor, Tensor] | None,
    targets: Sequence[tuple[Tensor, Tensor, int]],
    eps: float,
) -> tuple[Tensor, list[Tensor]]:
    h = h.contiguous()
    rows, tokens, width = h.shape
    out = torch.empty_like(h) if residual else h
    gate, y = (residual[0], residual[1].contiguous()) if residual else (h, h)
    xs = [h.new_empty(count, tokens, width) for _, _, count in targets]
    slots = [(x, shift, scale, count) for x, (shift, scale, count) in zip(xs, targets, strict=True)]
    slots += [(h, h, h, 0)] * (2 - len(slots))
    (x1, shift1, scale1, rows1), (x2, shift2, scale2, rows2) = slots
    _modulate_kernel[(rows * tokens,)](
        h, y, out, gate, x1, shift1, scale1, x2, shift2, scale2,
        tokens, width, len(y), rows1, rows2, eps,
        *_strides(gate, h), *_strides(shift1, h), *_strides(scale1, h), *_strides(shift2, h), *_strides(scale2, h),
        ADD=residual is not None, NORM=bool(targets), BLOCK=triton.next_power_of_2(width), num_warps=WARPS,
    )  # fmt: skip
    return out, xs


def modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """See :func:`shotclock.model.ops.modulate`."""
    return _launch(x, None, [(shift, scale, len(x))], eps)[1][0]


def add_gated(h: Tensor, gate: Tensor, y: Tensor) -> Tensor:
    """See :func:`shotclock.model.ops.add_gated`."""
    return _launch(h, (gate, y), [], 0.0)[0]


def add_modulate(
    h: Tensor, gate: Tensor, y: Tensor, targets: Sequence[tuple[Tensor, Tensor, int]], eps: float
) -> tuple[Tensor, list[Tensor]]:
    """See :func:`shotclock.model.ops.add_modulate`."""
    return _launch(h, (gate, y), targets, eps)


@triton.jit
def _norm_rotate_kernel(
    x, weight, cos, sin, out,
    tokens, x_row, x_token, table_r, table_h, table_n, eps,
    TURN: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, token = program // tokens, program % tokens
    index = tl.arange(0, BLOCK)
    mask = index < HEADS * HALF
    head, j = index // HALF, index % HALF
    first = head * 2 * HALF + j
    a = _row(x, row * x_row + token * x_token, first, mask)
    b = _row(x, row * x_row + token * x_token, first + HALF, mask)
    scale = tl.rsqrt((tl.sum(a * a, axis=0) + tl.sum(b * b, axis=0)) / (2 * HEADS * HALF) + eps)
    a = a * scale * _row(weight, 0, first, mask)
    b = b * scale * _row(weight, 0, first + HALF, mask)
    if TURN:
        offset = row * table_r + token * table_n + head * table_h + j
        c = tl.load(cos + offset, mask=mask, other=0.0).to(tl.float32)
        s = tl.load(sin + offset, mask=mask, other=0.0).to(tl.float32)
        a, b = a * c - b * s, b * c + a * s
    base = out + program * 2 * HEADS * HALF
    tl.store(base + first, a.to(out.dtype.element_ty), mask=mask)
    tl.store(base + first + HALF, b.to(out.dtype.element_ty), mask=mask)


def norm_rotate(x: Tensor, weight: Tensor, heads: int, table: Rotary | None, eps: float) -> Tensor:
    """See :func:`shotclock.model.ops.norm_rotate`; ``x`` may be a slice of a wider projection."""
    rows, tokens, inner = x.shape
    assert x.stride(2) == 1, "the projection must be contiguous in its last axis"
    half = inner // heads // 2
    out = torch.empty(rows, tokens, heads, 2 * half, dtype=x.dtype, device=x.device)
    cos, sin = (table.cos, table.sin) if table else (x, x)
    strides = (0, 0, 0)
    if table:
        assert cos.stride() == sin.stride() and cos.stride(3) == 1, "tables must share one layout"
        strides = (0 if len(cos) == 1 else cos.stride(0), cos.stride(1), cos.stride(2))
    _norm_rotate_kernel[(rows * tokens,)](
        x, weight, cos, sin, out,
        tokens, x.stride(0), x.stride(1), *strides, eps,
        TURN=table is not None, HEADS=heads, HALF=half,
        BLOCK=triton.next_power_of_2(heads * half), num_warps=WARPS // 2,
    )  # fmt: skip
    return out.transpose(1, 2)


@triton.jit
def _gate_merge_kernel(
    heads, logits, out,
    tokens, heads_r, heads_h, heads_n,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, token = program // tokens, program % tokens
    index = tl.arange(0, BLOCK)
    mask = index < HEADS * DIM
    head, j = index // DIM, index % DIM
    value = tl.load(heads + row * heads_r + head * heads_h + token * heads_n + j, mask=mask, other=0.0).to(tl.float32)
    logit = tl.load(logits + program * HEADS + head, mask=mask, other=0.0).to(tl.float32)
    gated = value * (2 / (1 + tl.exp(-logit)))
    tl.store(out + program * HEADS * DIM + index, gated.to(out.dtype.element_ty), mask=mask)


def gate_merge(parts: Sequence[Tensor], logits: Tensor) -> Tensor:
    """See :func:`shotclock.model.ops.gate_merge`; each part is written straight to its rows."""
    rows, tokens, count = logits.shape
    dim = parts[0].shape[3]
    logits = logits.contiguous()
    out = torch.empty(rows, tokens, count * dim, dtype=parts[0].dtype, device=logits.device)
    start = 0
    for part in parts:
        stop = start + len(part)
        assert part.stride(3) == 1, "heads must be contiguous in their last axis"
        _gate_merge_kernel[(len(part) * tokens,)](
            part, logits[start:stop], out[start:stop],
            tokens, part.stride(0), part.stride(1), part.stride(2),
            HEADS=count, DIM=dim, BLOCK=triton.next_power_of_2(count * dim), num_warps=WARPS,
        )  # fmt: skip
        start = stop
    assert start == rows, f"{start} rows of heads, {rows} of logits"
    return out


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """See :func:`shotclock.model.ops.linear_gelu`: the activation is the epilogue of the matrix product."""
    if bias is None:
        bias = weight.new_zeros(len(weight))
    flat = torch._addmm_activation(bias, x.flatten(0, 1), weight.t(), use_gelu=True)
    return flat.view(*x.shape[:2], -1)
