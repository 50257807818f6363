"""The verdict as a report shows it: what asks for attention first, then what passes, then what was not judged.

From values to values; judges nothing anew.
"""

from __future__ import annotations

from shotclock.record.figures import percent_text, significant
from shotclock.record.run_seen import RunSeen
from shotclock.record.seen import FindingSeen, Missing
from shotclock.record.views import Finding, Judged

TONE = {"PASS": "good", "WARN": "warn", "FAIL": "bad", "NOT JUDGED": "none"}
GRAVEST_FIRST = ("FAIL", "WARN", "NOT JUDGED", "PASS")
LOUD = ("FAIL", "WARN")
SIGNS = {"<": "\u2265", "<=": ">", ">": "\u2264", ">=": "<"}  # a rule breaks on its comparison; a limit is its opposite


def judged(run: RunSeen) -> Judged | Missing:
    """The verdict, or why there is none."""
    verdict = run.verdict
    if isinstance(verdict, Missing):
        return verdict
    ordered = sorted(verdict.findings, key=lambda found: GRAVEST_FIRST.index(found.outcome))
    shown = [_finding(found) for found in ordered]
    other = verdict.clip_sha256 is not None and run.clip_sha256 not in (None, verdict.clip_sha256)
    return Judged(
        outcome=verdict.outcome,
        tone=TONE[verdict.outcome],
        arms=tuple((arm, outcome, TONE[outcome]) for arm, outcome in verdict.arms.items()),
        loud=tuple(found for found in shown if found.outcome in LOUD),
        quiet=tuple(found for found in shown if found.outcome not in LOUD),
        not_judged=tuple(verdict.not_judged),
        warning="This verdict judged another file: its sha256 is not that of clip.mp4 as it is now." if other else "",
    )


def _finding(found: FindingSeen) -> Finding:
    value = Missing(reason="could not be taken from this clip") if found.value is None else significant(found.value)
    margin = Missing(reason="no value") if found.margin is None else percent_text(found.margin, signed=True)
    sign = SIGNS.get(found.comparison)
    limit = f"{sign} {significant(found.threshold)}" if sign else f"{found.comparison} {significant(found.threshold)}"
    return Finding(
        rule=found.rule.replace("_", " "),
        arm=found.arm,
        outcome=found.outcome,
        tone=TONE[found.outcome],
        metric=found.metric.replace("_", " "),
        value=value,
        limit=limit,
        margin=margin,
        source=found.source,
        meaning=found.meaning,
        as_asked=found.as_asked or "",
        way_out=found.way_out or "",
    )
