"""Shape of the pocket transformer and a batched, differentiable forward over shotclock's own modules.

`forward` computes what `Transformer.forward` computes for a batch of samples, without legs as objects: which rows are
perturbed is a tensor, so that one graph serves every step. Neighbouring rows with one caption and one sigma share its
context: keys and values are made once for them, as in shotclock's block. It uses the modules' parameters alone, none of
their kernels for inference. Linear layers compute in the dtype of the weights, states and norms in float32. A test
holds the two equal, and `contexts` equal to the connectors.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

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
    """Rotary tables and keyframe marker of the one geometry that is trained, in the dtype of the weights."""

    video: tuple[Rotary, Rotary]
    audio: tuple[Rotary, Rotary]
    text: tuple[Rotary, Rotary]
    marker: Float[Tensor, "1 n 1"]

    @classmethod
    def of(cls, model: Transformer, connectors: Connectors, device: torch.device | str) -> "Tables":
        """Compute them once."""
        halves = (connectors.video_embeddings_connector, connectors.audio_embeddings_connector)
        return cls(
            video=model.video_rotary(video_positions(GEOMETRY).to(device)),
            audio=model.audio_rotary(audio_positions(GEOMETRY).to(device)),
            text=tuple(_text_rotary(half, device, model.dtype) for half in halves),
            marker=keyframe_marker(GEOMETRY).to(device),
        )


def _text_rotary(connector: Connector, device: torch.device | str, dtype: torch.dtype) -> Rotary:
    shape = connector.config.shape
    position = torch.arange(TEXT_SLOTS, dtype=torch.float64, device=device) / connector.config.max_position
    return rotary(
        position[None, :, None], width=shape.width, heads=shape.heads, theta=connector.config.theta, dtype=dtype
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch of b rows in u groups of neighbours with one context and the same sigmas.

    Noisy tokens, sigma of each stream, tokens that are clean (time 0; None where none is), contexts, perturbed rows:
    `cross` is 1 where cross-modal attention runs, `attend_self` 1 where the self-attention of STG_BLOCK does (None: in
    all).
    """

    video: Float[Tensor, "b n 128"]
    audio: Float[Tensor, "b m 128"]
    video_sigma: Float[Tensor, " b"]
    audio_sigma: Float[Tensor, " b"]
    video_context: Float[Tensor, "u s d"]
    audio_context: Float[Tensor, "u s e"]
    cross: Float[Tensor, " b"]
    video_clean: Bool[Tensor, "b n"] | None = None
    attend_self: Float[Tensor, " b"] | None = None


class Side(NamedTuple):
    """What the blocks of one stream read beside the state; `clean` pairs with the vectors of time 0."""

    modulation: Float[Tensor, "b 9 w"]
    cross: Float[Tensor, "b 4 w"]
    gate: Float[Tensor, "b w"]
    prompt: Float[Tensor, "u 2 w"]
    context: Float[Tensor, "u s d"]
    turn: tuple[Tensor, Tensor]
    cross_turn: tuple[Tensor, Tensor]
    clean: Bool[Tensor, "b n 1"] | None = None
    clean_modulation: Float[Tensor, "1 9 w"] | None = None
    clean_cross: Float[Tensor, "1 4 w"] | None = None


def _vectors(table: Tensor, noisy: Tensor, clean: Tensor | None, is_clean: Tensor | None) -> tuple[Tensor, ...]:
    """Vectors of a head with its table: each (b 1 w), or (b n w) where some tokens are clean."""
    mine = (table + noisy).unsqueeze(2).unbind(1)
    if is_clean is None or clean is None:
        return mine
    pairs = zip((table + clean).unsqueeze(2).unbind(1), mine, strict=True)
    return tuple(torch.where(is_clean, c, m) for c, m in pairs)


def _modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Float[Tensor, "b n w"]:
    """In float32, rounded to the dtype of the vectors."""
    normed = nn.functional.rms_norm(x, x.shape[-1:], eps=eps)
    return (normed * (1 + scale) + shift).to(shift.dtype)


def _heads(
    x: Tensor, norm: nn.RMSNorm | None, heads: int, turn: tuple[Tensor, Tensor] | None
) -> Float[Tensor, "b h n d"]:
    """Norm over all heads together, split, turn."""
    if norm is not None:
        x = nn.functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)
    x = x.unflatten(2, (heads, -1)).transpose(1, 2)
    if turn is None:
        return x
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _gate(m: Attention, x: Tensor) -> Float[Tensor, "b n h"]:
    """Gate of each head; the six rows are padded to eight, since matrix kernels are slow at odd widths."""
    extra = -m.heads % 8
    weight, bias = (nn.functional.pad(t, (0, 0) * (t.ndim - 1) + (0, extra)) for t in _weights(m.to_gate_logits))
    return 2 * torch.sigmoid(nn.functional.linear(x, weight, bias)[..., : m.heads])


def _weights(m: nn.Linear) -> tuple[Tensor, Tensor]:
    return m.weight, m.bias


def _attention(
    m: Attention,
    x: Tensor,
    context: Tensor,
    q_turn: tuple[Tensor, Tensor] | None,
    k_turn: tuple[Tensor, Tensor] | None,
    keep: Tensor | None = None,
) -> Float[Tensor, "b n w"]:
    """Gated attention of `x` over `context`; rows with keep 0 pass the values through."""
    v = _heads(m.to_v(context), None, m.heads, None)
    q, k = _heads(m.to_q(x), m.q_norm, m.heads, q_turn), _heads(m.to_k(context), m.k_norm, m.heads, k_turn)
    o = nn.functional.scaled_dot_product_attention(q, k, v)
    if keep is not None:
        o = torch.where(keep[:, None, None, None] > 0, o, v)
    return m.to_out[0]((o.transpose(1, 2) * _gate(m, x)[..., None]).flatten(2))


def _feed_forward(m: nn.Module, x: Tensor) -> Float[Tensor, "b n w"]:
    return m.net[2](nn.functional.gelu(m.net[0].proj(x), approximate="tanh"))


def _self_text(
    block: Block, h: Tensor, side: Side, m: tuple[Tensor, ...], attend_self: Tensor | None, *, video: bool
) -> Float[Tensor, "b n w"]:
    attn1, attn2 = (block.attn1, block.attn2) if video else (block.audio_attn1, block.audio_attn2)
    prompt_table = block.prompt_scale_shift_table if video else block.audio_prompt_scale_shift_table
    x = _modulate(h, m[0], m[1], block.eps)
    h = h + m[2] * _attention(attn1, x, x, side.turn, side.turn, attend_self)
    x = _modulate(h, m[6], m[7], block.eps)
    shift, scale = _vectors(prompt_table, side.prompt, None, None)
    context = side.context * (1 + scale) + shift
    long = x.reshape(len(context), -1, x.shape[-1])  # rows of a group one after another: same queries, one context
    return h + m[8] * _attention(attn2, long, context, None, None).view_as(x)


def _block(
    block: Block, h_v: Tensor, h_a: Tensor, v: Side, a: Side, cross: Tensor, attend_self: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One block on a batch of rows."""
    m_v = _vectors(block.scale_shift_table, v.modulation, v.clean_modulation, v.clean)
    m_a = _vectors(block.audio_scale_shift_table, a.modulation, None, None)
    h_v = _self_text(block, h_v, v, m_v, attend_self, video=True)
    h_a = _self_text(block, h_a, a, m_a, attend_self, video=False)
    t_v, t_a, eps = block.scale_shift_table_a2v_ca_video, block.scale_shift_table_a2v_ca_audio, block.eps
    # rows of the cross tables: a2v scale, a2v shift, v2a scale, v2a shift, gate
    c_v, c_a = _vectors(t_v[:4], v.cross, v.clean_cross, v.clean), _vectors(t_a[:4], a.cross, None, None)
    v_to, a_from = (_modulate(h, c[1], c[0], eps) for h, c in ((h_v, c_v), (h_a, c_a)))
    v_from, a_to = (_modulate(h, c[3], c[2], eps) for h, c in ((h_v, c_v), (h_a, c_a)))
    to_v = _attention(block.audio_to_video_attn, v_to, a_from, v.cross_turn, a.cross_turn)
    to_a = _attention(block.video_to_audio_attn, a_to, v_from, a.cross_turn, v.cross_turn)
    h_v = h_v + (cross[:, None] * (t_v[4] + v.gate))[:, None] * to_v
    h_a = h_a + (cross[:, None] * (t_a[4] + a.gate))[:, None] * to_a
    return _feed(h_v, m_v, block.ff, eps), _feed(h_a, m_a, block.audio_ff, eps)


def _feed(h: Tensor, m: tuple[Tensor, ...], feed_forward: nn.Module, eps: float) -> Float[Tensor, "b n w"]:
    return h + m[5] * _feed_forward(feed_forward, _modulate(h, m[3], m[4], eps))


def _head(
    h: Tensor,
    embedded: Tensor,
    clean: Tensor | None,
    is_clean: Tensor | None,
    table: Tensor,
    out: nn.Linear,
    eps: float,
) -> Float[Tensor, "b n 128"]:
    embedded, clean = embedded[:, None].expand(-1, 2, -1), None if clean is None else clean[:, None].expand(-1, 2, -1)
    shift, scale = _vectors(table, embedded, clean, is_clean)
    normed = nn.functional.layer_norm(h, h.shape[-1:], eps=eps)
    return out((normed * (1 + scale) + shift).to(shift.dtype)).float()


def _pair(table: Rotary) -> tuple[Tensor, Tensor]:
    return table.cos, table.sin


def forward(
    model: Transformer, batch: Batch, tables: Tables
) -> tuple[Float[Tensor, "b n 128"], Float[Tensor, "b m 128"]]:
    """Velocities of both streams in float32."""
    scale, across = model.config.timestep_scale, model.config.cross_timestep_scale
    every = len(batch.video) // len(batch.video_context)
    h_v = model.patchify_proj(batch.video.to(model.dtype)).float()
    h_v = h_v + (tables.marker > 0).float() * model.keyframes_abs_pos_embedding
    h_a = model.audio_patchify_proj(batch.audio.to(model.dtype)).float()
    s_v, s_a = scale * batch.video_sigma, scale * batch.audio_sigma
    main, embedded = model.adaln_single(s_v)
    clean, embedded_clean, rest = None, None, {}
    if batch.video_clean is not None:
        clean, zero = batch.video_clean[..., None], torch.zeros_like(s_v[:1])
        main_clean, embedded_clean = model.adaln_single(zero)
        cross_clean = model.av_ca_video_scale_shift_adaln_single(zero)[0]
        rest = {"clean": clean, "clean_modulation": main_clean, "clean_cross": cross_clean}
    video = Side(
        modulation=main,
        cross=model.av_ca_video_scale_shift_adaln_single(s_v)[0],
        gate=model.av_ca_a2v_gate_adaln_single(across * batch.audio_sigma)[0][:, 0],
        prompt=model.prompt_adaln_single(s_v[::every])[0],
        context=batch.video_context.to(model.dtype),
        turn=_pair(tables.video[0]),
        cross_turn=_pair(tables.video[1]),
        **rest,
    )
    main_a, embedded_a = model.audio_adaln_single(s_a)
    audio = Side(
        modulation=main_a,
        cross=model.av_ca_audio_scale_shift_adaln_single(s_a)[0],
        gate=model.av_ca_v2a_gate_adaln_single(across * batch.video_sigma)[0][:, 0],
        prompt=model.audio_prompt_adaln_single(s_a[::every])[0],
        context=batch.audio_context.to(model.dtype),
        turn=_pair(tables.audio[0]),
        cross_turn=_pair(tables.audio[1]),
    )
    cross = batch.cross.to(model.dtype)
    for number, block in enumerate(model.transformer_blocks):
        h_v, h_a = _block(block, h_v, h_a, video, audio, cross, batch.attend_self if number == STG_BLOCK else None)
    eps = model.config.norm_eps
    return (
        _head(h_v, embedded, embedded_clean, clean, model.scale_shift_table, model.proj_out, eps),
        _head(h_a, embedded_a, None, None, model.audio_scale_shift_table, model.audio_proj_out, eps),
    )


def _connector_block(block: nn.Module, x: Tensor, turn: tuple[Tensor, Tensor], eps: float) -> Float[Tensor, "u s w"]:
    dtype = block.attn1.to_q.weight.dtype
    normed = nn.functional.rms_norm(x, x.shape[-1:], eps=eps).to(dtype)
    x = x + _attention(block.attn1, normed, normed, turn, turn)
    return x + _feed_forward(block.ff, nn.functional.rms_norm(x, x.shape[-1:], eps=eps).to(dtype))


def _context(
    connector: Connector,
    features: Float[Tensor, "u s w"],
    valid: Int[Tensor, " u"],
    table: Rotary,
) -> Float[Tensor, "u 1024 w"]:
    """One connector: registers fill the slots after the `valid` first ones."""
    eps = connector.config.norm_eps
    registers = connector.learnable_registers.repeat(TEXT_SLOTS // connector.config.registers, 1).float()
    real = torch.arange(TEXT_SLOTS, device=valid.device)[None, :, None] < valid[:, None, None]
    padded = nn.functional.pad(features.float(), (0, 0, 0, TEXT_SLOTS - features.shape[1]))
    x = torch.where(real, padded, registers)
    for block in connector.transformer_1d_blocks:
        x = _connector_block(block, x, _pair(table), eps)
    return nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


def contexts(
    connectors: Connectors,
    features: tuple[Float[Tensor, "u s d"], Float[Tensor, "u s e"]],
    valid: Int[Tensor, " u"],
    tables: Tables,
) -> tuple[Float[Tensor, "u 1024 d"], Float[Tensor, "u 1024 e"]]:
    """Video and audio contexts of features whose first `valid` positions are real."""
    halves = (connectors.video_embeddings_connector, connectors.audio_embeddings_connector)
    video, audio = (_context(c, f, valid, t) for c, f, t in zip(halves, features, tables.text, strict=True))
    return video, audio
