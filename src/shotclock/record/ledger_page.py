"""Writes an index of the ledger: every record on one page with filters, each with a link to its report if it has one.

Reads records and writes one file. The page needs no network; its links are files of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shotclock import __version__
from shotclock.record.facts import Fact
from shotclock.record.figures import bytes_text, duration_text, percent_text, seconds_text
from shotclock.record.ledger import Ledger, Record, places
from shotclock.record.page_record import at
from shotclock.record.report import REPORT, fill
from shotclock.record.runfacts import RunFacts
from shotclock.record.seen import Missing, read_object
from shotclock.record.views import Cell
from shotclock.rundir import write_aside

INDEX = "records.html"
TONES = {"current": "good", "superseded": "none", "verdict failed": "bad", "failed": "bad"}  # others warn
RESULTS = {"PASSED": ("PASS", "good"), "WARNED": ("WARN", "warn"), "FAILED": ("FAIL", "bad")}
NOT_KNOWN = Missing(reason="the record does not say")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record; ``figures`` are (legs of a pass, seconds with n and spread), ``notes`` what stands below it."""

    id: str
    began: str
    title: str
    link: str
    source: str
    status: str
    tone: str
    verdict: tuple[str, str] | None
    geometry: Cell
    device: Cell
    figures: tuple[tuple[str, str], ...]
    wall: Cell
    memory: Cell
    notes: tuple[str, ...]
    superseded: bool


def write_index(home: Path, path: Path | None = None) -> Path:
    """Write the index of the ledger in ``home`` to ``path`` or beside the ledger, and return where it is."""
    path = home / INDEX if path is None else path
    ledger, where = Ledger.of(home), places(home)
    records = ledger.records()
    newest = {record.id: record for record in records}  # a later record of the same id takes its place
    rows = [_row(record, ledger.folder, where, path.parent) for record in newest.values()]
    rows.sort(key=lambda row: (row.began, row.id), reverse=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = fill(
        "records.html",
        rows=rows,
        statuses=_values(row.status for row in rows),
        devices=_values(row.device for row in rows),
        geometries=_values(row.geometry for row in rows),
        version=__version__,
    )
    write_aside(path, content)
    return path


def _values(cells: Iterable[Cell]) -> Sequence[str]:
    return sorted({cell for cell in cells if isinstance(cell, str)})


def _row(record: Record, folder: Path, where: dict[str, str], beside: Path) -> Row:
    facts, statement = record.facts, record.statement
    asked = at(statement, "predicate", "buildDefinition", "externalParameters") or {}
    began = str(at(statement, "predicate", "runDetails", "metadata", "startedOn") or record.entry.get("utc") or "")
    return Row(
        id=record.id,
        began=began.replace("T", " ").removesuffix("+00:00"),
        title=_title(asked, facts),
        link=_link(where.get(record.id), beside),
        source=facts.source,
        status=record.status,
        tone=TONES.get(record.status, "warn"),
        verdict=_verdict(record, folder),
        geometry=_fact(facts.checked.get("geometry")),
        device=_fact(facts.checked.get("device")),
        figures=tuple(_figure(kind, facts) for kind in facts.timings()),
        wall=_wall(facts),
        memory=_memory(facts),
        notes=tuple(_notes(record)),
        superseded=record.status == "superseded",
    )


def _title(asked: Mapping[str, Any], facts: RunFacts) -> str:
    """The prompt; what stands for it where it is private, or where only figures were reported."""
    if asked.get("prompt"):
        return str(asked["prompt"])
    if asked.get("private"):
        return "Prompt kept private"
    geometry = _fact(facts.checked.get("geometry"))
    return geometry if isinstance(geometry, str) else "No prompt in the record"


def _link(place: str | None, beside: Path) -> str:
    """The report of the run relative to the index, or nothing where it was not written."""
    if place is None or not (Path(place) / REPORT).is_file():
        return ""
    return quote(os.path.relpath(Path(place).resolve() / REPORT, beside.resolve()))


def _verdict(record: Record, folder: Path) -> tuple[str, str] | None:
    digest = record.entry.get("verdict_sha256")
    result = at(read_object(folder / f"{digest}.json"), "predicate", "result") if digest else None
    return RESULTS.get(result) if isinstance(result, str) else None


def _fact(fact: Fact | None) -> Cell:
    if fact is None or fact.value is None:
        return Missing(reason=(fact.reason if fact else None) or NOT_KNOWN.reason)
    return str(fact)


def _figure(kind: str, facts: RunFacts) -> tuple[str, str]:
    samples = facts.timings()[kind]
    if samples.median is None:
        return kind.replace("+", " + "), f"not recorded ({samples.reason})"
    few = ", provisional" if samples.provisional else ""
    wide = f", spread {percent_text(samples.spread)}" if samples.spread is not None else ""
    unit = seconds_text(samples.median) if samples.unit == "s" else f"{samples.median:,.6g} {samples.unit}"
    return kind.replace("+", " + "), f"{unit} (n = {samples.n}{wide}{few})"


def _wall(facts: RunFacts) -> Cell:
    wall = facts.facts.get("wall")
    if wall is not None and isinstance(wall.value, int | float):
        return duration_text(float(wall.value))
    return _fact(wall)


def _memory(facts: RunFacts) -> Cell:
    """The largest own demand of an attempt, on the device where it is known."""
    for place in ("device", "host"):
        own = [row.own(place).value for row in facts.memory]
        if known := [value for value in own if isinstance(value, int | float)]:
            return f"{bytes_text(max(known))}, {place}"
    return Missing(reason=facts.memory_reason or NOT_KNOWN.reason)


def _notes(record: Record) -> Iterable[str]:
    end = record.facts.end
    if record.superseded_by or record.why:
        yield f"Superseded by {record.superseded_by or 'nothing'}: {record.why}"
    if end.kind not in ("finished", "verdict failed") and end.found:
        yield f"{end.kind.capitalize()}: {end.found}"
    if end.terms:
        terms = " + ".join(f"{term.name} {seconds_text(term.seconds)}" for term in end.terms)
        budget = f" against {seconds_text(end.budget_s)}" if end.budget_s is not None else ""
        yield f"{terms} = {seconds_text(end.sum_s)}{budget}"
    for rung in record.facts.rejected:
        yield f"Rejected before the first forward: {rung.line}"
