"""The contact sheet is drawn, and what is suspicious is marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shotclock.verify import faults
from shotclock.verify.cases import Base
from shotclock.verify.expectation import Expectation
from shotclock.verify.sheet import AMBER, BACKGROUND, RED, WIDTH, draw_sheet
from shotclock.verify.verifier import judge, judge_raw, verify_clip


def _colours(path: Path) -> set[tuple[int, ...]]:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width == WIDTH
        packed = np.asarray(picture).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
        return {(int(c) >> 16, int(c) >> 8 & 255, int(c) & 255) for c in np.unique(packed)}


def test_a_good_clip_has_no_red_and_a_black_frame_has(base: Base, tmp_path: Path) -> None:
    """The frame's border is red, and so is the verdict."""
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    for path, frames in ((good, base.frames), (bad, faults.last_black(base.frames, np.random.default_rng(0)))):
        verdict = judge_raw(frames, base.sound, expectation=base.expectation, name="a.mp4")
        draw_sheet(frames, base.sound, verdict, path)
    assert RED not in _colours(good)
    assert RED in _colours(bad)


def test_seams_and_dead_tokens_are_marked_where_they_are(base: Base, tmp_path: Path) -> None:
    """An amber line at the known tile edge; red boxes on dead tokens."""
    plan = replace(base.expectation, tile_columns=(96,))
    dim = [(frame // 4 + 60 + 5 * (np.arange(192) >= 96)[:, None]).astype(np.uint8) for frame in base.frames]
    seam = judge_raw(dim, None, expectation=plan, name="a.mp4")
    draw_sheet(dim, None, seam, tmp_path / "seam.png")
    assert "tile_step" in {finding.rule for finding in seam.findings if finding.outcome == "WARN"}
    assert AMBER in _colours(tmp_path / "seam.png")
    dead = [frame.copy() for frame in base.frames]
    for frame in dead:
        frame[32:64, 64:96] = 0
    verdict = judge_raw(dead, None, expectation=plan, name="a.mp4")
    draw_sheet(dead, None, verdict, tmp_path / "dead.png")
    assert "nan_blocks" in {finding.rule for finding in verdict.findings if finding.outcome == "FAIL"}
    assert RED in _colours(tmp_path / "dead.png")


def test_long_clips_show_a_choice_that_holds_the_marked_frames(base: Base, clip: Path, tmp_path: Path) -> None:
    """Through the child, and for more frames than fit."""
    path = tmp_path / "sheet.png"
    verify_clip(clip, wav=None, expectation=base.expectation, sheet=path)
    _colours(path)
    frames = [*base.frames, *base.frames[::-1], np.zeros_like(base.frames[0])]
    verdict = judge_raw(frames, None, expectation=base.expectation, name="a.mp4")
    draw_sheet(frames, None, verdict, path)
    assert RED in _colours(path)


@pytest.mark.parametrize(("width", "height", "count"), [(16, 16, 1), (640, 16, 2), (16, 640, 3), (64, 48, 0)])
def test_any_shape_and_length_has_a_sheet(tmp_path: Path, width: int, height: int, count: int) -> None:
    """Single frames, strips, columns, and no frame at all."""
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (height, width, 3), np.uint8) for _ in range(count)]
    verdict = judge_raw(frames, None, expectation=Expectation(), name="a.mp4")
    draw_sheet(frames, None, verdict, tmp_path / "sheet.png")
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    assert BACKGROUND in _colours(tmp_path / "sheet.png")


def test_a_pattern_too_weak_for_the_eye_is_amplified(base: Base, tmp_path: Path) -> None:
    """A faint checkerboard: the sheet shows what all frames share, in grey, beside the frame."""
    rng = np.random.default_rng(0)
    found = []
    for name, frames in (("good", base.frames), ("checker", faults.checker(2, 8)(base.frames, rng))):
        verdict = judge_raw(frames, None, expectation=base.expectation, name="a.mp4")
        draw_sheet(frames, None, verdict, tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as picture:
            pixels = np.asarray(picture)[150:450, WIDTH // 2 :].astype(int)
        found.append(float((np.ptp(pixels, axis=2) == 0).mean()))
    assert found[0] < 0.1
    assert found[1] > 0.4


def test_a_sheet_that_cannot_be_written_does_not_change_the_verdict(
    base: Base, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk says nothing of the clip; the verdict says that the sheet is missing."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shotclock.verify.sheet.draw_sheet", full)
    verdict = judge(clip, expectation=base.expectation, sheet=tmp_path / "sheet.png")
    assert verdict.outcome is judge(clip, expectation=base.expectation).outcome
    assert "  error sheet: not drawn: No space left on device" in verdict.lines()
