"""The fused kernels compute what their torch definitions say. On a GPU, or anywhere with ``TRITON_INTERPRET=1``."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from shotclock.model import ops
from shotclock.model.rope import Rotary

pytestmark = pytest.mark.gpu
fused = pytest.importorskip("shotclock.model.fused", reason="triton comes with the CUDA builds of torch")

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}  # relative L2; bf16 rounds once where torch rounds at each step
SHAPES = [(3, 5, 64, 4), (4, 7, 4096, 32), (1, 2, 2048, 32), (2, 3, 48, 2)]


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def exact(function: Any, *arguments: Any) -> Any:
    """The torch definition on float64 copies: what both are measured against."""

    def wide(x: Any) -> Any:
        match x:
            case torch.Tensor():
                return x.double().cpu()
            case Rotary():
                return Rotary(wide(x.cos), wide(x.sin))
            case list() | tuple():
                return type(x)(wide(one) for one in x)
            case _:
                return x

    return function(*wide(list(arguments)))


def close(out: torch.Tensor, reference: torch.Tensor) -> None:
    assert out.shape == reference.shape
    difference = (out.double().cpu() - reference).norm() / reference.norm()
    assert difference <= BOUNDS[out.dtype], f"relative L2 {difference:.2e}"


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("rows", "tokens", "width", "heads"), SHAPES)
def test_modulations_and_residuals_agree(rows: int, tokens: int, width: int, heads: int, dtype: torch.dtype) -> None:
    """Shared, per-row and per-token vectors; residuals and targets on all or on the first rows only."""
    del heads
    h = randn(rows, tokens, width, dtype=dtype, seed=0)
    for shape in [(1, 1, width), (rows, 1, width), (1, tokens, width), (rows, tokens, width)]:
        shift, scale, gate = (randn(*shape, dtype=dtype, seed=seed) for seed in (1, 2, 3))
        close(fused.modulate(h, shift, scale, 1e-6), exact(ops.modulate, h, shift, scale, 1e-6))
        for k in {1, rows}:
            y = randn(k, tokens, width, dtype=dtype, seed=4)
            close(fused.add_gated(h, gate, y), exact(ops.add_gated, h, gate, y))
            targets = [(shift, scale, rows), (gate, shift, k)]
            out, xs = fused.add_modulate(h, gate, y, targets, 1e-6)
            expected, expected_xs = exact(ops.add_modulate, h, gate, y, targets, 1e-6)
            close(out, expected)
            for x, expected_x in zip(xs, expected_xs, strict=True):
                close(x, expected_x)


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("rows", "tokens", "width", "heads"), SHAPES)
def test_norm_and_rotation_agree(rows: int, tokens: int, width: int, heads: int, dtype: torch.dtype) -> None:
    """With one table, a table a row, and none; from a projection of its own or a slice of a wider one."""
    wide = randn(rows, tokens, 3 * width, dtype=dtype, seed=0)
    weight = randn(width, dtype=dtype, seed=1)
    for x in (wide[..., width : 2 * width], wide[..., :width].contiguous()):
        close(fused.norm_rotate(x, weight, heads, None, 1e-6), exact(ops.norm_rotate, x, weight, heads, None, 1e-6))
        for count in {1, rows}:
            angles = randn(count, tokens, heads, width // heads // 2, dtype=torch.float32, seed=2).transpose(1, 2)
            table = Rotary(angles.cos().to(dtype), angles.sin().to(dtype))
            close(
                fused.norm_rotate(x, weight, heads, table, 1e-6), exact(ops.norm_rotate, x, weight, heads, table, 1e-6)
            )


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize(("rows", "tokens", "width", "heads"), SHAPES)
def test_gates_agree(rows: int, tokens: int, width: int, heads: int, dtype: torch.dtype) -> None:
    """One part or several, heads before or after tokens in memory."""
    logits = randn(rows, tokens, heads, dtype=dtype, seed=0)
    a = randn(rows, heads, tokens, width // heads, dtype=dtype, seed=1)
    b = randn(rows, tokens, heads, width // heads, dtype=dtype, seed=2).transpose(1, 2)
    for parts in ([a], [b], [a[:1], b[1:]] if rows > 1 else [b]):
        close(fused.gate_merge(parts, logits), exact(ops.gate_merge, parts, logits))


@pytest.mark.parametrize("bias", [True, False])
def test_gelu_epilogue_agrees(bias: bool) -> None:
    """The activation in the matrix product's epilogue is the tanh form."""
    x, weight = randn(2, 5, 64, dtype=torch.bfloat16, seed=0), randn(96, 64, dtype=torch.bfloat16, seed=1) / 8
    shift = randn(96, dtype=torch.bfloat16, seed=2) if bias else None
    close(fused.linear_gelu(x, weight, shift), exact(ops.linear_gelu, x, weight, shift))
