"""Pictures and sound to ``clip.mp4`` and ``clip.wav``: H.264 in BT.709, AAC, exact rates, whole files or none.

Must not know where pictures come from, nor requests, plans or devices. Reads nothing back: judging a clip is the
matter of ``verify``.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from jaxtyping import Float, UInt8
from scipy.io import wavfile
from torch import Tensor

from shotclock.errors import RenderFailed, RequestError
from shotclock.rundir import aside

CRF = 19  # of the official clips, ltx25.md section 6
PRESET = "veryfast"  # of the official clips, ltx25.md section 6
ENCODER_THREADS = 1  # with 4, one run in 3 to 200 of the same frames gave other bytes (libx264 165, 400 runs each)
BT709 = 1  # ITU-T H.273: primaries, transfer and matrix of BT.709 all have number 1
SCALING = 0x2 | 0x2000 | 0x4000 | 0x40000 | 0x80000  # libswscale: bilinear, full chroma, accurate rounding, bit-exact
AAC_RATES_HZ = frozenset({8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000})
AAC_BITS_HZ = 192_000  # bits a second
AAC_FRAME = 1024  # samples an AAC frame
STEREO = 2


def write_clip(
    path: Path,
    frames: Iterable[UInt8[Tensor, "t height width 3"]],
    *,
    fps: Fraction,
    wave: Float[Tensor, "2 n"] | None,
    sample_rate: int,
    comment: str,
) -> int:
    """Write an mp4 of RGB ``frames`` at exactly ``fps`` and the sound of ``wave``; returns the number of frames.

    Frames are taken as they come and never held. H.264 yuv420p, crf 19, converted to and tagged as BT.709 limited
    range; AAC stereo at ``sample_rate``, whose 1,024 samples of priming are cut by the file's edit list; the index
    before the media. The same frames give the same bytes. What ``frames`` raises passes through; then, as on
    :class:`RenderFailed`, no file is left and an older one stays.
    """
    if wave is not None:
        _require_wave(wave, sample_rate)
    try:
        with aside(path) as temporary, _Mp4(temporary, fps=fps, wave=wave, sample_rate=sample_rate) as clip:
            clip.tag(comment)
            count = sum(clip.add(image) for group in frames for image in group.numpy(force=True))
            if not count:
                raise _failure(path, "there are no frames to write")
    except av.FFmpegError as error:
        raise _failure(path, f"the encoder stopped: {error}") from error
    return count


def write_wav(path: Path, wave: Float[Tensor, "2 n"], sample_rate: int) -> None:
    """Write ``wave`` as it is, 32-bit float WAV, whole or not at all."""
    with aside(path) as temporary:
        wavfile.write(temporary, sample_rate, np.ascontiguousarray(wave.numpy(force=True).T.astype(np.float32)))


class _Mp4:
    """An mp4 being written; sound is encoded up to the picture's time, so that both lie close together in the file."""

    def __init__(self, path: Path, *, fps: Fraction, wave: Float[Tensor, "2 n"] | None, sample_rate: int) -> None:
        # A movie timescale finer than milliseconds keeps the durations in the edit lists exact to a sample.
        options = {"movflags": "+faststart", "movie_timescale": str(sample_rate)}
        self._file = av.open(str(path), "w", format="mp4", options=options)
        self._fps = fps
        self._rate = sample_rate
        self._picture: Any = None
        self._reformatter = VideoReformatter()
        self._count = 0
        self._wave = None if wave is None else wave.numpy(force=True).astype(np.float32)
        self._played = 0
        self._sound: Any = None

    def __enter__(self) -> _Mp4:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(av.FFmpegError):  # the reason why the block failed matters, not that its file is a stump
                self._file.close()
            return
        self._play_until(None)
        self._flush()
        self._file.close()

    def tag(self, comment: str) -> None:
        """Store ``comment`` in the file's metadata."""
        self._file.metadata["comment"] = comment

    def add(self, image: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
        """Encode one picture and the sound up to it; returns 1."""
        if self._picture is None:
            self._open_streams(height=image.shape[0], width=image.shape[1])
        frame = self._reformatter.reformat(
            av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24"),
            format="yuv420p",
            src_colorspace=Colorspace.ITU709,
            dst_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.JPEG,
            dst_color_range=ColorRange.MPEG,
            interpolation=SCALING,
        )
        frame.pts, frame.time_base = self._count, 1 / self._fps
        self._file.mux(self._picture.encode(frame))
        self._count += 1
        self._play_until(self._count / self._fps)
        return 1

    def _open_streams(self, *, height: int, width: int) -> None:
        assert height % 2 == width % 2 == 0, f"yuv420p needs even sides, not {width}x{height}"
        picture = self._file.add_stream("libx264", rate=self._fps)
        picture.width, picture.height, picture.pix_fmt = width, height, "yuv420p"
        context = picture.codec_context
        context.time_base = 1 / self._fps
        context.color_primaries = context.color_trc = context.colorspace = BT709
        context.color_range = int(ColorRange.MPEG)
        context.options = {"crf": str(CRF), "preset": PRESET, "threads": str(ENCODER_THREADS)}
        self._picture = picture
        if self._wave is not None:
            self._sound = self._file.add_stream("aac", rate=self._rate, layout="stereo")
            self._sound.bit_rate = AAC_BITS_HZ

    def _play_until(self, time_s: Fraction | None) -> None:
        """Encode whole AAC frames up to ``time_s``, or all that is left."""
        if self._wave is None:
            return
        total = self._wave.shape[1]
        last = total if time_s is None else min(total, int(time_s * self._rate) // AAC_FRAME * AAC_FRAME)
        while self._played < last:
            samples = np.ascontiguousarray(self._wave[:, self._played : min(last, self._played + AAC_FRAME)])
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="stereo")
            frame.sample_rate, frame.pts, frame.time_base = self._rate, self._played, Fraction(1, self._rate)
            self._file.mux(self._sound.encode(frame))
            self._played += samples.shape[1]

    def _flush(self) -> None:
        for stream in (self._picture, self._sound):
            if stream is not None:
                self._file.mux(stream.encode())


def _require_wave(wave: Float[Tensor, "2 n"], sample_rate: int) -> None:
    assert wave.shape[0] == STEREO, f"a stereo waveform, not {list(wave.shape)}"
    assert bool(wave.isfinite().all()), "the waveform is finite"
    if sample_rate not in AAC_RATES_HZ:
        raise RequestError(
            f"AAC has no sample rate of {sample_rate} Hz",
            allowed=", ".join(str(rate) for rate in sorted(AAC_RATES_HZ)),
            way_out="take the sound from clip.wav",
        )


def _failure(path: Path, found: str) -> RenderFailed:
    return RenderFailed(
        f"{path.name}: {found}",
        allowed="at least one frame, room on the disk and codecs libx264 and aac",
        way_out="run `shotclock doctor`; the latents are kept and can be decoded again",
    )
