"""Configs of the pocket files in the official format, and the library classes built from them.

Must not know data or training. The released architecture with few channels; 128 latent features, patch 4, scales 8 and
32 and the 128 encoder channels are fixed by the format.
"""

from typing import Any

import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE

from pocket.sound import mel_filters

ENCODER_LAYERS = (0, 1, 0, 0, 1)  # residual blocks before, between and after the four downsamplings
DECODER_LAYERS = (1, 1, 1, 1, 1)
DECODER_FACTORS = (2, 1, 1, 1)  # width divisors of the four upsamplings, in run order
DECODER_BASE = 48
ENCODER_KINDS = ("compress_space_res", "compress_time_res", "compress_all_res", "compress_all_res")
DECODER_KINDS = ("compress_all", "compress_all", "compress_time", "compress_space")
UPSAMPLE_TYPES = ("spatiotemporal", "spatiotemporal", "temporal", "spatial")
GENERATOR = {
    "resblock": "AMP1",
    "stereo": True,
    "activation": "snakebeta",
    "resblock_kernel_sizes": [3, 7, 11],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
    "use_tanh_at_final": False,
    "use_bias_at_final": False,
}
BWE_WINDOW, BWE_HOP, BWE_MELS = 256, 80, 64


def _interleave(layers: tuple[int, ...], kinds: tuple[str, ...], factors: tuple[int, ...]) -> list[list[Any]]:
    blocks: list[list[Any]] = [["res_x", {"num_layers": layers[0]}]]
    for count, kind, factor in zip(layers[1:], kinds, factors, strict=True):
        blocks += [[kind, {"multiplier": factor}], ["res_x", {"num_layers": count}]]
    return blocks


def video_config() -> dict[str, Any]:
    """`config` metadata of the conv video VAE file."""
    decoder = _interleave(DECODER_LAYERS, DECODER_KINDS, DECODER_FACTORS)
    return {
        "vae": {
            "_class_name": "CausalVideoAutoencoder",
            "dims": 3,
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 128,
            "patch_size": 4,
            "norm_layer": "pixel_norm",
            "latent_log_var": "uniform",
            "encoder_blocks": _interleave(ENCODER_LAYERS, ENCODER_KINDS, (1, 1, 1, 1)),
            "decoder_blocks": decoder[::-1],
            "decoder_base_channels": DECODER_BASE,
            "causal_decoder": False,
            "timestep_conditioning": False,
            "spatial_padding_mode": "zeros",
            "encoder_spatial_padding_mode": "zeros",
        }
    }


def audio_config() -> dict[str, Any]:
    """`config` metadata of the audio VAE and vocoder file."""
    dd = {
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
    }
    rates, kernels = [5, 2, 2, 2, 2, 2], [11, 4, 4, 4, 4, 4]
    vocoder = GENERATOR | {"upsample_initial_channel": 128, "upsample_rates": rates, "upsample_kernel_sizes": kernels}
    bwe = GENERATOR | {
        "upsample_initial_channel": 64,
        "upsample_rates": [6, 5, 2, 2, 2],
        "upsample_kernel_sizes": [12, 11, 4, 4, 4],
        "input_sampling_rate": 16000,
        "output_sampling_rate": 48000,
        "n_fft": BWE_WINDOW,
        "hop_length": BWE_HOP,
        "num_mels": BWE_MELS,
    }
    stft = {"filter_length": 1024, "hop_length": 160, "causal": True}
    return {
        "audio_vae": {
            "model": {"params": {"sampling_rate": 16000, "ddconfig": dd}},
            "preprocessing": {"stft": stft, "mel": {"n_mel_channels": 64}},
        },
        "vocoder": {"vocoder": vocoder, "bwe": bwe},
    }


def build_video_vae() -> AutoencoderKLLTX2Video:
    """The library class for `video_config`, randomly initialised."""
    widths = [DECODER_BASE * 2]
    for factor in DECODER_FACTORS[:-1]:
        widths.append(widths[-1] // factor)
    count = len(DECODER_FACTORS)
    return AutoencoderKLLTX2Video(
        block_out_channels=(128,) * count,
        layers_per_block=ENCODER_LAYERS,
        decoder_block_out_channels=tuple(widths[::-1]),
        decoder_layers_per_block=DECODER_LAYERS[::-1],
        decoder_spatio_temporal_scaling=(True,) * count,
        decoder_inject_noise=(False,) * (count + 1),
        upsample_type=UPSAMPLE_TYPES,
        upsample_residual=(False,) * count,
        upsample_factor=DECODER_FACTORS[::-1],
        decoder_causal=False,
        decoder_spatial_padding_mode="zeros",
        spatial_compression_ratio=32,
        temporal_compression_ratio=8,
    )


def build_audio_vae() -> AutoencoderKLLTX2Audio:
    """The library class for the VAE half of `audio_config`, randomly initialised."""
    dd = audio_config()["audio_vae"]["model"]["params"]["ddconfig"]
    return AutoencoderKLLTX2Audio(
        base_channels=dd["ch"], ch_mult=tuple(dd["ch_mult"]), num_res_blocks=dd["num_res_blocks"]
    )


def build_vocoder() -> LTX2VocoderWithBWE:
    """The library class for the vocoder half of `audio_config`: real STFT and mel bases, rounded as in the file."""
    first, second = (audio_config()["vocoder"][part] for part in ("vocoder", "bwe"))
    model = LTX2VocoderWithBWE(
        hidden_channels=first["upsample_initial_channel"],
        upsample_kernel_sizes=first["upsample_kernel_sizes"],
        upsample_factors=first["upsample_rates"],
        final_act_fn="clamp",
        bwe_hidden_channels=second["upsample_initial_channel"],
        bwe_upsample_kernel_sizes=second["upsample_kernel_sizes"],
        bwe_upsample_factors=second["upsample_rates"],
        filter_length=BWE_WINDOW,
        hop_length=BWE_HOP,
        window_length=BWE_WINDOW,
        num_mel_channels=BWE_MELS,
    )
    phase = 2 * torch.pi * torch.outer(torch.arange(BWE_WINDOW // 2 + 1), torch.arange(BWE_WINDOW)) / BWE_WINDOW
    basis = torch.cat([phase.cos(), -phase.sin()]) * torch.hann_window(BWE_WINDOW)
    model.mel_stft.stft_fn.forward_basis.copy_(basis[:, None])
    model.mel_stft.stft_fn.inverse_basis.copy_(torch.linalg.pinv(basis.double()).T.float()[:, None])
    model.mel_stft.mel_basis.copy_(mel_filters(BWE_WINDOW, BWE_MELS))
    for buffer in model.state_dict().values():  # not the resampler's filter, which no file stores
        buffer.copy_(buffer.bfloat16().float())
    return model
