"""Linear layers of the blocks in float8 (e4m3) with a scale a row: of the weight an output, of the input a token.

Not exact, so never a default. Attention, norms, gates, embeddings and heads stay as they are. Knows no file and no
device choice: whether a device has such a product is asked in weights/fp8.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shotclock.guidance import Leg, LegName
from shotclock.model.block import Projection
from shotclock.model.linear import Linear
from shotclock.model.transformer import Stream, Transformer

try:
    from shotclock.model import fused_quantise as _fused

    FUSED: ModuleType | None = _fused
except ImportError:  # triton is not part of the CPU builds of torch
    FUSED = None

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3 (OCP 8-bit floating point specification 1.0, table 1)
LEAST_ROW = 1e-12  # a row of zeros gets a scale that divides
MULTIPLE = 16  # both sides of a float8 product, as torch._scaled_mm requires
LEFT = ("to_gate_logits",)  # one output a head: nothing to gain, and it gates every head

# Rows (m k) in float8 with scales (m), weight (n k) in float8 with scales (n), dtype of the result: (m n).
Product = Callable[[Tensor, Tensor, Tensor, Tensor, torch.dtype], Tensor]


def quantise_rows(x: Float[Tensor, "m k"]) -> tuple[Float[Tensor, "m k"], Float[Tensor, " m"]]:
    """Rows in float8 and their float32 scales: ``x = row * scale`` up to rounding; the largest of a row is 448."""
    if FUSED is not None and x.is_cuda:
        return FUSED.quantise_rows(x)  # type: ignore[no-any-return]
    wide = x.float()
    scale = wide.abs().amax(dim=1).clamp(min=LEAST_ROW) / LARGEST
    return (wide / scale[:, None]).clamp(-LARGEST, LARGEST).to(FP8), scale


def device_product(rows: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in float8 on a device that has one."""
    return torch._scaled_mm(rows, weight.t(), scale_a=scales[:, None], scale_b=weight_scales[None], out_dtype=dtype)


def reference_product(
    rows: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """The same in float32 on any device: slow, for tests of the arithmetic."""
    return ((rows.float() @ weight.float().t()) * scales[:, None] * weight_scales).to(dtype)


class RowScaledLinear(nn.Module):
    """``x W^T + b`` with ``W`` and each row of ``x`` in float8; the bias is added outside of the product.

    cuBLAS refuses a bias together with scales a row (performance.md, rates of single operations).
    """

    weight: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, product: Product) -> None:
        super().__init__()
        weight, scales = quantise_rows(layer.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.product = product

    def forward(self, x: Float[Tensor, "r n k"]) -> Float[Tensor, "r n o"]:
        """Quantise the rows, multiply, add the bias."""
        rows, scales = quantise_rows(x.flatten(0, -2))
        y = self.product(rows, scales, self.weight, self.scales, x.dtype)
        return (y if self.bias is None else y.add_(self.bias)).unflatten(0, x.shape[:-1])  # type: ignore[no-any-return]


class RowScaledProjection(nn.Module):
    """First layer of a feed-forward: product in float8, then tanh-GELU."""

    def __init__(self, layer: Projection, product: Product) -> None:
        super().__init__()
        self.proj = RowScaledLinear(layer.proj, product)

    def forward(self, x: Float[Tensor, "r n w"]) -> Float[Tensor, "r n inner"]:
        """Project and activate."""
        return nn.functional.gelu(self.proj(x), approximate="tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """How many layers of how many were quantised, and bytes of all weights before and after."""

    layers: int
    linear_layers: int
    bytes_before: int
    bytes_after: int


def quantise_in_place(transformer: Transformer, product: Product) -> Quantised:
    """Replace the blocks' linear layers one by one, so that at most one of them is held twice.

    Weights that are views of one buffer give their memory back when the last view of it is gone.
    """
    before = _bytes(transformer)
    everything = sum(isinstance(module, nn.Linear) for module in transformer.transformer_blocks.modules())
    count = 0
    for parent in list(transformer.transformer_blocks.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, Projection) and _fits(child.proj):
                setattr(parent, name, RowScaledProjection(child, product))
            elif isinstance(child, Linear) and not isinstance(parent, Projection) and name not in LEFT and _fits(child):
                setattr(parent, name, RowScaledLinear(child, product))
            else:
                continue
            count += 1
    return Quantised(layers=count, linear_layers=everything, bytes_before=before, bytes_after=_bytes(transformer))


def same_weights(transformer: Transformer) -> Transformer:
    """Another transformer that holds the very same tensors: quantising one leaves the other as it is."""
    with torch.device("meta"):
        other = Transformer(transformer.config)
    other.load_state_dict(transformer.state_dict(), strict=True, assign=True)
    return other.eval().requires_grad_(False)


def velocity_errors(
    exact: Transformer, quantised: Transformer, streams: tuple[Stream, Stream], legs: Mapping[LegName, Leg]
) -> dict[LegName, tuple[float, float]]:
    """Relative L2 error of the velocities of each leg: video, audio; all legs in one pass on both sides."""
    rows = list(legs.values())
    reference, found = exact(*streams, rows), quantised(*streams, rows)
    return {name: (_relative(found, reference, 0, i), _relative(found, reference, 1, i)) for i, name in enumerate(legs)}


def _relative(found: Sequence[Tensor], reference: Sequence[Tensor], stream: int, row: int) -> float:
    exact = reference[stream][row].double()
    return float((found[stream][row].double() - exact).norm() / exact.norm())


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


def _bytes(module: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in [*module.parameters(), *module.buffers()])
