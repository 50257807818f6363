"""Writes a tiny checkpoint in the official format: random weights from a seed, for tests and demos.

Same names, dtypes, metadata and structure as the released files (ltx25.md sections 1 to 3 and 6), small widths. It
renders finite noise that moves, not pictures. Knows no module: shapes come from shapes.py, scales from this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from shotclock.weights.checkpoint import Checkpoints
from shotclock.weights.filters import fourier_bases, kaiser_low_pass, mel_bank
from shotclock.weights.gemma import ASSET, TOKENIZER
from shotclock.weights.identity import DIT
from shotclock.weights.load import TORCH_DTYPES, published_dtype
from shotclock.weights.released import GEMMA_VERSION, PINNED_25_CONFIG
from shotclock.weights.shapes import (
    FILTER_TAPS,
    Shapes,
    audio_encoder_shapes,
    audio_vae_shapes,
    conv_vae_shapes,
    duration_head_shapes,
    lora_shapes,
    text_encoder_shapes,
    transformer_shapes,
    upscaler_shapes,
)
from shotclock.weights.write import write_safetensors

VERSION = "2.5.0"  # model_version of the released files, ltx25.md section 2
GEMMA_WIDTH = 48
UPSCALER_WIDTH = 32  # the fewest channels that its groups of 32 allow
LORA_RANK = 4
STG_BLOCK = 2  # half of the blocks come before it, as in the released model 28 of 48
TRANSFORMER = {
    **PINNED_25_CONFIG,
    "num_layers": 4,
    "num_attention_heads": 4,
    "attention_head_dim": 16,
    "audio_num_attention_heads": 4,
    "audio_attention_head_dim": 8,
    "cross_attention_dim": 64,
    "audio_cross_attention_dim": 32,
    "connector_num_layers": 2,
    "audio_connector_num_layers": 2,
    "connector_num_attention_heads": 4,
    "connector_attention_head_dim": 16,
    "audio_connector_num_attention_heads": 4,
    "audio_connector_attention_head_dim": 8,
    "caption_channels": GEMMA_WIDTH,
}
SCHEDULER = {  # present in the released file and not used, ltx25.md section 1.1
    "_class_name": "RectifiedFlowScheduler",
    "num_train_timesteps": 1000,
    "sampler": "LinearQuadratic",
    "shifting": None,
}
GEMMA: Mapping[str, Any] = {  # the released text tower (ltx25.md section 3), one group of five sliding and one global
    "model_type": "gemma4_unified_text",
    "vocab_size": 384,
    "hidden_size": GEMMA_WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "attention_bias": False,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    "sliding_window": 1024,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "use_bidirectional_attention": "vision",
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": None,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
VIDEO_VAE: Mapping[str, Any] = {
    "_class_name": "CausalVideoAutoencoder",
    "dims": 3,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 128,
    "patch_size": 4,
    "norm_layer": "pixel_norm",
    "latent_log_var": "uniform",
    "encoder_blocks": [
        ["res_x", {"num_layers": 0}],
        ["compress_space_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 0}],
        ["compress_time_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 0}],
        ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 0}],
        ["compress_all_res", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
    ],
    "decoder_blocks": [
        ["res_x", {"num_layers": 1}],
        ["compress_space", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
        ["compress_time", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
        ["compress_all", {"multiplier": 1}],
        ["res_x", {"num_layers": 1}],
        ["compress_all", {"multiplier": 2}],
        ["res_x", {"num_layers": 1}],
    ],
    "decoder_base_channels": 4,
    "causal_decoder": False,
    "timestep_conditioning": False,
    "spatial_padding_mode": "zeros",
    "encoder_spatial_padding_mode": "zeros",
}
GENERATOR: Mapping[str, Any] = {
    "resblock": "AMP1",
    "stereo": True,
    "activation": "snakebeta",
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
}
AUDIO: Mapping[str, Any] = {
    "audio_vae": {
        "model": {
            "params": {
                "sampling_rate": 16000,
                "ddconfig": {
                    "ch": 128,
                    "out_ch": 2,
                    "ch_mult": [1, 1, 1],
                    "num_res_blocks": 0,
                    "attn_resolutions": [],
                    "resolution": 256,
                    "z_channels": 8,
                    "norm_type": "pixel",
                    "causality_axis": "height",
                    "dropout": 0.0,
                    "mid_block_add_attention": False,
                    "double_z": True,
                    "in_channels": 2,
                    "mel_bins": 64,
                },
            }
        },
        "preprocessing": {
            "stft": {"filter_length": 1024, "hop_length": 160, "causal": True},
            "mel": {"n_mel_channels": 64},
        },
    },
    "vocoder": {
        "vocoder": {
            **GENERATOR,
            "upsample_initial_channel": 64,
            "upsample_rates": [5, 2, 2, 2, 2, 2],
            "upsample_kernel_sizes": [11, 4, 4, 4, 4, 4],
        },
        "bwe": {
            **GENERATOR,
            "upsample_initial_channel": 32,
            "upsample_rates": [6, 5, 2, 2, 2],
            "upsample_kernel_sizes": [12, 11, 4, 4, 4],
            "input_sampling_rate": 16000,
            "output_sampling_rate": 48000,
            "n_fft": 256,
            "hop_length": 80,
            "num_mels": 64,
        },
    },
}
OTHER_TOWERS: Shapes = {  # stand for the released file's vision and audio towers, which text encoding leaves unread
    "multi_modal_projector.multimodal_embedder.embedding_projection.weight": (GEMMA_WIDTH, GEMMA_WIDTH),
    "audio_projector.embedding_projection.weight": (GEMMA_WIDTH, 16),
}

MERGES = (  # pairs of pieces in order of rank: frequent English beginnings and endings
    "▁ a|▁ t|▁ s|▁ o|t h|e r|i n|o n|e n|a n|▁t h|▁th e|▁a n|▁an d|in g|o r|e s|▁ w|▁o f|"
    "▁ b|▁ c|▁ m|▁ r|▁ f|e d|▁ i|▁ l"
)
GAINS = (  # pattern of a name -> weight std times sqrt(fan in), chosen so that activations stay near 1
    (r"timestep_embedder\.linear_1", 2.0),
    (r"model\.diffusion_model\.", 1.5),
    (r"decoder\.conv_out", 0.5),
    (r"(encoder|decoder)\.", 1.2),
    (r"vocoder\..*resblocks", 0.5),
    (r"vocoder\.bwe_generator\.conv_pre", 0.2),  # its input is a logarithm near -5
    (r"vocoder\.bwe_generator\.conv_post", 0.05),
    (r"vocoder\.vocoder\.conv_post", 0.1),
    (r"vocoder\..*\.ups\.", 1.1),
    (r"lora_[AB]", 0.7),
    (r"^(initial_conv|final_conv|upsampler|res_blocks|post_upsample)", 0.8),
)
SPREADS = (  # pattern of a name -> mean and std of its values, where they are not weights of a linear map
    (r"norm\.weight$", 1.0, 0.1),
    (r"layer_scalar$", 0.9, 0.05),
    (r"bias$", 0.0, 0.05),
    (r"scale_shift_table", 0.0, 0.3),
    (r"keyframes_abs_pos_embedding|learnable_registers", 0.0, 1.0),
    (r"mean-of-means|act\.(alpha|beta)$", 0.0, 0.3),
    (r"std-of-means", 1.0, 0.1),
)


def write_tiny_checkpoints(folder: Path, seed: int) -> Checkpoints:
    """Write the files below ``folder``, in the layout of the released repository; returns the paths of the four.

    Beside them stand what other recipes read: spatial upscaler, distilled LoRA, duration head. Less than 14 MB
    together; the same seed gives the same bytes. Weights are drawn file by file in the order of :class:`Checkpoints`,
    within a file by name, the audio encoder's last. Raises ``OSError`` where the disk refuses.
    """
    generator = torch.Generator().manual_seed(seed)
    source = {"ltx_version": VERSION, "gemma_version": GEMMA_VERSION}
    common = {"model_version": VERSION, "gemma_source_checkpoint": json.dumps(source)}
    stated = {"config": {"transformer": TRANSFORMER, "scheduler": SCHEDULER}, "shotclock": {"stg_blocks": [STG_BLOCK]}}
    gemma = {"model_type": "gemma4_unified", "gemma_version": GEMMA_VERSION, "text_config": GEMMA}
    video, audio = TRANSFORMER["cross_attention_dim"], TRANSFORMER["audio_cross_attention_dim"]
    parts: tuple[tuple[str, Shapes, dict[str, str]], ...] = (
        ("diffusion_models/tiny-ltx-2.5-transformer-bf16", transformer_shapes(TRANSFORMER), common | _texts(stated)),
        (
            "text_encoders/tiny-gemma4-with-proj-ltx-2.5-bf16",
            text_encoder_shapes(GEMMA, video, audio) | OTHER_TOWERS,
            {"format": "pt", **_texts({"gemma_config": gemma})},
        ),
        (
            "vae/tiny-ltx-2.5-video-vae-conv-bf16",
            conv_vae_shapes(VIDEO_VAE),
            common | _texts({"config": {"vae": VIDEO_VAE}}),
        ),
        (
            "vae/tiny-ltx-2.5-audio-vae-bf16",
            audio_vae_shapes(AUDIO) | audio_encoder_shapes(AUDIO),
            common | _texts({"config": AUDIO}),
        ),
        *_others(common),
    )
    paths = []
    for name, shapes, metadata in parts:
        path = folder / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        order = sorted(shapes, key=lambda key: (key.startswith("audio_vae.encoder."), key))
        tensors = {key: _tensor(key, shapes[key], generator) for key in order}
        write_safetensors(path, tensors | (_blobs() if "gemma_config" in metadata else {}), metadata)
        paths.append(path)
    return Checkpoints(transformer=paths[0], text_encoder=paths[1], video_vae=paths[2], audio_vae=paths[3])


def _others(common: dict[str, str]) -> tuple[tuple[str, Shapes, dict[str, str]], ...]:
    """What recipes other than one_stage read besides."""
    video, audio = TRANSFORMER["cross_attention_dim"], TRANSFORMER["audio_cross_attention_dim"]
    inside = {key.removeprefix(DIT): shape for key, shape in transformer_shapes(TRANSFORMER).items()}
    linears = {
        key.removesuffix(".weight"): shape
        for key, shape in inside.items()
        if key.endswith(".weight") and len(shape) == 2 and "_connector." not in key
    }
    upscaler = {
        "_class_name": "LatentUpsampler",
        "in_channels": 128,
        "mid_channels": UPSCALER_WIDTH,
        "num_blocks_per_stage": 1,
        "dims": 3,
        "spatial_upsample": True,
        "temporal_upsample": False,
    }
    return (
        (
            "latent_upscale_models/tiny-ltx-2.5-spatial-upscaler-x2-bf16",
            upscaler_shapes(channels=128, width=UPSCALER_WIDTH, blocks=1),
            common | _texts({"config": upscaler}),
        ),
        ("loras/tiny-ltx-2.5-distilled-lora-4-bf16", lora_shapes(linears, LORA_RANK), dict(common)),
        (
            "model_patches/tiny-ltx-2.5-duration-head-bf16",
            duration_head_shapes(video=video, audio=audio, width=16, hidden=16, queries=1),
            dict(common),
        ),
    )


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in values.items()}


def _tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = _fixed(name, shape)
    if values is None:
        mean, std = _spread(name, shape)
        values = torch.randn(shape, generator=generator).mul_(std).add_(mean)
    return values.to(TORCH_DTYPES[published_dtype(name)])


def _fixed(name: str, shape: tuple[int, ...]) -> Tensor | None:
    """Filters are formulas, not learned; None for everything else."""
    bwe = AUDIO["vocoder"]["bwe"]
    if name.endswith(".filter"):
        return torch.from_numpy(kaiser_low_pass(2, FILTER_TAPS)).reshape(shape)
    if name.endswith("mel_basis"):
        return torch.from_numpy(mel_bank(bwe["input_sampling_rate"], bwe["n_fft"], bwe["num_mels"]))
    if name.endswith("_basis"):
        forward, inverse = fourier_bases(bwe["n_fft"])
        return torch.from_numpy(inverse if "inverse" in name else forward).reshape(shape)
    return None


def _spread(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    for pattern, mean, std in SPREADS:
        if re.search(pattern, name):
            return mean, std
    gain = next((gain for pattern, gain in GAINS if re.search(pattern, name)), 1.0)
    # A transposed convolution [in, out, kernel] with kernel = 2 strides meets each output twice.
    fan_in = 2 * shape[0] if ".ups." in name else prod(shape[1:])
    return 0.0, gain / fan_in**0.5


def _blobs() -> dict[str, Tensor]:
    """The tokenizer files, as the released text encoder carries them: texts as bytes."""
    specials = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    tokenizer_config = {
        **specials,
        "padding_side": "left",
        "model_max_length": 4096,
        "tokenizer_class": "GemmaTokenizer",
    }
    texts = {
        TOKENIZER: tiny_tokenizer(list(specials.values())).to_str(),
        f"{ASSET}tokenizer_config.json": json.dumps(tokenizer_config),
        f"{ASSET}processor_config.json": json.dumps({"processor_class": "Gemma4UnifiedProcessor"}),
    }
    return {name: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for name, text in texts.items()}


def tiny_tokenizer(specials: list[str]) -> Tokenizer:
    """A byte-pair tokenizer of Gemma's kind with 384 pieces: any text has tokens, through bytes where need be."""
    merges = [(left, right) for left, right in (pair.split(" ") for pair in MERGES.split("|"))]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x21, 0x7F))]
    pieces += [left + right for left, right in merges]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    assert len(vocabulary) <= GEMMA["vocab_size"], "every piece needs an embedding"
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in specials])
    return tokenizer
