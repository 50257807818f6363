"""Clips are written, read back with PyAV, and compared with what went in."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.io import wavfile

from shotclock.errors import RenderFailed, RequestError
from shotclock.render.media import AAC_FRAME, write_clip, write_wav

RATE_HZ = 48_000
FILM = Fraction(24000, 1001)
SIDE = 64


def plain(count: int, colour: tuple[int, int, int] = (90, 120, 60)) -> Iterator[torch.Tensor]:
    """Pictures of one colour, one at a time."""
    for _ in range(count):
        yield torch.tensor(colour, dtype=torch.uint8).expand(1, SIDE, SIDE, 3)


def tone(samples: int, *, rate_hz: int = RATE_HZ, pitch_hz: float = 440.0) -> torch.Tensor:
    time_s = torch.arange(samples) / rate_hz
    return (0.3 * torch.sin(2 * torch.pi * pitch_hz * time_s)).expand(2, -1)


def sound_of(path: Path) -> tuple[np.ndarray, Fraction]:
    """All decoded samples and the time of the first."""
    with av.open(str(path)) as file:
        frames = list(file.decode(audio=0))
    assert frames[0].pts is not None
    start = frames[0].pts * frames[0].time_base
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1), start


def pictures_of(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as file:
        return list(file.decode(video=0))


def boxes(path: Path) -> list[tuple[str, int]]:
    """Top-level boxes and where each ends."""
    content, position, found = path.read_bytes(), 0, []
    while position < len(content):
        length, name = struct.unpack(">I4s", content[position : position + 8])
        position += length
        found.append((name.decode(), position))
    return found


@pytest.mark.parametrize("fps", [FILM, Fraction(24), Fraction(30000, 1001), Fraction(2997, 125), Fraction(1)])
@pytest.mark.parametrize("count", [9, 25])
def test_count_rate_and_every_pts_step_are_exact(tmp_path: Path, fps: Fraction, count: int) -> None:
    """The container says the exact rational rate, and frame k lies at k / fps."""
    path = tmp_path / "clip.mp4"
    assert write_clip(path, plain(count), fps=fps, wave=None, sample_rate=RATE_HZ, comment="") == count
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        assert (stream.average_rate, stream.frames) == (fps, count)
        assert stream.duration * stream.time_base == count / fps
        times = [frame.pts * frame.time_base for frame in file.decode(stream)]
    assert times == [index / fps for index in range(count)]


def test_one_frame_is_a_clip(tmp_path: Path) -> None:
    """The shortest legal clip has one frame and its sound."""
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(1), fps=Fraction(24), wave=tone(2000), sample_rate=RATE_HZ, comment="")
    assert len(pictures_of(path)) == 1
    assert sound_of(path)[0].shape[1] >= 2000


def test_streams_are_tagged_as_promised(tmp_path: Path) -> None:
    """H.264 yuv420p, BT.709 limited range, AAC 48 kHz stereo, and the comment."""
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(9), fps=FILM, wave=tone(18018), sample_rate=RATE_HZ, comment="seed 46, a fox")
    with av.open(str(path)) as file:
        picture, sound = file.streams.video[0].codec_context, file.streams.audio[0].codec_context
        assert (picture.name, picture.pix_fmt) == ("h264", "yuv420p")
        assert (picture.colorspace, picture.color_primaries, picture.color_trc, picture.color_range) == (1, 1, 1, 1)
        assert (sound.name, sound.sample_rate, sound.layout.name) == ("aac", RATE_HZ, "stereo")
        assert file.metadata["comment"] == "seed 46, a fox"


def test_the_index_comes_before_the_media_and_the_file_ends_with_a_box(tmp_path: Path) -> None:
    """moov before mdat (faststart), the last box ends where the file ends."""
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(9), fps=FILM, wave=tone(18018), sample_rate=RATE_HZ, comment="")
    names = [name for name, _ in boxes(path)]
    assert names.index("moov") < names.index("mdat")
    assert boxes(path)[-1][1] == path.stat().st_size


PATCHES = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (128, 128, 128), (200, 100, 50)]


@pytest.mark.parametrize("colour", PATCHES)
def test_colours_are_converted_with_the_matrix_they_are_tagged_with(
    tmp_path: Path, colour: tuple[int, int, int]
) -> None:
    """Decoded by the BT.709 equations written here, patches come back within 3 levels; BT.601 would miss by 20."""
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(9, colour), fps=FILM, wave=None, sample_rate=RATE_HZ, comment="")
    luma, blue, red = (plane.astype(float) for plane in planes(pictures_of(path)[4]))
    y, b, r = (luma.mean() - 16) / 219, (blue.mean() - 128) / 224, (red.mean() - 128) / 224
    rgb = (y + 1.5748 * r, y - 0.1873 * b - 0.4681 * r, y + 1.8556 * b)
    assert np.abs(np.array(rgb) * 255 - np.array(colour)).max() <= 3


def planes(frame: av.VideoFrame) -> list[np.ndarray]:
    stacked = frame.to_ndarray()
    height, width = frame.height, frame.width
    chroma = stacked[height:].reshape(2, height // 2, width // 2)
    return [stacked[:height], chroma[0], chroma[1]]


def test_channels_and_axes_are_not_swapped(tmp_path: Path) -> None:
    """A red left half and a blue lower right quarter stay where they were."""
    image = torch.zeros(1, SIDE, 2 * SIDE, 3, dtype=torch.uint8)
    image[:, :, :SIDE, 0] = 255
    image[:, SIDE // 2 :, SIDE:, 2] = 255
    path = tmp_path / "clip.mp4"
    write_clip(path, iter([image.expand(9, -1, -1, -1)]), fps=FILM, wave=None, sample_rate=RATE_HZ, comment="")
    seen = pictures_of(path)[4].to_ndarray(format="rgb24").astype(int)
    assert np.abs(seen[20:44, 10:50].mean((0, 1)) - [255, 0, 0]).max() < 8
    assert np.abs(seen[40:60, 80:120].mean((0, 1)) - [0, 0, 255]).max() < 8
    assert seen[4:26, 80:120].mean() < 4


def test_groups_of_any_length_give_the_same_bytes_every_time(tmp_path: Path) -> None:
    """Same frames, same bytes, however they are grouped."""
    noise = torch.randint(0, 256, (25, SIDE, SIDE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    contents = []
    for index, sizes in enumerate(([25], [25], [9, 8, 8], [1] * 25)):
        path = tmp_path / f"{index}.mp4"
        write_clip(path, noise.split(sizes), fps=FILM, wave=tone(50050), sample_rate=RATE_HZ, comment="x")
        contents.append(path.read_bytes())
    assert all(content == contents[0] for content in contents)


def test_samples_come_back_where_they_were_put(tmp_path: Path) -> None:
    """AAC priming is cut: pulses are found at their own samples, and the track is as long as the wave."""
    places = [0, 4_321, 30_000, 47_900]
    wave = torch.zeros(2, 50_050)
    wave[:, places] = 0.9
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(25), fps=FILM, wave=wave, sample_rate=RATE_HZ, comment="")
    heard, start = sound_of(path)
    assert start == 0
    for place in places:
        low = max(0, place - 300)
        assert low + int(np.abs(heard[0, low : place + 300]).argmax()) == place
    with av.open(str(path)) as file:
        sound, picture = file.streams.audio[0], file.streams.video[0]
        assert sound.duration * sound.time_base == Fraction(50_050, RATE_HZ)
        assert (sound.start_time, picture.start_time) == (0, 0)
        assert sound.duration * sound.time_base == picture.duration * picture.time_base


def test_a_flash_and_its_beep_stay_together(tmp_path: Path) -> None:
    """One white frame and 10 ms of tone at its time: less than a frame apart after the mux."""
    count, flash = 49, 24
    fps = Fraction(24000, 1001)

    def frames() -> Iterator[torch.Tensor]:
        for index in range(count):
            yield torch.full((1, SIDE, SIDE, 3), 255 if index == flash else 0, dtype=torch.uint8)

    at = round(flash / fps * RATE_HZ)
    wave = torch.zeros(2, round(count / fps * RATE_HZ))
    wave[:, at : at + 480] = tone(480, pitch_hz=1000.0)
    path = tmp_path / "clip.mp4"
    write_clip(path, frames(), fps=fps, wave=wave, sample_rate=RATE_HZ, comment="")
    shown = max(pictures_of(path), key=lambda frame: planes(frame)[0].mean())
    heard, start = sound_of(path)
    onset = int((np.abs(heard[0]) > 0.15).argmax())
    offset_s = float(start) + onset / RATE_HZ - float(shown.pts * shown.time_base)
    assert abs(offset_s) < 0.002  # a frame lasts 0.042 s


def test_without_sound_there_is_no_sound_track(tmp_path: Path) -> None:
    """A wave of None gives a picture only."""
    path = tmp_path / "clip.mp4"
    write_clip(path, plain(9), fps=FILM, wave=None, sample_rate=RATE_HZ, comment="")
    with av.open(str(path)) as file:
        assert [stream.type for stream in file.streams] == ["video"]


class Stop(Exception):
    """What goes wrong upstream."""


@pytest.mark.parametrize("after", [0, 1, 20])
def test_a_failure_upstream_leaves_no_file_and_passes_through(tmp_path: Path, after: int) -> None:
    """Nothing new in the folder; the older clip is untouched."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"older")

    def frames() -> Iterator[torch.Tensor]:
        yield from plain(after)
        raise Stop

    with pytest.raises(Stop):
        write_clip(path, frames(), fps=FILM, wave=tone(48_000), sample_rate=RATE_HZ, comment="")
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.mp4"]
    assert path.read_bytes() == b"older"


def test_no_frames_is_an_error_not_an_empty_file(tmp_path: Path) -> None:
    """An empty stream of pictures fails."""
    with pytest.raises(RenderFailed, match="no frames"):
        write_clip(tmp_path / "clip.mp4", iter(()), fps=FILM, wave=None, sample_rate=RATE_HZ, comment="")
    assert not list(tmp_path.iterdir())


def test_a_rate_aac_lacks_is_refused_before_any_frame_is_taken(tmp_path: Path) -> None:
    """The allowed rates are named; the frames are not touched."""

    def frames() -> Iterator[torch.Tensor]:
        raise Stop
        yield

    with pytest.raises(RequestError, match="44100"):
        write_clip(tmp_path / "clip.mp4", frames(), fps=FILM, wave=tone(100), sample_rate=47_000, comment="")


@given(samples=st.integers(1, 3 * AAC_FRAME), count=st.integers(1, 4))
@settings(max_examples=8, deadline=None)
def test_any_length_of_sound_is_kept_to_the_sample(
    tmp_path_factory: pytest.TempPathFactory, samples: int, count: int
) -> None:
    """Shorter or longer than the picture, the sound track lasts exactly its samples."""
    path = tmp_path_factory.mktemp("sound") / "clip.mp4"
    write_clip(path, plain(count), fps=Fraction(24), wave=tone(samples), sample_rate=RATE_HZ, comment="")
    with av.open(str(path)) as file:
        stream = file.streams.audio[0]
        assert stream.duration * stream.time_base == Fraction(samples, RATE_HZ)


def test_a_wav_holds_the_float_samples_bit_by_bit(tmp_path: Path) -> None:
    """32-bit float WAV, two channels, nothing rounded."""
    wave = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    write_wav(tmp_path / "clip.wav", wave, RATE_HZ)
    rate, samples = wavfile.read(tmp_path / "clip.wav")
    assert (rate, samples.dtype) == (RATE_HZ, np.float32)
    assert np.array_equal(samples.T, wave.numpy())
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.wav"]
