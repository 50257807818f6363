"""The ledger: every record by its digest, in the order it was made; corrections supersede and stay beside what was.

Writes ``record.json`` into the run folder and its copy into the home folder, then one line of the chain. Nothing that
was written is changed. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shotclock.errors import RequestError, ShotclockError
from shotclock.record.chain import Chain, Entry, Reading
from shotclock.record.derive import Context, checked_facts, derive, stamp_id, without_paths
from shotclock.record.digest import Digests
from shotclock.record.essence import packets_sha256
from shotclock.record.facts import canonical, known, missing, sha256
from shotclock.record.folder import read_folder
from shotclock.record.machine import Machine
from shotclock.record.notshown import PENDING, not_shown
from shotclock.record.runfacts import METHOD, End, Oracle, RunFacts, Rung, Term
from shotclock.record.statement import Statement, facts_of, refusal_statement, run_statement, verdict_statement
from shotclock.rundir import write_aside

FOLDER = "ledger"  # below the home folder
DIGESTS = "digests.json"  # below the home folder
PLACES = "places.json"  # below the home folder: where the run folders of ids lie, outside of every record
RECORD = "record.json"
VERDICT_RECORD = "record-verdict.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A statement with its line of the ledger, and what later lines say about it."""

    entry: Entry
    statement: Statement
    facts: RunFacts
    superseded_by: str | None = None
    why: str | None = None
    oracle: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.facts.id

    @property
    def not_shown(self) -> tuple[str, ...]:
        """What the run does not show, less the oracle that has run since."""
        return tuple(one for one in self.facts.not_shown if self.oracle is None or one != PENDING)

    @property
    def status(self) -> str:
        """current, superseded, or how it did not end."""
        if self.superseded_by is not None or self.why is not None:
            return "superseded"
        return "current" if self.facts.end.kind in ("finished", "verdict failed", "unknown") else self.facts.end.kind


class Ledger:
    """The ledger in a folder that holds ``ledger.jsonl`` and the statements, each named by its sha256."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chain = Chain(folder)

    @classmethod
    def of(cls, home: Path) -> Ledger:
        """That of a home folder."""
        return cls(home / FOLDER)

    def add(self, kind: str, statement: Statement, verdict: Statement | None = None) -> Entry:
        """Append a statement; one that is already there gives the line it has."""
        digests = [self._store(one) for one in (statement, verdict) if one is not None]
        for entry in self.chain.read().entries:
            if entry.get("record_sha256") == digests[0]:
                return entry
        return self.chain.append(
            {
                "kind": kind,
                "id": statement["predicate"]["runDetails"]["metadata"]["invocationId"],
                "utc": _now(),
                "record_sha256": digests[0],
                "verdict_sha256": digests[1] if len(digests) > 1 else None,
            }
        )

    def supersede(self, old: str, *, by: str | None, why: str) -> Entry:
        """Say that ``old`` no longer holds, why, and what stands in its place; the old record stays as it is.

        Raises :class:`RequestError` for ids that are not there, for a record that is superseded already, and for no
        reason.
        """
        records = {record.id: record for record in self.records()}
        for name in (old, *([by] if by else [])):
            if name not in records:
                raise RequestError(
                    f"no record {name}", allowed="an id of `shotclock record list`", way_out="name it in full"
                )
        if not why.strip():
            raise RequestError("no reason", allowed="a sentence", way_out="say why it no longer holds")
        if (before := records[old]).status == "superseded":
            raise RequestError(
                f"{old} is superseded by {before.superseded_by or 'nothing'} already",
                allowed="a record that still stands",
                way_out=f"supersede {before.superseded_by or 'another record'} instead",
            )
        if old == by:
            raise RequestError(f"{old} by itself", allowed="another record", way_out="name the newer one")
        return self.chain.append({"kind": "supersede", "id": old, "by": by, "why": why.strip(), "utc": _now()})

    def add_oracle(self, record: str, result: Mapping[str, Any]) -> Entry:
        """Say what another implementation gave on the workload of ``record``; see bench/oracle.py."""
        digest = sha256(canonical(result))
        write_aside_once(self.folder / f"{digest}.json", canonical(result))
        return self.chain.append({"kind": "oracle", "id": record, "oracle_sha256": digest, "utc": _now()})

    def records(self) -> list[Record]:
        """Every record that can be read, in the order of the ledger, with what was said about it later."""
        reading = self.chain.read()
        later = _later(reading)
        found = []
        for entry in reading.entries:
            if "record_sha256" in entry and (record := self._read(entry)) is not None:
                note = later.get(record.id, {})
                oracle = self._document(note["oracle_sha256"]) if "oracle_sha256" in note else None
                found.append(
                    Record(
                        entry=entry,
                        statement=record.statement,
                        facts=record.facts,
                        superseded_by=note.get("by"),
                        why=note.get("why"),
                        oracle=oracle,
                    )
                )
        return found

    def entries_of(self, name: str) -> list[Entry]:
        """Lines that hold a record of this id."""
        return [entry for entry in self.chain.read().entries if entry.get("id") == name and "record_sha256" in entry]

    def statement(self, entry: Entry) -> Statement | None:
        """The statement of a line; None where its file cannot be read."""
        return self._document(str(entry["record_sha256"]))

    def find(self, name: str) -> Record:
        """The record of an id or of the beginning of one; the newest where a run has several.

        Raises :class:`RequestError` where there is none, or several runs.
        """
        found = [record for record in self.records() if record.id.startswith(name) or record.facts.run == name]
        ids = sorted({record.facts.run for record in found})
        if len(ids) != 1:
            raise RequestError(
                f"{len(ids)} records begin with {name!r}" if ids else f"no record {name!r}",
                allowed=", ".join(ids[:4]) or "an id of `shotclock record list`",
                way_out="name it in full",
            )
        exact = [record for record in found if record.id == name]
        return (exact or found)[-1]

    def _store(self, statement: Mapping[str, Any]) -> str:
        content = canonical(statement)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_aside_once(self.folder / f"{sha256(content)}.json", content)
        return sha256(content)

    def _document(self, digest: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.folder / f"{digest}.json").read_text())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _read(self, entry: Entry) -> Record | None:
        statement = self._document(str(entry["record_sha256"]))
        if statement is None:
            return None
        try:
            return Record(entry=entry, statement=statement, facts=facts_of(statement))
        except (ValidationError, KeyError, TypeError):
            return None


def write_aside_once(path: Path, content: bytes) -> None:
    """A file named by its content: written once, never again."""
    if not path.exists():
        write_aside(path, content)


def write_record(
    run: Path,
    home: Path,
    machine: Machine,
    *,
    private: bool,
    job: str | None = None,
    lease_source: str | None = None,
    lease_s: float | None = None,
    rejected: tuple[Rung, ...] = (),
) -> Entry:
    """Record the run in folder ``run``, however it ended: ``record.json`` there, its copy and a line in the ledger.

    Called again without a change of the folder, by whomever, it gives the line that is there. ``private`` leaves both
    prompts out. Raises :class:`RunDirError` where the folder holds no run or the ledger is broken.
    """
    context = Context(private=private, job=job, lease_source=lease_source, lease_s=lease_s, rejected=rejected)
    folder = read_folder(run)
    facts = derive(folder, machine, context)
    packets = None
    if folder.file("clip.mp4"):
        try:
            packets = packets_sha256(run / "clip.mp4")
        except ShotclockError:
            packets = None  # a clip that cannot be demuxed: the verdict says so, and its sha256 is there
    digests = Digests(home / DIGESTS)
    statement = run_statement(folder, facts, machine, context, checkpoint_sha256=digests.sha256, packets_sha256=packets)
    verdict = verdict_statement(folder)
    for entry in Ledger.of(home).entries_of(facts.id):
        before = Ledger.of(home).statement(entry)
        if before is not None and named_digests(before) == named_digests(statement):
            return entry
    write_aside(run / RECORD, canonical(statement))
    if verdict is not None:
        write_aside(run / VERDICT_RECORD, canonical(verdict))
    _remember_place(home, facts.id, run)
    return Ledger.of(home).add("run", statement, verdict)


def named_digests(statement: Statement) -> dict[str, str]:
    """The files that a statement is about, by name."""
    listed = [*statement["subject"], *statement["predicate"]["runDetails"]["byproducts"]]
    return {one["name"]: one["digest"]["sha256"] for one in listed}


def record_refusal(
    home: Path,
    machine: Machine,
    *,
    request: Mapping[str, Any],
    request_sha256: str,
    error: ShotclockError,
    private: bool,
    rejected: tuple[Rung, ...] = (),
    terms: tuple[Term, ...] = (),
    budget_s: float | None = None,
    utc: str | None = None,
    job: str | None = None,
) -> Entry:
    """Record a render that the plan refused before it had a folder, with the sum that refused it.

    ``request`` is the document as a mapping (``Request.model_dump(mode="json")``), ``error`` what was raised.
    """
    utc = utc or _now()
    context = Context(private=private, job=job, rejected=rejected)
    end = End(
        kind="refused",
        exit_code=error.exit_code,
        found=without_paths(error.found),
        allowed=without_paths(error.allowed),
        way_out=without_paths(error.way_out),
        terms=terms,
        sum_s=sum(term.seconds for term in terms) if terms else None,
        budget_s=budget_s,
    )
    facts = empty_facts(stamp_id(utc, {"request": request_sha256, "found": error.found}), end=end, rejected=rejected)
    checked = checked_facts(request, {}, {}, None, machine)
    device = machine.facts.get("device", missing("not looked at"))
    facts = facts.model_copy(update={"checked": {**checked, "device": device}})
    facts = facts.model_copy(update={"not_shown": not_shown(facts, request, None, machine)})
    statement = refusal_statement(request, facts, machine, context, request_sha256=request_sha256, utc=utc)
    return Ledger.of(home).add("refusal", statement)


def empty_facts(name: str, *, end: End, rejected: tuple[Rung, ...] = ()) -> RunFacts:
    """Facts of a run of which nothing was measured."""
    never = missing("no forward ran", "s")
    return RunFacts(
        id=name,
        run=name,
        attempt=1,
        continues=None,
        source="shotclock",
        end=end,
        checked={},
        facts={"first_dit": never, "wall": never, "executed_passes": known(0)},
        planned_forwards={},
        executed_forwards={},
        repeated_forwards=0,
        method=METHOD,
        warm_up_passes=1,
        passes=(),
        reported={},
        phases=(),
        projections=(),
        memory=(),
        memory_reason="no run folder was made",
        throttles=(),
        snapshots=(),
        seams=(),
        rejected=rejected,
        warnings=(),
        oracle=Oracle(status="PENDING", reason="no other implementation has run this workload"),
        notes=(),
        not_shown=(),
    )


def places(home: Path) -> dict[str, str]:
    """Where the run folders of ids lay when they were recorded; {} where that is not known."""
    try:
        found = json.loads((home / PLACES).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): str(place) for name, place in found.items() if isinstance(place, str)}


def _remember_place(home: Path, name: str, run: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with Ledger.of(home).chain.locked():
        write_aside(home / PLACES, canonical({**places(home), name: str(run.resolve())}))


def _later(reading: Reading) -> dict[str, dict[str, Any]]:
    """What later lines say about earlier records, by id."""
    found: dict[str, dict[str, Any]] = {}
    for entry in reading.entries:
        if entry.get("kind") in ("supersede", "oracle"):
            said: dict[str, Any] = {name: entry[name] for name in ("by", "why", "oracle_sha256") if name in entry}
            found.setdefault(str(entry["id"]), {}).update(said)
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
