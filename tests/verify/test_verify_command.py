"""The whole command: exit codes, what it prints, and a corpus of damaged files that must all end in a verdict."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from shotclock import cli
from shotclock.verify import command, faults
from shotclock.verify.bases import Screen
from shotclock.verify.cases import PLAIN_TAPE, Base
from shotclock.verify.document import VerdictDocument
from shotclock.verify.rules import Outcome
from shotclock.verify.selftest import SelfTestResult, self_test, synthetic_base
from shotclock.verify.tape import write_clip, write_wav

Told = tuple[int, str, str]  # exit code, stdout, stderr
Command = Callable[..., Told]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``shotclock verify ...`` in this process, from its arguments to its exit code; the child is a real one."""

    def call(*arguments: object) -> Told:
        monkeypatch.setattr(sys, "argv", ["shotclock", "verify", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, error = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, error

    return call


def test_a_good_clip_is_0_and_people_read_stderr_programs_stdout(verify: Command, clip: Path) -> None:
    """With ``--json`` stdout is one document that reads back; without, it is empty."""
    code, out, told = verify(clip, "--json")
    document = VerdictDocument.from_json(out.splitlines()[-1])
    assert (code, len(out.splitlines()), document.clip) == (0, 1, "good.mp4")
    assert told.splitlines()[0].startswith(f"{document.outcome}  good.mp4: container PASS, pixels ")
    assert "not judged without a reference: " in told
    assert verify(clip)[1] == ""


@pytest.mark.usefixtures("no_child")
def test_a_broken_clip_is_4_and_strict_makes_a_warning_4(verify: Command, base: Base, tmp_path: Path) -> None:
    """Black fails; a hard cut only warns."""
    rng = np.random.default_rng(0)
    black = write_clip(tmp_path / "black.mp4", faults.plain(0, 0, 0)(base.frames, rng), base.sound, PLAIN_TAPE)
    assert verify(black)[0] == 4
    dim = [(frame // 6 + 90).astype(np.uint8) for frame in base.frames]
    washed = write_clip(tmp_path / "washed.mp4", dim, base.sound, PLAIN_TAPE)
    assert [verify(washed)[0], verify(washed, "--strict")[0]] == [0, 4]


def test_the_options_reach_the_verdict(verify: Command, base: Base, clip: Path, tmp_path: Path) -> None:
    """A wav, words of the request, a sheet; a clip that takes too long is a FAIL."""
    rng = np.random.default_rng(0)
    black = write_clip(tmp_path / "black.mp4", faults.plain(0, 0, 0)(base.frames, rng), None, PLAIN_TAPE)
    assert verify(black, "--expect", "black,static")[0] == 0
    short = write_wav(tmp_path / "a.wav", base.sound).rename(tmp_path / "b.wav")
    _, out, _ = verify(clip, "--wav", short, "--sheet", tmp_path / "sheet.png", "--json")
    assert json.loads(out)["wav"] == "b.wav"
    assert (tmp_path / "sheet.png").read_bytes()[:4] == b"\x89PNG"
    code, _, told = verify(clip, "--max-seconds", 0.01)
    assert (code, "no verdict within 0.01 s" in told) == (4, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "there is nothing to judge"),
        (("gone.mp4",), "gone.mp4 is not a file"),
        (("CLIP", "--wav", "gone.wav"), "gone.wav is not a file"),
        (("CLIP", "--wav", "CLIP"), "does not begin like wav or flac"),
        (("CLIP", "--expect", "slient"), "does not know slient"),
        (("CLIP", "--sheet", "gone/sheet.png"), "the sheet cannot be written"),
        (("CLIP", "--sheet", "sheet.mp4"), "--sheet sheet.mp4"),
        (("CLIP", "--max-seconds", "nan"), "--max-seconds nan"),
        (("CLIP", "--max-seconds", "-1"), "--max-seconds -1"),
        (("CLIP", "--self-test"), "makes its own clips"),
        (("--self-test", "--expect", "static"), "makes its own clips"),
        (("FOLDER",), "request.json is not there"),
        (("a" * 5000,), "File name too long"),
        (("CLIP", "--wav", "a" * 5000), "File name too long"),
        (("CLIP", "--sheet", "a" * 5000 + ".png"), "File name too long"),
    ],
)
@pytest.mark.usefixtures("no_child")
def test_what_cannot_be_judged_is_2_with_a_way_out(
    verify: Command, clip: Path, arguments: Sequence[str], words: str
) -> None:
    """Found, allowed and way out; no traceback."""
    places = {"CLIP": clip, "FOLDER": clip.parent}
    code, out, told = verify(*(places.get(argument, argument) for argument in arguments))
    assert (code, out) == (2, "")
    assert words in told.replace("\n", " ")
    assert "  allowed: " in told and "  way out: " in told


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root and Windows may read everything")
def test_a_clip_that_may_not_be_read_is_2(verify: Command, clip: Path, tmp_path: Path) -> None:
    """Permission denied is a refusal, not a crash of the decoder."""
    locked = tmp_path / "locked.mp4"
    locked.write_bytes(clip.read_bytes())
    locked.chmod(0)
    code, _, told = verify(locked)
    assert (code, "cannot be read" in told) == (2, True)


def test_a_name_that_is_no_text_is_judged_all_the_same(verify: Command, clip: Path, tmp_path: Path) -> None:
    """A byte that is not UTF-8 in the file's name."""
    odd = tmp_path / "odd-\udcff.mp4"
    odd.write_bytes(clip.read_bytes())
    code, out, told = verify(odd, "--json")
    assert (code, json.loads(out)["clip"], "Traceback" in told) == (0, "odd-?.mp4", False)


def test_nothing_is_imported_from_where_the_clip_lies(clip: Path, tmp_path: Path) -> None:
    """A download folder with a numpy.py of its own; the real command, started there."""
    (tmp_path / "clip.mp4").write_bytes(clip.read_bytes())
    for name in ("numpy", "av", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the clip\\'s folder')")
    program = [sys.executable, "-P", "-m", "shotclock", "verify", "clip.mp4"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_works_where_torch_is_not_installed(clip: Path) -> None:
    """A fresh interpreter that refuses torch and everything that needs it: from the command line to the verdict."""
    program = """
import sys
for name in ("torch", "diffusers", "transformers", "safetensors.torch"):
    sys.modules[name] = None
from shotclock.cli import main
main()
"""
    arguments = [sys.executable, "-c", program, "verify", str(clip)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "container PASS" in done.stderr


def test_the_self_test_reports_through_the_command(verify: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress and table on stderr, a document on stdout, 4 as soon as one control is missed; on a small table."""
    chosen = ["good sound", "silent", "hum"]

    def small(folder: Path, **arguments: object) -> SelfTestResult:
        told = {name: arguments[name] for name in ("say", "media")} | {"media": ()}
        screen = Screen(width=64, height=64, frames=25)
        return self_test(folder, screen=screen, bases=["pan"], controls=chosen, **told)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "self_test", small)
    code, out, told = verify("--self-test", "--json")
    document = json.loads(out)
    assert (code, document["right"], [row["control"] for row in document["rows"]]) == (0, True, chosen)
    assert document["rows"][1] | {"n": 1, "FAIL": 1, "WARN": 0, "PASS": 0, "right": True} == document["rows"][1]
    assert "self-test: base 1 of 1, pan: 3 controls" in told
    chosen.append("NaN sound")
    monkeypatch.setattr("shotclock.verify.selftest.judge_raw", _passes_everything)
    code, out, told = verify("--self-test", "--json")
    assert (code, json.loads(out)["right"]) == (4, False)
    assert "self-test: WRONG: silent, NaN sound, hum" in told


def _passes_everything(*_: object, **arguments: object) -> object:
    """A verifier that never finds anything."""
    from shotclock.verify.verdict import Subject, decide

    return decide({"rms_db": -20.0}, arguments["expectation"], subject=Subject(clip="a"), facts={})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tiny() -> Callable[[Path], bytes]:
    """Writes a clip of a few kilobytes and returns its bytes."""
    base = synthetic_base("mosaic", Screen(width=64, height=64, frames=9))
    return lambda path: write_clip(path, base.frames, base.sound, PLAIN_TAPE).read_bytes()


def _flip(place: float) -> Callable[[bytearray], None]:
    def damage(content: bytearray) -> None:
        content[int(place * len(content))] ^= 0x10

    return damage


def _cut(share: float) -> Callable[[bytearray], None]:
    def damage(content: bytearray) -> None:
        del content[int(share * len(content)) :]

    return damage


def _patch(box: bytes, offset: int, value: bytes) -> Callable[[bytearray], None]:
    """Write over the content of the first box of a name; ``offset`` counts from its first content byte."""

    def damage(content: bytearray) -> None:
        place = content.index(box) + 4 + offset
        content[place : place + len(value)] = value

    return damage


def _size(box: bytes, size: int) -> Callable[[bytearray], None]:
    return _patch(box, -8, struct.pack(">I", size))


STRUCTURAL: dict[str, Callable[[bytearray], None]] = {
    "cut at 1 %": _cut(0.01),
    "cut at 50 %": _cut(0.5),
    "cut at 99 %": _cut(0.99),
    "trak of 4 GiB": _size(b"trak", 0xFFFFFFFF),
    "mdat of 16 bytes": _size(b"mdat", 16),
    "stsz of a billion samples": _patch(b"stsz", 8, struct.pack(">I", 10**9)),
    "a time base of 0": _patch(b"mdhd", 12, bytes(4)),
    "mdat named moov": _patch(b"mdat", -4, b"moov"),
}
ANYTHING: dict[str, Callable[[bytearray], None]] = {
    "a bit of the index": _flip(0.03),
    "a bit of a packet": _flip(0.7),
    "moov of 0 bytes": _size(b"moov", 0),
    "stts that counts backwards": _patch(b"stts", 12, struct.pack(">I", 0xFFFFFFFF)),
    "65,535 pixels wide": _patch(b"avc1", 24, struct.pack(">HH", 65535, 65535)),
    "tkhd of nonsense": _patch(b"tkhd", 0, b"\xff" * 64),
}


@pytest.mark.parametrize("name", [*STRUCTURAL, *ANYTHING])
def test_a_damaged_clip_ends_in_a_verdict(
    verify: Command, tiny: Callable[[Path], bytes], tmp_path: Path, name: str
) -> None:
    """Never a traceback, nor a child that died or had to be ended; structural damage is a FAIL."""
    path = tmp_path / "clip.mp4"
    content = bytearray(tiny(path))
    (STRUCTURAL | ANYTHING)[name](content)
    path.write_bytes(content)
    code, out, told = verify(path, "--json")
    assert code == 4 or (code == 0 and name in ANYTHING), told
    verdict = VerdictDocument.from_json(out)
    assert (verdict.outcome is Outcome.FAIL) == (code == 4)
    assert verdict.numbers["decoder_died"] == verdict.numbers["over_time"] == 0.0
    assert "Traceback" not in told
