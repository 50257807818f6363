"""Figures that another program measured, typed in from its report: held with their source, never passed off as ours.

Turns such a document into a statement of the ledger. Nothing of it can be derived again, and audit says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from shotclock.errors import RequestError
from shotclock.record.chain import Entry
from shotclock.record.facts import Fact, Samples, Strict, canonical, known, sha256
from shotclock.record.ledger import Ledger, empty_facts
from shotclock.record.runfacts import End, MemoryRow, Oracle, Rung
from shotclock.record.statement import PROVENANCE, REPORTED_TYPE, STATEMENT, Statement


class Reported(Strict):
    """One reported run or rung. ``lease_run`` joins rungs of one lease; ``supersedes`` are ids that it corrects."""

    format: Literal["shotclock/reported/1"]
    id: str
    lease_run: str
    utc: str
    source: str
    binary_sha256: str | None
    commit: str | None
    end: End
    checked: dict[str, Fact]
    facts: dict[str, Fact]
    timings: dict[str, Samples]
    planned_forwards: dict[str, int]
    executed_forwards: dict[str, int]
    memory: tuple[MemoryRow, ...]
    rejected: tuple[Rung, ...]
    not_shown: tuple[str, ...]
    oracle: Oracle
    supersedes: dict[str, str]


def read_reported(path: Path) -> Reported:
    """Raises :class:`RequestError` for what is no such document."""
    try:
        return Reported.model_validate_json(path.read_text())
    except ValidationError as bad:
        first = bad.errors()[0]
        raise RequestError(
            f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            allowed="a shotclock/reported/1 document",
            way_out="see recipes/reported",
        ) from None


def reported_statement(reported: Reported, name: str) -> Statement:
    """The statement; its subject is the document itself."""
    facts = empty_facts(reported.id, end=reported.end, rejected=reported.rejected)
    facts = facts.model_copy(
        update={
            "source": reported.source,
            "checked": reported.checked,
            "facts": {**reported.facts, "lease_run": known(reported.lease_run)},
            "planned_forwards": reported.planned_forwards,
            "executed_forwards": reported.executed_forwards,
            "reported": reported.timings,
            "memory": reported.memory,
            "memory_reason": None if reported.memory else "no memory was reported",
            "oracle": reported.oracle,
            "not_shown": reported.not_shown,
        }
    )
    document = reported.model_dump(mode="json", exclude_unset=True)  # a later field does not change its digest
    code: dict[str, Any] = {"name": "binary", "annotations": {"built_from": reported.commit}}
    if reported.binary_sha256:
        code["digest"] = {"sha256": reported.binary_sha256}
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": sha256(canonical(document))}}],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": REPORTED_TYPE,
                "externalParameters": {"reported": True},
                "internalParameters": {},
                "resolvedDependencies": [code],
            },
            "runDetails": {
                "builder": {"id": "urn:shotclock:reported", "version": {}},
                "metadata": {"invocationId": reported.id, "startedOn": reported.utc, "finishedOn": None},
                "byproducts": [],
            },
            "shotclock_run": json.loads(canonical(facts.model_dump(mode="json"))),
            "shotclock_machine": {"facts": {}, "libraries": {}, "modules": {}, "operations": {}},
            "shotclock_context": {},
            "shotclock_absent": {},
        },
    }


def add_reported(ledger: Ledger, paths: Sequence[Path]) -> list[Entry]:
    """Add documents, oldest first, and what each of them supersedes; what is there already is left as it is."""
    found = sorted(((read_reported(path), path.name) for path in paths), key=lambda pair: (pair[0].utc, pair[0].id))
    entries = [ledger.add("reported", reported_statement(reported, name)) for reported, name in found]
    done = {record.id for record in ledger.records() if record.status == "superseded"}
    for reported, _ in found:
        for old, why in sorted(reported.supersedes.items()):
            if old in done:
                continue
            entries.append(ledger.supersede(old, by=reported.id, why=why))
    return entries
