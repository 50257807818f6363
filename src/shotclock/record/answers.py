"""What ``shotclock record ...`` answers: lines for a person, one document for a program, an exit code.

One function a command; prints nothing. Imports what it needs when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.record.facts import canonical
from shotclock.record.ledger import Ledger, Record, places, write_record

LATER = "recorded after the run had ended, by another process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``lines`` are for a person, ``document`` is for ``--json``."""

    lines: Sequence[str]
    document: Any
    exit_code: int = 0


def list_records(home: Path) -> Answer:
    """All records, a line each."""
    from shotclock.record.show import list_lines, records_json

    records = Ledger.of(home).records()
    return Answer(lines=list_lines(records), document=records_json(records))


def show(home: Path, name: str) -> Answer:
    """One record in full, with what supersedes it and how it compares with earlier runs of its key."""
    from shotclock.record.show import records_json, show_lines, supersession

    ledger = Ledger.of(home)
    records, record = ledger.records(), ledger.find(name)
    earlier = [one for one in records if int(one.entry["n"]) < int(record.entry["n"])]
    lines = show_lines(record, supersession(record, records), earlier)
    return Answer(lines=lines, document={**records_json([record])[0], "statement": record.statement})


def query(home: Path, sql: str) -> Answer:
    """Rows of a SELECT, tab-separated with their names first."""
    from shotclock.record.index import query as ask

    rows = ask(Ledger.of(home), sql)
    lines = ["\t".join(rows[0]), *("\t".join(str(v) for v in row.values()) for row in rows)] if rows else ["no row"]
    return Answer(lines=lines, document=rows)


def audit(home: Path, folder: Path | None) -> Answer:
    """Whether the ledger holds; ``folder`` is another ledger than the home folder's."""
    from shotclock.record.audit import audit as check

    found = check(Ledger(folder) if folder else Ledger.of(home), {} if folder else places(home))
    return Answer(lines=found.lines(), document=found.to_json(), exit_code=found.exit_code)


def compare(home: Path, a: str, b: str, across: Sequence[str]) -> Answer:
    """Two records, by id or by run folder."""
    from shotclock.record.compare import compare as hold

    found = hold(_record(home, a).facts, _record(home, b).facts, across=set(across))
    return Answer(lines=found.lines(), document=found.to_json())


def _record(home: Path, name: str) -> Record:
    """By id, or by the folder of a run that was recorded."""
    ledger, place = Ledger.of(home), Path(name)
    if not place.is_dir():
        return ledger.find(name)
    there = str(place.resolve())
    ids = [key for key, value in places(home).items() if value == there]
    found = [record for record in ledger.records() if record.id in ids]
    if not found:
        raise RequestError(
            f"{place} is not in the ledger", allowed="a recorded run", way_out=f"shotclock record add {place}"
        )
    return found[-1]


def clips(a: Path, b: Path, band: Sequence[Path]) -> Answer:
    """Two run folders' clips, against a band of runs where one is given."""
    from shotclock.record.clips import compare_clips, read_band, read_media

    measured = read_band(band) if band else None
    found = compare_clips(read_media(a), read_media(b), measured)
    return Answer(lines=found.lines(), document=found.to_json())


def supersede(home: Path, old: str, by: str | None, why: str) -> Answer:
    """Append a correction."""
    entry = Ledger.of(home).supersede(old, by=by, why=why)
    return Answer(lines=[f"{old} is superseded by {by or 'nothing'}: {why}"], document=entry)


def add(home: Path, run: Path, *, private: bool) -> Answer:
    """Record a run that could not do it itself, because it was killed or is older than the ledger."""
    from shotclock.record.machine import unseen
    from shotclock.record.show import line_of

    entry = write_record(run, home, unseen(LATER), private=private)
    record = Ledger.of(home).find(str(entry["id"]))
    return Answer(lines=[line_of(record)], document=entry)


def recipe(home: Path, name: str) -> Answer:
    """The recipe that renders a recorded run once more."""
    from shotclock.record.recipes import recipe_of

    record = Ledger.of(home).find(name)
    checked, facts = record.facts.checked, record.facts.facts
    subject = f"{checked.get('geometry')}, {facts.get('steps')} steps"
    document = recipe_of(record.statement, subject).model_dump(mode="json")
    return Answer(lines=canonical(document).decode().splitlines(), document=document)


def benchmarks(root: Path, *, write: bool) -> Answer:
    """BENCHMARKS.md of a checkout, printed or written."""
    from shotclock.record.benchmarks import benchmarks as page
    from shotclock.rundir import write_aside

    text = page(root)
    if write:
        write_aside(root / "BENCHMARKS.md", text.encode())
        return Answer(lines=[str(root / "BENCHMARKS.md")], document={"written": True})
    return Answer(lines=text.splitlines(), document={"text": text})
