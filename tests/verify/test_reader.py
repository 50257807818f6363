"""The reader gives back what was written and counts what is broken."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shotclock.errors import RequestError
from shotclock.verify.cases import Base
from shotclock.verify.reader import Limits, Sound, read_clip, read_wav
from shotclock.verify.tape import Tape, write_clip, write_wav


def test_frames_and_sound_come_back(base: Base, clip: Path) -> None:
    """Count, size, rate and near enough the same pixels."""
    read = read_clip(clip, Limits())
    assert (read.decoded_frames, len(read.frames), read.errors, read.corrupt_frames) == (25, 25, [], 0)
    assert read.video["fps"] == Fraction(24)
    gap = np.mean([abs(a.astype(float) - b).mean() for a, b in zip(read.frames, base.frames, strict=True)])
    assert gap < 4
    assert read.sound is not None
    assert read.sound.waveform.shape[0] == 2
    assert read.audio["rate_hz"] == 48000


def test_a_float_wav_comes_back_bit_for_bit_with_nan_and_overs(tmp_path: Path) -> None:
    """Nothing is clipped or made finite on the way."""
    wave = np.array([[0.5, -1.75, np.nan, 0.25], [3.0, 0.0, -0.125, np.inf]], np.float32)
    path = write_wav(tmp_path / "a.wav", Sound(waveform=wave, rate_hz=44100))
    read = read_wav(path, Limits())
    assert read.rate_hz == 44100
    np.testing.assert_array_equal(read.waveform, wave)


def test_limits_bound_what_is_kept_but_not_what_is_counted(clip: Path) -> None:
    """Five frames' worth of pixels: five kept, all counted, and no sound over the limit."""
    read = read_clip(clip, Limits(kept_pixels=5 * 192 * 128 + 1, samples=2000))
    assert (len(read.frames), read.decoded_frames, read.samples_left_out) == (5, 25, True)


def test_a_frame_over_the_limit_is_refused_before_it_is_decoded(clip: Path) -> None:
    """A header may claim any size."""
    read = read_clip(clip, Limits(frame_pixels=192 * 128 - 1))
    assert read.frames == []
    assert read.errors


@pytest.mark.parametrize("content", [b"", b"not a clip at all", b"#EXTM3U\n/etc/passwd\n"])
def test_what_is_no_clip_is_refused(tmp_path: Path, content: bytes) -> None:
    """Text, playlists and empty files are not handed to a decoder."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="does not begin like"):
        read_clip(path, Limits())


def test_a_missing_file_and_a_broken_wav_are_refused(tmp_path: Path) -> None:
    """Our error, not the library's."""
    with pytest.raises(RequestError, match="is not a file"):
        read_clip(tmp_path / "none.mp4", Limits())
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF\x00\x00\x00\x00WAVEfmt ")
    with pytest.raises(RequestError, match="cannot be read"):
        read_wav(path, Limits())


def test_a_clip_without_sound_has_none(base: Base, tmp_path: Path) -> None:
    """Absent, not empty."""
    path = write_clip(tmp_path / "mute.mp4", base.frames[:9], None, Tape(fps=Fraction(24)))
    read = read_clip(path, Limits())
    assert (read.audio, read.sound) == ({}, None)
