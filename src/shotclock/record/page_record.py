"""What a record adds to a report: machine, code, digests of the weights, rejected rungs, warnings, what is not shown.

From a parsed ``record.json`` to values. Another version's record may lack any of it; then it says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from shotclock.record.figures import bytes_text, significant
from shotclock.record.seen import Missing
from shotclock.record.views import Alert, Cell, Table

Record = Mapping[str, Any]
NOT_TOLD = Missing(reason="record.json does not say")


def at(record: Record | Missing, *path: str) -> Any:
    """What lies at a path of names, or None."""
    found: Any = None if isinstance(record, Missing) else record
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def is_private(record: Record | Missing) -> bool:
    """Whether the run's prompts were to stay out of its record."""
    return at(record, "predicate", "shotclock_context", "private") is True


def not_shown(record: Record | Missing) -> tuple[str, ...] | Missing:
    """What the record says that the run does not show."""
    if isinstance(record, Missing):
        return Missing(reason=f"{record.reason}, and it is the record that says it")
    said = at(record, "predicate", "shotclock_run", "not_shown")
    return tuple(str(line) for line in said) if isinstance(said, list) and said else NOT_TOLD


def record_alerts(record: Record | Missing) -> Iterator[Alert]:
    """Warnings of the record: slower than before, swap, clocks, modules that patch others."""
    warnings = at(record, "predicate", "shotclock_run", "warnings")
    if isinstance(warnings, list) and warnings:
        yield Alert(tone="warn", title="The record warns", lines=tuple(str(line) for line in warnings))


def record_tables(record: Record | Missing) -> Iterator[Table]:
    """Record, machine, oracle; what the plan rejected."""
    if isinstance(record, Missing):
        return
    run, metadata = at(record, "predicate", "shotclock_run"), at(record, "predicate", "runDetails", "metadata")
    oracle = at(run or {}, "oracle") or {}
    rows: list[tuple[Cell, ...]] = [
        ("id", _text(at(run or {}, "id"))),
        ("began", _text(at(metadata or {}, "startedOn"))),
        ("built by", unquote(str(at(record, "predicate", "runDetails", "builder", "id") or NOT_TOLD.reason))),
        ("other implementation", f"{oracle.get('status', 'PENDING')}: {oracle.get('reason', 'none has run')}"),
        ("clip packets sha256", _packets(record)),
    ]
    yield Table(title="Record", head=("fact", "value"), rows=tuple(rows))
    facts = at(record, "predicate", "shotclock_machine", "facts")
    if isinstance(facts, Mapping) and facts:
        rows = [(str(name).replace("_", " "), _fact(fact)) for name, fact in facts.items()]
        libraries = at(record, "predicate", "shotclock_machine", "libraries")
        if isinstance(libraries, Mapping) and libraries:
            rows.append(("libraries", ", ".join(f"{name} {version}" for name, version in libraries.items())))
        yield Table(title="Machine", head=("fact", "value"), rows=tuple(rows))
    rejected = at(run or {}, "rejected")
    if isinstance(rejected, list) and rejected:
        lines = [(str(at(rung, "geometry") or "?"), str(at(rung, "line") or "")) for rung in rejected]
        yield Table(title="Rejected before the first forward", head=("geometry", "arithmetic"), rows=tuple(lines))


def weight_digests(record: Record | Missing) -> dict[str, Cell]:
    """SHA-256 of each weights file by its role, or why it is not there."""
    found: dict[str, Cell] = {}
    dependencies = at(record, "predicate", "buildDefinition", "resolvedDependencies")
    for one in dependencies if isinstance(dependencies, list) else []:
        if part := at(one, "annotations", "part"):
            reason = at(one, "annotations", "sha256_reason") or "record.json does not say"
            found[str(part)] = _text(at(one, "digest", "sha256"), str(reason))
    return found


def _packets(record: Record) -> Cell:
    subjects = record.get("subject")
    for one in subjects if isinstance(subjects, list) else []:
        if at(one, "annotations", "packets_sha256"):
            return str(at(one, "annotations", "packets_sha256"))
    return Missing(reason="no clip was recorded")


def _text(value: Any, reason: str = NOT_TOLD.reason) -> Cell:
    return str(value) if value not in (None, "") else Missing(reason=reason)


def _fact(fact: Any) -> Cell:
    """A typed fact of the record: value and unit, or its own reason."""
    value = at(fact, "value")
    if value is None:
        return Missing(reason=str(at(fact, "reason") or NOT_TOLD.reason))
    shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    if at(fact, "unit") == "B" and isinstance(value, int):
        return bytes_text(value)
    if isinstance(value, float):
        shown = significant(value, 6)
    return f"{shown} {at(fact, 'unit') or ''}".rstrip()
