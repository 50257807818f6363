"""The self-test tells a verifier that works from one that does not; clips made in code are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shotclock.errors import RequestError
from shotclock.verify import faults, tones
from shotclock.verify.bases import PICTURES, Screen
from shotclock.verify.cases import Kind, clip_cases, file_cases, picture_cases, sound_cases
from shotclock.verify.expectation import POCKET_DRAWS, Expectation
from shotclock.verify.reader import Limits, read_clip
from shotclock.verify.rules import Outcome
from shotclock.verify.selftest import POCKET_CLIPS, Row, free_media, media_base, self_test, synthetic_base
from shotclock.verify.verifier import judge_raw

SCREEN = Screen(width=256, height=160, frames=25)
FAST_BASE = "mandelbrot"


def test_controls_are_caught_and_innocent_clips_do_not_fail(tmp_path: Path) -> None:
    """All certain controls and all legitimate clips, on one base at a ninth of the size.

    The whole table, 13 bases and more at 768x448, is the command ``shotclock verify --self-test``.
    """
    cases = [*picture_cases(), *sound_cases(), *file_cases()]
    names = [case.name for case in cases if case.kind is not Kind.FAULT or case.flag_share == 1]
    result = self_test(tmp_path, screen=SCREEN, bases=[FAST_BASE], controls=names)
    assert result.is_right, "\n".join(result.lines())
    assert len(result.rows) == len(names)
    assert all(len(row.outcomes) == 1 for row in result.rows)


def test_clips_of_the_pocket_model_pass_and_those_of_its_broken_runs_fail(tmp_path: Path) -> None:
    """All that are shipped, judged as runs of that model are; a zeroed block in the middle is counted, not asked for.

    Whole: one of each of the 8 motions, and one of none. Broken: 4 of every kind.
    """
    cases = clip_cases(POCKET_CLIPS)
    assert {case.name: len(case.clips) for case in cases} == {
        "pocket": 9,
        "pocket undenoised": 4,
        "pocket reversed sigmas": 4,
        "pocket first block zeroed": 4,
        "pocket block 4 zeroed": 4,
    }
    assert [case.name for case in cases if case.kind is Kind.FAULT and not case.fail_share] == ["pocket block 4 zeroed"]
    result = self_test(tmp_path, bases=[], controls=[case.name for case in cases])
    assert result.is_right, "\n".join(result.lines())
    assert "25 clips as they are" in result.lines()[0]


def test_what_pocket_clips_excuse_is_still_asked_of_them() -> None:
    """A shape that is gone, a grid of tokens, a frozen clip and a sound that dies fail where shapes and a note are due.

    The same numbers without those words are judged as ever: nothing is said of a shape.
    """
    path = next(case for case in clip_cases(POCKET_CLIPS) if case.kind is Kind.GOOD).clips[0]
    frames = read_clip(path, Limits()).frames
    rng = np.random.default_rng(0)
    faulty: dict[str, faults.Fault] = {
        "faint": lambda frames, _: [np.clip(frame // 16 + 40, 0, 255) for frame in frames],
        "grid32_shapes": faults.token_ramp(4),
        "frozen": faults.frozen,
    }
    asked = Expectation(expect=POCKET_DRAWS)
    for rule, fault in faulty.items():
        verdict = judge_raw(fault(frames, rng), None, expectation=asked, name=rule)
        assert rule in {finding.rule for finding in verdict.broken(Outcome.FAIL)}, verdict.lines()
    swelling = tones.make(tones.melody, rng, 1.0)
    swelling.waveform[:] *= np.linspace(0, 1, swelling.waveform.shape[1]) ** 4
    for expectation, failed in ((asked, True), (Expectation(), False)):
        rules = {f.rule for f in judge_raw((), swelling, expectation=expectation, name="a").broken(Outcome.FAIL)}
        assert ("note" in rules) is failed


def test_a_verifier_that_passes_everything_is_found_out() -> None:
    """A certain control that passed once, a frequent one that is 6 points rare, a good clip that failed."""
    black, burnt, good = (
        next(case for case in picture_cases() if case.name == name) for name in ("black", "burnt", "good")
    )
    fail, passed = Outcome.FAIL, Outcome.PASS
    assert Row(case=black, outcomes={"a": fail, "b": fail}).is_right
    assert not Row(case=black, outcomes={"a": fail, "b": passed}).is_right
    twenty = {str(n): fail if n < 16 else Outcome.WARN for n in range(20)}
    assert not Row(case=burnt, outcomes=twenty).is_right
    assert Row(case=burnt, outcomes=twenty | {"16": fail, "17": fail}).is_right
    assert not Row(case=good, outcomes={"a": fail, "b": passed}).is_right
    assert Row(case=good, outcomes={"a": Outcome.WARN, "b": passed}).is_right


def test_the_table_names_every_control_the_issue_lists_and_at_least_twelve_bases() -> None:
    """Names as a reader looks for them."""
    names = {case.name for case in [*picture_cases(), *sound_cases(), *file_cases()]}
    listed = {
        *("black", "green", "grey", "white noise", "latent noise", "frozen", "half frozen", "doubled frames"),
        *("shuffled", "flicker 10 %", "checker 2", "checker 4", "lines 8", "grid 32, 4 levels", "NaN blocks"),
        *("tile seam, 6 levels", "half black", "washed out", "burnt", "skewed rows", "silent", "dead channel"),
        *("inverted channel", "white noise sound", "hum", "clipped", "offset (DC)", "zero tail", "short sound"),
        *("dropouts", "16 kHz label", "cut at 25%", "cut at 50%", "cut at 90%", "last 50 bytes cut", "flipped bit"),
        *("wrong rate", "frame missing", "sound late", "fade", "night", "fog", "still with grain", "title card"),
        *("letterbox", "hard cut", "sound of rain", "sound of quiet_room"),
    }
    assert listed <= names
    assert len(PICTURES) >= 12


@pytest.mark.parametrize("name", PICTURES)
def test_made_pictures_move_and_repeat_by_name(name: str) -> None:
    """Right size, no two frames alike, the same every time."""
    screen = Screen(width=96, height=64, frames=9)
    frames = synthetic_base(name, screen).frames
    assert {frame.shape for frame in frames} == {(64, 96, 3)}
    assert len({frame.tobytes() for frame in frames}) == 9
    np.testing.assert_array_equal(frames[4], synthetic_base(name, screen).frames[4])


def test_unknown_bases_and_controls_are_refused(tmp_path: Path) -> None:
    """A misspelt control must not look like a passed one."""
    with pytest.raises(RequestError, match="no control named blakc"):
        self_test(tmp_path, controls=["blakc"])
    with pytest.raises(RequestError, match="no base named pann"):
        synthetic_base("pann", SCREEN)


def test_a_real_clip_serves_as_a_base(clip: Path) -> None:
    """Its first frames, cropped around the middle; free media are there only where they are installed."""
    base = media_base(clip, Screen(width=128, height=96, frames=9))
    assert (len(base.frames), base.frames[0].shape) == (9, (96, 128, 3))
    with pytest.raises(RequestError, match="has 25 frames"):
        media_base(clip, Screen(width=128, height=96, frames=30))
    assert all(path.is_file() for path in free_media())
