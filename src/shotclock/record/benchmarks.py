"""BENCHMARKS.md, written from the records of a folder: one row a figure, refused rungs beside the finished ones.

Text from records and recipes only: no figure is typed in here, and none is edited by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from shotclock.record.benches import benches
from shotclock.record.facts import MIN_N, Fact, Samples, missing
from shotclock.record.ledger import Ledger, Record
from shotclock.record.recipes import BUILT_IN, find_recipe
from shotclock.record.runfacts import RunFacts, Rung
from shotclock.record.show import oracle_text

RECORDS, RECIPES, REPORTED = "recipes/records", "recipes", "recipes/reported"
INTRO = f"""# Benchmarks

Written by `shotclock record benchmarks` from the records in `{RECORDS}`, which `shotclock record audit` checks; a
test compares this page with them, so it is never edited by hand.

A figure is the median of n raw values, those of the warm-up left out; the spread is their range over the median (from
20 values on without the outer 5 % at either end). Below n = {MIN_N} a figure is *provisional* and nothing follows from
it. A pass is an interval from before its launch to device-synchronised, not a profile. A corrected figure stays, with
what took its place. No other implementation has run a workload below unless its row says so: **PENDING** means that
nothing is said about how the two compare.
"""
OWN = "## Measured by shotclock"
NONE_OWN = "No record yet."
CPU_NOTE = """The built-in models on a CPU, pocket (trained) and tiny (random), exercise the program; they say nothing
about what LTX-2.5 costs or draws.
"""
SEEDS = """## Reported by another program

Typed in from the two documents that this project started from (`recipes/reported`). These are that program's figures,
not shotclock's; nothing of them can be derived again here.
"""
TABLE = (
    "| subject | figure | n | median | spread | to first pass | wall | device | code | standing | record |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)
NOTES = "### What each says of itself"


def benchmarks(root: Path) -> str:
    """The whole page for a checkout at ``root``."""
    records = Ledger(root / RECORDS).records()
    own = [record for record in records if record.facts.source == "shotclock"]
    reported = [record for record in records if record.facts.source != "shotclock"]
    recipes = root / RECIPES
    parts = [INTRO, OWN, ""]
    parts += [CPU_NOTE, *_table(own, recipes)] if own else [NONE_OWN, ""]
    parts += benches(root)
    parts += [SEEDS, *_table(reported, recipes)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _table(records: Sequence[Record], recipes: Path) -> list[str]:
    lines = [TABLE]
    for record in sorted(records, key=_order):
        lines += [_row(record, kind, samples, recipes) for kind, samples in _figures(record)]
        lines += [_rung_row(record, rung) for rung in record.facts.rejected]
    return [*lines, "", NOTES, "", *(line for record in sorted(records, key=_order) for line in _notes(record)), ""]


def _order(record: Record) -> tuple[bool, str, str]:
    """Own figures that were superseded come last. Rungs of one lease stand together, in the order of the ledger."""
    lease = record.facts.facts.get("lease_run")
    past = record.status == "superseded" and record.facts.source == "shotclock"
    return (past, str(lease.value) if lease else record.id, f"{record.entry['n']:06}")


def _figures(record: Record) -> list[tuple[str, Samples | None]]:
    timings = list(record.facts.timings().items())
    return [*timings] if timings else [("no pass was timed", None)]


def _row(record: Record, kind: str, samples: Samples | None, recipes: Path) -> str:
    facts = record.facts
    return _cells(
        _subject(record, recipes),
        _kind(kind),
        str(samples.n) if samples else "0",
        _seconds(samples.median if samples else None),
        "-" if samples is None or samples.spread is None else f"{samples.spread:.1%}",
        _seconds_fact(facts.facts.get("first_dit")),
        _seconds_fact(facts.facts.get("wall")),
        _text(facts.checked.get("device")),
        _code(record),
        _standing(record, samples),
        _link(record),
    )


def _rung_row(record: Record, rung: Rung) -> str:
    device = _text(record.facts.checked.get("device"))
    said = f"refused by arithmetic: {rung.line}"
    return _cells(
        rung.geometry, "denoise", "0", _seconds(rung.needs_s), "-", "-", "-", device, "-", said, _link(record)
    )


def _subject(record: Record, recipes: Path) -> str:
    facts = record.facts
    geometry, steps = _text(facts.checked.get("geometry")), facts.facts.get("steps")
    legs = facts.checked.get("legs")
    size = f", {steps.value} steps" if steps and steps.value is not None else ""
    size += f" x {len(str(legs.value).split('+'))} legs" if legs and legs.value else ""
    dtype, device = facts.checked.get("dtype"), _text(facts.checked.get("device"))
    size += f", {dtype.value}" if dtype and dtype.value else ""
    recipe = find_recipe(recipes, _request_sha256(record), device=device, dtype=_text(dtype))
    subject = f"{_built_in(facts)}{geometry}{size}"
    return f"[{subject}](recipes/{recipe.name})" if recipe else subject


def _built_in(facts: RunFacts) -> str:
    """The built-in model's name before what it rendered; files of a user's are named in the record."""
    file = _text(facts.facts.get("transformer"))
    return next((f"{name}: " for name in BUILT_IN if file.startswith(f"{name}-")), "")


def _request_sha256(record: Record) -> str | None:
    listed = [*record.statement["subject"], *record.statement["predicate"]["runDetails"]["byproducts"]]
    return next((one["digest"]["sha256"] for one in listed if one["name"] == "request.json"), None)


def _kind(kind: str) -> str:
    legs = kind.split("+")
    return f"pass of {len(legs)} legs" if len(legs) > 1 else kind


def _code(record: Record) -> str:
    listed = record.statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    ours: dict[str, Any] = next((one for one in listed if one["name"] in ("shotclock", "binary")), {})
    commit = (ours.get("digest") or {}).get("gitCommit") or (ours.get("annotations") or {}).get("built_from")
    dirty = " (changed)" if (ours.get("annotations") or {}).get("dirty") else ""
    return f"`{str(commit)[:9]}`{dirty}" if commit else "not known"


def _standing(record: Record, samples: Samples | None) -> str:
    facts = record.facts
    if record.status == "superseded":
        return f"superseded by {record.superseded_by or 'nothing'}"
    said: str = "its end is not told" if facts.end.kind == "unknown" else facts.end.kind
    said = said if facts.end.exit_code in (0, None) else f"{said}, exit {facts.end.exit_code}"
    if facts.end.terms and facts.end.sum_s is not None:
        said += f": {facts.end.sum_s:,.0f} s" + (f" > {facts.end.budget_s:,.0f} s" if facts.end.budget_s else "")
    return said + (", provisional" if samples is not None and samples.provisional else "")


def _notes(record: Record) -> Iterable[str]:
    facts = record.facts
    yield f"- **{record.id}**: {_text(facts.checked.get('geometry'))}. {_end(facts)}Oracle: {oracle_text(record)}."
    if record.why:
        yield f"  - superseded by {record.superseded_by or 'nothing'}: {record.why}"
    for warning in facts.warnings:
        yield f"  - warning: {warning}"
    yield f"  - does not show: {'; '.join(record.not_shown)}"


def _end(facts: RunFacts) -> str:
    terms = " + ".join(f"{term.name} {term.seconds:,.0f} s" for term in facts.end.terms)
    said = f"{facts.end.found}. " if facts.end.found else ""
    if terms and facts.end.sum_s is not None:
        budget = f" > budget {facts.end.budget_s:,.0f} s" if facts.end.budget_s else ""
        said += f"{terms} = {facts.end.sum_s:,.0f} s{budget}. "
    return said


def _link(record: Record) -> str:
    return f"[{record.id}]({RECORDS}/{record.entry['record_sha256']}.json)"


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g} s" if value < 1000 else f"{value:,.0f} s"


def _seconds_fact(found: Fact | None) -> str:
    value = (found or missing("not there")).value
    return _seconds(float(value)) if isinstance(value, int | float) else "-"


def _text(found: Fact | None) -> str:
    return "not known" if found is None or found.value is None else str(found.value)
