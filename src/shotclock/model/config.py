"""Shapes and constants of the audio-video transformer and its text connectors, from the ``config`` of a checkpoint.

Names are those of the official config (ltx25.md section 1.1). Knows nothing of files: it is given the parsed dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShape:
    """Width of one stream: ``heads`` heads of ``head_dim`` in its self-attention."""

    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Model width of the stream."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """What the transformer needs to be built; see :func:`transformer_config`."""

    blocks: int
    video: StreamShape
    audio: StreamShape
    video_in: int
    video_out: int
    audio_in: int
    audio_out: int
    video_context: int
    audio_context: int
    norm_eps: float
    theta: float
    max_position: tuple[int, int, int]
    audio_max_position: int
    timestep_scale: float
    cross_timestep_scale: float
    ff_bias: bool
    audio_ff_bias: bool
    keyframe_embedding: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """What one text connector needs to be built; see :func:`connector_configs`."""

    blocks: int
    shape: StreamShape
    registers: int
    max_position: int
    theta: float
    norm_eps: float


def transformer_config(config: Mapping[str, Any]) -> TransformerConfig:
    """Read ``config["transformer"]`` of a transformer file; raises ``KeyError`` where a required key is absent.

    No value falls back to a guess: the code defaults of the format are those of an older model (ltx25.md section 0).
    """
    audio_in = config.get("audio_in_channels", config["audio_out_channels"])
    rows, columns, depth = config["positional_embedding_max_pos"]
    return TransformerConfig(
        blocks=config["num_layers"],
        video=StreamShape(heads=config["num_attention_heads"], head_dim=config["attention_head_dim"]),
        audio=StreamShape(heads=config["audio_num_attention_heads"], head_dim=config["audio_attention_head_dim"]),
        video_in=config["in_channels"],
        video_out=config["out_channels"],
        audio_in=audio_in,
        audio_out=config["audio_out_channels"],
        video_context=config["cross_attention_dim"],
        audio_context=config["audio_cross_attention_dim"],
        norm_eps=config["norm_eps"],
        theta=config["positional_embedding_theta"],
        max_position=(rows, columns, depth),
        audio_max_position=config["audio_positional_embedding_max_pos"][0],
        timestep_scale=config["timestep_scale_multiplier"],
        cross_timestep_scale=config["av_ca_timestep_scale_multiplier"],
        ff_bias=config["ff_bias"],
        audio_ff_bias=config.get("audio_ff_bias", True),
        keyframe_embedding=config["use_keyframes_abs_pos_embedding"],
    )


def connector_configs(config: Mapping[str, Any]) -> tuple[ConnectorConfig, ConnectorConfig]:
    """Video and audio connector of ``config["transformer"]``."""
    theta = config["positional_embedding_theta"]
    registers = config["connector_num_learnable_registers"]
    max_position = config["connector_positional_embedding_max_pos"][0]
    blocks = config["connector_num_layers"]
    video = StreamShape(heads=config["connector_num_attention_heads"], head_dim=config["connector_attention_head_dim"])
    audio = StreamShape(
        heads=config["audio_connector_num_attention_heads"], head_dim=config["audio_connector_attention_head_dim"]
    )

    def build(shape: StreamShape, blocks: int) -> ConnectorConfig:
        return ConnectorConfig(
            blocks=blocks,
            shape=shape,
            registers=registers,
            max_position=max_position,
            theta=theta,
            norm_eps=config["norm_eps"],
        )

    return build(video, blocks), build(audio, config.get("audio_connector_num_layers", blocks))
