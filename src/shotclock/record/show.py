"""How records read in a terminal: one line each, or one in full, with what supersedes what.

Text only; prints nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shotclock.record.drift import against_earlier, floor_leak
from shotclock.record.ledger import Record
from shotclock.record.runfacts import RunFacts

ID = 23  # characters of an id


def list_lines(records: Sequence[Record]) -> list[str]:
    """One line a record, oldest first."""
    if not records:
        return ["no record yet"]
    return [line_of(record) for record in records]


def line_of(record: Record) -> str:
    """Id, status, what ran on what, the figure, and what took its place."""
    facts = record.facts
    geometry = facts.checked.get("geometry", "no geometry")
    device = facts.checked.get("device", "no device")
    said = f"{record.id:<{ID}}  {record.status:<14} {geometry}, {device}"
    for kind, samples in facts.timings().items():
        said += f"; {kind} {samples}"
    if facts.end.kind in ("refused", "stopped", "failed", "killed"):
        said += f"; {_arithmetic(facts) or facts.end.found}"
    if record.superseded_by or record.why:
        said += f"; superseded by {record.superseded_by or 'nothing'}: {record.why}"
    return said


def show_lines(record: Record, chain: Sequence[Record], earlier: Sequence[Record] = ()) -> list[str]:
    """All of one record; ``chain`` are the records that lead from it to the one that stands, ``earlier`` others."""
    facts = record.facts
    said = [f"{record.id}: {facts.end.kind}, {record.status}", *_supersession(chain)]
    said += [f"end: {one}" for one in (facts.end.found, facts.end.allowed, facts.end.way_out) if one]
    if arithmetic := _arithmetic(facts):
        said.append(f"arithmetic: {arithmetic}")
    said += [f"{name}: {fact}" for name, fact in facts.checked.items()]
    said += [f"{name}: {fact}" for name, fact in facts.facts.items()]
    planned, executed = sum(facts.planned_forwards.values()), sum(facts.executed_forwards.values())
    said.append(f"forwards: {planned} planned, {executed} ran, {facts.repeated_forwards} of them once more")
    said += [f"{kind}: {samples}; {samples.method}" for kind, samples in facts.timings().items()]
    said += [f"{kind}, split: {split}" for kind, split in facts.splits().items()]
    for row in facts.memory:
        said.append(f"memory of attempt {row.attempt}: own demand device {row.own('device')}, host {row.own('host')}")
        said.append(
            f"utilisation of attempt {row.attempt}: {row.load}, busy readings {row.busy_readings} of {row.samples}, "
            f"busy-to-idle edges {row.idle_edges}; context only"
        )
    said += [f"rejected: {rung.line}" for rung in facts.rejected]
    said += [f"warning: {one}" for one in (*facts.warnings, *history_warnings(record, earlier))]
    said.append(f"oracle: {oracle_text(record)}")
    return [*said, "this run does not show:", *(f"  - {one}" for one in record.not_shown)]


def oracle_text(record: Record) -> str:
    """PENDING, or what the other implementation gave."""
    if record.oracle is None:
        return f"PENDING ({record.facts.oracle.reason})"
    return f"{record.oracle['implementation']}: {record.oracle['summary']}"


def history_warnings(record: Record, earlier: Sequence[Record]) -> list[str]:
    """Slower than before under the same checked facts, or memory that is not given back from run to run."""
    same = [one.facts for one in earlier if one.facts.checked == record.facts.checked and one.status == "current"]
    said = []
    for kind, samples in record.facts.timings().items():
        before = [facts.timings()[kind] for facts in same if kind in facts.timings()]
        if text := against_earlier(kind, samples, before):
            said.append(text)
    floors = [_floor(one.facts) for one in (*earlier, record)]
    if text := floor_leak([floor for floor in floors if floor is not None]):
        said.append(text)
    return said


def _floor(facts: RunFacts) -> int | None:
    for row in facts.memory[:1]:
        start = row.device_start.value if row.device_start.value is not None else row.host_start.value
        return int(start) if isinstance(start, int | float) else None
    return None


def supersession(record: Record, records: Sequence[Record]) -> list[Record]:
    """From the record on, what took its place, and what took the place of that."""
    by_id: Mapping[str, Record] = {one.id: one for one in records}
    chain = [record]
    while (name := chain[-1].superseded_by) and name in by_id and by_id[name] not in chain:
        chain.append(by_id[name])
    return chain


def _supersession(chain: Sequence[Record]) -> list[str]:
    said = []
    for record in chain:
        if record.why:
            said.append(f"superseded by {record.superseded_by or 'nothing'}: {record.why}")
    if len(chain) > 1:
        figures = [figure_text(one) for one in chain]
        said.append(f"chain: {' -> '.join(figures)}")
    return said


def figure_text(record: Record) -> str:
    """The first figure of a record, in a few words."""
    for samples in record.facts.timings().values():
        if samples.median is not None:
            return f"{samples.median:g} {samples.unit} (n={samples.n})"
    return record.facts.end.kind


def _arithmetic(facts: RunFacts) -> str | None:
    end = facts.end
    if not end.terms or end.sum_s is None:
        return None
    terms = " + ".join(f"{term.name} {term.seconds:,.1f} s" for term in end.terms)
    against = "" if end.budget_s is None else f" > budget {end.budget_s:,.1f} s"
    return f"{terms} = {end.sum_s:,.1f} s{against}"


def records_json(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For ``--json``: id, status and the facts as they are stored."""
    return [
        {
            "id": record.id,
            "status": record.status,
            "superseded_by": record.superseded_by,
            "why": record.why,
            "record_sha256": record.entry["record_sha256"],
            "verdict_sha256": record.entry.get("verdict_sha256"),
            "oracle": oracle_text(record),
            "facts": record.facts.model_dump(mode="json"),
        }
        for record in records
    ]
