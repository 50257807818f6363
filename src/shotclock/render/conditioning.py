"""Files that condition a render: images and sound, read, checked and prepared before any weight is.

An image becomes pixels as the model was trained to see them: turned as its EXIF entry says, on white where it is
transparent, through H.264 once, filling the frame. Must not know models, devices or run folders.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from scipy.signal import resample_poly
from torch import Tensor
from torch.nn.functional import interpolate

from shotclock.errors import RequestError
from shotclock.geometry import MAX_FRAMES, SPACE_SCALE, TIME_SCALE, Geometry

IMAGE_OPTION = re.compile(r"(?P<path>.+?)@(?P<frame>[0-9]+)(?::(?P<strength>[^:@/]*))?")
MIN_SIDE, MAX_SIDE = SPACE_SCALE, 16_384  # pixels of an image: a latent cell; what libx264 takes
HDR_TRANSFERS = {16: "PQ", 18: "HLG"}  # ITU-T H.273 transfer characteristics
HDR_MAGIC = {b"\x76\x2f\x31\x01": "OpenEXR", b"#?RADIANCE": "Radiance HDR", b"#?RGBE": "Radiance HDR"}
DEEP_MODES = ("I", "F")  # Pillow's 16- and 32-bit modes begin so: grey of more than 8 bits
NAMED_BYTES = 65_536  # where PNG and HEIF files say what their transfer is
BACKGROUND = (255, 255, 255)  # behind transparent parts
ENCODER_THREADS = "1"  # the same image gives the same bytes
SURROUND = {3: "2.1", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}  # what so many channels usually are
RATES_HZ = (8_000, 192_000)  # of sound that is taken
AAC_RATES_HZ = frozenset({8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000})
OTHER_RATE_HZ = 48_000  # for the clip, where AAC does not know the sound's own rate
ALONE = {"protocol_whitelist": "none"}  # a playlist must not fetch anything
SLACK_S = Fraction(1, 100)  # of silence that may be added: one mel frame
LONGEST_S = MAX_FRAMES + 1  # at 1 frame a second; nothing after it is ever used


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOption:
    """``FILE[@FRAME[:STRENGTH]]`` as it was said."""

    path: Path
    frame: int
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage:
    """An image file: name, digest of its bytes, pixels as one sees them, and what was done to them."""

    name: str
    sha256: str
    frame: int
    strength: float
    pixels: UInt8[Tensor, "height width 3"]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSound:
    """A sound file: name, digest of its bytes, its samples in stereo at its own rate."""

    name: str
    sha256: str
    wave: Float[Tensor, "2 n"]
    rate_hz: int

    @property
    def duration_s(self) -> Fraction:
        """Exact."""
        return Fraction(self.wave.shape[1], self.rate_hz)


def parse_image(text: str) -> ImageOption:
    """Split an image option; a name that is a file as a whole is taken so. Strength defaults to 1, frame to 0."""
    match = None if Path(text).is_file() else IMAGE_OPTION.fullmatch(text)
    if match is None:
        return ImageOption(path=Path(text), frame=0, strength=1.0)
    frame = int(match["frame"][:9])
    said = match["strength"]
    try:
        strength = 1.0 if said is None else float(said)
    except ValueError:
        strength = math.nan
    if not 0 < strength <= 1:
        raise RequestError(
            f"strength {said!r} of image {match['path']}",
            allowed="more than 0 and at most 1: at 1 the image stays as it is",
            way_out="write it like photo.png@0:0.8",
        )
    return ImageOption(path=Path(match["path"]), frame=frame, strength=strength)


def read_image(option: ImageOption) -> ReadImage:
    """Read and check one image; raises :class:`RequestError` for what is no picture that can be used."""
    content = _content(option.path, "image")
    name = option.path.name
    _refuse_hdr(name, content[:NAMED_BYTES])
    notices: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(option.path) as file:
                _require_sides(name, file)
                if (count := getattr(file, "n_frames", 1)) > 1:
                    notices.append(f"{name} holds {count} pictures: the first is used")
                picture = _upright(name, file, notices)
    except UnidentifiedImageError:
        raise _no_image(name, f"begins with {content[:16]!r}") from None
    except (
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as e:
        raise _no_image(name, str(e)) from None
    return ReadImage(
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        frame=option.frame,
        strength=option.strength,
        pixels=torch.from_numpy(np.asarray(picture).copy()),
        notices=tuple(notices),
    )


def _upright(name: str, file: Image.Image, notices: list[str]) -> Image.Image:
    """RGB of 8 bits, turned, without transparency."""
    if file.mode.startswith(DEEP_MODES):
        raise RequestError(
            f"{name} is a picture of mode {file.mode!r}, with more than 8 bits",
            allowed="8 bits a channel",
            way_out="convert it to an 8-bit PNG first",
        )
    turned = ImageOps.exif_transpose(file)
    if turned.size != file.size or turned.tobytes() != file.tobytes():
        notices.append(f"{name} is turned as its EXIF orientation says")
    if turned.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in turned.info:
        return turned.convert("RGB")
    layer = turned.convert("RGBA")
    if (np.asarray(layer.getchannel("A")) < 255).any():
        notices.append(f"{name} is transparent in parts: white is put behind them")
    ground = Image.new("RGBA", layer.size, (*BACKGROUND, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")


def _require_sides(name: str, file: Image.Image) -> None:
    if min(file.size) < MIN_SIDE or max(file.size) > MAX_SIDE:
        raise RequestError(
            f"{name} is {file.width}x{file.height} pixels",
            allowed=f"sides from {MIN_SIDE} to {MAX_SIDE:,} pixels",
            way_out="give a picture near the size of the clip",
        )


def _refuse_hdr(name: str, head: bytes) -> None:
    """PNG names its transfer in a cICP chunk, HEIF and AVIF in an nclx box; EXR and Radiance are HDR altogether."""
    kind = next((kind for magic, kind in HDR_MAGIC.items() if head.startswith(magic)), None)
    for mark, offset, width in ((b"cICP", 1, 1), (b"colrnclx", 2, 2)):
        place = head.find(mark)
        if kind is None and place >= 0:
            start = place + len(mark) + offset
            kind = HDR_TRANSFERS.get(int.from_bytes(head[start : start + width], "big"))
    if kind is not None:
        raise RequestError(
            f"{name} is an HDR picture ({kind})",
            allowed="pictures in SDR, such as sRGB",
            way_out="tone-map it to an 8-bit PNG first: what is bright and what is white is a choice",
        )


def _no_image(name: str, why: str) -> RequestError:
    return RequestError(
        f"{name} cannot be read as an image: {why}",
        allowed="a PNG, JPEG, WebP or another picture that Pillow reads",
        way_out="check the file, or convert it to PNG",
    )


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise RequestError(
            f"the {what} {str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}",
            allowed="a file that is there",
            way_out="check the path" + ("; an image is FILE[@FRAME[:STRENGTH]]" if what == "image" else ""),
        ) from None


def recompressed(pixels: UInt8[Tensor, "height width 3"], crf: int) -> UInt8[Tensor, "h w 3"]:
    """The picture after H.264 at ``crf``, as the model was trained (ltx25.md section 7); 0 leaves it as it is.

    An odd last row or column is cut off, since yuv420p has none.
    """
    if not crf:
        return pixels
    height, width = (side // 2 * 2 for side in pixels.shape[:2])
    encoder: Any = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.time_base = Fraction(1)
    encoder.options = {"crf": str(crf), "threads": ENCODER_THREADS}
    decoder: Any = av.CodecContext.create("h264", "r")
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels[:height, :width].numpy()), format="rgb24")
    frame.pts = 0
    packets = [*encoder.encode(frame.reformat(format="yuv420p")), *encoder.encode(None)]
    decoded = [picture for packet in [*packets, None] for picture in decoder.decode(packet)]
    assert len(decoded) == 1, f"one picture encoded, {len(decoded)} decoded"
    return torch.from_numpy(decoded[0].to_ndarray(format="rgb24"))


def fill(pixels: UInt8[Tensor, "h w 3"], *, height: int, width: int) -> Float[Tensor, "1 3 1 height width"]:
    """Scale until the frame is filled, cut evenly, values to [-1, 1] (golden ``image_preprocess``).

    Sides are rounded up; rounding otherwise misses the golden by 0.75.
    """
    image = pixels.permute(2, 0, 1)[None].float()
    scale = max(height / image.shape[2], width / image.shape[3])
    size = [max(math.ceil(side * scale), least) for side, least in zip(image.shape[2:], (height, width), strict=True)]
    scaled = interpolate(image, size=size, mode="bilinear", align_corners=False)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return (scaled[:, :, top : top + height, left : left + width] / 127.5 - 1)[:, :, None]


def require_frames(images: tuple[ReadImage, ...], slots: tuple[int, ...], frames: int) -> None:
    """Refuse pictures and slots beyond the clip, and two at one frame."""
    wanted = [*((image.frame, image.name) for image in images), *((slot, "a keyframe slot") for slot in slots)]
    seen: dict[int, str] = {}
    for frame, name in wanted:
        if not 0 <= frame < frames:
            raise RequestError(
                f"{name} is to stand at frame {frame} of a clip of {frames}",
                allowed=f"frames 0 to {frames - 1}",
                way_out=f"use frame {frames - 1}, or make the clip longer",
            )
        if frame in seen:
            raise RequestError(
                f"{seen[frame]} and {name} are both to stand at frame {frame}",
                allowed="one picture a frame",
                way_out="move one of them",
            )
        seen[frame] = name


def read_sound(path: Path) -> ReadSound:
    """Read and check a sound file, or the sound of a video; mono counts for both sides.

    Raises :class:`RequestError` for what is no sound, for more than two channels and for an unusable rate.
    """
    content = _content(path, "sound")
    try:
        with av.open(io.BytesIO(content), options=ALONE) as file:
            wave, rate_hz = _samples(path.name, file)
    except av.FFmpegError as error:
        raise _no_sound(path.name, f"{error.strerror or error}") from None
    return ReadSound(name=path.name, sha256=hashlib.sha256(content).hexdigest(), wave=wave, rate_hz=rate_hz)


def _samples(name: str, file: Any) -> tuple[Float[Tensor, "2 n"], int]:
    if not file.streams.audio:
        raise _no_sound(name, "it holds no sound")
    stream = file.streams.audio[0]
    channels, rate_hz = stream.codec_context.layout.nb_channels, stream.codec_context.sample_rate
    if channels not in (1, 2):
        raise RequestError(
            f"{name} has {channels} channels ({SURROUND.get(channels, 'surround')})",
            allowed="mono or stereo",
            way_out="mix it down to stereo first: which channel goes where is a choice",
        )
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise RequestError(
            f"{name} has a rate of {rate_hz} Hz",
            allowed=f"{RATES_HZ[0]:,} to {RATES_HZ[1]:,} Hz",
            way_out="convert it to 48,000 Hz",
        )
    blocks = list(_blocks(file, stream, LONGEST_S * rate_hz))
    if not blocks:
        raise _no_sound(name, "it holds no samples")
    wave = np.concatenate(blocks, axis=1)
    if not np.isfinite(wave).all():
        raise _no_sound(name, "it holds samples that are not finite")
    return torch.from_numpy(np.repeat(wave, 2 // channels, axis=0)), rate_hz


def _blocks(file: Any, stream: Any, limit: int) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Planar float samples in the stream's own layout and rate, up to ``limit``."""
    to_float = av.AudioResampler(
        format="fltp", layout=stream.codec_context.layout, rate=stream.codec_context.sample_rate
    )
    done = 0
    for decoded in file.decode(stream):
        for frame in to_float.resample(decoded):
            yield frame.to_ndarray()
            done += frame.samples
        if done >= limit:
            return
    for frame in to_float.resample(None):
        yield frame.to_ndarray()


def _no_sound(name: str, why: str) -> RequestError:
    return RequestError(
        f"{name} cannot be read as a sound: {why}",
        allowed="WAV, FLAC, MP3, AAC or a video with sound, mono or stereo",
        way_out="check the file, or convert it to WAV",
    )


def require_length(sound: ReadSound, geometry: Geometry) -> None:
    """Refuse a sound that ends before the clip; the way out is the longest clip that it covers."""
    if sound.duration_s + SLACK_S >= geometry.duration_s:
        return
    frames = (int((sound.duration_s + SLACK_S) * geometry.fps) - 1) // TIME_SCALE * TIME_SCALE + 1
    shorter = f"use --frames {frames}, or " if frames >= 1 else ""
    raise RequestError(
        f"{sound.name} lasts {float(sound.duration_s):.3f} s, the clip of {geometry.frames} frames at {geometry.fps} "
        f"{float(geometry.duration_s):.3f} s",
        allowed="a sound at least as long as the clip; a longer one is cut",
        way_out=f"{shorter}a longer sound",
    )


def cut(sound: ReadSound, geometry: Geometry) -> Float[Tensor, "2 n"]:
    """The samples of the clip's duration at the sound's own rate."""
    samples = round(geometry.duration_s * sound.rate_hz)
    wave = sound.wave[:, :samples]
    return torch.nn.functional.pad(wave, (0, samples - wave.shape[1]))


def resampled(wave: Float[Tensor, "2 n"], rate_hz: int, to_hz: int) -> Float[Tensor, "2 m"]:
    """At another rate, through a polyphase low-pass in float64."""
    if rate_hz == to_hz:
        return wave
    common = math.gcd(rate_hz, to_hz)
    moved = resample_poly(wave.double().numpy(), to_hz // common, rate_hz // common, axis=1)
    return torch.from_numpy(np.ascontiguousarray(moved)).float()


def for_clip(wave: Float[Tensor, "2 n"], rate_hz: int) -> tuple[Float[Tensor, "2 m"], int]:
    """Samples and rate as the clip holds them: the original ones wherever AAC knows their rate."""
    if rate_hz in AAC_RATES_HZ:
        return wave, rate_hz
    return resampled(wave, rate_hz, OTHER_RATE_HZ).clamp(-1, 1), OTHER_RATE_HZ
