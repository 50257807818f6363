"""Names and shapes of every tensor in the official files, as functions of their configs.

Patterns of ltx25.md sections 1.3, 3 and 6. Pure arithmetic: knows no values, files or modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from shotclock.weights.identity import DIT, PROJECTION

Shapes = dict[str, tuple[int, ...]]

FOURIER = 256  # values of the sinusoid that an AdaLN head takes in, ltx25.md section 1.4
FF_RATIO = 4  # hidden over model width of every feed-forward, ltx25.md section 1.3
HEADS: Mapping[str, tuple[str, int]] = {  # AdaLN head -> stream that gives its width, outputs over width, section 1.3
    "adaln_single": ("video", 9),
    "audio_adaln_single": ("audio", 9),
    "prompt_adaln_single": ("video", 2),
    "audio_prompt_adaln_single": ("audio", 2),
    "av_ca_video_scale_shift_adaln_single": ("video", 4),
    "av_ca_audio_scale_shift_adaln_single": ("audio", 4),
    "av_ca_a2v_gate_adaln_single": ("video", 1),
    "av_ca_v2a_gate_adaln_single": ("audio", 1),
}
FILTER_TAPS = 12  # anti-alias filters of the vocoder, ltx25.md section 6 and the tiny files
VIDEO_STRIDES = {"space": (1, 2, 2), "time": (2, 1, 1), "all": (2, 2, 2)}  # time, height, width; ltx25.md section 6


def _linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), **({f"{name}.bias": (outputs,)} if bias else {})}


def _attention(name: str, query: int, context: int, inner: int, heads: int) -> Shapes:
    return {
        **_linear(f"{name}.to_q", inner, query),
        **_linear(f"{name}.to_k", inner, context),
        **_linear(f"{name}.to_v", inner, context),
        f"{name}.q_norm.weight": (inner,),
        f"{name}.k_norm.weight": (inner,),
        **_linear(f"{name}.to_gate_logits", heads, query),
        **_linear(f"{name}.to_out.0", query, inner),
    }


def _feed_forward(name: str, width: int, *, bias: bool) -> Shapes:
    hidden = FF_RATIO * width
    return {
        **_linear(f"{name}.net.0.proj", hidden, width, bias=bias),
        **_linear(f"{name}.net.2", width, hidden, bias=bias),
    }


def transformer_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor of a transformer file with its connectors, from ``config["transformer"]``, with the full prefix."""
    video = config["num_attention_heads"] * config["attention_head_dim"]
    audio = config["audio_num_attention_heads"] * config["audio_attention_head_dim"]
    shapes: Shapes = {
        "keyframes_abs_pos_embedding": (1, video),
        "scale_shift_table": (2, video),
        "audio_scale_shift_table": (2, audio),
        **_linear("patchify_proj", video, config["in_channels"]),
        **_linear("audio_patchify_proj", audio, config.get("audio_in_channels", config["audio_out_channels"])),
        **_linear("proj_out", config["out_channels"], video),
        **_linear("audio_proj_out", config["audio_out_channels"], audio),
    }
    for name, (stream, rows) in HEADS.items():
        width = {"video": video, "audio": audio}[stream]
        shapes |= _linear(f"{name}.emb.timestep_embedder.linear_1", width, FOURIER)
        shapes |= _linear(f"{name}.emb.timestep_embedder.linear_2", width, width)
        shapes |= _linear(f"{name}.linear", rows * width, width)
    for block in range(config["num_layers"]):
        shapes |= _block(f"transformer_blocks.{block}", config, video, audio)
    for prefix, stream in (("", "video"), ("audio_", "audio")):
        shapes |= _connector(f"{stream}_embeddings_connector", config, prefix)
    return {f"{DIT}{name}": shape for name, shape in shapes.items()}


def _block(name: str, config: Mapping[str, Any], video: int, audio: int) -> Shapes:
    heads, audio_heads = config["num_attention_heads"], config["audio_num_attention_heads"]
    context, audio_context = config["cross_attention_dim"], config["audio_cross_attention_dim"]
    return {
        f"{name}.scale_shift_table": (9, video),
        f"{name}.audio_scale_shift_table": (9, audio),
        f"{name}.prompt_scale_shift_table": (2, video),
        f"{name}.audio_prompt_scale_shift_table": (2, audio),
        f"{name}.scale_shift_table_a2v_ca_video": (5, video),
        f"{name}.scale_shift_table_a2v_ca_audio": (5, audio),
        **_attention(f"{name}.attn1", video, video, video, heads),
        **_attention(f"{name}.attn2", video, context, video, heads),
        **_attention(f"{name}.audio_attn1", audio, audio, audio, audio_heads),
        **_attention(f"{name}.audio_attn2", audio, audio_context, audio, audio_heads),
        **_attention(f"{name}.audio_to_video_attn", video, audio, audio, audio_heads),
        **_attention(f"{name}.video_to_audio_attn", audio, video, audio, audio_heads),
        **_feed_forward(f"{name}.ff", video, bias=config["ff_bias"]),
        **_feed_forward(f"{name}.audio_ff", audio, bias=config.get("audio_ff_bias", True)),
    }


def _connector(name: str, config: Mapping[str, Any], prefix: str) -> Shapes:
    heads = config[f"{prefix}connector_num_attention_heads"]
    width = heads * config[f"{prefix}connector_attention_head_dim"]
    shapes: Shapes = {f"{name}.learnable_registers": (config["connector_num_learnable_registers"], width)}
    for block in range(config.get(f"{prefix}connector_num_layers", config["connector_num_layers"])):
        part = f"{name}.transformer_1d_blocks.{block}"
        shapes |= _attention(f"{part}.attn1", width, width, width, heads)
        shapes |= _feed_forward(f"{part}.ff", width, bias=True)
    return shapes


def text_encoder_shapes(text_config: Mapping[str, Any], video: int, audio: int) -> Shapes:
    """Gemma's text tower and the projection to connector widths ``video`` and ``audio``; no other tower."""
    width, layers = text_config["hidden_size"], text_config["layer_types"]
    shapes: Shapes = {"model.embed_tokens.weight": (text_config["vocab_size"], width), "model.norm.weight": (width,)}
    for number, kind in enumerate(layers):
        shapes |= _gemma_layer(f"model.layers.{number}", text_config, is_global=kind == "full_attention")
    states = width * (len(layers) + 1)
    shapes |= _linear(f"{PROJECTION}video_aggregate_embed", video, states)
    return shapes | _linear(f"{PROJECTION}audio_aggregate_embed", audio, states)


def _gemma_layer(name: str, text_config: Mapping[str, Any], *, is_global: bool) -> Shapes:
    width, hidden = text_config["hidden_size"], text_config["intermediate_size"]
    head = text_config["global_head_dim" if is_global else "head_dim"]
    keys = head * text_config["num_global_key_value_heads" if is_global else "num_key_value_heads"]
    inner = head * text_config["num_attention_heads"]
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return {
        **{f"{name}.{norm}_layernorm.weight": (width,) for norm in norms},
        f"{name}.layer_scalar": (1,),
        f"{name}.self_attn.q_norm.weight": (head,),
        f"{name}.self_attn.k_norm.weight": (head,),
        **_linear(f"{name}.self_attn.q_proj", inner, width, bias=False),
        **_linear(f"{name}.self_attn.k_proj", keys, width, bias=False),
        **({} if is_global else _linear(f"{name}.self_attn.v_proj", keys, width, bias=False)),
        **_linear(f"{name}.self_attn.o_proj", width, inner, bias=False),
        **_linear(f"{name}.mlp.gate_proj", hidden, width, bias=False),
        **_linear(f"{name}.mlp.up_proj", hidden, width, bias=False),
        **_linear(f"{name}.mlp.down_proj", width, hidden, bias=False),
    }


def _conv(name: str, outputs: int, inputs: int, kernel: Sequence[int], *, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs, *kernel), **({f"{name}.bias": (outputs,)} if bias else {})}


def conv_vae_shapes(vae: Mapping[str, Any]) -> Shapes:
    """Encoder, convolutional decoder and statistics of a video VAE file, from ``config["vae"]``."""
    latents, patched = vae["latent_channels"], vae["in_channels"] * vae["patch_size"] ** 2
    return {
        **_video_encoder(vae, latents, patched),
        **_video_decoder(vae, latents, vae["out_channels"] * vae["patch_size"] ** 2),
        "per_channel_statistics.mean-of-means": (latents,),
        "per_channel_statistics.std-of-means": (latents,),
    }


def _video_conv(name: str, outputs: int, inputs: int) -> Shapes:
    return _conv(f"{name}.conv", outputs, inputs, (3, 3, 3))


def _residuals(name: str, count: int, width: int) -> Shapes:
    shapes: Shapes = {}
    for number in range(count):
        shapes |= _video_conv(f"{name}.res_blocks.{number}.conv1", width, width)
        shapes |= _video_conv(f"{name}.res_blocks.{number}.conv2", width, width)
    return shapes


def _stride(block: str) -> int:
    return prod(VIDEO_STRIDES[block.split("_")[1]])


def _video_encoder(vae: Mapping[str, Any], latents: int, patched: int) -> Shapes:
    width = vae.get("encoder_base_channels", latents)
    shapes = _video_conv("encoder.conv_in", width, patched)
    for number, (block, options) in enumerate(vae["encoder_blocks"]):
        name = f"encoder.down_blocks.{number}"
        if block == "res_x":
            shapes |= _residuals(name, options["num_layers"], width)
        else:
            outputs = width * options["multiplier"]
            shapes |= _video_conv(f"{name}.conv", outputs // _stride(block), width)
            width = outputs
    return shapes | _video_conv("encoder.conv_out", latents + 1, width)


def _video_decoder(vae: Mapping[str, Any], latents: int, patched: int) -> Shapes:
    blocks = vae["decoder_blocks"][::-1]
    width = vae["decoder_base_channels"] * prod(options.get("multiplier", 1) for _, options in blocks)
    shapes = _video_conv("decoder.conv_in", width, latents)
    for number, (block, options) in enumerate(blocks):
        name = f"decoder.up_blocks.{number}"
        if block == "res_x":
            shapes |= _residuals(name, options["num_layers"], width)
        else:
            outputs = width // options["multiplier"]
            shapes |= _video_conv(f"{name}.conv", outputs * _stride(block), width)
            width = outputs
    return shapes | _video_conv("decoder.conv_out", patched, width)


def audio_vae_shapes(config: Mapping[str, Any]) -> Shapes:
    """Audio decoder, statistics, vocoder and bandwidth extension, from the ``config`` of an audio VAE file."""
    ddconfig = config["audio_vae"]["model"]["params"]["ddconfig"]
    generators, bwe = config["vocoder"], config["vocoder"]["bwe"]
    bins = ddconfig["out_ch"] * ddconfig["mel_bins"]
    frequencies = bwe["n_fft"] // 2 + 1
    return {
        **_audio_decoder(ddconfig),
        **_generator("vocoder.vocoder", generators["vocoder"], bins),
        **_generator("vocoder.bwe_generator", bwe, ddconfig["out_ch"] * bwe["num_mels"]),
        "vocoder.mel_stft.mel_basis": (bwe["num_mels"], frequencies),
        "vocoder.mel_stft.stft_fn.forward_basis": (2 * frequencies, 1, bwe["n_fft"]),
        "vocoder.mel_stft.stft_fn.inverse_basis": (2 * frequencies, 1, bwe["n_fft"]),
    }


def audio_encoder_shapes(config: Mapping[str, Any]) -> Shapes:
    """Audio encoder of an audio VAE file, which sound to video needs; files without it are legal."""
    ddconfig = config["audio_vae"]["model"]["params"]["ddconfig"]
    widths = [ddconfig["ch"] * multiple for multiple in ddconfig["ch_mult"]]
    width = ddconfig["ch"]
    shapes = _conv("encoder.conv_in.conv", width, ddconfig["in_channels"], (3, 3))
    for level, outputs in enumerate(widths):
        for block in range(ddconfig["num_res_blocks"]):
            shapes |= _audio_residual(f"encoder.down.{level}.block.{block}", outputs, width)
            width = outputs
        if level < len(widths) - 1:
            shapes |= _conv(f"encoder.down.{level}.downsample.conv", width, width, (3, 3))
    shapes |= _audio_residual("encoder.mid.block_1", width, width)
    shapes |= _audio_residual("encoder.mid.block_2", width, width)
    shapes |= _conv("encoder.conv_out.conv", 2 * ddconfig["z_channels"], width, (3, 3))
    return {f"audio_vae.{name}": shape for name, shape in shapes.items()}


def upscaler_shapes(*, channels: int, width: int, blocks: int) -> Shapes:
    """Spatial latent upscaler x2: residual blocks, per-frame convolution to four times the channels, blocks again."""
    shapes = _conv("initial_conv", width, channels, (3, 3, 3)) | _norm("initial_norm", width)
    for part in ("res_blocks", "post_upsample_res_blocks"):
        for block in range(blocks):
            for number in (1, 2):
                shapes |= _conv(f"{part}.{block}.conv{number}", width, width, (3, 3, 3))
                shapes |= _norm(f"{part}.{block}.norm{number}", width)
    shapes |= _conv("upsampler.0", 4 * width, width, (3, 3))
    return shapes | _conv("final_conv", channels, width, (3, 3, 3))


def duration_head_shapes(*, video: int, audio: int, width: int, hidden: int, queries: int) -> Shapes:
    """Duration head: a projection a stream, one attention over all tokens, two linear maps (ltx25.md section 7)."""
    shapes = {
        **_linear("video_input_proj", width, video),
        **_linear("audio_input_proj", width, audio),
        "video_modality_emb": (width,),
        "audio_modality_emb": (width,),
        "attention_pooler.query_tokens": (queries, width),
        "attention_pooler.cross_attn.in_proj_weight": (3 * width, width),
        "attention_pooler.cross_attn.in_proj_bias": (3 * width,),
        **_linear("attention_pooler.cross_attn.out_proj", width, width),
        **_linear("mlp_hidden", hidden, queries * width),
        **_linear("mlp_out", 1, hidden),
    }
    return {f"duration_head.{name}": shape for name, shape in shapes.items()}


def lora_shapes(linears: Mapping[str, Sequence[int]], rank: int) -> Shapes:
    """Pairs of a LoRA for ``linears`` (path in the transformer -> [out, in]); no rank exceeds its layer."""
    shapes: Shapes = {}
    for name, (outputs, inputs) in linears.items():
        own = min(rank, outputs, inputs)
        shapes[f"diffusion_model.{name}.lora_A.weight"] = (own, inputs)
        shapes[f"diffusion_model.{name}.lora_B.weight"] = (outputs, own)
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _audio_residual(name: str, outputs: int, inputs: int) -> Shapes:
    shapes = _conv(f"{name}.conv1.conv", outputs, inputs, (3, 3)) | _conv(
        f"{name}.conv2.conv", outputs, outputs, (3, 3)
    )
    return shapes if outputs == inputs else shapes | _conv(f"{name}.nin_shortcut.conv", outputs, inputs, (1, 1))


def _audio_decoder(ddconfig: Mapping[str, Any]) -> Shapes:
    widths = [ddconfig["ch"] * multiple for multiple in ddconfig["ch_mult"]]
    width = widths[-1]
    shapes = _conv("decoder.conv_in.conv", width, ddconfig["z_channels"], (3, 3))
    shapes |= _audio_residual("decoder.mid.block_1", width, width)
    shapes |= _audio_residual("decoder.mid.block_2", width, width)
    for level in reversed(range(len(widths))):
        for block in range(ddconfig["num_res_blocks"] + 1):
            shapes |= _audio_residual(f"decoder.up.{level}.block.{block}", widths[level], width)
            width = widths[level]
        if level:
            shapes |= _conv(f"decoder.up.{level}.upsample.conv.conv", width, width, (3, 3))
    shapes |= _conv("decoder.conv_out.conv", ddconfig["out_ch"], width, (3, 3))
    shapes |= {f"per_channel_statistics.{name}-of-means": (ddconfig["ch"],) for name in ("mean", "std")}
    return {f"audio_vae.{name}": shape for name, shape in shapes.items()}


def _generator(name: str, config: Mapping[str, Any], bins: int) -> Shapes:
    width = config["upsample_initial_channel"]
    shapes = _conv(f"{name}.conv_pre", width, bins, (7,))
    block = 0
    for stage, kernel in enumerate(config["upsample_kernel_sizes"]):
        width //= 2
        shapes |= {f"{name}.ups.{stage}.weight": (2 * width, width, kernel), f"{name}.ups.{stage}.bias": (width,)}
        kernels = zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True)
        for number, (size, dilations) in enumerate(kernels, start=block):
            shapes |= _amp_block(f"{name}.resblocks.{number}", width, size, len(dilations))
        block += len(config["resblock_kernel_sizes"])
    shapes |= _activation(f"{name}.act_post", width)
    return shapes | _conv(f"{name}.conv_post", 2, width, (7,), bias=config["use_bias_at_final"])


def _amp_block(name: str, width: int, kernel: int, depth: int) -> Shapes:
    shapes: Shapes = {}
    for number in range(depth):
        for half in (1, 2):
            shapes |= _conv(f"{name}.convs{half}.{number}", width, width, (kernel,))
            shapes |= _activation(f"{name}.acts{half}.{number}", width)
    return shapes


def _activation(name: str, width: int) -> Shapes:
    return {
        f"{name}.act.alpha": (width,),
        f"{name}.act.beta": (width,),
        f"{name}.upsample.filter": (1, 1, FILTER_TAPS),
        f"{name}.downsample.lowpass.filter": (1, 1, FILTER_TAPS),
    }
