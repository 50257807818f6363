"""Shape of the pocket transformer and a batched, differentiable forward over shotclock's own modules.

`forward` computes what `Transformer.forward` computes for a batch of samples, without legs as objects: which rows are
perturbed is a tensor, so that one compiled graph serves every step. It uses the modules' parameters alone, none of
their kernels for inference. A test holds the two equal, and `contexts` equal to the connectors.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pocket.scenes import FPS, FRAMES, HEIGHT, WIDTH
from shotclock.geometry import Geometry, audio_positions, keyframe_marker, video_positions
from shotclock.model.adaln import AdaLayerNormSingle
from shotclock.model.attention import Attention
from shotclock.model.block import Block
from shotclock.model.config import connector_configs, transformer_config
from shotclock.model.connector import Connector, Connectors
from shotclock.model.rope import Rotary, rotary
from shotclock.model.transformer import Transformer

GEOMETRY = Geometry(width=WIDTH, height=HEIGHT, frames=FRAMES, fps=Fraction(FPS))
HEADS, HEAD_DIM, AUDIO_HEAD_DIM = 6, 32, 16
BLOCKS, CONNECTOR_BLOCKS = 8, 1
STG_BLOCK = 4
TEXT_SLOTS = 1024


def config() -> dict[str, Any]:
    """`config` metadata of the transformer file: every LTX-2.5 feature on."""
    width, audio_width = HEADS * HEAD_DIM, HEADS * AUDIO_HEAD_DIM
    transformer = {
        "_class_name": "AVTransformer3DModel",
        "num_layers": BLOCKS,
        "num_attention_heads": HEADS,
        "attention_head_dim": HEAD_DIM,
        "audio_num_attention_heads": HEADS,
        "audio_attention_head_dim": AUDIO_HEAD_DIM,
        "in_channels": 128,
        "out_channels": 128,
        "audio_out_channels": 128,
        "cross_attention_dim": width,
        "audio_cross_attention_dim": audio_width,
        "norm_eps": 1e-6,
        "qk_norm": "rms_norm",
        "standardization_norm": "rms_norm",
        "positional_embedding_type": "rope",
        "positional_embedding_theta": 10000.0,
        "positional_embedding_max_pos": [20, 2048, 2048],
        "audio_positional_embedding_max_pos": [20],
        "use_middle_indices_grid": True,
        "rope_type": "split",
        "frequencies_precision": "float64",
        "timestep_scale_multiplier": 1000,
        "av_ca_timestep_scale_multiplier": 1000.0,
        "apply_gated_attention": True,
        "cross_attention_adaln": True,
        "ff_bias": False,
        "use_keyframes_abs_pos_embedding": True,
        "caption_channels": 64,
        "caption_proj_before_connector": True,
        "caption_projection_first_linear": False,
        "caption_projection_second_linear": False,
        "caption_proj_input_norm": False,
        "connector_num_layers": CONNECTOR_BLOCKS,
        "connector_num_attention_heads": HEADS,
        "connector_attention_head_dim": HEAD_DIM,
        "audio_connector_num_attention_heads": HEADS,
        "audio_connector_attention_head_dim": AUDIO_HEAD_DIM,
        "audio_connector_num_layers": CONNECTOR_BLOCKS,
        "connector_num_learnable_registers": 128,
        "connector_positional_embedding_max_pos": [4096],
        "connector_apply_gated_attention": True,
        "connector_norm_output": True,
        "connector_learnable_registers_std": 1,
        "attention_bias": True,
        "dropout": 0.0,
        "activation_fn": "gelu-approximate",
        "num_embeds_ada_norm": 1000,
        "share_ff": False,
        "av_cross_ada_norm": True,
        "cross_attention_norm": True,
        "use_audio_video_cross_attention": True,
        "num_vector_embeds": None,
        "use_linear_projection": False,
        "only_cross_attention": False,
        "double_self_attention": False,
        "upcast_attention": False,
        "norm_elementwise_affine": False,
        "causal_temporal_positioning": True,
        "text_encoder_norm_type": "PER_TOKEN_RMS",
        "use_embeddings_connector": True,
    }
    scheduler = {
        "_class_name": "RectifiedFlowScheduler",
        "num_train_timesteps": 1000,
        "sampler": "LinearQuadratic",
        "shifting": None,
    }
    return {"transformer": transformer, "scheduler": scheduler}


def build() -> tuple[Transformer, Connectors]:
    """Both halves of the transformer file, initialised so that every block starts as the identity."""
    shape = config()["transformer"]
    model, connectors = Transformer(transformer_config(shape)), Connectors(*connector_configs(shape))
    for module in [*model.modules(), *connectors.modules()]:
        if isinstance(module, AdaLayerNormSingle):
            nn.init.zeros_(module.linear.weight)
            nn.init.zeros_(module.linear.bias)
        if isinstance(module, Attention):
            nn.init.zeros_(module.to_gate_logits.weight)
            nn.init.zeros_(module.to_gate_logits.bias)
    for connector in (connectors.video_embeddings_connector, connectors.audio_embeddings_connector):
        nn.init.normal_(connector.learnable_registers)
    nn.init.normal_(model.keyframes_abs_pos_embedding, std=0.02)
    nn.init.normal_(model.scale_shift_table, std=0.02)
    nn.init.normal_(model.audio_scale_shift_table, std=0.02)
    return model, connectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Rotary tables and keyframe marker of the one geometry that is trained, float32."""

    video: tuple[Rotary, Rotary]
    audio: tuple[Rotary, Rotary]
    marker: Float[Tensor, "1 n 1"]

    @classmethod
    def of(cls, model: Transformer, device: torch.device | str) -> "Tables":
        """Compute them once."""
        return cls(
            video=model.video_rotary(video_positions(GEOMETRY).to(device)),
            audio=model.audio_rotary(audio_positions(GEOMETRY).to(device)),
            marker=keyframe_marker(GEOMETRY).to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of rows: noisy tokens, sigma of each stream, tokens that are clean (time 0), contexts, perturbed rows.

    `cross` is 1 where cross-modal attention runs, `attend_self` 1 where the self-attention of STG_BLOCK does.
    """

    video: Float[Tensor, "b n 128"]
    audio: Float[Tensor, "b m 128"]
    video_sigma: Float[Tensor, " b"]
    audio_sigma: Float[Tensor, " b"]
    video_clean: Bool[Tensor, "b n"]
    video_context: Float[Tensor, "b s d"]
    audio_context: Float[Tensor, "b s e"]
    cross: Float[Tensor, " b"]
    attend_self: Float[Tensor, " b"]


@dataclass(frozen=True, slots=True)
class _Side:
    """What the blocks of one stream read beside the state."""

    modulation: Float[Tensor, "b n_or_1 9 w"]
    cross: Float[Tensor, "b n_or_1 4 w"]
    gate: Float[Tensor, "b 1 1 w"]
    prompt: Float[Tensor, "b 1 2 w"]
    context: Float[Tensor, "b s d"]
    rotary: tuple[Rotary, Rotary]


def _spread(noisy: Tensor, clean: Tensor | None, is_clean: Tensor | None) -> Tensor:
    """A head's rows for every token: (b 1 k w), or (b n k w) where some tokens are clean."""
    if clean is None or is_clean is None:
        return noisy[:, None]
    return torch.where(is_clean[..., None, None], clean[None], noisy[:, None])


def _modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Float[Tensor, "b n w"]:
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift


def _heads(x: Tensor, norm: nn.RMSNorm | None, heads: int, table: Rotary | None) -> Float[Tensor, "b h n d"]:
    """Norm over all heads together, split, turn."""
    x = (x if norm is None else norm(x)).unflatten(2, (heads, -1)).transpose(1, 2)
    if table is None:
        return x
    a, b = x.chunk(2, dim=-1)
    turned = torch.cat([a * table.cos - b * table.sin, b * table.cos + a * table.sin], dim=-1)
    return turned.to(x.dtype)


def _attention(
    m: Attention, x: Tensor, context: Tensor, q_table: Rotary | None, k_table: Rotary | None, keep: Tensor | None = None
) -> Float[Tensor, "b n w"]:
    """Gated attention of `x` over `context`; rows with keep 0 pass the values through."""
    v = _heads(m.to_v(context), None, m.heads, None)
    q, k = _heads(m.to_q(x), m.q_norm, m.heads, q_table), _heads(m.to_k(context), m.k_norm, m.heads, k_table)
    o = nn.functional.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v)
    if keep is not None:
        o = torch.where(keep[:, None, None, None] > 0, o, v)
    gate = 2 * torch.sigmoid(m.to_gate_logits(x))
    return m.to_out[0]((o.transpose(1, 2) * gate[..., None]).flatten(2))


def _feed_forward(m: nn.Module, x: Tensor) -> Float[Tensor, "b n w"]:
    return m.net[2](nn.functional.gelu(m.net[0].proj(x), approximate="tanh"))


def _self_text(
    block: Block, h: Tensor, side: _Side, attend_self: Tensor | None, eps: float, *, video: bool
) -> Float[Tensor, "b n w"]:
    attn1, attn2 = (block.attn1, block.attn2) if video else (block.audio_attn1, block.audio_attn2)
    table = block.scale_shift_table if video else block.audio_scale_shift_table
    prompt_table = block.prompt_scale_shift_table if video else block.audio_prompt_scale_shift_table
    m = table + side.modulation
    x = _modulate(h, m[:, :, 0], m[:, :, 1], eps)
    h = h + m[:, :, 2] * _attention(attn1, x, x, side.rotary[0], side.rotary[0], attend_self)
    x = _modulate(h, m[:, :, 6], m[:, :, 7], eps)
    prompt = prompt_table + side.prompt
    context = side.context * (1 + prompt[:, :, 1]) + prompt[:, :, 0]
    return h + m[:, :, 8] * _attention(attn2, x, context, None, None)


def _cross(
    attention: Attention,
    h: Tensor,
    other: Tensor,
    mine: Tensor,
    theirs: Tensor,
    row: int,
    tables: tuple[Rotary, Rotary],
    eps: float,
) -> Float[Tensor, "b n w"]:
    q = _modulate(h, mine[:, :, row + 1], mine[:, :, row], eps)
    kv = _modulate(other, theirs[:, :, row + 1], theirs[:, :, row], eps)
    return _attention(attention, q, kv, tables[0], tables[1])


def _block(
    block: Block, h_v: Tensor, h_a: Tensor, v: _Side, a: _Side, cross: Tensor, attend_self: Tensor | None
) -> tuple[Tensor, Tensor]:
    eps = block.eps
    h_v = _self_text(block, h_v, v, attend_self, eps, video=True)
    h_a = _self_text(block, h_a, a, attend_self, eps, video=False)
    table_v, table_a = block.scale_shift_table_a2v_ca_video, block.scale_shift_table_a2v_ca_audio
    x_v, x_a = table_v[:4] + v.cross, table_a[:4] + a.cross
    on = cross[:, None, None]
    to_v = _cross(block.audio_to_video_attn, h_v, h_a, x_v, x_a, 0, (v.rotary[1], a.rotary[1]), eps)
    to_a = _cross(block.video_to_audio_attn, h_a, h_v, x_a, x_v, 2, (a.rotary[1], v.rotary[1]), eps)
    h_v = h_v + on * (table_v[4] + v.gate[:, :, 0]) * to_v
    h_a = h_a + on * (table_a[4] + a.gate[:, :, 0]) * to_a
    m = block.scale_shift_table + v.modulation
    h_v = h_v + m[:, :, 5] * _feed_forward(block.ff, _modulate(h_v, m[:, :, 3], m[:, :, 4], eps))
    m = block.audio_scale_shift_table + a.modulation
    return h_v, h_a + m[:, :, 5] * _feed_forward(block.audio_ff, _modulate(h_a, m[:, :, 3], m[:, :, 4], eps))


def _head(h: Tensor, embedded: Tensor, table: Tensor, projection: nn.Linear, eps: float) -> Float[Tensor, "b n 128"]:
    rows = table + embedded
    normed = nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
    return projection(normed * (1 + rows[:, :, 1]) + rows[:, :, 0])


def forward(
    model: Transformer, batch: Batch, tables: Tables
) -> tuple[Float[Tensor, "b n 128"], Float[Tensor, "b m 128"]]:
    """Velocities of both streams; states are kept in float32."""
    scale, across = model.config.timestep_scale, model.config.cross_timestep_scale
    h_v = model.patchify_proj(batch.video).float()
    h_v = h_v + (tables.marker > 0).float() * model.keyframes_abs_pos_embedding
    h_a = model.audio_patchify_proj(batch.audio).float()
    s_v, s_a, zero = scale * batch.video_sigma, scale * batch.audio_sigma, torch.zeros_like(batch.video_sigma[:1])
    clean = batch.video_clean
    main, embedded = model.adaln_single(s_v)
    main_clean, embedded_clean = model.adaln_single(zero)
    cross_v, cross_clean = (
        model.av_ca_video_scale_shift_adaln_single(s_v)[0],
        model.av_ca_video_scale_shift_adaln_single(zero)[0],
    )
    video = _Side(
        _spread(main, main_clean, clean),
        _spread(cross_v, cross_clean, clean),
        model.av_ca_a2v_gate_adaln_single(across * batch.audio_sigma)[0][:, None],
        model.prompt_adaln_single(s_v)[0][:, None],
        batch.video_context,
        tables.video,
    )
    main_a, embedded_a = model.audio_adaln_single(s_a)
    audio = _Side(
        main_a[:, None],
        model.av_ca_audio_scale_shift_adaln_single(s_a)[0][:, None],
        model.av_ca_v2a_gate_adaln_single(across * batch.video_sigma)[0][:, None],
        model.audio_prompt_adaln_single(s_a)[0][:, None],
        batch.audio_context,
        tables.audio,
    )
    for number, block in enumerate(model.transformer_blocks):
        keep = batch.attend_self if number == STG_BLOCK else None
        h_v, h_a = _block(block, h_v, h_a, video, audio, batch.cross, keep)
    eps = model.config.norm_eps
    e_v = _spread(embedded[:, None], embedded_clean[:, None], clean)
    return (
        _head(h_v, e_v, model.scale_shift_table, model.proj_out, eps).float(),
        _head(h_a, embedded_a[:, None, None], model.audio_scale_shift_table, model.audio_proj_out, eps).float(),
    )


def _context(
    connector: Connector, features: Float[Tensor, "b s w"], valid: Int[Tensor, " b"]
) -> Float[Tensor, "b 1024 w"]:
    """One connector: registers fill the slots after the `valid` first ones."""
    shape, eps = connector.config.shape, connector.config.norm_eps
    registers = connector.learnable_registers.repeat(TEXT_SLOTS // connector.config.registers, 1)
    real = torch.arange(TEXT_SLOTS, device=valid.device)[None, :, None] < valid[:, None, None]
    padded = nn.functional.pad(features.float(), (0, 0, 0, TEXT_SLOTS - features.shape[1]))
    x = torch.where(real, padded, registers)
    position = torch.arange(TEXT_SLOTS, dtype=torch.float64, device=valid.device) / connector.config.max_position
    table = rotary(
        position[None, :, None], width=shape.width, heads=shape.heads, theta=connector.config.theta, dtype=torch.float32
    )
    for block in connector.transformer_1d_blocks:
        normed = nn.functional.rms_norm(x, x.shape[-1:], eps=eps)
        x = x + _attention(block.attn1, normed, normed, table, table)
        x = x + _feed_forward(block.ff, nn.functional.rms_norm(x, x.shape[-1:], eps=eps))
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


def contexts(
    connectors: Connectors, features: tuple[Float[Tensor, "b s d"], Float[Tensor, "b s e"]], valid: Int[Tensor, " b"]
) -> tuple[Float[Tensor, "b 1024 d"], Float[Tensor, "b 1024 e"]]:
    """Video and audio contexts of features whose first `valid` positions are real."""
    halves = (connectors.video_embeddings_connector, connectors.audio_embeddings_connector)
    video, audio = (_context(c, f, valid) for c, f in zip(halves, features, strict=True))
    return video, audio
