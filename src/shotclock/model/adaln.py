"""Adaptive layer norm: sinusoid of a time, the heads that turn it into shifts, scales and gates, and their use.

Times are given as their few distinct values and an index a token (ltx25.md 1.7): the heads never run a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shotclock.model.linear import Linear

FREQUENCY_DIM = 256  # ltx25.md 1.4: 128 cosines, then 128 sines
MAX_PERIOD = 10_000.0


@dataclass(frozen=True, slots=True)
class Times:
    """Per-token times in [0, 1] as distinct ``values``; ``index`` (b, n) picks one a token, None when all share one."""

    values: Float[Tensor, u]
    index: Int[Tensor, "b n"] | None

    @staticmethod
    def of(times: Float[Tensor, "b n"]) -> Times:
        """Find the distinct values (reads the device; do it once a render, not once a step)."""
        values, index = torch.unique(times, return_inverse=True)
        return Times(values, index if len(values) > 1 else None)

    def scaled(self, sigma: Float[Tensor, ""] | float) -> Times:
        """The same pattern with every value times ``sigma``: a denoise mask becomes the times of a step."""
        return Times(self.values * sigma, self.index)

    def take(self, table: Float[Tensor, "u k w"], row: int) -> Float[Tensor, "b n w"]:
        """Row ``row`` of a head's output for every token, or for all tokens at once as (1, 1, w)."""
        chosen = table[:, row]
        return chosen[None] if self.index is None else chosen[self.index]


def sinusoid(values: Float[Tensor, u]) -> Float[Tensor, "u 256"]:
    """Cosines then sines of ``value * 10000^(-i/128)``, float32."""
    half = FREQUENCY_DIM // 2
    exponents = torch.arange(half, dtype=torch.float32, device=values.device) / half
    angles = values.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TimestepEmbedder(nn.Module):
    """Two linear layers with SiLU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_1 = Linear(FREQUENCY_DIM, width)
        self.linear_2 = Linear(width, width)

    def forward(self, features: Float[Tensor, "u 256"]) -> Float[Tensor, "u w"]:
        """Embed a sinusoid."""
        return self.linear_2(nn.functional.silu(self.linear_1(features)))  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Holds the embedder under its official name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.timestep_embedder = TimestepEmbedder(width)


class AdaLayerNormSingle(nn.Module):
    """One AdaLN head: ``k`` vectors of ``width`` for each distinct time."""

    def __init__(self, width: int, k: int) -> None:
        super().__init__()
        self.emb = Embedding(width)
        self.linear = Linear(width, k * width)
        self.k = k

    def forward(self, values: Float[Tensor, u]) -> tuple[Float[Tensor, "u k w"], Float[Tensor, "u w"]]:
        """Vectors of each value (already times 1000) and the embedding that the output head uses."""
        features = sinusoid(values).to(self.linear.weight.dtype)
        embedded = self.emb.timestep_embedder(features)
        vectors = self.linear(nn.functional.silu(embedded))
        return vectors.view(len(values), self.k, -1), embedded
