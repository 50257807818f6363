"""The self-test tells a verifier that works from one that does not; clips made in code are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shotclock.errors import RequestError
from shotclock.verify.bases import PICTURES, Screen
from shotclock.verify.cases import Kind, file_cases, picture_cases, sound_cases
from shotclock.verify.rules import Outcome
from shotclock.verify.selftest import Row, free_media, media_base, self_test, synthetic_base

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
