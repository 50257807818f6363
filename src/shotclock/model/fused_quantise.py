"""A Triton kernel that brings rows to float8 with a scale each: one read, one write of half the size.

One program a row, as in fused.py; see :func:`shotclock.model.quantise.quantise_rows`. Knows nothing of layers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 8
LARGEST = 448.0  # of e4m3, as in quantise.py
LEAST_ROW = 1e-12


@triton.jit
def _quantise_kernel(x, out, scales, width, row_stride, least, largest, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    mask = index < width
    value = tl.load(x + program * row_stride + index, mask=mask, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(value), axis=0), least), largest)
    scaled = tl.minimum(tl.maximum(tl.div_rn(value, scale), -largest), largest)
    tl.store(out + program * width + index, scaled.to(out.dtype.element_ty), mask=mask)
    tl.store(scales + program, scale)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (m k), contiguous in k, in float8 and their float32 scales (m)."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    _quantise_kernel[(rows,)](
        x, out, scales, width, x.stride(0), LEAST_ROW, LARGEST, BLOCK=triton.next_power_of_2(width), num_warps=WARPS
    )
    return out, scales
