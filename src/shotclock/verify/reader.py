"""Decodes a clip and an optional wav with PyAV into frames, a waveform and what the container says.

Its own reader: it shares nothing with the code that wrote the file. It assumes a hostile file: the format is told by
the bytes, nothing but the file itself is opened, and frames, pixels and samples are bounded. Judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Float, UInt8

from shotclock.errors import RequestError
from shotclock.verify.boxes import BoxWalk, sniff, walk
from shotclock.verify.nal import is_legal, length_size

CLIP_KINDS = ("mov", "matroska")
JUDGED = ("video", "audio")  # kinds of streams that are read
MOST_ERRORS = 1000  # a decoder that failed this often learns nothing more
LEAST_SIDE = 16  # pixels; smaller frames hold no picture to judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a clip is read: pixels kept for judging, samples kept, pixels of one frame, frames counted.

    ``wall_s`` and ``memory_bytes`` bound the child process that :func:`shotclock.verify.verifier.verify_clip` uses.
    """

    kept_pixels: int = 300_000_000  # 1024x576 at 24 frames a second for 21 s: 0.9 GB of RGB
    frame_pixels: int = 8192 * 4320
    frames: int = 100_000
    samples: int = 60_000_000  # stereo at 48 kHz for 10 min
    wall_s: float = 120.0
    memory_bytes: int = 6 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A waveform [channels, samples], float32, full scale 1, and its rate."""

    waveform: Float[np.ndarray, "c n"]
    rate_hz: int


@dataclass(slots=True, kw_only=True)
class Clip:
    """Everything the arms need of one file; ``video`` and ``audio`` hold what the headers say."""

    walk: BoxWalk
    frames: list[UInt8[np.ndarray, "h w 3"]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    decoded_frames: int = 0
    corrupt_frames: int = 0
    illegal_packets: int = 0
    size_changes: int = 0
    errors: list[str] = field(default_factory=list)
    video: dict[str, Any] = field(default_factory=dict)
    audio: dict[str, Any] = field(default_factory=dict)
    sound: Sound | None = None
    samples_left_out: bool = False


def read_clip(path: Path, limits: Limits) -> Clip:
    """Decode a clip; damage is counted in the result, only a file that is no clip at all raises.

    Raises :class:`RequestError` when the file is missing or neither mp4, mov, mkv nor webm.
    """
    kind = _kind(path, CLIP_KINDS, "mp4, mov, mkv or webm")
    clip = Clip(walk=walk(path, kind))
    try:
        with av.open(str(path), format=kind, options=_open_options(limits)) as container:
            _read_streams(container, clip, limits)
    except (av.error.FFmpegError, ValueError, OverflowError, MemoryError) as error:
        clip.errors.append(f"open: {_short(error)}")
    return clip


def read_wav(path: Path, limits: Limits) -> Sound:
    """A wav or flac as float32; raises :class:`RequestError` when it cannot be read to its end."""
    kind = _kind(path, ("wav", "flac"), "wav or flac")
    try:
        with av.open(str(path), format=kind, options=_open_options(limits)) as container:
            gather = _Gather(limits.samples)
            for frame in container.decode(audio=0):
                gather.add(frame)
            return gather.sound() or Sound(waveform=np.zeros((1, 0), np.float32), rate_hz=48000)
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise RequestError(
            f"{path.name} cannot be read: {_short(error)}",
            allowed="a wav or flac with one audio stream",
            way_out="check the file, or leave --wav out to judge the clip's own sound",
        ) from error


def _kind(path: Path, allowed: tuple[str, ...], names: str) -> str:
    if not path.is_file():
        raise RequestError(f"{path} is not a file", allowed=names, way_out="check the path")
    kind = sniff(path)
    if kind not in allowed:
        raise RequestError(
            f"{path.name} does not begin like {names}",
            allowed=names,
            way_out=f"convert it: ffmpeg -i FILE clip.{names.split()[0].rstrip(',')}",
        )
    return kind


def _open_options(limits: Limits) -> dict[str, str]:
    return {"protocol_whitelist": "file", "max_pixels": str(limits.frame_pixels)}


def _short(error: BaseException) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__


def _read_streams(container: Any, clip: Clip, limits: Limits) -> None:
    """Demux once; every packet is decoded by itself, so that one bad packet costs one frame."""
    known = [stream for stream in container.streams if stream.codec_context is not None]
    clip.errors += [f"{s.type}: no decoder" for s in container.streams if s not in known and s.type in JUDGED]
    videos = [s for s in known if s.type == "video" and not s.disposition & av.stream.Disposition.attached_pic]
    video, audio = next(iter(videos), None), next((s for s in known if s.type == "audio"), None)
    gather = _Gather(limits.samples)
    if video is not None:
        clip.video = _video_header(video)
        video.thread_count = 1
    if audio is not None:
        clip.audio = _audio_header(audio)
    chosen = [stream for stream in (video, audio) if stream is not None]
    if not chosen or (video is not None and not _is_sane(video, clip, limits)):
        return
    _decode_all(container, chosen, clip, limits, gather)
    clip.sound = gather.sound()
    clip.samples_left_out = gather.is_full


def _is_sane(video: Any, clip: Clip, limits: Limits) -> bool:
    pixels = (video.width or 0) * (video.height or 0)
    if pixels > limits.frame_pixels:
        clip.errors.append(f"{video.width}x{video.height} is over the limit of {limits.frame_pixels} pixels a frame")
    elif min(video.width or 0, video.height or 0) < LEAST_SIDE:
        clip.errors.append(f"{video.width}x{video.height} is under {LEAST_SIDE} pixels a side")
    else:
        return True
    return False


def _decode_all(container: Any, streams: list[Any], clip: Clip, limits: Limits, gather: _Gather) -> None:
    packets = container.demux(streams)
    while len(clip.errors) < MOST_ERRORS and clip.decoded_frames < limits.frames:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except (av.error.FFmpegError, ValueError) as error:
            clip.errors.append(f"demux: {_short(error)}")
            return
        if packet.stream.type == "video" and (size := clip.video["unit_length_bytes"]):
            clip.illegal_packets += not is_legal(bytes(packet), size)
        try:
            for frame in packet.decode():
                if packet.stream.type == "audio":
                    gather.add(frame)
                else:
                    _keep(frame, clip, limits)
        except (av.error.FFmpegError, ValueError, OverflowError) as error:
            clip.errors.append(f"{packet.stream.type}: {_short(error)}")


def _keep(frame: Any, clip: Clip, limits: Limits) -> None:
    """Count a frame; keep its pixels while the limit allows, in the size of the first one."""
    clip.decoded_frames += 1
    clip.corrupt_frames += bool(frame.is_corrupt)
    if frame.pts is not None and frame.time_base is not None:
        clip.times_s.append(float(frame.pts * frame.time_base))
    if (len(clip.frames) + 1) * frame.width * frame.height > limits.kept_pixels:
        return
    if clip.frames and clip.frames[0].shape[:2] != (frame.height, frame.width):
        clip.size_changes += 1
        return
    clip.frames.append(frame.to_ndarray(format="rgb24"))


class _Gather:
    """Collects audio frames of one stream as planar float32, up to a number of samples."""

    def __init__(self, most_samples: int) -> None:
        self._left = most_samples
        self._parts: list[Float[np.ndarray, "c n"]] = []
        self._rate_hz = 0
        self._resampler: Any = None
        self.is_full = False

    def add(self, frame: Any) -> None:
        """Add one decoded frame; raises ``ValueError`` when channels or rate change inside the stream."""
        if self._resampler is None:
            self._rate_hz = frame.sample_rate
            self._resampler = av.AudioResampler(format="fltp", layout=frame.layout, rate=frame.sample_rate)
        for part in self._resampler.resample(frame):
            values = part.to_ndarray()
            self.is_full = self.is_full or values.size > self._left
            if not self.is_full:
                self._left -= values.size
                self._parts.append(values)

    def sound(self) -> Sound | None:
        """What was gathered; ``None`` when there was nothing."""
        if not self._parts:
            return None
        return Sound(waveform=np.concatenate(self._parts, axis=1), rate_hz=self._rate_hz)


def _video_header(stream: Any) -> dict[str, Any]:
    context = stream.codec_context
    return {
        "codec": context.name,
        "unit_length_bytes": length_size(context.name, context.extradata),
        "pix_fmt": context.pix_fmt,
        "width": stream.width,
        "height": stream.height,
        "fps": Fraction(stream.average_rate) if stream.average_rate else None,
        "header_frames": stream.frames or None,
        "matrix": int(context.colorspace),
        "range": int(context.color_range),
        "primaries": int(context.color_primaries),
        "transfer": int(context.color_trc),
        **_times(stream),
    }


def _audio_header(stream: Any) -> dict[str, Any]:
    context = stream.codec_context
    return {
        "codec": context.name,
        "rate_hz": int(context.sample_rate or 0),
        "channels": int(context.layout.nb_channels) if context.layout else 0,
        **_times(stream),
    }


def _times(stream: Any) -> dict[str, float | None]:
    """Duration and start in seconds as the header says, which leaves out AAC priming."""
    base = stream.time_base
    return {
        "duration_s": float(stream.duration * base) if stream.duration is not None and base else None,
        "start_s": float(stream.start_time * base) if stream.start_time is not None and base else None,
    }
