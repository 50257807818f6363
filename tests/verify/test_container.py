"""The container arm's numbers, and each fault of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from shotclock.verify.bases import Screen
from shotclock.verify.cases import Base, FileCase, Kind, file_cases
from shotclock.verify.container import container_facts, container_numbers
from shotclock.verify.expectation import Expectation
from shotclock.verify.reader import Limits, read_clip
from shotclock.verify.rules import Outcome
from shotclock.verify.selftest import synthetic_base
from shotclock.verify.tape import Tape, write_clip
from shotclock.verify.verifier import judge


@pytest.fixture(scope="module")
def detailed() -> Base:
    """Packets large enough that a hole in one is seen by the decoder."""
    return synthetic_base("mandelbrot", Screen(width=192, height=128, frames=25))


FAULTS = {case.name: case for case in file_cases() if case.kind is Kind.FAULT}


def test_a_good_clip_has_all_counts_right(base: Base, clip: Path) -> None:
    """Exact frames, rate and start; a sound that is not longer than a frame too much."""
    numbers = container_numbers(read_clip(clip, Limits()), base.expectation, has_wav=False)
    wrong = ("box_overrun_bytes", "moov_missing", "corrupt_frames", "decode_errors", "frames_unlike_request")
    assert [numbers[name] for name in wrong] == [0] * len(wrong)
    assert [numbers[name] for name in ("fps_wrong", "size_wrong", "start_gap_ms", "colour_other")] == [0] * 4
    assert numbers["pts_jitter_ms"] == pytest.approx(0, abs=0.01)
    assert numbers["av_gap_frames"] is not None
    assert numbers["av_gap_frames"] < 1


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_a_file_fails_its_arm(detailed: Base, tmp_path: Path, name: str) -> None:
    """All of them are exact: no fault of a file may pass."""
    case: FileCase = FAULTS[name]
    verdict = judge(case.write(detailed, tmp_path, np.random.default_rng(1)), expectation=detailed.expectation)
    assert verdict.arms["container"] is Outcome.FAIL


@pytest.mark.parametrize(
    ("change", "metric"),
    [
        (lambda e: replace(e, frames=33), "frames_unlike_request"),
        (lambda e: replace(e, fps=Fraction(24000, 1001)), "fps_wrong"),
        (lambda e: replace(e, width=320), "size_wrong"),
        (lambda e: replace(e, has_audio=False), "audio_unasked"),
        (lambda e: replace(e, sample_rate_hz=44100), "rate_wrong"),
        (lambda e: replace(e, channels=1), "channels_wrong"),
    ],
)
def test_each_part_of_the_request_is_compared(
    base: Base, clip: Path, change: Callable[[Expectation], Expectation], metric: str
) -> None:
    """One part of the request is changed, and its number is above 0."""
    read = read_clip(clip, Limits())
    asked, other = base.expectation, change(base.expectation)
    assert container_numbers(read, asked, has_wav=False)[metric] in (0, None)
    assert (container_numbers(read, other, has_wav=False)[metric] or 0) > 0


def test_nothing_is_compared_with_a_request_that_is_not_known(clip: Path) -> None:
    """``None``, and not "right"."""
    numbers = container_numbers(read_clip(clip, Limits()), Expectation(), has_wav=False)
    unknown = ("frames_unlike_request", "fps_wrong", "size_wrong", "audio_missing", "rate_wrong", "channels_wrong")
    assert [numbers[name] for name in unknown] == [None] * len(unknown)


def test_untagged_colour_and_a_late_index_warn_only_for_our_own_clips(base: Base, tmp_path: Path) -> None:
    """Clips from elsewhere seldom carry tags."""
    path = write_clip(
        tmp_path / "a.mp4", base.frames, base.sound, Tape(fps=Fraction(24), tagged=False, fast_start=False)
    )
    ours = {f.rule for f in judge(path, expectation=base.expectation).broken(Outcome.WARN)}
    others = {f.rule for f in judge(path, expectation=Expectation()).broken(Outcome.WARN)}
    assert {"colour_tags", "fast_start"} <= ours
    assert not {"colour_tags", "fast_start"} & others


def test_facts_say_what_the_headers_say(clip: Path) -> None:
    """Codec, format and boxes in words."""
    facts = container_facts(read_clip(clip, Limits()))
    assert facts["video codec"] == "h264"
    assert facts["video fps"] == "24"
    assert facts["boxes"].startswith("ftyp moov")
