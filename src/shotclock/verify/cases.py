"""The list of negative controls: which faults and which hard clips, in which arm, and how many must be caught.

Rates are verify.md's measured ones (1,408 video and 992 audio clips); the self-test asks for at most 5 points less.
Knows how a control is made, not how it is judged.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from shotclock.verify import faults, legit, tones
from shotclock.verify.bases import FPS, Frame
from shotclock.verify.expectation import POCKET_DRAWS, Expectation
from shotclock.verify.reader import Sound
from shotclock.verify.tape import Tape, write_clip

PLAIN_TAPE = Tape(fps=Fraction(FPS))
LATE_S = 0.2  # an offset anyone hears
WRONG_RATE_HZ = 16000
CUT_SHARES = (0.25, 0.5, 0.9)


class Kind(StrEnum):
    """Good and legitimate clips must not fail, faults must."""

    GOOD = "good"
    LEGIT = "legit"
    FAULT = "fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A good clip."""

    name: str
    frames: list[Frame]
    sound: Sound

    @property
    def expectation(self) -> Expectation:
        """What was asked for when it was made."""
        height, width = self.frames[0].shape[:2]
        return Expectation(frames=len(self.frames), fps=Fraction(FPS), width=width, height=height, has_audio=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One control. ``fail_share`` must be FAIL and ``flag_share`` FAIL or WARN, less 5 points; 0 asks for nothing.

    ``draws``: how many times it is planted in each base, where chance decides more than the base.
    """

    name: str
    arm: str
    kind: Kind
    fail_share: float = 0.0
    flag_share: float = 0.0
    may_fail: bool = False
    expect: frozenset[str] = frozenset()
    knows_tiles: bool = False
    draws: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureCase(Case):
    """Frames are damaged before they are encoded; ``fault`` is ``None`` for the good clip itself."""

    fault: faults.Fault | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundCase(Case):
    """The float waveform is damaged, or another one takes its place."""

    fault: Callable[[Sound, np.random.Generator], Sound]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCase(Case):
    """The file is written wrongly, or damaged after it was written; returns its path."""

    write: Callable[[Base, Path, np.random.Generator], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCase(Case):
    """Clips that were rendered beforehand, whole or by a broken run; judged as they are, all arms together."""

    clips: tuple[Path, ...]


CLEAN_FAULTS = frozenset({"pocket_block_4_zeroed"})  # wrong pictures that are clean: counted, not asked for


def clip_cases(folder: Path) -> list[ClipCase]:
    """Controls in a folder of clips named ``KIND-CONTROL-NAME.mp4``, such as ``fault-reversed_sigmas-3.mp4``.

    ``KIND`` is good, legit or fault; every fault must fail, but :data:`CLEAN_FAULTS`. Where ``CONTROL`` begins with
    pocket the pocket model made it, and it is judged as its runs are. A folder that is not there has none.
    """
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*-*-*.mp4")):
        kind, control, _ = path.stem.split("-", 2)
        found.setdefault((kind, control), []).append(path)
    return [
        ClipCase(
            name=control.replace("_", " "),
            arm="clip",
            kind=Kind(kind),
            fail_share=float(kind == Kind.FAULT and control not in CLEAN_FAULTS),
            flag_share=float(kind == Kind.FAULT and control not in CLEAN_FAULTS),
            expect=POCKET_DRAWS if control.startswith("pocket") else frozenset(),
            clips=tuple(paths),
        )
        for (kind, control), paths in found.items()
    ]


def _all_fail(name: str, fault: faults.Fault) -> PictureCase:
    return PictureCase(name=name, arm="pixels", kind=Kind.FAULT, fail_share=1.0, flag_share=1.0, fault=fault)


def _some_fail(name: str, fault: faults.Fault, fail_share: float, flag_share: float) -> PictureCase:
    return PictureCase(
        name=name, arm="pixels", kind=Kind.FAULT, fail_share=fail_share, flag_share=flag_share, fault=fault
    )


def _legit(name: str, fault: faults.Fault, *expect: str, may_fail: bool = False) -> PictureCase:
    return PictureCase(
        name=name, arm="pixels", kind=Kind.LEGIT, fault=fault, expect=frozenset(expect), may_fail=may_fail
    )


def _warns(name: str, fault: faults.Fault, flag_share: float, *, knows_tiles: bool = False) -> PictureCase:
    return PictureCase(
        name=name, arm="pixels", kind=Kind.FAULT, flag_share=flag_share, fault=fault, knows_tiles=knows_tiles
    )


def picture_cases() -> list[PictureCase]:
    """Controls of the pixel arm; FAIL and FAIL+WARN rates of verify.md's confusion paragraph."""
    good = PictureCase(name="good", arm="pixels", kind=Kind.GOOD, fault=None)
    return [good, *_legitimate_pictures(), *_certain_pictures(), *_frequent_pictures()]


def _legitimate_pictures() -> list[PictureCase]:
    return [
        _legit("fade", legit.fade),
        _legit("night", legit.night),
        _legit("fog", legit.fog),
        _legit("still with grain", legit.still_with_grain),
        _legit("film grain", legit.grain),
        _legit("title card", legit.title_card, may_fail=True),
        _legit("title card, as asked", legit.title_card, "title"),
        _legit("letterbox", legit.letterbox),
        _legit("hard cut", legit.hard_cut),
        _legit("soft focus", legit.soft_focus),
        _legit("on twos, as asked", legit.on_twos, "cartoon"),
        _legit("strobe, as asked", legit.strobe, "strobe"),
        _legit("still, as asked", legit.still, "static"),
        _legit("black, as asked", legit.black, "black", "static"),
    ]


def _certain_pictures() -> list[PictureCase]:
    """verify.md: "100 % FAIL"."""
    return [
        _all_fail("black", faults.plain(0, 0, 0)),
        _all_fail("green", faults.plain(0, 154, 0)),
        _all_fail("grey", faults.plain(128, 128, 128)),
        _all_fail("white noise", faults.white_noise),
        _all_fail("static noise", faults.static_noise),
        _all_fail("sparse noise", faults.sparse_noise),
        _all_fail("latent noise", faults.latent_noise),
        _all_fail("pink noise", faults.pink_noise),
        _all_fail("phase noise", faults.phase_noise),
        _all_fail("growing noise", faults.growing_noise),
        _all_fail("noisy start", faults.noisy_start),
        _all_fail("frozen", faults.frozen),
        _all_fail("checker 2", faults.checker(2, 4)),
        _all_fail("checker 4", faults.checker(4, 3)),
        _all_fail("grid 32, 4 levels", faults.token_ramp(4)),
        _all_fail("grid 32, 2 levels", faults.token_ramp(2)),
        _all_fail("NaN blocks", faults.nan_blocks),
        _all_fail("half black", faults.half_plain(0, 0, 0)),
        _all_fail("half green", faults.half_plain(0, 154, 0)),
        _all_fail("skewed rows", faults.skewed),
        _all_fail("flicker 10 %", faults.flicker(0.10)),
    ]


def _frequent_pictures() -> list[PictureCase]:
    """verify.md: "FAIL (FAIL+WARN)" and "WARN only"; the last two are ours."""
    return [
        _some_fail("burnt", faults.burnt, 0.86, 0.97),
        _some_fail("last frame black", faults.last_black, 0.90, 1.0),
        _some_fail("checker 4, 1.5 levels", faults.checker(4, 1.5), 0.90, 1.0),
        _some_fail("lines 8", faults.lines8, 0.90, 1.0),
        _some_fail("colour flicker", faults.colour_flicker, 0.90, 0.97),
        _some_fail("doubled frames", faults.doubled, 0.86, 0.93),
        _some_fail("half frozen", faults.half_frozen, 0.79, 0.93),
        _some_fail("flicker 3 %", faults.flicker(0.03), 0.79, 0.86),
        replace(_some_fail("shuffled", faults.shuffled, 0.34, 0.69), draws=5),
        _warns("tile seam, 6 levels", faults.tile_seam(6), 0.83, knows_tiles=True),
        _warns("tile seam, 2 levels", faults.tile_seam(2), 0.66, knows_tiles=True),
        _warns("chunk seam", faults.chunk_step, 0.50, knows_tiles=True),
        _warns("washed out", faults.washed_out, 1.0),
        _warns("blurred", faults.blurred, 1.0),
        _warns("token steps", faults.token_steps, 0.0),
        _warns("beat of 8", faults.beat, 0.0),
    ]


def sound_cases() -> list[SoundCase]:
    """Controls of the audio arm, on the float waveform; verify.md prints a rate for clipping only (94 %)."""
    faulty = Kind.FAULT
    return [
        SoundCase(name="good sound", arm="audio", kind=Kind.GOOD, fault=_unchanged),
        *(
            SoundCase(name=f"sound of {name}", arm="audio", kind=Kind.LEGIT, fault=_instead(maker))
            for name, maker in tones.HARD_SOUNDS.items()
        ),
        SoundCase(
            name="silence, as asked", arm="audio", kind=Kind.LEGIT, fault=tones.silent, expect=frozenset({"silent"})
        ),
        SoundCase(name="silent", arm="audio", kind=faulty, fail_share=1.0, flag_share=1.0, fault=tones.silent),
        SoundCase(name="dead channel", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.dead_channel),
        SoundCase(name="white noise sound", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.white),
        SoundCase(name="clipped", arm="audio", kind=faulty, fail_share=0.94, flag_share=0.94, fault=tones.clipped),
        SoundCase(name="offset (DC)", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.offset),
        SoundCase(name="zero tail", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.zero_tail),
        SoundCase(name="dropouts", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.dropouts),
        SoundCase(name="NaN sound", arm="audio", kind=faulty, fail_share=1, flag_share=1, fault=tones.not_a_number),
        SoundCase(name="inverted channel", arm="audio", kind=faulty, flag_share=1, fault=tones.inverted_channel),
        SoundCase(name="hum", arm="audio", kind=faulty, flag_share=1, fault=tones.hum),
    ]


def _unchanged(sound: Sound, _: np.random.Generator) -> Sound:
    return sound


def _instead(maker: tones.Maker) -> Callable[[Sound, np.random.Generator], Sound]:
    """Another sound of the same length."""

    def other(sound: Sound, rng: np.random.Generator) -> Sound:
        return tones.make(maker, rng, sound.waveform.shape[1] / sound.rate_hz)

    return other


def file_cases() -> list[FileCase]:
    """Controls of the container arm, all exact: every one must fail."""
    writers: dict[str, Callable[[Base, Path, np.random.Generator], Path]] = {
        **{f"cut at {share:.0%}": _cut(share) for share in CUT_SHARES},
        "last 50 bytes cut": _cut_last,
        "flipped bit": _flip_bit,
        "4 KiB zeroed": _zero_block,
        "wrong rate": _written(Tape(fps=Fraction(25))),
        "frame missing": _one_frame_short,
        "packet missing": _one_packet_short,
        "sound late": _written(Tape(fps=Fraction(FPS), audio_late_s=LATE_S)),
        "16 kHz label": _written(Tape(fps=Fraction(FPS), label_hz=WRONG_RATE_HZ)),
        "short sound": _short_sound,
        "no sound": _no_sound,
    }
    good = FileCase(name="good file", arm="container", kind=Kind.GOOD, write=_written(PLAIN_TAPE))
    bad = [
        FileCase(name=name, arm="container", kind=Kind.FAULT, fail_share=1.0, flag_share=1.0, write=write)
        for name, write in writers.items()
    ]
    return [good, *bad]


def _whole(base: Base, folder: Path) -> bytearray:
    """The good file, written once a base, to be damaged."""
    path = folder / f"whole {base.name}.mp4"
    if not path.is_file():
        write_clip(path, base.frames, base.sound, PLAIN_TAPE)
    return bytearray(path.read_bytes())


def _written(tape: Tape) -> Callable[[Base, Path, np.random.Generator], Path]:
    def write(base: Base, folder: Path, _: np.random.Generator) -> Path:
        return write_clip(folder / "file.mp4", base.frames, base.sound, tape)

    return write


def _cut(share: float) -> Callable[[Base, Path, np.random.Generator], Path]:
    """The file ends at a share of its length; its index lies in front."""

    def write(base: Base, folder: Path, _: np.random.Generator) -> Path:
        content = _whole(base, folder)
        return _stored(folder, content[: int(len(content) * share)])

    return write


def _cut_last(base: Base, folder: Path, _: np.random.Generator) -> Path:
    """The index lies at the end and lacks its last 50 bytes: ffmpeg and PyAV see nothing."""
    tape = Tape(fps=Fraction(FPS), fast_start=False)
    path = write_clip(folder / "file.mp4", base.frames, base.sound, tape)
    path.write_bytes(path.read_bytes()[:-50])
    return path


def _largest_packet(content: bytearray) -> tuple[int, int]:
    """(first byte, size) of the largest video packet."""
    with av.open(io.BytesIO(content)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.pos is not None and p.size > 0]
    return max(packets, key=lambda packet: packet[1])


def _stored(folder: Path, content: bytearray) -> Path:
    path = folder / "file.mp4"
    path.write_bytes(content)
    return path


def _flip_bit(base: Base, folder: Path, rng: np.random.Generator) -> Path:
    """One bit in the middle half of the largest video packet."""
    content = _whole(base, folder)
    first, size = _largest_packet(content)
    content[first + int(size * rng.uniform(0.25, 0.75))] ^= 1 << int(rng.integers(8))
    return _stored(folder, content)


def _zero_block(base: Base, folder: Path, _: np.random.Generator) -> Path:
    """Up to 4 KiB in the middle of the largest video packet are zero: a hole on a disk."""
    content = _whole(base, folder)
    first, size = _largest_packet(content)
    hole = min(4096, size // 2)
    content[first + size // 4 : first + size // 4 + hole] = bytes(hole)
    return _stored(folder, content)


def _one_frame_short(base: Base, folder: Path, _: np.random.Generator) -> Path:
    return write_clip(folder / "file.mp4", base.frames[:-1], base.sound, PLAIN_TAPE)


def _one_packet_short(base: Base, folder: Path, _: np.random.Generator) -> Path:
    """The stream is copied without one of its video packets."""
    path = folder / "file.mp4"
    with av.open(io.BytesIO(_whole(base, folder))) as whole, av.open(str(path), "w") as copy:
        streams = {stream.index: copy.add_stream_from_template(stream) for stream in whole.streams}
        dropped = len(base.frames) // 2
        seen = 0
        for packet in whole.demux():
            if packet.dts is None:
                continue
            is_video = packet.stream.type == "video"
            seen += is_video
            if not (is_video and seen == dropped):
                packet.stream = streams[packet.stream.index]
                copy.mux(packet)
    return path


def _short_sound(base: Base, folder: Path, _: np.random.Generator) -> Path:
    samples = base.sound.waveform.shape[1] * 2 // 3
    short = Sound(waveform=base.sound.waveform[:, :samples], rate_hz=base.sound.rate_hz)
    return write_clip(folder / "file.mp4", base.frames, short, PLAIN_TAPE)


def _no_sound(base: Base, folder: Path, _: np.random.Generator) -> Path:
    return write_clip(folder / "file.mp4", base.frames, None, PLAIN_TAPE)
