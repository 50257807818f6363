"""Checks a ledger against itself and against the files: edited, deleted or reordered lines, and every claim again.

Reads everything, writes nothing. What cannot be checked is said, not passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import ShotclockError
from shotclock.record.derive import derive
from shotclock.record.facts import canonical, sha256
from shotclock.record.folder import LOGS, Folder, read_folder
from shotclock.record.ledger import Ledger, Record
from shotclock.record.runfacts import NOT_LOOKED_AT
from shotclock.record.statement import PROVENANCE, STATEMENT, read_context, read_machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """``broken`` are contradictions, ``notes`` what could not be checked or what a kill left; counts of what was."""

    entries: int
    claims: int
    rederived: int
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 where nothing contradicts."""
        return 1 if self.broken else 0

    def lines(self) -> list[str]:
        """For a person."""
        verdict = "holds" if not self.broken else f"BROKEN in {len(self.broken)} places"
        said = f"ledger {verdict}: {self.entries} lines, {self.claims} facts, {self.rederived} records derived again"
        return [said, *(f"broken: {one}" for one in self.broken), *(f"note: {one}" for one in self.notes)]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        names = ("entries", "claims", "rederived", "broken", "notes")
        return {"format": "shotclock/audit/1", **{name: getattr(self, name) for name in names}}


def audit(ledger: Ledger, places: Mapping[str, str]) -> Audit:
    """Check chain, digests and, where the run folder of an id is known and there, every fact against its files."""
    reading = ledger.chain.read()
    broken, notes = list(reading.broken), []
    if reading.torn:
        notes.append(f"the ledger ends in {len(reading.torn)} bytes of a line that a kill cut off; no entry is lost")
    referred: set[str] = set()
    for entry in reading.entries:
        for name in ("record_sha256", "verdict_sha256", "oracle_sha256"):
            if digest := entry.get(name):
                referred.add(str(digest))
                broken += _stored(ledger.folder, str(digest), f"line {entry.get('n')}, {name.removesuffix('_sha256')}")
    ids = {str(entry["id"]) for entry in reading.entries if "record_sha256" in entry}
    for entry in reading.entries:
        for name in ("id", "by"):
            if (said := entry.get(name)) is not None and said not in ids:
                broken.append(f"line {entry.get('n')} names {said}, of which there is no record")
    stray = sorted(path.name for path in ledger.folder.glob("*.json") if len(path.stem) == 64)
    notes += [f"{name} has no line: the process was killed before it" for name in stray if name[:-5] not in referred]
    records = ledger.records()
    rederived = 0
    for record in records:
        broken += own_claims(record)
        found, why = rederive(record, places)
        broken += found
        notes += [f"{record.id}: {why}"] if why else []
        rederived += why is None
    claims = sum(len(one.facts.facts) + len(one.facts.checked) + len(one.facts.passes) for one in records)
    return Audit(
        entries=len(reading.entries), claims=claims, rederived=rederived, broken=tuple(broken), notes=tuple(notes)
    )


def _stored(folder: Path, digest: str, what: str) -> list[str]:
    try:
        content = (folder / f"{digest}.json").read_bytes()
    except OSError:
        return [f"{what}: the file {digest[:12]} is not there"]
    return [] if sha256(content) == digest else [f"{what}: the file {digest[:12]} was edited"]


def own_claims(record: Record) -> list[str]:
    """Contradictions inside one record."""
    facts, said, found = record.facts, record.statement, []
    if said.get("_type") != STATEMENT or said.get("predicateType") != PROVENANCE:
        found.append("it is not the statement that it should be")
    if not said.get("subject") or not all(one.get("digest", {}).get("sha256") for one in said["subject"]):
        found.append("a subject has no sha256")
    if facts.end.kind == "finished" and facts.planned_forwards and facts.source == "shotclock":
        distinct = sum(facts.executed_forwards.values()) - facts.repeated_forwards
        if distinct != sum(facts.planned_forwards.values()):
            planned = sum(facts.planned_forwards.values())
            found.append(f"{planned} forwards were planned, {distinct} distinct ones ran")
    if facts.end.terms and facts.end.sum_s is not None:
        summed = sum(term.seconds for term in facts.end.terms)
        if facts.source == "shotclock" and abs(summed - facts.end.sum_s) > 1e-6 * max(1.0, abs(summed)):
            found.append(f"its terms sum to {summed:,.3f} s, it says {facts.end.sum_s:,.3f} s")
    if not facts.not_shown:
        found.append("it does not say what it does not show")
    return [f"{record.id}: {one}" for one in found]


def rederive(record: Record, places: Mapping[str, str]) -> tuple[list[str], str | None]:
    """Contradictions between a record and its run folder, and why they could not be looked for, if so."""
    if record.facts.source != "shotclock":
        return [], "reported by another program: nothing to derive it from"
    if record.entry["kind"] != "run":
        return [], "refused before it had a folder: nothing to derive it from"
    place = places.get(record.id)
    if place is None or not Path(place).is_dir():
        return [], "its run folder is not there: its facts were not derived again"
    resources = _resources(record.statement)
    limits = {name: resources[name]["annotations"]["bytes"] for name in LOGS if name in resources}
    try:
        folder = read_folder(Path(place), limits=limits)
    except ShotclockError as error:
        return [f"{record.id}: {error.found}"], None
    changed = _changed_files(folder, resources)
    again = derive(_as_then(folder, record), machine_of(record), context_of(record))
    before, now = record.facts.model_dump(mode="json"), json.loads(canonical(again.model_dump(mode="json")))
    differs = [name for name in before if not same_facts(before[name], now[name])]
    found = [*changed, *(f"{name} derived again is another" for name in differs)]
    return [f"{record.id}: {one}" for one in found], None


def same_facts(before: Any, now: Any) -> bool:
    """Whether what was recorded is what is derived now; facts that no one looked at then may be known now."""
    if isinstance(before, dict) and isinstance(now, dict):
        if before.get("reason") == NOT_LOOKED_AT.reason and before.get("value") is None:
            return True
        return before.keys() == now.keys() and all(same_facts(before[key], now[key]) for key in before)
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(same_facts, before, now))
    return bool(before == now)


def machine_of(record: Record) -> Any:
    """The machine that the record holds."""
    return read_machine(record.statement["predicate"]["shotclock_machine"])


def context_of(record: Record) -> Any:
    """The context that the record holds."""
    return read_context(record.statement["predicate"]["shotclock_context"])


def _resources(statement: Mapping[str, Any]) -> dict[str, Any]:
    listed = [*statement["subject"], *statement["predicate"]["runDetails"]["byproducts"]]
    return {one["name"]: one for one in listed}


def _changed_files(folder: Folder, resources: Mapping[str, Any]) -> list[str]:
    changed = []
    for name, resource in resources.items():
        seen = folder.file(name)
        if seen is None:
            if not name.startswith("snapshot-"):  # only the two newest are kept
                changed.append(f"{name} is not there any more")
        elif seen.sha256 != resource["digest"]["sha256"]:
            changed.append(f"{name} is not the file that was recorded")
    return changed


def _as_then(folder: Folder, record: Record) -> Folder:
    """The folder with the files that were absent then still absent: a verdict that came later is another record's."""
    absent = record.statement["predicate"]["shotclock_absent"]
    return Folder(
        documents={name: one for name, one in folder.documents.items() if name not in absent},
        attempts=folder.attempts,
        files=tuple(seen for seen in folder.files if seen.name not in absent),
        absent=absent,
        notes=folder.notes,
    )
