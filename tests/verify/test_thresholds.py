"""The table of rules is whole, readable, and the one in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from shotclock.errors import RequestError
from shotclock.verify.cases import Base
from shotclock.verify.container import container_numbers
from shotclock.verify.expectation import EXPECTABLE, Expectation
from shotclock.verify.reader import Limits, read_clip
from shotclock.verify.rules import parse
from shotclock.verify.thresholds import RULES, limit, table, with_changes
from shotclock.verify.verifier import raw_numbers

DOCS = Path(__file__).parents[2] / "docs" / "verify.md"
MADE_ELSEWHERE = {
    "nonfinite_values", "unguided", "guided_distilled", "wav_gap_ms", "wav_gap_frames", "decoder_died", "over_time",
}  # fmt: skip


def test_every_metric_of_the_table_is_a_number_that_some_arm_takes(base: Base, clip: Path) -> None:
    """A misspelt metric would never be judged."""
    read = read_clip(clip, Limits())
    numbers = container_numbers(read, Expectation(), has_wav=False)
    numbers |= raw_numbers(base.frames, base.sound, Expectation())
    metrics = {bound.metric for rule in RULES for text in rule.fail + rule.warn for bound in parse(text)}
    assert metrics - set(numbers) == MADE_ELSEWHERE


def test_rules_have_one_name_each_and_say_what_to_do() -> None:
    """Names are keys of threshold files; every rule has a source, a sentence and a way out."""
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert all(rule.source and rule.meaning.endswith(".") and rule.way_out for rule in RULES)
    assert all(rule.fail or rule.warn for rule in RULES)
    assert {word for rule in RULES for word in rule.excused_by | rule.softened_by} <= EXPECTABLE.keys()


def test_the_documentation_holds_this_table() -> None:
    """docs/verify.md is generated from the code."""
    assert table() in DOCS.read_text(encoding="utf-8")


def test_other_limits_replace_only_what_they_name() -> None:
    """``warn`` is kept when only ``fail`` is given, and a rule without limits is gone."""
    changed = {rule.name: rule for rule in with_changes(RULES, {"grad_kurt": {"fail": ["grad_kurt < 4"]}})}
    assert changed["grad_kurt"].fail == ("grad_kurt < 4",)
    assert changed["grad_kurt"].warn == ("grad_kurt < 7",)
    assert "loop" not in {rule.name for rule in with_changes(RULES, {"loop": {"warn": []}})}


@pytest.mark.parametrize(
    "changes", [{"nothing": {"fail": []}}, {"grad_kurt": {"limit": []}}, {"grad_kurt": {"fail": ["grad_kurt"]}}]
)
def test_unknown_rules_keys_and_conditions_are_refused(changes: dict[str, dict[str, list[str]]]) -> None:
    """A typing error must not switch a check off."""
    with pytest.raises(RequestError):
        with_changes(RULES, changes)


def test_places_are_marked_at_the_limits_of_the_table() -> None:
    """The WARN limit where there is one, else the FAIL one."""
    assert (limit("noise", "noise_sigma_most"), limit("grad_kurt", "grad_kurt")) == (9.0, 7.0)
    assert limit("freeze_run", "mad_least") == 0.02
