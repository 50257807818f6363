"""Official LTX-2.5 tensor names and configs to the diffusers classes used for decoding and encoding.

From a header alone: the arguments that build a class, and which file tensor fills which of its tensors. Every tensor
of a file is mapped or listed as deliberately unused; anything unknown is refused. Must not read weights, build modules
or know devices. Source: shared reference ``key_mapping.md``, ``ltx25.md`` section 6, the goldens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shotclock.errors import CheckpointError
from shotclock.geometry import AUDIO_BINS, AUDIO_CHANNELS, AUDIO_TIME_SCALE, SPACE_SCALE, TIME_SCALE, VIDEO_CHANNELS
from shotclock.weights.header import Header
from shotclock.weights.stated import names_file, one_of, refusal, require_equal, section

MEAN_KEY = "per_channel_statistics.mean-of-means"  # of either latent statistics group in the official files
STD_KEY = "per_channel_statistics.std-of-means"
AUDIO_PREFIX = "audio_vae."
VOCODER_PREFIX = "vocoder."
VIDEO_PATCH = 4  # pixels a side folded into channels, ltx25.md section 6
MEL_BINS = AUDIO_BINS * AUDIO_TIME_SCALE  # the audio VAE shortens time and mel alike, ltx25.md section 6
ENCODER_KINDS = {"compress_space_res": "spatial", "compress_time_res": "temporal", "compress_all_res": "spatiotemporal"}
DECODER_KINDS = {"compress_space": "spatial", "compress_time": "temporal", "compress_all": "spatiotemporal"}
STRIDES = {"spatial": (1, 2), "temporal": (2, 1), "spatiotemporal": (2, 2)}  # (time, each side)
PADDINGS = ("zeros", "reflect", "replicate")
DIFFUSION_CLASS = "CausalDiffusionVAE"  # _class_name of the video VAE file with the diffusion decoder
ENCODER_ARGUMENTS = (
    "block_out_channels",
    "down_block_types",
    "spatio_temporal_scaling",
    "layers_per_block",
    "downsample_type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one class is built and filled: constructor arguments, file name -> module name, file names left alone."""

    arguments: Mapping[str, Any]
    names: Mapping[str, str]
    unused: tuple[str, ...] = ()

    def part(self, prefix: str) -> dict[str, str]:
        """The names of one child module: those under ``prefix``, which is taken off the module name."""
        return {key: name.removeprefix(prefix) for key, name in self.names.items() if name.startswith(prefix)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """A chain of blocks in run order; ``layers[k]`` residual blocks follow the k-th resampling."""

    layers: tuple[int, ...]
    kinds: tuple[str, ...]
    multipliers: tuple[int, ...]
    residual_at: Mapping[int, tuple[int, range]]  # file block -> (stage, its residual blocks within that stage)
    resample_at: Mapping[int, int]  # file block -> resampling number


@names_file
def video_vae(header: Header) -> Layout:
    """``AutoencoderKLLTX2Video`` from a conv video VAE file (encoder, conv decoder; statistics: :func:`statistics`).

    Raises :class:`CheckpointError` for a block, option or tensor this class cannot represent.
    """
    config = section(header, "vae")
    require_equal(config, "vae", _VIDEO_FIXED)
    encoder = _chain(header, config, "encoder_blocks", ENCODER_KINDS, "encoder.down_blocks")
    decoder = _chain(header, config, "decoder_blocks", DECODER_KINDS, "decoder.up_blocks")
    for name, blocks in (("encoder_blocks", encoder), ("decoder_blocks", decoder)):
        _require_scales(blocks, name)
    arguments = {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": VIDEO_CHANNELS,
        "patch_size": VIDEO_PATCH,
        "encoder_causal": True,
        "decoder_causal": bool(config.get("causal_decoder", False)),
        "timestep_conditioning": False,
        "encoder_spatial_padding_mode": one_of(config, "encoder_spatial_padding_mode", PADDINGS, "zeros"),
        "decoder_spatial_padding_mode": one_of(config, "spatial_padding_mode", PADDINGS, "zeros"),
        **_encoder_arguments(encoder),
        **_decoder_arguments(header, config, decoder),
    }
    names = {key: _video_name(key, encoder, decoder) for key in header.tensors if key not in (MEAN_KEY, STD_KEY)}
    return Layout(arguments=arguments, names=names, unused=(MEAN_KEY, STD_KEY))


@names_file
def video_encoder(header: Header) -> Layout:
    """``LTX2VideoEncoder3d`` from either video VAE file, whose decoders have nothing to do with each other.

    The file with the diffusion decoder states the encoder under ``vae.encoder`` (golden ``vae_encode_diffusion_file``).
    """
    if section(header, "vae").get("_class_name") == DIFFUSION_CLASS:
        config, key, padding = section(header, "vae", "encoder"), "blocks", "spatial_padding_mode"
        fixed = {name: entry for name, entry in _VIDEO_FIXED.items() if name in _ENCODER_FIXED}
    else:
        config, key, padding = section(header, "vae"), "encoder_blocks", "encoder_spatial_padding_mode"
        fixed = dict(_VIDEO_FIXED)
    require_equal(config, "vae", fixed)
    blocks = _chain(header, config, key, ENCODER_KINDS, "encoder.down_blocks")
    _require_scales(blocks, key)
    encoder = _encoder_arguments(blocks)
    arguments = {
        "in_channels": 3,
        "out_channels": VIDEO_CHANNELS,
        "patch_size": VIDEO_PATCH,
        "is_causal": True,
        "spatial_padding_mode": one_of(config, padding, PADDINGS, "zeros"),
        **{name: encoder[name] for name in ENCODER_ARGUMENTS},
    }
    mine = [name for name in header.tensors if name.startswith("encoder.")]
    names = {name: _video_name(name, blocks, blocks).removeprefix("encoder.") for name in mine}
    return Layout(arguments=arguments, names=names, unused=tuple(sorted(header.tensors.keys() - set(mine))))


@names_file
def audio_vae(header: Header) -> Layout:
    """``AutoencoderKLLTX2Audio`` from an audio VAE file (statistics: :func:`statistics`; vocoder: :func:`vocoder`)."""
    model = section(header, "audio_vae", "model", "params")
    dd = section(header, "audio_vae", "model", "params", "ddconfig")
    stft = section(header, "audio_vae", "preprocessing", "stft")
    require_equal(dd, "audio_vae.ddconfig", _AUDIO_FIXED)
    if len(dd["ch_mult"]) != 1 + round(math.log2(AUDIO_TIME_SCALE)):
        raise refusal(f"audio_vae.ddconfig.ch_mult {dd['ch_mult']}", "three widths: time and mel are halved twice")
    arguments = {
        "base_channels": dd["ch"],
        "output_channels": 2,
        "ch_mult": tuple(dd["ch_mult"]),
        "num_res_blocks": dd["num_res_blocks"],
        "attn_resolutions": None,
        "in_channels": 2,
        "resolution": dd.get("resolution", MEL_BINS * 4),  # only attention, which is refused, reads it
        "latent_channels": AUDIO_CHANNELS,
        "norm_type": "pixel",
        "causality_axis": "height",
        "mid_block_add_attention": False,
        "sample_rate": model["sampling_rate"],
        "mel_hop_length": stft["hop_length"],
        "is_causal": stft.get("causal", True),
        "mel_bins": MEL_BINS,
        "double_z": True,
    }
    mine = [key.removeprefix(AUDIO_PREFIX) for key in header.tensors if key.startswith(AUDIO_PREFIX)]
    inner = [key for key in mine if key not in (MEAN_KEY, STD_KEY)]
    for key in inner:
        if not _AUDIO_NAME.fullmatch(key):
            raise _unknown_tensor(AUDIO_PREFIX + key)
    left = (key for key in header.tensors if not key.startswith(AUDIO_PREFIX) or key.endswith((MEAN_KEY, STD_KEY)))
    return Layout(
        arguments=arguments,
        names={AUDIO_PREFIX + key: key for key in inner},
        unused=_known_elsewhere(left, (AUDIO_PREFIX, VOCODER_PREFIX)),
    )


@names_file
def vocoder(header: Header) -> Layout:
    """``LTX2VocoderWithBWE`` from an audio VAE file.

    The 16 kHz stage ends in a clamp (or tanh where the file says so), the bandwidth extension's residual in neither
    (golden ``audio_decode``). Sampling rates, hops and upsampling rates must agree, or the file is refused.
    """
    base, bwe = section(header, "vocoder", "vocoder"), section(header, "vocoder", "bwe")
    if bwe.get("use_tanh_at_final", False):
        raise refusal("vocoder.bwe.use_tanh_at_final true", "false: the residual is added before the last clamp")
    _require_rates(header, base, bwe)
    second = _generator_arguments(header, bwe, "vocoder.bwe_generator.", mels=bwe["num_mels"])
    arguments = {
        **_generator_arguments(header, base, "vocoder.vocoder.", mels=MEL_BINS),
        "final_act_fn": "tanh" if base["use_tanh_at_final"] else "clamp",
        **{f"bwe_{name}": value for name, value in second.items()},
        "bwe_final_act_fn": None,
        "filter_length": bwe["n_fft"],
        "window_length": bwe["n_fft"],
        "hop_length": bwe["hop_length"],
        "num_mel_channels": bwe["num_mels"],
        "input_sampling_rate": bwe["input_sampling_rate"],
        "output_sampling_rate": bwe["output_sampling_rate"],
    }
    names = {key: _vocoder_name(key) for key in header.tensors if key.startswith(VOCODER_PREFIX)}
    left = (key for key in header.tensors if not key.startswith(VOCODER_PREFIX))
    return Layout(arguments=arguments, names=names, unused=_known_elsewhere(left, (AUDIO_PREFIX,)))


@names_file
def statistics(header: Header, prefix: str = "") -> Layout:
    """Mean and standard deviation of the 128 latent features, for any module with buffers ``mean`` and ``std``.

    ``prefix`` is ``""`` in video files and ``"audio_vae."`` in audio files, where feature ``c*16 + bin`` is the
    patchified one.
    """
    names = {prefix + MEAN_KEY: "mean", prefix + STD_KEY: "std"}
    for key in names:
        if key not in header.tensors:
            raise refusal(f"no tensor {key}", "the statistics that undo the normalisation of latents")
        if tuple(header.tensors[key].shape) != (VIDEO_CHANNELS,):
            raise refusal(f"{key} has shape {list(header.tensors[key].shape)}", f"[{VIDEO_CHANNELS}]")
    return Layout(arguments={"features": VIDEO_CHANNELS}, names=names)


# key -> (the only value the class represents, whether it must be stated: no where the tensors decide it anyway)
_VIDEO_FIXED: Mapping[str, tuple[Any, bool]] = {
    "_class_name": ("CausalVideoAutoencoder", True),
    "dims": (3, False),
    "in_channels": (3, False),
    "out_channels": (3, False),
    "latent_channels": (VIDEO_CHANNELS, False),
    "patch_size": (VIDEO_PATCH, False),
    "norm_layer": ("pixel_norm", False),
    "latent_log_var": ("uniform", False),
    "timestep_conditioning": (False, False),
}
_ENCODER_FIXED = frozenset({"dims", "in_channels", "patch_size", "norm_layer", "latent_log_var"})
_AUDIO_FIXED: Mapping[str, tuple[Any, bool]] = {
    "causality_axis": ("height", True),
    "z_channels": (AUDIO_CHANNELS, False),
    "mel_bins": (MEL_BINS, False),
    "norm_type": ("pixel", False),
    "mid_block_add_attention": (False, False),
    "attn_resolutions": ([], False),
    "in_channels": (2, False),
    "out_ch": (2, False),
    "double_z": (True, False),
}
_GENERATOR_FIXED: Mapping[str, tuple[Any, bool]] = {
    "resblock": ("AMP1", False),
    "activation": ("snakebeta", False),
    "stereo": (True, False),
}
_AUDIO_NAME = re.compile(
    r"(encoder|decoder)\.(conv_in|conv_out"
    r"|mid\.block_[12]\.(conv1|conv2)"
    r"|(up|down)\.\d+\.block\.\d+\.(conv1|conv2|nin_shortcut|conv_shortcut)"
    r"|up\.\d+\.upsample\.conv|down\.\d+\.downsample)(\.conv)?\.(weight|bias)"
)
_VIDEO_NAME = re.compile(
    r"(?P<side>encoder\.down_blocks|decoder\.up_blocks)\.(?P<block>\d+)\."
    r"(?:res_blocks\.(?P<layer>\d+)\.(?P<inner>conv[12])|(?P<resample>conv))\.conv\.(?P<kind>weight|bias)"
)
_VIDEO_ENDS = re.compile(r"(encoder|decoder)\.(conv_in|conv_out)\.conv\.(weight|bias)")
_VOCODER_NAME = re.compile(
    r"vocoder\.(?:(?P<net>vocoder|bwe_generator)\.(?:"
    r"(?P<ends>conv_pre|conv_post)\.(?P<ends_kind>weight|bias)"
    r"|ups\.(?P<up>\d+)\.(?P<up_kind>weight|bias)"
    r"|resblocks\.(?P<block>\d+)\.(?P<conv>convs[12]\.\d+)\.(?P<conv_kind>weight|bias)"
    r"|(?:resblocks\.(?P<act_block>\d+)\.(?P<acts>acts[12]\.\d+)|(?P<post>act_post))\."
    r"(?P<act>act\.alpha|act\.beta|upsample\.filter|downsample\.lowpass\.filter))"
    r"|(?P<mel>mel_stft\.(?:mel_basis|stft_fn\.(?:forward|inverse)_basis)))"
)


def _unknown_tensor(key: str) -> CheckpointError:
    return refusal(f"unknown tensor {key}", "the tensors of key_mapping: every one must have a place")


def _known_elsewhere(left: Iterable[str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """The names that another layout of the same file claims; refuses the rest."""
    left = tuple(left)
    for key in left:
        if not key.startswith(prefixes):
            raise _unknown_tensor(key)
    return left


def _chain(header: Header, config: Mapping[str, Any], key: str, allowed: Mapping[str, str], where: str) -> _Blocks:
    """Parse ``encoder_blocks`` (as listed) or ``decoder_blocks`` (listed last block first) into run order."""
    listed = config[key]
    run = list(reversed(listed)) if key == "decoder_blocks" else list(listed)
    layers, kinds, multipliers = [0], list[str](), list[int]()
    residual_at: dict[int, tuple[int, range]] = {}
    resample_at: dict[int, int] = {}
    for number, (kind, options) in enumerate(run):
        _require_options(key, kind, options, allowed)
        if kind == "res_x":
            before, layers[-1] = layers[-1], layers[-1] + options["num_layers"]
            residual_at[number] = (len(kinds), range(before, layers[-1]))
            continue
        resample_at[number] = len(kinds)
        kinds.append(allowed[kind])
        multipliers.append(_multiplier(header, f"{where}.{number}.conv.conv.weight", options, kinds[-1], key))
        layers.append(0)
    return _Blocks(
        layers=tuple(layers),
        kinds=tuple(kinds),
        multipliers=tuple(multipliers),
        residual_at=residual_at,
        resample_at=resample_at,
    )


def _require_options(key: str, kind: str, options: Mapping[str, Any], allowed: Mapping[str, str]) -> None:
    if kind != "res_x" and kind not in allowed:
        raise refusal(f"{key} holds a block {kind!r}", ", ".join(["res_x", *allowed]))
    known = {"num_layers"} if kind == "res_x" else {"multiplier"}
    extra = {name: value for name, value in options.items() if name not in known and value not in (False, None)}
    if extra:
        raise refusal(f"{key}: {kind} with {extra}", f"only {', '.join(known)}")
    if kind == "res_x" and "num_layers" not in options:
        raise refusal(f"{key}: {kind} without num_layers", "a stated depth")


def _multiplier(header: Header, weight: str, options: Mapping[str, Any], kind: str, key: str) -> int:
    """The width factor of a resampling block: as stated, else from the shape of its convolution."""
    if "multiplier" in options:
        return int(options["multiplier"])
    if weight not in header.tensors:
        raise refusal(f"{key} states no multiplier and there is no {weight}", "one of the two")
    out, into = header.tensors[weight].shape[:2]
    time, side = STRIDES[kind]
    volume = time * side * side
    return into * volume // out if key == "decoder_blocks" else out * volume // into


def _require_scales(blocks: _Blocks, name: str) -> None:
    time = math.prod(STRIDES[kind][0] for kind in blocks.kinds)
    side = VIDEO_PATCH * math.prod(STRIDES[kind][1] for kind in blocks.kinds)
    if (time, side) != (TIME_SCALE, SPACE_SCALE):
        raise refusal(
            f"{name} scale time by {time} and each side by {side}", f"{TIME_SCALE} and {SPACE_SCALE}: the latent grid"
        )


def _encoder_arguments(blocks: _Blocks) -> dict[str, Any]:
    widths, width = list[int](), VIDEO_CHANNELS
    for multiplier in blocks.multipliers:
        width *= multiplier
        widths.append(width)
    return {
        "block_out_channels": tuple(widths),
        "down_block_types": ("LTX2VideoDownBlock3D",) * len(widths),
        "spatio_temporal_scaling": (True,) * len(widths),
        "layers_per_block": blocks.layers,
        "downsample_type": blocks.kinds,
        "spatial_compression_ratio": SPACE_SCALE,
        "temporal_compression_ratio": TIME_SCALE,
    }


def _decoder_arguments(header: Header, config: Mapping[str, Any], blocks: _Blocks) -> dict[str, Any]:
    """The class takes widths, depths and factors of the decoder last stage first, but the kinds in run order."""
    base = config["decoder_base_channels"] if "decoder_base_channels" in config else _last_width(header)
    width = base * math.prod(blocks.multipliers)
    widths = list[int]()
    for multiplier in blocks.multipliers:
        widths.append(width)
        width //= multiplier
    count = len(widths)
    return {
        "decoder_block_out_channels": tuple(reversed(widths)),
        "decoder_layers_per_block": tuple(reversed(blocks.layers)),
        "decoder_spatio_temporal_scaling": (True,) * count,
        "decoder_inject_noise": (False,) * (count + 1),
        "upsample_type": blocks.kinds,
        "upsample_residual": (False,) * count,
        "upsample_factor": tuple(reversed(blocks.multipliers)),
    }


def _last_width(header: Header) -> int:
    key = "decoder.conv_out.conv.weight"
    if key not in header.tensors:
        raise refusal(f"no decoder_base_channels in the config and no {key}", "one of the two")
    return int(header.tensors[key].shape[1])


def _video_name(key: str, encoder: _Blocks, decoder: _Blocks) -> str:
    if _VIDEO_ENDS.fullmatch(key):
        return key
    match = _VIDEO_NAME.fullmatch(key)
    if match is None:
        raise _unknown_tensor(key)
    down = match["side"].startswith("encoder")
    blocks, number = (encoder if down else decoder), int(match["block"])
    if match["resample"] and number in blocks.resample_at:
        stage = blocks.resample_at[number]
        site = f"encoder.down_blocks.{stage}.downsamplers.0" if down else f"decoder.up_blocks.{stage}.upsamplers.0"
        return f"{site}.conv.conv.{match['kind']}"
    if match["layer"] and number in blocks.residual_at:
        stage, own = blocks.residual_at[number]
        site = _stage_name(down=down, stage=stage, count=len(blocks.kinds))
        if int(match["layer"]) < len(own):
            return f"{site}.resnets.{own[int(match['layer'])]}.{match['inner']}.conv.{match['kind']}"
    raise _unknown_tensor(key)


def _stage_name(*, down: bool, stage: int, count: int) -> str:
    if down:
        return "encoder.mid_block" if stage == count else f"encoder.down_blocks.{stage}"
    return "decoder.mid_block" if stage == 0 else f"decoder.up_blocks.{stage - 1}"


def _generator_arguments(header: Header, config: Mapping[str, Any], prefix: str, *, mels: int) -> dict[str, Any]:
    """Arguments of one of the two generators; it reads ``mels`` bins of two channels, a bias is read off the file."""
    require_equal(config, prefix.rstrip("."), _GENERATOR_FIXED)
    bias = f"{prefix}conv_post.bias" in header.tensors
    if config.get("use_bias_at_final", bias) != bias:
        raise refusal(f"{prefix}use_bias_at_final is {not bias}, conv_post.bias says {bias}", "the two to agree")
    return {
        "in_channels": 2 * mels,
        "hidden_channels": config["upsample_initial_channel"],
        "out_channels": 2,
        "upsample_kernel_sizes": list(config["upsample_kernel_sizes"]),
        "upsample_factors": list(config["upsample_rates"]),
        "resnet_kernel_sizes": list(config["resblock_kernel_sizes"]),
        "resnet_dilations": [list(row) for row in config["resblock_dilation_sizes"]],
        "act_fn": "snakebeta",
        "antialias": True,
        "final_bias": bias,
    }


def _require_rates(header: Header, base: Mapping[str, Any], bwe: Mapping[str, Any]) -> None:
    """Refuse a vocoder whose rates contradict each other: it would run and give sound of the wrong length."""
    hop = section(header, "audio_vae", "preprocessing", "stft")["hop_length"]
    rate = section(header, "audio_vae", "model", "params")["sampling_rate"]
    into, out = bwe["input_sampling_rate"], bwe["output_sampling_rate"]
    up, again = math.prod(base["upsample_rates"]), math.prod(bwe["upsample_rates"])
    if into != rate or up != hop:
        raise refusal(f"the vocoder turns a mel frame into {up} samples at {into} Hz", f"{hop} samples at {rate} Hz")
    if out % into or again * into != bwe["hop_length"] * out:
        raise refusal(
            f"the bandwidth extension turns {bwe['hop_length']} samples at {into} Hz into {again} at {out} Hz",
            "a whole ratio of rates, the same for the samples",
        )


def _vocoder_name(key: str) -> str:
    match = _VOCODER_NAME.fullmatch(key)
    if match is None:
        raise _unknown_tensor(key)
    if match["mel"]:
        return match["mel"]
    net = match["net"]
    if match["ends"]:
        return f"{net}.{'conv_in' if match['ends'] == 'conv_pre' else 'conv_out'}.{match['ends_kind']}"
    if match["up"]:
        return f"{net}.upsamplers.{match['up']}.{match['up_kind']}"
    if match["conv"]:
        return f"{net}.resnets.{match['block']}.{match['conv']}.{match['conv_kind']}"
    act = match["act"].replace("downsample.lowpass.filter", "downsample.filter")
    return f"{net}.act_out.{act}" if match["post"] else f"{net}.resnets.{match['act_block']}.{match['acts']}.{act}"
