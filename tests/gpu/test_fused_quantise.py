"""The float8 kernel and product on a GPU compute what their definitions say; needs compute capability 8.9."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu
fused = pytest.importorskip("shotclock.model.fused_quantise", reason="triton comes with the CUDA builds of torch")

from shotclock.model import quantise  # noqa: E402  (after the skip)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("m", "k"), [(1, 16), (7, 2048), (131, 4096), (5, 16384)])
def test_rows_agree_with_the_definition(m: int, k: int, dtype: torch.dtype) -> None:
    """Scales to float32 rounding; values to one step of e4m3, where a quotient lies on an edge."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, scale = quantise.quantise_rows(x)
    found, found_scale = fused.quantise_rows(x.cuda())
    assert torch.allclose(found_scale.cpu(), scale, rtol=1e-6)
    difference = (found.cpu().float() - expected.float()).abs()
    assert bool((difference <= expected.float().abs() / 8 + 2**-9).all())
    assert (difference > 0).float().mean() < 1e-3


@pytest.mark.parametrize(("m", "k", "n"), [(1344, 4096, 4096), (4033, 4096, 16384), (26, 2048, 2048)])
def test_the_product_agrees_with_the_reference(m: int, k: int, n: int) -> None:
    """Token counts that 16 does not divide too; within bf16 rounding of the sum's size."""
    generator = torch.Generator().manual_seed(1)
    q, s = quantise.quantise_rows(torch.randn(m, k, generator=generator).cuda())
    w, t = quantise.quantise_rows((torch.randn(n, k, generator=generator) * k**-0.5).cuda())
    exact = quantise.reference_product(q, s, w, t, torch.float32)
    found = quantise.device_product(q, s, w, t, torch.bfloat16).float()
    assert float((found - exact).norm() / exact.norm()) < 8e-3
