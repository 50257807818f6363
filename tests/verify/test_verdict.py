"""Verdicts: arms, exit codes, the document on disk, other thresholds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shotclock.errors import RequestError
from shotclock.verify.cases import Base
from shotclock.verify.document import VerdictDocument
from shotclock.verify.expectation import Expectation
from shotclock.verify.finite import first_non_finite
from shotclock.verify.rules import Outcome
from shotclock.verify.thresholds import NOT_JUDGED, RULES, with_changes
from shotclock.verify.verdict import Subject, Verdict, decide, non_finite_verdict, rejudge
from shotclock.verify.verifier import judge

GOOD = {"grad_kurt": 20.0, "correlation": 0.97, "rms_db": -20.0, "corrupt_frames": 0.0}


def _verdict(**numbers: float) -> Verdict:
    return decide(GOOD | numbers, Expectation(), subject=Subject(clip="a.mp4"), facts={})


def test_arms_are_judged_one_by_one_and_the_worst_is_the_verdict() -> None:
    """A noisy picture does not touch the sound's verdict."""
    verdict = _verdict(grad_kurt=3.0)
    assert verdict.arms == {"container": Outcome.PASS, "pixels": Outcome.FAIL, "audio": Outcome.PASS}
    assert verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize(("kurtosis", "exit_code", "strict_code"), [(20.0, 0, 0), (6.5, 0, 4), (3.0, 4, 4)])
def test_exit_codes_are_0_for_pass_and_warn_and_4_for_fail(kurtosis: float, exit_code: int, strict_code: int) -> None:
    """``strict`` makes WARN fail."""
    verdict = _verdict(grad_kurt=kurtosis)
    assert (verdict.exit_code(strict=False), verdict.exit_code(strict=True)) == (exit_code, strict_code)


def test_an_arm_without_numbers_is_absent_not_passed() -> None:
    """A clip without sound has no audio verdict."""
    numbers = {"grad_kurt": 20.0, "corrupt_frames": 0.0}
    verdict = decide(numbers, Expectation(), subject=Subject(clip="a.mp4"), facts={})
    assert "audio" not in verdict.arms


def test_lines_tell_metric_value_threshold_margin_source_meaning_and_way_out() -> None:
    """And what is not judged without a reference."""
    text = "\n".join(_verdict(grad_kurt=2.75).lines())
    for part in ("FAIL  pixels grad_kurt", "2.75", "grad_kurt < 5.5", "-50%", "noise <= 5.2", "not denoised", "try:"):
        assert part in text
    assert NOT_JUDGED[0] in text


def test_the_seeds_numbers_are_in_every_report(base: Base, clip: Path) -> None:
    """Distinct hashes, near-uniform, near-black, MADs and ratio, RMS, envelope, crest: by name and as numbers."""
    verdict = judge(clip, expectation=base.expectation)
    line = verdict.lines()[1]
    assert line.startswith("distinct frame hashes 25 of 25, near-uniform 0, near-black 0, adjacent MAD")
    assert all(word in line for word in ("far MAD", "ratio 0.", "RMS dBFS -", "envelope CV", "spectral crest"))
    assert " -," not in line


def test_a_document_comes_back_as_it_was_and_is_one_sorted_json(base: Base, clip: Path) -> None:
    """Strict on the way in, sorted with a final newline on the way out, no folder in it."""
    asked = replace(base.expectation, expect=frozenset({"static", "cut", "fade"}), tile_columns=(64, 96))
    document = judge(clip, expectation=asked).to_document()
    text = document.to_json()
    assert VerdictDocument.from_json(text) == document
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert text.endswith("}\n")
    assert json.loads(text)["expectation"]["expect"] == ["cut", "fade", "static"]
    assert json.loads(text)["expectation"]["fps"] == "24"
    assert str(clip.parent) not in text


@pytest.mark.parametrize(
    "change", [{"format": "shotclock.verdict/0"}, {"extra": 1}, {"outcome": "GOOD"}, {"numbers": {"a": "1"}}]
)
def test_another_document_is_refused(base: Base, clip: Path, change: dict[str, object]) -> None:
    """Unknown format, key, word, or text where a number belongs."""
    document = json.loads(judge(clip, expectation=base.expectation).to_document().to_json())
    with pytest.raises(RequestError, match="not a verdict"):
        VerdictDocument.from_json(json.dumps(document | change))


def test_other_thresholds_apply_to_a_stored_verdict_without_the_clip(base: Base, clip: Path) -> None:
    """The same rules give the same verdict; harder ones fail; numbers and request are kept."""
    verdict = judge(clip, expectation=base.expectation)
    document = VerdictDocument.from_json(verdict.to_document().to_json())
    assert rejudge(document, RULES).to_document() == document
    harder = rejudge(document, with_changes(RULES, {"grad_kurt": {"fail": ["grad_kurt < 1000"]}}))
    assert harder.outcome is Outcome.FAIL
    assert harder.numbers == verdict.numbers
    assert harder.expectation == base.expectation


def test_a_non_finite_stage_is_a_fail_that_names_the_stage() -> None:
    """The verdict on a render that was stopped."""
    found = first_non_finite({"latents at step 3": np.array([1.0, np.nan])})
    assert found is not None
    verdict = non_finite_verdict(found, Expectation(), clip="clip.mp4")
    assert verdict.arms == {"stages": Outcome.FAIL}
    assert any("latents at step 3: 1 NaN" in line for line in verdict.lines())
