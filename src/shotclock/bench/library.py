"""The transformer of diffusers with the very tensors of ours, one leg a call, as another side of a measurement.

Valid for legs of one sigma with the keyframe marker passed (ltx25.md section 12); tests/parity holds it to 2e-6.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from shotclock.guidance import Leg
from shotclock.model.transformer import Transformer
from shotclock.profile.workload import SIGMA, Workload

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
Call = Callable[[Leg], tuple[Tensor, Tensor]]


def library(model: Transformer) -> torch.nn.Module:
    """The library's class around our tensors, strictly; tables in the dtype of the rest, as it loads them itself."""
    from diffusers.models.transformers.transformer_ltx2 import LTX2VideoTransformer3DModel

    c = model.config
    with torch.device("meta"):
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
        state[name] = value.to(model.dtype)
    theirs.load_state_dict(state, strict=True, assign=True)
    assert isinstance(theirs, torch.nn.Module), "diffusers classes are torch modules"
    return theirs.eval().requires_grad_(False)


def call_of(theirs: torch.nn.Module, work: Workload) -> Call:
    """Velocities of one leg by the library, on the inputs of our step."""
    video, audio = work.prepared
    device = work.machine.device
    time = torch.tensor([SIGMA], device=device) * work.transformer.config.timestep_scale
    block = list(work.guidance.video.stg_blocks)

    def call(leg: Leg) -> tuple[Tensor, Tensor]:
        perturbed = bool(leg.perturbation.video_self)
        found = theirs(
            hidden_states=video.latents.tokens,
            audio_hidden_states=audio.latents.tokens,
            encoder_hidden_states=video.context[leg.context][None],
            audio_encoder_hidden_states=audio.context[leg.context][None],
            timestep=time[:, None].expand(1, work.geometry.video_tokens),
            audio_timestep=time[:, None].expand(1, work.geometry.audio_tokens),
            sigma=time,
            audio_sigma=time,
            video_coords=video.latents.positions,
            audio_coords=audio.latents.positions,
            isolate_modalities=bool(leg.perturbation.audio_to_video),
            spatio_temporal_guidance_blocks=block if perturbed else None,
            perturbation_mask=torch.zeros(1, device=device) if perturbed else None,
            video_keyframes_mask=video.latents.marker,
            return_dict=False,
        )
        return found[0], found[1]

    return call
