"""What a report shows of a clip: a poster, frames spread over it, its wave form; decoded with PyAV.

Reads media files and judges nothing. Frames and samples are bounded; what cannot be decoded says why.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import av
import numpy as np
from jaxtyping import Float
from PIL import Image

from shotclock.record.seen import Missing

STRIP_FRAMES = 24  # of the contact sheet
STRIP_WIDTH, POSTER_WIDTH = 320, 960  # pixels at most
STRIP_QUALITY, POSTER_QUALITY = 78, 85  # JPEG
MOST_FRAMES = 100_000  # decoded of one clip
MOST_SAMPLES = 60_000_000  # a channel: stereo at 48 kHz for 20 min

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Still:
    """A frame as a JPEG data URI; ``index`` counts from 0, ``t_s`` is its time in the clip."""

    index: int
    t_s: float
    uri: str
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Film:
    """Frames of a clip, evenly spread, the poster among them, and how many there are."""

    stills: tuple[Still, ...]
    poster: Still
    frames: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """A waveform [channels, samples], float32, full scale 1; ``source`` names the file it was read from."""

    samples: Float[np.ndarray, "c n"]
    rate_hz: int
    source: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return float(self.samples.shape[1] / self.rate_hz)


def read_film(path: Path) -> Film | Missing:
    """Decode the clip twice: once to count its frames, once to keep those that are shown."""
    return _try(path, lambda: _film(path))


def read_wave(wav: Path, clip: Path) -> Wave | Missing:
    """The float wav where it is there, as it is before AAC; else the sound of the clip."""
    path = wav if wav.exists() else clip
    return _try(path, lambda: _wave(path))


def data_uri(content: bytes, kind: str) -> str:
    """The content as a URI that needs no file beside the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _try(path: Path, read: Callable[[], T | Missing]) -> T | Missing:
    if not path.exists():
        return Missing(reason=f"there is no {path.name}")
    try:
        return read()
    except (av.error.FFmpegError, OSError, ValueError, IndexError) as bad:
        return Missing(reason=f"{path.name} does not decode: {getattr(bad, 'strerror', None) or bad}")


def _film(path: Path) -> Film | Missing:
    count = sum(1 for _ in _frames(path))
    if not count:
        return Missing(reason=f"{path.name} holds no frame")
    shown = {round(place) for place in np.linspace(0, count - 1, min(count, STRIP_FRAMES))}
    middle = count // 2
    stills: list[Still] = []
    poster: Still | None = None
    for index, frame in enumerate(_frames(path)):
        if index == middle:
            poster = _still(frame, index, POSTER_WIDTH, POSTER_QUALITY)
        if index in shown:
            stills.append(_still(frame, index, STRIP_WIDTH, STRIP_QUALITY))
    if poster is None:
        return Missing(reason=f"{path.name} decodes differently each time")
    return Film(stills=tuple(stills), poster=poster, frames=count)


def _frames(path: Path) -> Iterator[av.VideoFrame]:
    with av.open(str(path)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number == MOST_FRAMES:
                return
            yield frame


def _still(frame: av.VideoFrame, index: int, width: int, quality: int) -> Still:
    picture = frame.to_image()
    if picture.width > width:
        size = (width, max(1, round(picture.height * width / picture.width)))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, format="JPEG", quality=quality, optimize=True)
    return Still(
        index=index,
        t_s=float(frame.time or 0.0),
        uri=data_uri(file.getvalue(), "image/jpeg"),
        width=picture.width,
        height=picture.height,
    )


def _wave(path: Path) -> Wave | Missing:
    parts: list[Float[np.ndarray, "c n"]] = []
    rate_hz, kept = 0, 0
    resampler = av.AudioResampler(format="fltp")
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return Missing(reason=f"{path.name} holds no sound")
        for frame in container.decode(audio=0):
            rate_hz = frame.sample_rate
            for plain in resampler.resample(frame):
                parts.append(plain.to_ndarray())
                kept += parts[-1].shape[1]
            if kept > MOST_SAMPLES:
                break
    if not kept:
        return Missing(reason=f"{path.name} holds no sound")
    return Wave(samples=np.concatenate(parts, axis=1), rate_hz=rate_hz, source=path.name)
