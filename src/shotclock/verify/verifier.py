"""Judges a clip: reads it, takes every arm's numbers, applies the rules. In this process, or safely in a child.

:func:`judge` trusts the clip not to break the decoder; :func:`verify_clip` does not, and bounds time and memory.
Imports neither torch nor anything of the render.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

import shotclock
from shotclock.errors import RequestError
from shotclock.verify.container import container_facts, container_numbers
from shotclock.verify.document import EXPECTATION, VerdictDocument
from shotclock.verify.expectation import Expectation
from shotclock.verify.pixels import pixel_numbers
from shotclock.verify.reader import Clip, Limits, Sound, read_clip, read_wav
from shotclock.verify.rules import Rule
from shotclock.verify.sound import sound_numbers
from shotclock.verify.thresholds import RULES
from shotclock.verify.verdict import Subject, Verdict, decide, subject_of

LAST_WORDS = 400  # characters of a dead child's stderr that are kept
MOST_DIGEST_BYTES = 1 << 32  # a larger clip that broke its child is named without a digest: nothing bounds the parent
CHILD = "import sys; sys.path.insert(0, {root!r}); from shotclock.verify.child import main; main()"

Frames = Sequence[UInt8[np.ndarray, "h w 3"]]
Numbers = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Numbers and facts that do not come from the clip, for the arm ``stages``."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


def verify_clip(
    clip: Path,
    *,
    wav: Path | None,
    expectation: Expectation,
    limits: Limits | None = None,
    rules: tuple[Rule, ...] = RULES,
    sheet: Path | None = None,
    known: Known | None = None,
) -> Verdict:
    """Judge a clip that may be hostile, in a child process with the time and memory of ``limits``.

    ``wav``: the float sound from before AAC, judged instead of the clip's own. ``sheet``: where to draw the contact
    sheet. A child that dies is a FAIL, not an error. Raises :class:`RequestError` when there is no clip to judge, or
    no folder for the sheet.
    """
    limits, known = limits or Limits(), known or Known()
    if sheet is not None and (sheet.is_dir() or not sheet.parent.is_dir()):
        raise RequestError(
            f"the sheet cannot be written to {sheet}",
            allowed="a file name in a folder that is there",
            way_out="make the folder, or name another file",
        )
    job = {
        "clip": str(clip),
        "wav": None if wav is None else str(wav),
        "sheet": None if sheet is None else str(sheet),
        "expectation": EXPECTATION.dump_json(expectation).decode(),
        "limits": asdict(limits),
    }
    answer = _ask_child(job, limits.wall_s)
    if "refused" in answer:
        found, allowed, way_out = answer["refused"]
        raise RequestError(found, allowed=allowed, way_out=way_out)
    if "verdict" in answer:
        document = VerdictDocument.from_json(answer["verdict"])
        numbers, facts = document.numbers, document.facts
        subject = subject_of(document)
    else:
        numbers = {"decoder_died": float("died" in answer), "over_time": float("late" in answer)}
        facts = {"error child": str(answer.get("died") or answer.get("late"))}
        subject = _subject(clip, wav, most_bytes=MOST_DIGEST_BYTES)
    return decide(
        {**numbers, **known.numbers}, expectation, subject=subject, facts={**facts, **known.facts}, rules=rules
    )


def _ask_child(job: Mapping[str, object], wall_s: float) -> dict[str, Any]:
    """Run one job in a child; its answer holds ``verdict``, ``refused``, ``died`` or ``late``.

    The child finds this very package, and imports nothing from the folder it is started in, where the clip may lie.
    """
    root = str(Path(shotclock.__file__).parents[1])
    command = [sys.executable, "-P", "-c", CHILD.format(root=root)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=wall_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"late": f"no verdict within {wall_s:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"died": f"exit {done.returncode}: {done.stderr.strip()[-LAST_WORDS:]}"}
    return answer


def judge(
    clip: Path,
    *,
    wav: Path | None = None,
    expectation: Expectation | None = None,
    limits: Limits | None = None,
    rules: tuple[Rule, ...] = RULES,
    sheet: Path | None = None,
) -> Verdict:
    """Judge a clip in this process, about a second per 25 frames of 768x448 on one core.

    Raises :class:`RequestError` when the clip or the wav is missing or of no kind that is read.
    """
    limits, expectation = limits or Limits(), expectation or Expectation()
    read = read_clip(clip, limits)
    sound = read.sound if wav is None else read_wav(wav, limits)
    numbers = container_numbers(read, expectation, has_wav=wav is not None)
    numbers |= {"decoder_died": 0.0, "over_time": 0.0}
    numbers |= raw_numbers(read.frames, sound, expectation)
    numbers |= _wav_numbers(read, sound) if wav is not None else {}
    facts = container_facts(read)
    verdict = decide(_finite(numbers), expectation, subject=_subject(clip, wav), facts=facts, rules=rules)
    if sheet is None:
        return verdict
    from shotclock.verify.sheet import draw_sheet  # Pillow is only needed here

    try:
        draw_sheet(read.frames, sound, verdict, sheet)
    except OSError as error:  # a full disk says nothing about the clip
        return replace(verdict, facts={**facts, "error sheet": f"not drawn: {error.strerror or error}"})
    return verdict


def judge_raw(frames: Frames, sound: Sound | None, *, expectation: Expectation, name: str) -> Verdict:
    """Judge frames and sound that were never encoded: the pixel and audio arms alone."""
    numbers = _finite(raw_numbers(frames, sound, expectation))
    return decide(numbers, expectation, subject=Subject(clip=name), facts={})


def raw_numbers(frames: Frames, sound: Sound | None, expectation: Expectation) -> Numbers:
    """Numbers of the pixel and audio arms; an arm without frames or samples has none."""
    asked = {"silence_asked": "silent", "shapes_asked": "shapes", "note_asked": "note"}
    numbers: Numbers = {name: float(word in expectation.expect) for name, word in asked.items()}
    if len(frames):
        numbers |= pixel_numbers(frames, expectation)
    if sound is not None:
        numbers |= sound_numbers(sound)
    return numbers


def _wav_numbers(read: Clip, sound: Sound | None) -> Numbers:
    """The wav's length against the picture's."""
    fps = read.video.get("fps")
    if sound is None or not fps or not read.decoded_frames:
        return {}
    gap_s = abs(sound.waveform.shape[1] / sound.rate_hz - read.decoded_frames / float(fps))
    return {"wav_gap_ms": gap_s * 1e3, "wav_gap_frames": gap_s * float(fps)}


def _finite(numbers: Numbers) -> Numbers:
    """A number that is not finite is not known."""
    return {name: value if value is not None and math.isfinite(value) else None for name, value in numbers.items()}


def _subject(clip: Path, wav: Path | None, *, most_bytes: int | None = None) -> Subject:
    """Names that any terminal and document can hold, and digests of files of up to ``most_bytes``."""
    return Subject(
        clip=_printable(clip.name),
        clip_sha256=_sha256(clip, most_bytes),
        wav=None if wav is None else _printable(wav.name),
        wav_sha256=None if wav is None else _sha256(wav, most_bytes),
    )


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")


def _sha256(path: Path, most_bytes: int | None) -> str | None:
    if not path.is_file() or (most_bytes is not None and path.stat().st_size > most_bytes):
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
