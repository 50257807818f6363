"""Images and sounds as users have them: turned, transparent, HDR, broken, too short; each is used right or refused."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import wavfile

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.render.conditioning import (
    ImageOption,
    cut,
    fill,
    for_clip,
    parse_image,
    read_image,
    read_sound,
    recompressed,
    require_frames,
    require_length,
    resampled,
)

CLIP = Geometry(width=64, height=64, frames=25, fps=Fraction(24))


def option(path: Path, frame: int = 0) -> ImageOption:
    return ImageOption(path=path, frame=frame, strength=1.0)


def save(path: Path, picture: Image.Image, **how: object) -> Path:
    picture.save(path, **how)
    return path


def half_red(width: int = 64, height: int = 48) -> Image.Image:
    """Left half red, right half blue."""
    picture = Image.new("RGB", (width, height), (0, 0, 255))
    picture.paste((255, 0, 0), (0, 0, width // 2, height))
    return picture


@pytest.mark.parametrize(
    ("text", "path", "frame", "strength"),
    [
        ("a.png", "a.png", 0, 1.0),
        ("a.png@16", "a.png", 16, 1.0),
        ("a.png@0:0.8", "a.png", 0, 0.8),
        ("dir@2/a.png", "dir@2/a.png", 0, 1.0),
        ("me@home.png@8:.5", "me@home.png", 8, 0.5),
    ],
)
def test_image_options_are_split_from_the_right(text: str, path: str, frame: int, strength: float) -> None:
    """FILE[@FRAME[:STRENGTH]]; an @ in a name stays."""
    assert parse_image(text) == ImageOption(path=Path(path), frame=frame, strength=strength)


def test_a_file_whose_name_looks_like_an_option_is_a_file(tmp_path: Path) -> None:
    """A name that is there as a whole wins."""
    path = save(tmp_path / "a.png@3", half_red(), format="PNG")
    assert parse_image(str(path)) == option(path)


@pytest.mark.parametrize("strength", ["0", "-1", "1.01", "nan", "inf", "", "much"])
def test_a_strength_out_of_range_is_refused(strength: str) -> None:
    """0 would be no image at all, more than 1 no meaning."""
    with pytest.raises(RequestError, match="strength"):
        parse_image(f"a.png@0:{strength}")


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    """A phone's picture lies on its side in the file: red was left, turned by 90 degrees it is on top."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    read = read_image(option(save(tmp_path / "phone.jpg", half_red(), exif=exif, quality=95)))
    assert tuple(read.pixels.shape) == (64, 48, 3)
    assert read.pixels[4, 24, 0] > 200 and read.pixels[-4, 24, 2] > 200
    assert "EXIF" in read.notices[0]
    upright = read_image(option(save(tmp_path / "plain.jpg", half_red(), quality=95)))
    assert tuple(upright.pixels.shape) == (48, 64, 3) and not upright.notices


def test_transparent_parts_are_white(tmp_path: Path) -> None:
    """What a transparent pixel hides is not shown; the user is told."""
    picture = half_red().convert("RGBA")
    picture.putalpha(Image.new("L", picture.size, 0))
    read = read_image(option(save(tmp_path / "logo.png", picture)))
    assert bool((read.pixels == 255).all()) and "white" in read.notices[0]
    opaque = read_image(option(save(tmp_path / "opaque.png", half_red().convert("RGBA"))))
    assert not opaque.notices and opaque.pixels[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "1"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    """Grey, palette and print pictures are 8-bit RGB afterwards."""
    suffix = "tif" if mode == "CMYK" else "png"
    read = read_image(option(save(tmp_path / f"a.{suffix}", half_red().convert(mode))))
    assert tuple(read.pixels.shape) == (48, 64, 3) and read.pixels.dtype == torch.uint8


def with_cicp(path: Path, transfer: int) -> Path:
    """A PNG whose cICP chunk names BT.2020 with ``transfer``."""
    content = save(path, half_red()).read_bytes()
    body = b"cICP" + bytes([9, transfer, 0, 1])
    chunk = struct.pack(">I", 4) + body + struct.pack(">I", zlib.crc32(body))
    path.write_bytes(content[:33] + chunk + content[33:])
    return path


def test_hdr_is_refused_by_name(tmp_path: Path) -> None:
    """PQ and HLG by their PNG chunk, EXR and Radiance by their first bytes, float pictures by their mode."""
    for transfer, name in ((16, "PQ"), (18, "HLG")):
        with pytest.raises(RequestError, match=name):
            read_image(option(with_cicp(tmp_path / f"{name}.png", transfer)))
    assert not read_image(option(with_cicp(tmp_path / "sdr.png", 1))).notices
    for magic, name in ((b"\x76\x2f\x31\x01", "OpenEXR"), (b"#?RADIANCE\n", "Radiance")):
        path = tmp_path / name
        path.write_bytes(magic + bytes(100))
        with pytest.raises(RequestError, match=name):
            read_image(option(path))
    deep = save(tmp_path / "deep.tif", Image.fromarray(np.ones((64, 64), np.float32)))
    with pytest.raises(RequestError, match="more than 8 bits"):
        read_image(option(deep))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    """A text file, an absent one, a folder, one pixel, a cut file."""
    text = tmp_path / "notes.png"
    text.write_text("a red circle")
    whole = save(tmp_path / "whole.png", Image.effect_noise((200, 200), 90)).read_bytes()
    short = tmp_path / "short.png"
    short.write_bytes(whole[: len(whole) // 2])
    dot = save(tmp_path / "dot.png", Image.new("RGB", (1, 1)))
    for path, found in (
        (text, "cannot be read as an image: begins with"),
        (tmp_path / "gone.png", "No such file"),
        (tmp_path, "directory"),
        (dot, "1x1 pixels"),
        (short, "cannot be read as an image"),
    ):
        with pytest.raises(RequestError, match=found):
            read_image(option(path))


def test_the_first_of_several_pictures_is_used(tmp_path: Path) -> None:
    """An animation is one image, and the user is told."""
    frames = [Image.new("RGB", (40, 40), color) for color in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(tmp_path / "a.png", save_all=True, append_images=frames[1:])
    read = read_image(option(tmp_path / "a.png"))
    assert read.pixels[0, 0].tolist() == [255, 0, 0] and "2 pictures" in read.notices[0]


def test_recompression_changes_little_and_repeats() -> None:
    """crf 18 is near the picture and not the picture, crf 0 is it, crf 40 is worse; odd sides lose a row."""
    pixels = torch.from_numpy(np.asarray(Image.effect_noise((65, 49), 40).convert("RGB")).copy())
    assert torch.equal(recompressed(pixels, 0), pixels)
    fine, coarse = (recompressed(pixels, crf) for crf in (18, 40))
    assert tuple(fine.shape) == (48, 64, 3) and torch.equal(fine, recompressed(pixels, 18))
    errors = [(one.float() - pixels[:48, :64].float()).abs().mean().item() for one in (fine, coarse)]
    assert 0 < errors[0] < errors[1] and errors[0] < 12


def test_a_picture_fills_the_frame() -> None:
    """A wide picture loses its sides evenly, values run from -1 to 1, the middle stays the middle."""
    pixels = torch.from_numpy(np.asarray(half_red(200, 60)).copy())
    filled = fill(pixels, height=64, width=64)
    assert tuple(filled.shape) == (1, 3, 1, 64, 64)
    assert filled[0, :, 0, 32, 2].tolist() == pytest.approx([1, -1, -1])
    assert filled[0, :, 0, 32, -2].tolist() == pytest.approx([-1, -1, 1])
    reds = (filled[0, 0, 0, 32] > 0).sum().item()
    assert reds == 32


def test_pictures_stand_inside_the_clip_and_apart(tmp_path: Path) -> None:
    """Frame 25 of 25 and two at one frame are refused."""
    path = save(tmp_path / "a.png", half_red())
    first, late = read_image(option(path)), read_image(option(path, 25))
    require_frames((first,), (24,), 25)
    with pytest.raises(RequestError, match="frames 0 to 24"):
        require_frames((late,), (), 25)
    with pytest.raises(RequestError, match="both to stand at frame 0"):
        require_frames((first,), (0,), 25)


def tone(seconds: float, rate: int, channels: int) -> np.ndarray:
    time = np.arange(round(seconds * rate)) / rate
    rows = [0.5 * np.sin(2 * np.pi * (220 + 110 * channel) * time) for channel in range(channels)]
    return np.stack(rows, axis=1).astype(np.float32)


def wav(path: Path, samples: np.ndarray, rate: int) -> Path:
    wavfile.write(path, rate, samples)
    return path


def test_stereo_samples_are_the_files(tmp_path: Path) -> None:
    """Float samples come through bit for bit, at the file's own rate; the sides keep their order."""
    samples = tone(1.1, 44_100, 2)
    sound = read_sound(wav(tmp_path / "a.wav", samples, 44_100))
    assert sound.rate_hz == 44_100 and np.array_equal(sound.wave.numpy(), samples.T)
    wave, rate = for_clip(cut(sound, CLIP), sound.rate_hz)
    assert rate == 44_100 and wave.shape[1] == round(25 / 24 * 44_100)
    assert np.array_equal(wave.numpy(), samples.T[:, : wave.shape[1]])


def test_mono_counts_for_both_sides(tmp_path: Path) -> None:
    """At full level on both."""
    samples = tone(0.2, 16_000, 1)
    sound = read_sound(wav(tmp_path / "a.wav", samples[:, 0], 16_000))
    assert np.array_equal(sound.wave.numpy(), np.repeat(samples.T, 2, axis=0))


def test_the_sound_of_a_video_is_taken(tmp_path: Path) -> None:
    """AAC in an mp4."""
    with av.open(str(tmp_path / "a.mp4"), "w") as file:
        stream = file.add_stream("aac", rate=48_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(tone(0.5, 48_000, 2).T), format="fltp", layout="stereo")
        frame.sample_rate = 48_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    sound = read_sound(tmp_path / "a.mp4")
    assert sound.rate_hz == 48_000 and abs(float(sound.duration_s) - 0.5) < 0.05
    assert sound.wave.abs().max() > 0.4


def test_what_is_no_sound_is_refused(tmp_path: Path) -> None:
    """A broken header, a text file, a picture, a file without samples, 5.1, an odd rate, NaN, a playlist."""
    good = wav(tmp_path / "good.wav", tone(0.1, 48_000, 2), 48_000).read_bytes()
    cases = {
        "broken.wav": b"RIFF\x00\x00" + good[20:],
        "text.wav": b"a low tone",
        "none.wav": good[:44],
        "list.m3u8": b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.wav\n",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RequestError, match="cannot be read as a sound"):
            read_sound(tmp_path / name)
    with pytest.raises(RequestError, match=r"no sound|cannot be read"):
        read_sound(save(tmp_path / "a.png", half_red()))
    with pytest.raises(RequestError, match=r"6 channels \(5.1\)"):
        read_sound(wav(tmp_path / "surround.wav", tone(0.1, 48_000, 6), 48_000))
    with pytest.raises(RequestError, match="4000 Hz"):
        read_sound(wav(tmp_path / "low.wav", tone(0.1, 4_000, 2), 4_000))
    with pytest.raises(RequestError, match="not finite"):
        read_sound(wav(tmp_path / "nan.wav", np.full((100, 2), np.nan, np.float32), 48_000))


def test_a_sound_shorter_than_the_clip_is_refused(tmp_path: Path) -> None:
    """The way out is the longest clip that it covers; one that lacks less than a mel frame is filled with silence."""
    short = read_sound(wav(tmp_path / "short.wav", tone(0.8, 48_000, 2), 48_000))
    with pytest.raises(RequestError) as refused:
        require_length(short, CLIP)
    assert "0.800 s" in refused.value.found and "--frames 17" in refused.value.way_out
    nearly = read_sound(wav(tmp_path / "nearly.wav", tone(25 / 24 - 0.005, 48_000, 2), 48_000))
    require_length(nearly, CLIP)
    assert cut(nearly, CLIP).shape[1] == round(25 / 24 * 48_000)


def test_rates_that_aac_does_not_know_are_resampled() -> None:
    """A tone stays that tone; nothing is resampled without need."""
    wave = torch.from_numpy(tone(0.5, 50_000, 2).T.copy())
    other, rate = for_clip(wave, 50_000)
    assert rate == 48_000 and other.shape[1] == 24_000
    expected = torch.from_numpy(tone(0.5, 48_000, 2).T.copy())
    assert (other - expected)[:, 500:-500].abs().max() < 2e-3
    assert resampled(wave, 50_000, 50_000) is wave
