"""Writes clips for the self-test: H.264 and AAC as a render would, or with the mistakes a broken writer makes.

The verifier's own writer, so that a mistake of the render's writer cannot hide in both. Knows no metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Float, UInt8

from shotclock.verify.reader import Sound

CRF, PRESET = "19", "veryfast"  # verify.md section 1: what the thresholds were measured with
REPEATABLE = "asm=sse2"  # with its widest code, x264 165 wrote 6 different files of the same frames in 6 runs
AUDIO_BITS_HZ = 192_000
BT709, TV_RANGE = 1, 1  # H.273 codes and libavutil's AVColorRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """How to write: exact rate, index first or last, seconds by which sound starts late, rate written on the sound."""

    fps: Fraction
    fast_start: bool = True
    audio_late_s: float = 0.0
    label_hz: int | None = None
    tagged: bool = True


def write_clip(path: Path, frames: Sequence[UInt8[np.ndarray, "h w 3"]], sound: Sound | None, tape: Tape) -> Path:
    """Encode frames of even sides and a stereo sound into an mp4."""
    options = {"movflags": "+faststart"} if tape.fast_start else {}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        video = _add_video(container, frames[0].shape, tape)
        audio = None if sound is None else _add_audio(container, tape.label_hz or sound.rate_hz)
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            converted = picture.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            container.mux(video.encode(converted))
        container.mux(video.encode())
        if sound is not None and audio is not None:
            _write_sound(container, audio, sound, late_s=tape.audio_late_s)
    return path


def _add_video(container: Any, shape: tuple[int, ...], tape: Tape) -> Any:
    stream = container.add_stream("libx264", rate=tape.fps)
    stream.height, stream.width, stream.pix_fmt = shape[0], shape[1], "yuv420p"
    stream.options = {"crf": CRF, "preset": PRESET, "x264-params": REPEATABLE}
    stream.codec_context.thread_count = 1
    if tape.tagged:
        context = stream.codec_context
        context.colorspace = context.color_primaries = context.color_trc = BT709
        context.color_range = TV_RANGE
    return stream


def _add_audio(container: Any, rate_hz: int) -> Any:
    stream = container.add_stream("aac", rate=rate_hz)
    stream.layout, stream.bit_rate = "stereo", AUDIO_BITS_HZ
    return stream


def _write_sound(container: Any, stream: Any, sound: Sound, *, late_s: float) -> None:
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(sound.waveform, dtype=np.float32), format="fltp", layout="stereo"
    )
    frame.sample_rate = stream.rate
    frame.pts = round(late_s * stream.rate)
    container.mux(stream.encode(frame))
    container.mux(stream.encode())


def write_wav(path: Path, sound: Sound) -> Path:
    """Float32 wav, written as is: NaN and values over full scale survive."""
    with av.open(str(path), "w", format="wav") as container:
        stream = container.add_stream("pcm_f32le", rate=sound.rate_hz)
        layout = "mono" if len(sound.waveform) == 1 else "stereo"
        stream.layout = layout
        interleaved: Float[np.ndarray, "1 n"] = np.ascontiguousarray(sound.waveform.T, dtype=np.float32).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=layout)
        frame.sample_rate = sound.rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
