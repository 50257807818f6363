"""Whole clips through the verifier, in this process and in the child; hostile ones too."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shotclock.errors import RequestError
from shotclock.verify import tones
from shotclock.verify.cases import Base
from shotclock.verify.expectation import Expectation
from shotclock.verify.reader import Limits, Sound
from shotclock.verify.rules import Outcome
from shotclock.verify.tape import write_wav
from shotclock.verify.verdict import Verdict
from shotclock.verify.verifier import judge, judge_raw, verify_clip


def _rules(verdict: Verdict, outcome: Outcome) -> set[str]:
    return {finding.rule for finding in verdict.broken(outcome)}


def test_a_good_clip_does_not_fail_and_child_and_process_agree(base: Base, clip: Path) -> None:
    """The same document from both ways."""
    here = judge(clip, expectation=base.expectation)
    there = verify_clip(clip, wav=None, expectation=base.expectation)
    assert here.outcome in (Outcome.PASS, Outcome.WARN)
    assert here.to_document() == there.to_document()


def test_the_wav_is_judged_instead_of_the_clips_sound(base: Base, clip: Path, tmp_path: Path) -> None:
    """A dead channel in the wav fails although the clip's own sound is whole; a short wav fails too."""
    rng = np.random.default_rng(0)
    dead = write_wav(tmp_path / "dead.wav", tones.dead_channel(base.sound, rng))
    verdict = judge(clip, wav=dead, expectation=base.expectation)
    assert _rules(verdict, Outcome.FAIL) == {"balance"}
    assert verdict.subject.wav == "dead.wav"
    half = Sound(waveform=base.sound.waveform[:, : base.sound.waveform.shape[1] // 2], rate_hz=48000)
    short = judge(clip, wav=write_wav(tmp_path / "short.wav", half), expectation=base.expectation)
    assert "wav_length" in _rules(short, Outcome.FAIL)


@pytest.mark.parametrize(("words", "fails"), [(set(), {"level"}), ({"silent"}, set())])
def test_silence_is_judged_against_the_request(base: Base, words: set[str], fails: set[str]) -> None:
    """Asked for, it passes; and then sound warns."""
    silence = tones.silent(base.sound, np.random.default_rng(0))
    asked = Expectation(expect=frozenset(words))
    assert _rules(judge_raw((), silence, expectation=asked, name="a"), Outcome.FAIL) & {"level"} == fails
    loud = judge_raw((), base.sound, expectation=asked, name="a")
    assert ("unasked_sound" in _rules(loud, Outcome.WARN)) == bool(words)


def test_identical_frames_are_seen_before_the_encoder_hides_them(base: Base, clip: Path) -> None:
    """The maker's own count of distinct frames."""
    copied = judge(clip, expectation=replace(base.expectation, raw_distinct_frames=20))
    assert "distinct" in _rules(copied, Outcome.WARN)
    assert "distinct" not in _rules(judge(clip, expectation=base.expectation), Outcome.WARN)


def test_a_child_that_takes_too_long_is_a_fail(base: Base, clip: Path) -> None:
    """Not an error, and not a wait without end."""
    verdict = verify_clip(clip, wav=None, expectation=base.expectation, limits=Limits(wall_s=0.05))
    assert _rules(verdict, Outcome.FAIL) == {"decoder"}
    assert "no verdict within 0.05 s" in "\n".join(verdict.lines())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of address space")
def test_a_child_that_needs_too_much_memory_is_a_fail_or_an_error_in_the_verdict(base: Base, clip: Path) -> None:
    """16 MiB more than the interpreter are too few for a decoder."""
    verdict = verify_clip(clip, wav=None, expectation=base.expectation, limits=Limits(memory_bytes=1 << 20))
    assert verdict.outcome is Outcome.FAIL


def test_what_is_no_clip_is_refused_through_the_child(tmp_path: Path) -> None:
    """The same error as in this process."""
    path = tmp_path / "clip.mp4"
    path.write_text("#EXTM3U\nhttp://127.0.0.1/a.ts\n")
    with pytest.raises(RequestError, match="does not begin like"):
        verify_clip(path, wav=None, expectation=Expectation())


def test_a_cut_clip_is_a_fail_through_the_child_as_well(clip: Path, tmp_path: Path) -> None:
    """The same verdict as in this process, with the decoder's words."""
    path = tmp_path / "cut.mp4"
    path.write_bytes(clip.read_bytes()[: clip.stat().st_size // 2])
    verdict = verify_clip(path, wav=None, expectation=Expectation())
    assert verdict.to_document() == judge(path).to_document()
    assert {"structure", "frame_count"} <= _rules(verdict, Outcome.FAIL)


def test_the_verifier_starts_without_torch_and_without_the_render() -> None:
    """In a fresh interpreter that refuses both; ``judge`` is there all the same."""
    program = """
import sys
for name in ("torch", "diffusers", "transformers", "shotclock.render", "shotclock.model", "shotclock.weights"):
    sys.modules[name] = None
from shotclock.verify.verifier import judge, verify_clip
import shotclock.verify.child, shotclock.verify.selftest, shotclock.verify.sheet
print(judge.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "judge\n", done.stderr
