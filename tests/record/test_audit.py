"""Audit finds what was changed after the fact: in the ledger, in a record, in the run folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import PASS_S, STOPS, events, machine, make_run, sample, verdict

from shotclock.errors import RequestError
from shotclock.record.audit import Audit, audit, same_facts
from shotclock.record.digest import Digests
from shotclock.record.index import INDEX, query
from shotclock.record.ledger import DIGESTS, PLACES, Ledger, places, write_record
from shotclock.record.runfacts import NOT_LOOKED_AT


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three recorded runs: finished, finished, stopped."""
    found = tmp_path / "home"
    for number, end in enumerate((None, None, STOPS)):
        lines = events(utc=f"2026-12-01T0{number}:00:00+00:00", **({"end": end} if end else {}))
        memory = [sample(0.0), sample(1.0, device_used_bytes=9 << 30)]
        run = make_run(tmp_path / f"run{number}", lines, memory=memory, judged=verdict(), models=tmp_path / "models")
        write_record(run, found, machine(), private=False)
    return found


def audited(home: Path) -> Audit:
    return audit(Ledger.of(home), places(home))


def record_file(home: Path, number: int) -> Path:
    return home / "ledger" / f"{Ledger.of(home).chain.read().entries[number]['record_sha256']}.json"


def test_an_untouched_ledger_holds(home: Path) -> None:
    """Every record is derived again from its folder, and nothing is left unchecked."""
    found = audited(home)
    assert (found.broken, found.notes, found.rederived, found.exit_code) == ((), (), 3, 0)
    assert found.claims > 100


def test_what_nobody_looked_at_then_is_no_contradiction_now() -> None:
    """Records outlive the program that wrote them; a fact that was there, or was missing for a reason, is held to."""
    unseen = {"value": None, "unit": "", "reason": NOT_LOOKED_AT.reason}
    known = {"value": 3, "unit": "", "reason": None}
    assert same_facts({"rows": [{"edges": unseen, "n": 1}]}, {"rows": [{"edges": known, "n": 1}]})
    assert not same_facts({"edges": known}, {"edges": unseen})
    assert not same_facts({"edges": {**unseen, "reason": "no readings"}}, {"edges": known})
    assert not same_facts({"n": 1}, {"n": 1, "m": 2}) and not same_facts([known], [known, known])


def test_an_edited_record_is_found(home: Path) -> None:
    """A figure that was bettered in the stored file."""
    path = record_file(home, 1)
    path.write_text(path.read_text().replace("1.01", "0.51"))
    assert any("was edited" in one for one in audited(home).broken)


def test_a_deleted_record_is_found(home: Path) -> None:
    """The line says that there was one."""
    record_file(home, 0).unlink()
    assert any("is not there" in one for one in audited(home).broken)


def test_a_deleted_last_line_is_found(home: Path) -> None:
    """The head knows how many there were; what it referred to is named as well."""
    path = home / "ledger" / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    found = audited(home)
    assert any("3 lines were written, 2 are there" in one for one in found.broken) and found.exit_code == 1
    assert any("has no line" in one for one in found.notes)


FILE_CHANGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a faster pass": (
        "events.jsonl",
        lambda b: b.replace(b'"last_s": 1.01', b'"last_s": 0.11'),
        "passes derived again",
    ),
    "another clip": ("clip.mp4", lambda b: b + b"x", "clip.mp4 is not the file"),
    "less memory": ("memory.jsonl", lambda b: b.replace(b"9663676416", b"8663676416"), "memory derived again"),
    "a shorter log": ("events.jsonl", lambda b: b[: len(b) // 2], "events.jsonl is not the file"),
    "a better verdict": ("verdict.json", lambda b: b.replace(b"9.5", b"99.5"), "verdict.json is not the file"),
}


@pytest.mark.parametrize("name", FILE_CHANGES)
def test_a_changed_file_of_the_run_is_found(home: Path, tmp_path: Path, name: str) -> None:
    """Digest and derived facts both tell."""
    file, change, said = FILE_CHANGES[name]
    path = tmp_path / "run1" / file
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    broken = audited(home).broken
    assert any(said in one for one in broken), broken


def test_forwards_that_were_not_planned_are_found(tmp_path: Path) -> None:
    """A finished run with fewer forwards than its plan counted (users.md row 60)."""
    write_record(make_run(tmp_path / "run", events(PASS_S[:7])), tmp_path, machine(), private=False)
    assert any("32 forwards were planned, 28 distinct ones ran" in one for one in audited(tmp_path).broken)


def test_lines_that_came_later_are_no_contradiction(home: Path, tmp_path: Path) -> None:
    """A resumed run appends to its logs; the older record still holds."""
    with (tmp_path / "run2" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "RunBegins", "utc": "2026-12-02T00:00:00+00:00", "attempt": 2}) + "\n")
    assert audited(home).broken == ()


def test_a_missing_folder_is_said_and_no_contradiction(home: Path) -> None:
    """What cannot be checked is told."""
    (home / PLACES).unlink()
    found = audited(home)
    assert (found.broken, found.rederived, len(found.notes)) == ((), 0, 3)


def test_weights_are_read_once(home: Path, tmp_path: Path) -> None:
    """The digest is remembered by path, size and time of change; another content is read anew."""
    digests, weights = Digests(home / DIGESTS), tmp_path / "models" / "ltx-transformer.safetensors"
    first = digests.sha256(weights)
    assert digests.read == 0 and re.fullmatch("[0-9a-f]{64}", first)
    weights.write_bytes(b"other weights")
    assert digests.sha256(weights) != first and digests.read == 1
    (home / DIGESTS).write_text("{ torn")
    assert Digests(home / DIGESTS).sha256(weights) == digests.sha256(weights)


def test_the_index_answers_in_sql_and_is_rebuilt_from_the_files(home: Path) -> None:
    """Records, facts, timings and raw seconds; a deleted or stale index costs nothing."""
    ledger = Ledger.of(home)
    rows = query(ledger, "select ended, device, geometry, exit_code from records order by n")
    assert [row["ended"] for row in rows] == ["finished", "finished", "stopped"]
    assert rows[2]["exit_code"] == 92 and rows[0]["geometry"] == "768x448, 25 frames at 24"
    raw = query(ledger, "select s from seconds where warm_up = 0 and id = (select min(id) from records) order by i")
    assert [row["s"] for row in raw] == list(PASS_S[1:])
    own = query(ledger, "select value from facts where name = 'own_demand_device_1' limit 1")
    assert own == [{"value": 4 << 30}]
    assert query(ledger, "select n, provisional from timings limit 1") == [{"n": 7, "provisional": 0}]
    (ledger.folder / INDEX).unlink()
    ids = [record.id for record in ledger.records()]
    ledger.supersede(ids[0], by=ids[1], why="a reason")
    assert query(ledger, "select count(*) as c from records where status = 'superseded'") == [{"c": 1}]


def test_a_query_cannot_change_anything(home: Path) -> None:
    """The connection is read-only, and an error names the columns."""
    for sql in ("delete from records", "drop table facts", "insert into facts values (1, 2, 3, 4, 5)"):
        with pytest.raises(RequestError):
            query(Ledger.of(home), sql)
    with pytest.raises(RequestError, match="no such column") as refused:
        query(Ledger.of(home), "select colour from records")
    assert "geometry" in refused.value.allowed
    assert query(Ledger.of(home), "select count(*) as c from records") == [{"c": 3}]
