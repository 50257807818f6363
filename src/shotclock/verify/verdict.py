"""A verdict: findings of all rules over the numbers of one clip, arm by arm, and how it reads in a terminal.

Pure: numbers and a request in, a verdict out. Knows no file but the form of ``verdict.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from shotclock.errors import EXIT_VERDICT
from shotclock.verify.document import VerdictDocument
from shotclock.verify.expectation import Expectation
from shotclock.verify.finite import NonFinite
from shotclock.verify.rules import Finding, Outcome, Rule, find, worst
from shotclock.verify.thresholds import NOT_JUDGED, RULES

EXIT_PASS, EXIT_FAIL = 0, EXIT_VERDICT
ARMS = ("container", "pixels", "audio", "stages")
SEED_NUMBERS = (  # the seeds' report, in their order
    ("distinct frame hashes", "distinct_frames", "{:.0f}"),
    ("of", "frames_judged", "{:.0f}"),
    ("near-uniform", "near_uniform_frames", "{:.0f}"),
    ("near-black", "near_black_frames", "{:.0f}"),
    ("adjacent MAD", "mad_adjacent", "{:.2f}"),
    ("far MAD", "mad_far", "{:.2f}"),
    ("ratio", "mad_ratio", "{:.3f}"),
    ("RMS dBFS", "rms_db", "{:.2f}"),
    ("envelope CV", "env_cv", "{:.3f}"),
    ("spectral crest", "spectral_crest", "{:.1f}"),
)

QUANTISED = "quantised"  # fact of a run's request
SAID = ("error", "structure", QUANTISED)  # facts that are printed begin like this

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was judged: names without folders, digests in hex."""

    clip: str
    clip_sha256: str | None = None
    wav: str | None = None
    wav_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All numbers and what the rules say of them."""

    subject: Subject
    numbers: Numbers
    facts: Mapping[str, str]
    expectation: Expectation
    findings: tuple[Finding, ...]

    @property
    def outcome(self) -> Outcome:
        """The gravest of the arms."""
        return worst([finding.outcome for finding in self.findings])

    @property
    def arms(self) -> dict[str, Outcome]:
        """Each arm by itself; an arm without a single number is not judged."""
        return {arm: worst([f.outcome for f in self.findings if f.arm == arm]) for arm in ARMS if self._has(arm)}

    def _has(self, arm: str) -> bool:
        return any(finding.arm == arm for finding in self.findings)

    def exit_code(self, *, strict: bool) -> int:
        """0 for PASS and WARN, 4 for FAIL; ``strict`` makes WARN fail too."""
        failing = (Outcome.FAIL, Outcome.WARN) if strict else (Outcome.FAIL,)
        return EXIT_FAIL if self.outcome in failing else EXIT_PASS

    def broken(self, outcome: Outcome) -> tuple[Finding, ...]:
        """Findings of one outcome, the widest break first."""
        found = (finding for finding in self.findings if finding.outcome is outcome)
        return tuple(sorted(found, key=lambda finding: finding.margin or 0.0))

    def lines(self) -> list[str]:
        """The verdict for a terminal: arms, the seeds' numbers, what failed and warned, what cannot be judged."""
        arms = ", ".join(f"{arm} {outcome}" for arm, outcome in self.arms.items())
        lines = [f"{self.outcome}  {self.subject.clip}: {arms}", self.seed_line()]
        for outcome in (Outcome.FAIL, Outcome.WARN):
            for finding in self.broken(outcome):
                lines += [f"{outcome}  {finding.arm} {finding.rule}: {describe(finding)}", f"      {finding.meaning}"]
                lines += [f"      try: {finding.way_out}", f"      threshold from: {finding.source}"]
        asked = [f"{finding.rule} ({finding.as_asked})" for finding in self.findings if finding.as_asked]
        lines += [f"as asked: {', '.join(asked)}"] if asked else []
        lines += [f"  {name}: {fact}" for name, fact in self.facts.items() if name.startswith(SAID)]
        skipped = [finding.rule for finding in self.findings if finding.outcome is Outcome.SKIPPED]
        lines += [f"not judged, a number is missing: {', '.join(skipped)}"] if skipped else []
        return [*lines, f"not judged without a reference: {'; '.join(NOT_JUDGED)}"]

    def seed_line(self) -> str:
        """The seeds' own numbers, reported and never judged by themselves."""
        parts = []
        for label, metric, form in SEED_NUMBERS:
            value = self.numbers.get(metric)
            parts.append(f"{label} {'-' if value is None else form.format(value)}")
        return ", ".join(parts).replace(", of ", " of ")

    def to_document(self) -> VerdictDocument:
        """The form of ``verdict.json``."""
        return VerdictDocument(
            **asdict(self.subject),
            outcome=self.outcome,
            arms=self.arms,
            numbers=dict(self.numbers),
            facts=dict(self.facts),
            findings=self.findings,
            not_judged=NOT_JUDGED,
            expectation=self.expectation,
        )


def describe(finding: Finding) -> str:
    """Metric, value, the broken condition and the margin in words; a count against 0 has no margin."""
    value = "unknown" if finding.value is None else f"{finding.value:.4g}"
    if finding.value is not None and finding.value.is_integer():
        value = f"{finding.value:,.0f}"
    margin = "" if finding.margin is None or finding.threshold == 0 else f", margin {finding.margin:+.0%}"
    return f"{finding.metric} = {value} ({finding.condition}){margin}"


def decide(
    numbers: Numbers,
    expectation: Expectation,
    *,
    subject: Subject,
    facts: Mapping[str, str],
    rules: tuple[Rule, ...] = RULES,
) -> Verdict:
    """Apply the rules to numbers; an arm none of whose numbers were taken has no findings."""
    findings = [find(rule, numbers, expectation.expect) for rule in rules]
    judged = {finding.arm for finding in findings if finding.outcome is not Outcome.SKIPPED}
    return Verdict(
        subject=subject,
        numbers=numbers,
        facts=facts,
        expectation=expectation,
        findings=tuple(finding for finding in findings if finding.arm in judged),
    )


def rejudge(document: VerdictDocument, rules: tuple[Rule, ...]) -> Verdict:
    """A stored verdict under other rules, without the clip; see :func:`shotclock.verify.thresholds.with_changes`."""
    return decide(
        document.numbers, document.expectation, subject=subject_of(document), facts=document.facts, rules=rules
    )


def subject_of(document: VerdictDocument) -> Subject:
    """What a stored verdict was about."""
    return Subject(**{field.name: getattr(document, field.name) for field in fields(Subject)})


def non_finite_verdict(found: NonFinite, expectation: Expectation, *, clip: str) -> Verdict:
    """The verdict on a render that was stopped at its first non-finite stage."""
    numbers = {
        "nonfinite_values": float(found.nans + found.infinities),
        "nonfinite_nans": float(found.nans),
        "stage_values": float(found.values),
    }
    facts = {"error stage": str(found)}
    return decide(numbers, expectation, subject=Subject(clip=clip), facts=facts)
