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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from shotclock.errors import RequestError
from shotclock.verify.container import container_facts, container_numbers
from shotclock.verify.document import VerdictDocument, expectation_entry
from shotclock.verify.expectation import Expectation
from shotclock.verify.pixels import pixel_numbers
from shotclock.verify.reader import Clip, Limits, Sound, read_clip, read_wav
from shotclock.verify.rules import Rule
from shotclock.verify.sound import sound_numbers
from shotclock.verify.thresholds import RULES
from shotclock.verify.verdict import Subject, Verdict, decide, rejudge

LAST_WORDS = 400  # characters of a dead child's stderr that are kept
CHILD_MODULE = "shotclock.verify.child"

Frames = Sequence[UInt8[np.ndarray, "h w 3"]]
Numbers = dict[str, float | None]


def verify_clip(
    clip: Path,
    *,
    wav: Path | None,
    expectation: Expectation,
    limits: Limits | None = None,
    rules: tuple[Rule, ...] = RULES,
    sheet: Path | None = None,
) -> Verdict:
    """Judge a clip that may be hostile, in a child process with the time and memory of ``limits``.

    ``wav``: the float sound from before AAC, judged instead of the clip's own. ``sheet``: where to draw the contact
    sheet. A child that dies is a FAIL, not an error. Raises :class:`RequestError` when there is no clip to judge.
    """
    limits = limits or Limits()
    job = {
        "clip": str(clip),
        "wav": None if wav is None else str(wav),
        "sheet": None if sheet is None else str(sheet),
        "expectation": expectation_entry(expectation).model_dump(),
        "limits": asdict(limits),
    }
    answer = _ask_child(job, limits.wall_s)
    if "refused" in answer:
        found, allowed, way_out = answer["refused"]
        raise RequestError(found, allowed=allowed, way_out=way_out)
    if "verdict" in answer:
        return rejudge(VerdictDocument.from_json(answer["verdict"]), rules)
    died = {"decoder_died": float("died" in answer), "over_time": float("late" in answer)}
    facts = {"error child": str(answer.get("died") or answer.get("late"))}
    return decide(died, expectation, subject=_subject(clip, wav), facts=facts, rules=rules)


def _ask_child(job: Mapping[str, object], wall_s: float) -> dict[str, Any]:
    """Run one job in a child; its answer holds ``verdict``, ``refused``, ``died`` or ``late``."""
    command = [sys.executable, "-m", CHILD_MODULE]
    try:
        done = subprocess.run(
            command, input=json.dumps(job), capture_output=True, text=True, timeout=wall_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"late": f"no verdict within {wall_s:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
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
    verdict = decide(
        _finite(numbers), expectation, subject=_subject(clip, wav), facts=container_facts(read), rules=rules
    )
    if sheet is not None and read.frames:
        from shotclock.verify.sheet import draw_sheet  # Pillow is only needed here

        draw_sheet(read.frames, sound, verdict, sheet)
    return verdict


def judge_raw(frames: Frames, sound: Sound | None, *, expectation: Expectation, name: str) -> Verdict:
    """Judge frames and sound that were never encoded: the pixel and audio arms alone."""
    numbers = _finite(raw_numbers(frames, sound, expectation))
    return decide(numbers, expectation, subject=Subject(clip=name), facts={})


def raw_numbers(frames: Frames, sound: Sound | None, expectation: Expectation) -> Numbers:
    """Numbers of the pixel and audio arms; an arm without frames or samples has none."""
    numbers: Numbers = {"silence_asked": float("silent" in expectation.expect)}
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


def _subject(clip: Path, wav: Path | None) -> Subject:
    return Subject(
        clip=clip.name,
        clip_sha256=_sha256(clip),
        wav=None if wav is None else wav.name,
        wav_sha256=None if wav is None else _sha256(wav),
    )


def _sha256(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
