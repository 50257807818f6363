"""Second oracle: the library's own LTX-2 transformer, leg by leg, float32 (valid as ltx25.md section 12 says)."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
import torch
from diffusers.models.transformers.transformer_ltx2 import LTX2VideoTransformer3DModel

from fakes import random_transformer, tiny_config
from shotclock.geometry import Geometry
from shotclock.guidance import Leg, Perturbation
from shotclock.latents import noise, text_to_video
from shotclock.model.config import StreamShape, TransformerConfig
from shotclock.model.transformer import Transformer
from shotclock.render.denoise import prepare

BOUND = 2e-6  # relative to the largest velocity
RENAMED = (  # official names to the library's
    (r"^patchify_proj", "proj_in"),
    (r"^audio_patchify_proj", "audio_proj_in"),
    (r"^av_ca_video_scale_shift_adaln_single", "av_cross_attn_video_scale_shift"),
    (r"^av_ca_audio_scale_shift_adaln_single", "av_cross_attn_audio_scale_shift"),
    (r"^av_ca_a2v_gate_adaln_single", "av_cross_attn_video_a2v_gate"),
    (r"^av_ca_v2a_gate_adaln_single", "av_cross_attn_audio_v2a_gate"),
    (r"^adaln_single", "time_embed"),
    (r"^audio_adaln_single", "audio_time_embed"),
    (r"^prompt_adaln_single", "prompt_adaln"),
    (r"^audio_prompt_adaln_single", "audio_prompt_adaln"),
    (r"scale_shift_table_a2v_ca_video", "video_a2v_cross_attn_scale_shift_table"),
    (r"scale_shift_table_a2v_ca_audio", "audio_a2v_cross_attn_scale_shift_table"),
    (r"\.q_norm\.", ".norm_q."),
    (r"\.k_norm\.", ".norm_k."),
)


def library(model: Transformer) -> LTX2VideoTransformer3DModel:
    """The library's class with our weights, loaded strictly."""
    c = model.config
    theirs = LTX2VideoTransformer3DModel(
        in_channels=c.video_in,
        out_channels=c.video_out,
        num_attention_heads=c.video.heads,
        attention_head_dim=c.video.head_dim,
        cross_attention_dim=c.video_context,
        audio_in_channels=c.audio_in,
        audio_out_channels=c.audio_out,
        audio_num_attention_heads=c.audio.heads,
        audio_attention_head_dim=c.audio.head_dim,
        audio_cross_attention_dim=c.audio_context,
        num_layers=c.blocks,
        **EXTRA,
    )
    state = {}
    for name, value in model.state_dict().items():
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        state[name] = value
    theirs.load_state_dict(state, strict=True)
    return theirs.eval()


EXTRA = {
    "gated_attn": True,
    "audio_gated_attn": True,
    "cross_attn_mod": True,
    "audio_cross_attn_mod": True,
    "rope_type": "split",
    "rope_double_precision": True,
    "use_prompt_embeddings": False,
    "perturbed_attn": True,
    "ff_bias": False,
    "audio_ff_bias": True,
    "use_keyframes_abs_pos_embedding": True,
}
REAL = TransformerConfig(
    blocks=1,
    video=StreamShape(heads=32, head_dim=128),
    audio=StreamShape(heads=32, head_dim=64),
    video_in=128,
    video_out=128,
    audio_in=128,
    audio_out=128,
    video_context=4096,
    audio_context=2048,
    norm_eps=1e-6,
    theta=10000.0,
    max_position=(20, 2048, 2048),
    audio_max_position=20,
    timestep_scale=1000,
    cross_timestep_scale=1000.0,
    ff_bias=False,
    audio_ff_bias=True,
    keyframe_embedding=True,
)


@pytest.mark.parametrize(("name", "config", "block"), [("tiny", tiny_config(4), 2), ("real width", REAL, 0)])
def test_every_leg_agrees_with_the_library(name: str, config: TransformerConfig, block: int) -> None:
    """Velocities of cond, uncond, perturbed and isolated leg, computed in one pass here and one by one there."""
    geometry = Geometry(width=96, height=64, frames=17, fps=Fraction(24))
    sigma = 0.7
    model = random_transformer(config, torch.float32)
    theirs = library(model)
    latents = text_to_video(geometry, *noise(geometry, 5))
    generator = torch.Generator().manual_seed(1)
    texts = tuple(
        torch.randn(2, 24, width, generator=generator) for width in (config.video_context, config.audio_context)
    )
    video, audio = prepare(model, latents, texts)
    every, stg = frozenset(range(config.blocks)), frozenset({block})
    legs = [
        Leg(),
        Leg(context=1),
        Leg(perturbation=Perturbation(video_self=stg, audio_self=stg)),
        Leg(perturbation=Perturbation(audio_to_video=every, video_to_audio=every)),
    ]
    with torch.inference_mode():
        ours = model(
            video.stream(latents.video.tokens, sigma, enabled=True),
            audio.stream(latents.audio.tokens, sigma, enabled=True),
            legs,
        )
        for row in range(1, len(legs)):  # equal legs would agree with anything
            assert (ours[0][row] - ours[0][0]).abs().max() > 1e-3 * ours[0].abs().max()
        for row, leg in enumerate(legs):
            time = torch.tensor([sigma]) * 1000
            perturbed = bool(leg.perturbation.video_self)
            expected = theirs(
                hidden_states=latents.video.tokens,
                audio_hidden_states=latents.audio.tokens,
                encoder_hidden_states=texts[0][leg.context][None],
                audio_encoder_hidden_states=texts[1][leg.context][None],
                timestep=time[:, None].expand(1, geometry.video_tokens),
                audio_timestep=time[:, None].expand(1, geometry.audio_tokens),
                sigma=time,
                audio_sigma=time,
                video_coords=latents.video.positions,
                audio_coords=latents.audio.positions,
                isolate_modalities=bool(leg.perturbation.audio_to_video),
                spatio_temporal_guidance_blocks=[block] if perturbed else None,
                perturbation_mask=torch.zeros(1) if perturbed else None,
                video_keyframes_mask=latents.video.marker,
                return_dict=False,
            )
            for mine, reference in zip(ours, expected, strict=True):
                error = (mine[row] - reference[0]).abs().max() / reference.abs().max()
                assert error <= BOUND, f"{name}, {leg}: {error:.2e}"
