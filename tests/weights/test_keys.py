"""Names and arguments of the VAE and vocoder classes, against official names enumerated here a second time."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_ltx2 import AutoencoderKLLTX2Video
from diffusers.models.autoencoders.autoencoder_kl_ltx2_audio import AutoencoderKLLTX2Audio
from diffusers.pipelines.ltx2.vocoder import LTX2VocoderWithBWE
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.errors import CheckpointError
from shotclock.weights import keys
from shotclock.weights.header import Header, TensorEntry, read_header

GOLDENS = Path(__file__).parents[1] / "goldens" / "ckpt"
CONV = GOLDENS / "tiny-ltx-2.5-video-vae-conv-bf16.safetensors"
AUDIO = GOLDENS / "tiny-ltx-2.5-audio-vae-bf16.safetensors"
Shapes = dict[str, tuple[int, ...]]
VOLUME = {"space": 4, "time": 2, "all": 8}

RELEASED_RES = [4, 6, 4, 2, 2]  # ltx25.md section 6, encoder order
RELEASED_KINDS = ["space", "time", "all", "all"]
RELEASED_CONV_BYTES = 1_452_269_922  # ltx25.md section 2
RELEASED_AUDIO_BYTES = 364_866_540
RELEASED_AUDIO_CHANNELS = 128


def header_of(shapes: Shapes, config: Mapping[str, Any]) -> Header:
    """A header as read from a bf16 file with these tensors."""
    entries, position = {}, 0
    for name, shape in shapes.items():
        end = position + 2 * math.prod(shape)
        entries[name] = TensorEntry(dtype="BF16", shape=shape, start=position, end=end)
        position = end
    return Header(
        path=Path("made.safetensors"), file_bytes=position, header_bytes=0, tensors=entries, metadata={"config": config}
    )


def conv3d(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.conv.weight": (out, into, 3, 3, 3), f"{name}.conv.bias": (out,)}


def video_config(depths: list[int], kinds: list[str], encoder: list[int], decoder: list[int], base: int) -> Any:
    """The official config: blocks of the encoder in order, those of the decoder as listed (last one run first)."""

    def listed(multipliers: list[int], suffix: str) -> list[list[Any]]:
        blocks: list[list[Any]] = []
        for depth, kind, multiplier in zip(depths, kinds, multipliers, strict=False):
            blocks += [
                ["res_x", {"num_layers": depth}],
                [f"compress_{kind}{suffix}", {"multiplier": multiplier}],
            ]
        return [*blocks, ["res_x", {"num_layers": depths[-1]}]]

    vae = {
        "_class_name": "CausalVideoAutoencoder",
        "latent_channels": 128,
        "patch_size": 4,
        "norm_layer": "pixel_norm",
        "latent_log_var": "uniform",
        "encoder_blocks": listed(encoder, "_res"),
        "decoder_blocks": listed(decoder, ""),
        "decoder_base_channels": base,
        "causal_decoder": False,
        "spatial_padding_mode": "zeros",
    }
    return {"vae": vae}


def video_shapes(config: Any) -> Shapes:
    """Official tensor names and shapes of a conv video VAE, walked from the config (ltx25.md section 6)."""
    vae, shapes = config["vae"], {}
    shapes |= conv3d("encoder.conv_in", 128, 48)
    width = 128
    for number, (kind, options) in enumerate(vae["encoder_blocks"]):
        if kind == "res_x":
            for layer in range(options["num_layers"]):
                for conv in ("conv1", "conv2"):
                    shapes |= conv3d(f"encoder.down_blocks.{number}.res_blocks.{layer}.{conv}", width, width)
        else:
            out = width * options["multiplier"]
            volume = VOLUME[kind.split("_")[1]]
            shapes |= conv3d(f"encoder.down_blocks.{number}.conv", out // volume, width)
            width = out
    shapes |= conv3d("encoder.conv_out", 129, width)
    factors = [options.get("multiplier", 1) for _, options in vae["decoder_blocks"]]
    width = vae["decoder_base_channels"] * math.prod(factors)
    shapes |= conv3d("decoder.conv_in", width, 128)
    for number, (kind, options) in enumerate(reversed(vae["decoder_blocks"])):
        if kind == "res_x":
            for layer in range(options["num_layers"]):
                for conv in ("conv1", "conv2"):
                    shapes |= conv3d(f"decoder.up_blocks.{number}.res_blocks.{layer}.{conv}", width, width)
        else:
            width //= options["multiplier"]
            before = width * options["multiplier"]
            shapes |= conv3d(f"decoder.up_blocks.{number}.conv", width * VOLUME[kind.split("_")[1]], before)
    shapes |= conv3d("decoder.conv_out", 48, width)
    return shapes | {keys.MEAN_KEY: (128,), keys.STD_KEY: (128,)}


def audio_shapes(ch: int, mults: tuple[int, ...], blocks: int, *, encoder: bool) -> Shapes:
    """Official tensor names and shapes of an audio VAE."""
    shapes: Shapes = {"audio_vae." + keys.MEAN_KEY: (128,), "audio_vae." + keys.STD_KEY: (128,)}

    def conv(name: str, out: int, into: int, kernel: int = 3) -> None:
        shapes[f"audio_vae.{name}.weight"] = (out, into, kernel, kernel)
        shapes[f"audio_vae.{name}.bias"] = (out,)

    def residual(name: str, into: int, out: int) -> None:
        conv(f"{name}.conv1.conv", out, into)
        conv(f"{name}.conv2.conv", out, out)
        if into != out:
            conv(f"{name}.nin_shortcut.conv", out, into, 1)

    top = ch * mults[-1]
    conv("decoder.conv_in.conv", top, 8)
    residual("decoder.mid.block_1", top, top)
    residual("decoder.mid.block_2", top, top)
    width = top
    for level in reversed(range(len(mults))):
        for block in range(blocks + 1):
            residual(f"decoder.up.{level}.block.{block}", width, ch * mults[level])
            width = ch * mults[level]
        if level:
            conv(f"decoder.up.{level}.upsample.conv.conv", width, width)
    conv("decoder.conv_out.conv", 2, width)
    if not encoder:
        return shapes
    conv("encoder.conv_in.conv", ch, 2)
    width = ch
    for level in range(len(mults)):
        for block in range(blocks):
            residual(f"encoder.down.{level}.block.{block}", width, ch * mults[level])
            width = ch * mults[level]
        if level < len(mults) - 1:
            conv(f"encoder.down.{level}.downsample.conv", width, width)
    residual("encoder.mid.block_1", width, width)
    residual("encoder.mid.block_2", width, width)
    conv("encoder.conv_out.conv", 16, width)
    return shapes


def vocoder_shapes(base: Mapping[str, Any], bwe: Mapping[str, Any]) -> Shapes:
    """Official tensor names and shapes of a vocoder with bandwidth extension."""
    shapes: Shapes = {}

    def act(name: str, width: int) -> None:
        shapes[f"{name}.act.alpha"] = shapes[f"{name}.act.beta"] = (width,)
        shapes[f"{name}.upsample.filter"] = shapes[f"{name}.downsample.lowpass.filter"] = (1, 1, 12)

    def generator(name: str, config: Mapping[str, Any], into: int) -> None:
        width = config["upsample_initial_channel"]
        shapes[f"{name}.conv_pre.weight"], shapes[f"{name}.conv_pre.bias"] = (width, into, 7), (width,)
        number = itertools.count()
        for stage, kernel in enumerate(config["upsample_kernel_sizes"]):
            shapes[f"{name}.ups.{stage}.weight"] = (width, width // 2, kernel)
            width //= 2
            shapes[f"{name}.ups.{stage}.bias"] = (width,)
            for size, dilations in zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True):
                block = f"{name}.resblocks.{next(number)}"
                for half, layer in itertools.product((1, 2), range(len(dilations))):
                    shapes[f"{block}.convs{half}.{layer}.weight"] = (width, width, size)
                    shapes[f"{block}.convs{half}.{layer}.bias"] = (width,)
                    act(f"{block}.acts{half}.{layer}", width)
        act(f"{name}.act_post", width)
        shapes[f"{name}.conv_post.weight"] = (2, width, 7)
        if config["use_bias_at_final"]:
            shapes[f"{name}.conv_post.bias"] = (2,)

    generator("vocoder.vocoder", base, 128)
    generator("vocoder.bwe_generator", bwe, 2 * bwe["num_mels"])
    rows = bwe["n_fft"] + 2
    shapes["vocoder.mel_stft.stft_fn.forward_basis"] = (rows, 1, bwe["n_fft"])
    shapes["vocoder.mel_stft.stft_fn.inverse_basis"] = (rows, 1, bwe["n_fft"])
    shapes["vocoder.mel_stft.mel_basis"] = (bwe["num_mels"], rows // 2)
    return shapes


def audio_config() -> Any:
    """The config of the public tiny audio file, to be changed freely."""
    return json.loads(json.dumps(read_header(AUDIO).metadata["config"]))


def state_shapes(module: torch.nn.Module) -> Shapes:
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def assert_fills(module: torch.nn.Module, layout: keys.Layout, shapes: Shapes, *, ours: frozenset[str]) -> None:
    """Every tensor of the class is named once, shapes equal; every file tensor is named or listed as unused."""
    wanted = {name: shape for name, shape in state_shapes(module).items() if name not in ours}
    assert {layout.names[key]: shapes[key] for key in layout.names} == wanted
    assert len(set(layout.names.values())) == len(layout.names)
    assert set(layout.names) | set(layout.unused) == set(shapes)
    assert not set(layout.names) & set(layout.unused)


STATISTICS = frozenset({"latents_mean", "latents_std"})


@st.composite
def video_configs(draw: st.DrawFn) -> Any:
    kinds = draw(st.permutations(RELEASED_KINDS))
    depths = draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))
    encoder = [draw(st.sampled_from([1, 2])) for _ in kinds]
    decoder = [draw(st.sampled_from([1, 2])) for _ in kinds]
    return video_config(depths, list(kinds), encoder, decoder, draw(st.sampled_from([2, 4, 6])))


@given(config=video_configs())
@settings(max_examples=15, deadline=None)
def test_every_legal_video_config_fills_the_class_exactly(config: Any) -> None:
    """Any order of resamplings, depths, multipliers and base width: names are one to one, shapes agree."""
    shapes = video_shapes(config)
    layout = keys.video_vae(header_of(shapes, config))
    with torch.device("meta"):
        module = AutoencoderKLLTX2Video(**layout.arguments)
    assert_fills(module, layout, shapes, ours=STATISTICS)
    assert module.decoder.is_causal is False


def test_adjacent_blocks_of_one_kind_are_joined_or_left_empty() -> None:
    """Two res_x in a row fill one group; resamplings without res_x between them leave the group empty."""
    config = video_config([1, 0, 0, 2, 1], RELEASED_KINDS, [1, 1, 1, 1], [2, 1, 1, 1], 4)
    vae = config["vae"]
    vae["encoder_blocks"] = [*vae["encoder_blocks"][:-1], ["res_x", {"num_layers": 1}], ["res_x", {"num_layers": 2}]]
    vae["decoder_blocks"] = [block for block in vae["decoder_blocks"] if block[1] != {"num_layers": 0}]
    shapes = video_shapes(config)
    layout = keys.video_vae(header_of(shapes, config))
    with torch.device("meta"):
        module = AutoencoderKLLTX2Video(**layout.arguments)
    assert_fills(module, layout, shapes, ours=STATISTICS)
    assert len(module.encoder.mid_block.resnets) == 3


def test_the_released_video_file_has_the_stated_tensors_and_bytes() -> None:
    """84 + 84 + 2 tensors and 1,452,269,922 bytes but for the header (ltx25.md sections 2 and 6)."""
    config = video_config(RELEASED_RES, RELEASED_KINDS, [2, 2, 2, 1], [2, 2, 1, 2], 128)
    shapes = video_shapes(config)
    layout = keys.video_vae(header_of(shapes, config))
    with torch.device("meta"):
        module = AutoencoderKLLTX2Video(**layout.arguments)
    assert_fills(module, layout, shapes, ours=STATISTICS)
    assert [len(layout.part(f"{side}.")) for side in ("encoder", "decoder")] == [84, 84]
    header_bytes = RELEASED_CONV_BYTES - sum(2 * math.prod(shape) for shape in shapes.values())
    assert 20_000 < header_bytes < 80_000  # 170 entries of about 120 bytes, and the licence text


def test_multipliers_and_base_width_left_out_are_read_off_the_shapes() -> None:
    """A config without multipliers or base width gives the same arguments as one that states them."""
    config = video_config([1, 0, 1, 0, 1], RELEASED_KINDS, [2, 2, 2, 1], [2, 2, 1, 2], 4)
    shapes = video_shapes(config)
    stated = keys.video_vae(header_of(shapes, config))
    for block in [*config["vae"]["encoder_blocks"], *config["vae"]["decoder_blocks"]]:
        block[1].pop("multiplier", None)
    del config["vae"]["decoder_base_channels"]
    assert keys.video_vae(header_of(shapes, config)) == stated


@given(
    ch=st.sampled_from([32, 64]),
    mults=st.sampled_from([(1, 1, 1), (1, 2, 4), (2, 1, 2)]),
    blocks=st.integers(0, 2),
    encoder=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_every_legal_audio_config_fills_the_class_exactly(
    ch: int, mults: tuple[int, ...], blocks: int, encoder: bool
) -> None:
    """Any width, multipliers and depth of the audio VAE; files without an encoder fill the decoder."""
    config = audio_config()
    config["audio_vae"]["model"]["params"]["ddconfig"] |= {"ch": ch, "ch_mult": list(mults), "num_res_blocks": blocks}
    shapes = audio_shapes(ch, mults, blocks, encoder=encoder)
    layout = keys.audio_vae(header_of(shapes, config))
    with torch.device("meta"):
        module = AutoencoderKLLTX2Audio(**layout.arguments)
    if not encoder:
        del module.encoder
    assert_fills(module, layout, shapes, ours=STATISTICS)


@st.composite
def vocoder_configs(draw: st.DrawFn) -> Any:
    config = audio_config()
    base, bwe = config["vocoder"]["vocoder"], config["vocoder"]["bwe"]
    base["upsample_rates"] = draw(st.sampled_from([[5, 2, 2, 2, 2, 2], [10, 4, 4], [5, 8, 4]]))
    hop, out, rates = draw(
        st.sampled_from([(80, 48000, [6, 5, 2, 2, 2]), (64, 48000, [6, 8, 4]), (80, 32000, [40, 4])])
    )
    bwe |= {
        "hop_length": hop,
        "output_sampling_rate": out,
        "upsample_rates": rates,
        "n_fft": draw(st.sampled_from([128, 512])),
    }
    bwe["num_mels"] = draw(st.sampled_from([32, 80]))
    for part in (base, bwe):
        part["upsample_kernel_sizes"] = [rate + 2 + rate % 2 * 3 for rate in part["upsample_rates"]]
        part["upsample_initial_channel"] = 2 ** len(part["upsample_rates"]) * draw(st.sampled_from([1, 3]))
        kernels = draw(st.sampled_from([[3], [3, 7, 11]]))
        part["resblock_kernel_sizes"] = kernels
        part["resblock_dilation_sizes"] = [draw(st.sampled_from([[1], [1, 3, 5]])) for _ in kernels]
        part["use_bias_at_final"] = draw(st.booleans())
    return config


@given(config=vocoder_configs())
@settings(max_examples=6, deadline=None)
def test_every_legal_vocoder_config_fills_the_class_exactly(config: Any) -> None:
    """Any rates that agree, kernels, dilations, widths, mel bins and biases of both generators."""
    shapes = vocoder_shapes(config["vocoder"]["vocoder"], config["vocoder"]["bwe"])
    layout = keys.vocoder(header_of(shapes, config))
    with torch.device("meta"):
        module = LTX2VocoderWithBWE(**layout.arguments)
    assert_fills(module, layout, shapes, ours=frozenset())


def test_the_released_audio_file_has_the_stated_tensors_and_bytes() -> None:
    """58 + 46 - 2 + 1227 tensors and 364,866,540 bytes but for the header (ltx25.md sections 2 and 6)."""
    config = audio_config()
    dd, voice = config["audio_vae"]["model"]["params"]["ddconfig"], config["vocoder"]
    dd |= {"ch_mult": [1, 2, 4], "num_res_blocks": 2}
    voice["vocoder"]["upsample_initial_channel"], voice["bwe"]["upsample_initial_channel"] = 1536, 512
    voice["bwe"]["n_fft"] = 512
    sound = audio_shapes(RELEASED_AUDIO_CHANNELS, (1, 2, 4), 2, encoder=True)
    shapes = sound | vocoder_shapes(voice["vocoder"], voice["bwe"])
    header = header_of(shapes, config)
    layout, rest = keys.audio_vae(header), keys.vocoder(header)
    assert len(layout.names) + len(rest.names) + 2 == 58 + 46 - 2 + 1227 == len(shapes)
    header_bytes = RELEASED_AUDIO_BYTES - sum(2 * math.prod(shape) for shape in shapes.values())
    assert 80_000 < header_bytes < 250_000  # 1,329 entries of about 120 bytes


@pytest.mark.parametrize("layout", [keys.audio_vae, keys.vocoder])
def test_every_tensor_of_the_audio_file_is_named_or_left_to_the_other(layout: Any) -> None:
    """Names and unused names together are the file."""
    header = read_header(AUDIO)
    made = layout(header)
    assert set(made.names) | set(made.unused) == set(header.tensors)


def broken(path: Path, change: Any) -> Header:
    header = read_header(path)
    shapes = {name: tuple(entry.shape) for name, entry in header.tensors.items()}
    config = json.loads(json.dumps(header.metadata["config"]))
    change(config, shapes)
    return header_of(shapes, config)


def put(*path: Any) -> Any:
    """A change that sets one config value, or deletes it for the value ``...``."""
    *where, last, value = path

    def change(config: Any, _shapes: Shapes) -> None:
        for step in where:
            config = config[step]
        if value is ...:
            del config[last]
        else:
            config[last] = value

    return change


DD = ("audio_vae", "model", "params", "ddconfig")
REFUSED = {
    "attention block": (CONV, keys.video_vae, put("vae", "encoder_blocks", 0, ["attn_res_x", {"num_layers": 1}])),
    "encoder kind in the decoder": (CONV, keys.video_vae, put("vae", "decoder_blocks", 1, 0, "compress_space_res")),
    "noise injection": (CONV, keys.video_vae, put("vae", "decoder_blocks", 0, 1, "inject_noise", True)),
    "residual upsampling": (CONV, keys.video_vae, put("vae", "decoder_blocks", 1, 1, "residual", True)),
    "no depth": (CONV, keys.video_vae, put("vae", "decoder_blocks", 0, 1, "num_layers", ...)),
    "one resampling less": (CONV, keys.video_vae, put("vae", "decoder_blocks", 1, ["res_x", {"num_layers": 0}])),
    "timestep conditioning": (CONV, keys.video_vae, put("vae", "timestep_conditioning", True)),
    "another class": (CONV, keys.video_vae, put("vae", "_class_name", "CausalDiffusionVAE")),
    "unknown padding": (CONV, keys.video_vae, put("vae", "spatial_padding_mode", "circular")),
    "no vae section": (CONV, keys.video_vae, put("vae", ...)),
    "no blocks": (CONV, keys.video_vae, put("vae", "decoder_blocks", ...)),
    "an unknown tensor": (CONV, keys.video_vae, lambda _, shapes: shapes.update({"decoder.extra.weight": (1,)})),
    "a block deeper than stated": (
        CONV,
        keys.video_vae,
        lambda _, shapes: shapes.update({"decoder.up_blocks.0.res_blocks.1.conv1.conv.bias": (32,)}),
    ),
    "group norm": (AUDIO, keys.audio_vae, put(*DD, "norm_type", "group")),
    "audio attention": (AUDIO, keys.audio_vae, put(*DD, "mid_block_add_attention", True)),
    "two audio levels": (AUDIO, keys.audio_vae, put(*DD, "ch_mult", [1, 1])),
    "another causal axis": (AUDIO, keys.audio_vae, put(*DD, "causality_axis", "width")),
    "no causal axis": (AUDIO, keys.audio_vae, put(*DD, "causality_axis", ...)),
    "an unknown audio tensor": (AUDIO, keys.audio_vae, lambda _, s: s.update({"audio_vae.decoder.mid.x": (1,)})),
    "a foreign tensor": (AUDIO, keys.vocoder, lambda _, shapes: shapes.update({"text.weight": (1,)})),
    "an unknown vocoder tensor": (AUDIO, keys.vocoder, lambda _, s: s.update({"vocoder.vocoder.x.weight": (1,)})),
    "plain snake": (AUDIO, keys.vocoder, put("vocoder", "vocoder", "activation", "snake")),
    "no final activation stated": (AUDIO, keys.vocoder, put("vocoder", "vocoder", "use_tanh_at_final", ...)),
    "tanh on the residual": (AUDIO, keys.vocoder, put("vocoder", "bwe", "use_tanh_at_final", True)),
    "a bias that is not there": (AUDIO, keys.vocoder, put("vocoder", "vocoder", "use_bias_at_final", True)),
    "rates that contradict": (AUDIO, keys.vocoder, put("vocoder", "vocoder", "upsample_rates", [5, 2, 2, 2, 2, 3])),
    "an output rate that contradicts": (AUDIO, keys.vocoder, put("vocoder", "bwe", "output_sampling_rate", 44100)),
    "no bandwidth extension": (AUDIO, keys.vocoder, put("vocoder", "bwe", ...)),
    "no statistics": (CONV, keys.statistics, lambda _, shapes: shapes.pop(keys.STD_KEY)),
    "short statistics": (CONV, keys.statistics, lambda _, shapes: shapes.update({keys.STD_KEY: (64,)})),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_classes_cannot_represent_is_refused_by_file_name(name: str) -> None:
    """Unknown blocks, options, tensors and contradicting rates are refused from the header, naming the file."""
    path, layout, change = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        layout(broken(path, change))
    assert caught.value.found.startswith("made.safetensors: ")
    assert caught.value.allowed
    assert caught.value.way_out


def test_the_vocoder_clamps_its_first_stage_and_not_the_residual() -> None:
    """use_tanh_at_final false means clamp; without it the 16 kHz stage differs by 0.6 (key_mapping.md)."""
    layout = keys.vocoder(read_header(AUDIO))
    assert (layout.arguments["final_act_fn"], layout.arguments["bwe_final_act_fn"]) == ("clamp", None)
    with_tanh = keys.vocoder(broken(AUDIO, put("vocoder", "vocoder", "use_tanh_at_final", True)))
    assert with_tanh.arguments["final_act_fn"] == "tanh"
