"""What a rule is, and how numbers and a request make a finding of it.

A condition is text, ``"noise_sigma > 9 & correlation_least < 0.8"``: it is the table's, the report's and the user's
one language. Pure: knows no clip and no particular threshold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shotclock.errors import RequestError

CONDITION = re.compile(r"([a-z0-9_]+) (<|<=|>|>=) (-?[0-9.]+)")


class Outcome(StrEnum):
    """What became of a rule, an arm or a clip; ``SKIPPED``: a number it needs does not exist for this clip."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIPPED = "NOT JUDGED"


SEVERITY = {Outcome.SKIPPED: 0, Outcome.PASS: 1, Outcome.WARN: 2, Outcome.FAIL: 3}


def worst(outcomes: list[Outcome]) -> Outcome:
    """The gravest of several; nothing at all is not judged."""
    return max(outcomes, key=SEVERITY.__getitem__, default=Outcome.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the threshold table.

    ``fail`` and ``warn`` hold alternatives, each a conjunction of conditions. A word of ``excused_by`` in the request
    lets the rule pass, one of ``softened_by`` turns FAIL into WARN and WARN into PASS.
    """

    name: str
    arm: str
    fail: tuple[str, ...] = ()
    warn: tuple[str, ...] = ()
    excused_by: frozenset[str] = frozenset()
    softened_by: frozenset[str] = frozenset()
    source: str
    meaning: str
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one rule says of one clip; ``margin`` is relative to the threshold and negative where it is broken."""

    rule: str
    arm: str
    outcome: Outcome
    metric: str
    value: float | None
    comparison: str
    threshold: float
    margin: float | None
    condition: str
    as_asked: str | None
    source: str
    meaning: str
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One comparison; it holds when the clip is on the bad side."""

    metric: str
    comparison: str
    limit: float

    def margin(self, value: float) -> float:
        """Distance to the limit over the limit (over 1 where the limit is smaller): above 0 on the good side."""
        distance = value - self.limit if self.comparison.startswith("<") else self.limit - value
        return distance / (abs(self.limit) or 1.0)

    def holds(self, value: float) -> bool:
        """Whether the bad side has been reached; only ``<=`` and ``>=`` hold at the limit itself."""
        margin = self.margin(value)
        return margin <= 0 if self.comparison.endswith("=") else margin < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """A conjunction met with numbers; it is broken when every bound holds, and the safest bound speaks for it."""

    text: str
    bound: Bound
    value: float | None
    broken: bool

    @property
    def margin(self) -> float | None:
        return None if self.value is None else self.bound.margin(self.value)


def parse(condition: str) -> tuple[Bound, ...]:
    """The bounds of ``"a > 1 & b < 2"``; raises :class:`RequestError` for anything else."""
    bounds = []
    for part in condition.split("&"):
        match = CONDITION.fullmatch(part.strip())
        if match is None:
            raise RequestError(
                f"condition {condition!r} cannot be read",
                allowed="comparisons such as 'grad_kurt < 5.5', joined by &",
                way_out="see the table in docs/verify.md",
            )
        bounds.append(Bound(metric=match[1], comparison=match[2], limit=float(match[3])))
    return tuple(bounds)


def find(rule: Rule, numbers: Mapping[str, float | None], expect: frozenset[str]) -> Finding:
    """Apply one rule to the numbers of a clip, in the light of what was asked."""
    fails = [_check(text, numbers) for text in rule.fail]
    warns = [_check(text, numbers) for text in rule.warn]
    outcome, shown = _outcome(fails, warns)
    softened, words = _as_asked(rule, outcome, expect)
    return Finding(
        rule=rule.name,
        arm=rule.arm,
        outcome=softened,
        metric=shown.bound.metric,
        value=shown.value,
        comparison=shown.bound.comparison,
        threshold=shown.bound.limit,
        margin=shown.margin,
        condition=shown.text,
        as_asked=words,
        source=rule.source,
        meaning=rule.meaning,
        way_out=rule.way_out,
    )


def _check(text: str, numbers: Mapping[str, float | None]) -> _Checked:
    """The bound with the widest margin decides a conjunction; one missing number leaves it undecided."""
    pairs = [(bound, numbers.get(bound.metric)) for bound in parse(text)]
    missing = next((bound for bound, value in pairs if value is None), None)
    if missing is not None:
        return _Checked(text=text, bound=missing, value=None, broken=False)
    known = [(bound, value) for bound, value in pairs if value is not None]
    bound, value = max(known, key=lambda pair: pair[0].margin(pair[1]))
    return _Checked(text=text, bound=bound, value=value, broken=all(b.holds(v) for b, v in known))


def _outcome(fails: list[_Checked], warns: list[_Checked]) -> tuple[Outcome, _Checked]:
    for outcome, checks in ((Outcome.FAIL, fails), (Outcome.WARN, warns)):
        broken = [check for check in checks if check.broken]
        if broken:
            return outcome, min(broken, key=lambda check: check.margin or 0.0)
    known = [check for check in fails + warns if check.margin is not None]
    if not known:
        return Outcome.SKIPPED, (fails + warns)[0]
    return Outcome.PASS, min(known, key=lambda check: check.margin or 0.0)


def _as_asked(rule: Rule, outcome: Outcome, expect: frozenset[str]) -> tuple[Outcome, str | None]:
    """The outcome after the request has been heard, and the word that changed it."""
    if outcome not in (Outcome.WARN, Outcome.FAIL):
        return outcome, None
    if excuse := sorted(rule.excused_by & expect):
        return Outcome.PASS, excuse[0]
    if softener := sorted(rule.softened_by & expect):
        return (Outcome.WARN if outcome is Outcome.FAIL else Outcome.PASS), softener[0]
    return outcome, None
