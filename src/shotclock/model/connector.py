"""Text connectors: projected text features become the contexts that the transformer reads (ltx25.md section 3).

Knows tensors only; the text encoder and its projection are elsewhere.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shotclock.model.attention import Attention
from shotclock.model.block import FeedForward, attend_within
from shotclock.model.config import ConnectorConfig
from shotclock.model.rope import Rotary, rotary


class ConnectorBlock(nn.Module):
    """``x += attn1(rms(x)); x += ff(rms(x))``."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__()
        width = config.shape.width
        self.attn1 = Attention(
            query=width, context=width, heads=config.shape.heads, head_dim=config.shape.head_dim, eps=config.norm_eps
        )
        self.ff = FeedForward(width, bias=True)
        self.eps = config.norm_eps

    def forward(self, x: Float[Tensor, "b s w"], table: Rotary) -> Float[Tensor, "b s w"]:
        """One block; all positions see each other."""
        normed = nn.functional.rms_norm(x, x.shape[-1:], eps=self.eps)
        attention = self.attn1
        x = x + attention.out([attend_within(attention, normed, table)], normed)
        return x + self.ff(nn.functional.rms_norm(x, x.shape[-1:], eps=self.eps))  # type: ignore[no-any-return]


class Connector(nn.Module):
    """One stream's connector: valid tokens first, learnable registers in the free slots, then blocks and a norm."""

    def __init__(self, config: ConnectorConfig) -> None:
        super().__init__()
        self.config = config
        self.learnable_registers = nn.Parameter(torch.zeros(config.registers, config.shape.width))
        self.transformer_1d_blocks = nn.ModuleList(ConnectorBlock(config) for _ in range(config.blocks))

    def forward(self, features: Float[Tensor, "b s w"], valid: Int[Tensor, b]) -> Float[Tensor, "b s w"]:
        """Contexts of texts whose first ``valid`` positions are real; s is a multiple of the number of registers.

        Every position of the result is visible: the transformer gets no context mask.
        """
        length = features.shape[1]
        assert length % self.config.registers == 0, f"{length} positions, {self.config.registers} registers"
        registers = self.learnable_registers.repeat(length // self.config.registers, 1)
        real = torch.arange(length, device=features.device)[None, :, None] < valid[:, None, None]
        x = torch.where(real, features, registers)
        table = self._rotary(length, features)
        for block in self.transformer_1d_blocks:
            x = block(x, table)
        return nn.functional.rms_norm(x, x.shape[-1:], eps=self.config.norm_eps)

    def _rotary(self, length: int, like: Tensor) -> Rotary:
        """Positions are plain integers over ``max_position``, no midpoint."""
        positions = torch.arange(length, dtype=torch.float64, device=like.device) / self.config.max_position
        shape = self.config.shape
        return rotary(
            positions[None, :, None], width=shape.width, heads=shape.heads, theta=self.config.theta, dtype=like.dtype
        )


class Connectors(nn.Module):
    """Both connectors under their official names; they lie in the transformer file."""

    def __init__(self, video: ConnectorConfig, audio: ConnectorConfig) -> None:
        super().__init__()
        self.video_embeddings_connector = Connector(video)
        self.audio_embeddings_connector = Connector(audio)


def valid_first(
    features: Float[Tensor, "b s w"], mask: Int[Tensor, "b s"]
) -> tuple[Float[Tensor, "b s w"], Int[Tensor, b]]:
    """Stable reorder of left-padded features so that real tokens come first, and how many there are."""
    order = torch.argsort(mask == 0, dim=1, stable=True)
    return torch.gather(features, 1, order[..., None].expand_as(features)), mask.sum(dim=1)
