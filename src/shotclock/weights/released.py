"""Facts about the released LTX-2.5 files that no header carries: pinned config, recipes, Gemma sizes, digests.

Tables only (ltx25.md sections 1.1, 2, 3 and 5.2). Knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

MODEL_VERSION = (2, 5)  # first version with ff_bias false and the keyframe embedding, ltx25.md section 1.1
GEMMA_VERSION = "gemma4-12b-ltx-v1"  # gemma_source_checkpoint of the released transformer, ltx25.md section 2
LEGS = 4  # cond, uncond, perturbed, isolated: a guided step of one_stage, ltx25.md section 5.2

STRUCTURE: Mapping[str, Any] = MappingProxyType(  # must stand in a config: format defaults are the old model's
    {
        "rope_type": "split",
        "frequencies_precision": "float64",
        "use_middle_indices_grid": True,
        "apply_gated_attention": True,
        "cross_attention_adaln": True,
        "ff_bias": False,
        "caption_proj_before_connector": True,
        "connector_apply_gated_attention": True,
        "qk_norm": "rms_norm",
        "standardization_norm": "rms_norm",
    }
)
STRUCTURE_IF_GIVEN: Mapping[str, Any] = MappingProxyType(  # absent means the same value
    {
        "_class_name": "AVTransformer3DModel",
        "attention_bias": True,
        "dropout": 0.0,
        "activation_fn": "gelu-approximate",
        "num_embeds_ada_norm": 1000,
        "share_ff": False,
        "av_cross_ada_norm": True,
        "cross_attention_norm": True,
        "use_audio_video_cross_attention": True,
        "audio_ff_bias": True,
        "use_prompt_adaln_single": True,
        "caption_projection_first_linear": False,
        "caption_projection_second_linear": False,
        "caption_proj_input_norm": False,
    }
)
NUMBERS = (  # sizes and scales that the model is built from: must stand in a config, any value
    "num_layers",
    "num_attention_heads",
    "attention_head_dim",
    "audio_num_attention_heads",
    "audio_attention_head_dim",
    "in_channels",
    "out_channels",
    "audio_out_channels",
    "cross_attention_dim",
    "audio_cross_attention_dim",
    "norm_eps",
    "positional_embedding_theta",
    "positional_embedding_max_pos",
    "audio_positional_embedding_max_pos",
    "timestep_scale_multiplier",
    "av_ca_timestep_scale_multiplier",
    "connector_num_layers",
    "connector_num_attention_heads",
    "connector_attention_head_dim",
    "audio_connector_num_attention_heads",
    "audio_connector_attention_head_dim",
    "connector_num_learnable_registers",
    "connector_positional_embedding_max_pos",
)

PINNED_25_CONFIG: Mapping[str, Any] = MappingProxyType(  # config["transformer"] of the released file, ltx25.md 1.1
    {
        **{
            key: value
            for key, value in STRUCTURE_IF_GIVEN.items()
            if key not in {"audio_ff_bias", "use_prompt_adaln_single"}
        },
        **STRUCTURE,
        "num_layers": 48,
        "num_attention_heads": 32,
        "attention_head_dim": 128,
        "audio_num_attention_heads": 32,
        "audio_attention_head_dim": 64,
        "in_channels": 128,
        "out_channels": 128,
        "audio_out_channels": 128,
        "cross_attention_dim": 4096,
        "audio_cross_attention_dim": 2048,
        "norm_eps": 1e-6,
        "positional_embedding_theta": 10000.0,
        "positional_embedding_max_pos": [20, 2048, 2048],
        "audio_positional_embedding_max_pos": [20],
        "timestep_scale_multiplier": 1000,
        "av_ca_timestep_scale_multiplier": 1000.0,
        "use_keyframes_abs_pos_embedding": True,
        "connector_num_layers": 8,
        "connector_num_attention_heads": 32,
        "connector_attention_head_dim": 128,
        "audio_connector_num_attention_heads": 32,
        "audio_connector_attention_head_dim": 64,
        "connector_num_learnable_registers": 128,
        "connector_positional_embedding_max_pos": [4096],
        "caption_channels": 3840,
        "causal_temporal_positioning": True,
        "connector_norm_output": True,
        "connector_learnable_registers_std": 1,
        "text_encoder_norm_type": "PER_TOKEN_RMS",
        "use_embeddings_connector": True,
    }
)

GEMMA_BY_WIDTH: Mapping[int, str] = MappingProxyType(  # hidden sizes in the published Gemma configs
    {1152: "Gemma 1B", 1536: "Gemma E2B", 2560: "Gemma 4B", 3840: "Gemma 12B", 5376: "Gemma 27B or 31B"}
)

DIGESTS: Mapping[str, tuple[str, str]] = MappingProxyType(  # known by prefix and suffix only, ltx25.md section 2
    {"dev": ("792a2bad", "8e7584"), "distilled": ("31eb3cad", "7bff4")}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The official settings of a guided render for one model version."""

    name: str
    steps: int
    video_cfg: float
    audio_cfg: float
    stg: float
    stg_blocks: tuple[int, ...]
    modality: float
    rescale: float
    image_crf: int

    @property
    def forwards(self) -> int:
        """Forwards of a render with all four legs switched on."""
        return self.steps * LEGS


def one_stage(version: tuple[int, ...], stg_blocks: tuple[int, ...] | None) -> Recipe:
    """The one_stage recipe of a model version; ``stg_blocks`` replaces the block of the released model where given.

    2.4 and newer: 30 steps, block 28, image CRF 18; 2.3: 30, 28, 33; older: 40, 29, 33 (ltx25.md section 2, check c).
    """
    steps, block = (30, 28) if version >= (2, 3) else (40, 29)
    return Recipe(
        name="one_stage",
        steps=steps,
        video_cfg=3.0,
        audio_cfg=7.0,
        stg=1.0,
        stg_blocks=(block,) if stg_blocks is None else stg_blocks,
        modality=3.0,
        rescale=0.7,
        image_crf=18 if version >= (2, 4) else 33,
    )


def known_digest(sha256: str) -> str | None:
    """Which released transformer a digest belongs to as far as can be told, or None."""
    for name, (prefix, suffix) in DIGESTS.items():
        if sha256.startswith(prefix) and sha256.endswith(suffix):
            return f"{name} (digest prefix and suffix match)"
    return None
