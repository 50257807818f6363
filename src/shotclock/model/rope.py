"""Rotary position tables in the split form (ltx25.md section 1.4, "RoPE").

Knows positions and widths only, no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines of every token and head; element j of a head turns with element ``j + half``."""

    cos: Float[Tensor, "b h n half"]
    sin: Float[Tensor, "b h n half"]


def fractions_of(positions: Float[Tensor, "b axes n 2"], max_positions: Sequence[float]) -> Float[Tensor, "b n axes"]:
    """Token midpoints as fractions of the largest position of each axis, float32 as the model was trained with."""
    middle = positions.float().mean(dim=-1).transpose(1, 2)
    return middle / torch.tensor(max_positions, dtype=torch.float32, device=positions.device)


def rotary(fractions: Float[Tensor, "b n axes"], *, width: int, heads: int, theta: float, dtype: torch.dtype) -> Rotary:
    """Tables for ``width`` = heads * 2 * half values a token.

    Angles are ``theta^(k/(n_f-1)) * pi/2 * (2*fraction - 1)``, frequency-major with the axis fastest; where the axes do
    not divide ``width / 2`` the front is padded with angle 0. Frequencies are computed in float64 and rounded to
    float32, angles in float32 (golden ``geometry_*``: equal to 3e-8; float64 angles differ by 1e-3 in the top bands).
    """
    axes = fractions.shape[-1]
    count = width // (2 * axes)
    exponents = torch.linspace(0, 1, count, dtype=torch.float64, device=fractions.device)
    frequencies = (theta**exponents * (math.pi / 2)).float()
    angles = ((2 * fractions.float() - 1)[:, :, None, :] * frequencies[None, None, :, None]).flatten(2)
    angles = torch.nn.functional.pad(angles, (width // 2 - count * axes, 0)).contiguous()  # the layout kernels expect
    split = angles.unflatten(2, (heads, -1)).transpose(1, 2)
    return Rotary(split.cos().to(dtype), split.sin().to(dtype))


def rotate(x: Float[Tensor, "r h n d"], table: Rotary) -> Float[Tensor, "r h n d"]:
    """Turn each pair ``(x_j, x_{j+half})``: ``(a, b) -> (a cos - b sin, b cos + a sin)``."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * table.cos - b * table.sin, b * table.cos + a * table.sin], dim=-1)
