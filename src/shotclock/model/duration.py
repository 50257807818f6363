"""The duration head: how long the shot of a prompt is, from its contexts (ltx25.md section 7).

Pure torch; official parameter names without ``duration_head.``. Knows no frame rate of a request and no file.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

HEADS = 4  # ltx25.md section 7


class Pooler(nn.Module):
    """Learned queries that attend to all tokens of both streams."""

    def __init__(self, *, width: int, queries: int, heads: int) -> None:
        super().__init__()
        self.query_tokens = nn.Parameter(torch.zeros(queries, width))
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, tokens: Float[Tensor, "b n w"]) -> Float[Tensor, "b k"]:
        """The queries' answers, side by side."""
        queries = self.query_tokens.expand(tokens.shape[0], -1, -1)
        pooled: Tensor = self.cross_attn(queries, tokens, tokens, need_weights=False)[0]
        return pooled.flatten(1)


class DurationHead(nn.Module):
    """Contexts of both streams to seconds."""

    def __init__(self, *, video: int, audio: int, width: int, hidden: int, queries: int, heads: int = HEADS) -> None:
        super().__init__()
        self.video_input_proj = nn.Linear(video, width)
        self.audio_input_proj = nn.Linear(audio, width)
        self.video_modality_emb = nn.Parameter(torch.zeros(width))
        self.audio_modality_emb = nn.Parameter(torch.zeros(width))
        self.attention_pooler = Pooler(width=width, queries=queries, heads=heads)
        self.mlp_hidden = nn.Linear(queries * width, hidden)
        self.mlp_out = nn.Linear(hidden, 1)

    def forward(self, video: Float[Tensor, "b s d"], audio: Float[Tensor, "b s e"]) -> Float[Tensor, " b"]:
        """Seconds of each prompt; the head was trained on their logarithm."""
        tokens = torch.cat(
            [
                self.video_input_proj(video) + self.video_modality_emb,
                self.audio_input_proj(audio) + self.audio_modality_emb,
            ],
            dim=1,
        )
        hidden = nn.functional.gelu(self.mlp_hidden(self.attention_pooler(tokens)), approximate="tanh")
        seconds: Tensor = self.mlp_out(hidden).squeeze(-1).exp()
        return seconds
