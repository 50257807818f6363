"""The index of a ledger: one SQLite file, rebuilt from the files whenever they changed, and asked in SQL.

Nothing is only here: the file may be deleted at any time. Questions are read-only.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.record.ledger import Ledger, Record

INDEX = "index.sqlite"
SCHEMA = """
create table records (
  id text primary key,
  n integer not null,
  kind text not null,
  status text not null,
  superseded_by text,
  why text,
  record_sha256 text not null,
  j text not null check (json_valid(j)),
  source text generated always as (json_extract(j, '$.source')),
  ended text generated always as (json_extract(j, '$.end.kind')),
  exit_code integer generated always as (json_extract(j, '$.end.exit_code')),
  device text generated always as (json_extract(j, '$.checked.device.value')),
  build text generated always as (json_extract(j, '$.checked.build.value')),
  dtype text generated always as (json_extract(j, '$.checked.dtype.value')),
  geometry text generated always as (json_extract(j, '$.checked.geometry.value')),
  legs text generated always as (json_extract(j, '$.checked.legs.value')),
  video_tokens integer generated always as (json_extract(j, '$.facts.video_tokens.value')),
  first_dit_s real generated always as (json_extract(j, '$.facts.first_dit.value')),
  wall_s real generated always as (json_extract(j, '$.facts.wall.value'))
);
create table facts (id text not null, name text not null, value, unit text not null, reason text);
create table timings (id text not null, kind text not null, n integer not null, median_s real, spread real,
                      provisional integer not null, method text not null);
create table seconds (id text not null, kind text not null, i integer not null, warm_up integer not null, s real);
create table built_from (head text not null);
"""


def open_index(ledger: Ledger) -> sqlite3.Connection:
    """A read-only connection to an index that is as new as the ledger; it is rebuilt where it is not."""
    path = ledger.folder / INDEX
    head = ledger.chain.read().head
    if _built_from(path) != head:
        _rebuild(path, ledger, head)
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    connection.execute("pragma query_only = on")
    return connection


def query(ledger: Ledger, sql: str) -> list[dict[str, Any]]:
    """Rows of one SELECT over ``records``, ``facts``, ``timings`` and ``seconds``; raises :class:`RequestError`."""
    with closing(open_index(ledger)) as connection:
        try:
            return [dict(row) for row in connection.execute(sql)]
        except sqlite3.Error as bad:
            tables = ", ".join(f"{name}({', '.join(columns)})" for name, columns in _tables(connection))
            raise RequestError(f"{bad}", allowed=f"one SELECT over {tables}", way_out="see docs/record.md") from None


def _built_from(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as connection:
            row = connection.execute("select head from built_from").fetchone()
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None


def _rebuild(path: Path, ledger: Ledger, head: str) -> None:
    ledger.folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary)) as connection, connection:
        connection.executescript(SCHEMA)
        for record in ledger.records():
            _insert(connection, record)
        connection.execute("insert into built_from values (?)", (head,))
    temporary.replace(path)


def _insert(connection: sqlite3.Connection, record: Record) -> None:
    facts, entry = record.facts, record.entry
    j = json.dumps(facts.model_dump(mode="json"), sort_keys=True)
    row = (record.id, entry["n"], entry["kind"], record.status, record.superseded_by, record.why)
    columns = "id, n, kind, status, superseded_by, why, record_sha256, j"
    for table in ("records", "facts", "timings", "seconds"):  # a later record of the same id takes its place
        connection.execute(f"delete from {table} where id = ?", (record.id,))
    connection.execute(
        f"insert into records ({columns}) values (?, ?, ?, ?, ?, ?, ?, ?)", (*row, entry["record_sha256"], j)
    )
    named = {**facts.facts, **facts.checked}
    rows: list[Sequence[Any]] = [(record.id, name, f.value, f.unit, f.reason) for name, f in named.items()]
    for memory in facts.memory:
        own = {f"own_demand_{place}_{memory.attempt}": memory.own(place) for place in ("device", "host")}
        rows += [(record.id, name, f.value, f.unit, f.reason) for name, f in own.items()]
    connection.executemany("insert into facts values (?, ?, ?, ?, ?)", rows)
    for kind, samples in facts.timings().items():
        figures = (samples.n, samples.median, samples.spread, int(samples.provisional), samples.method)
        connection.execute("insert into timings values (?, ?, ?, ?, ?, ?, ?)", (record.id, kind, *figures))
        raw = [(record.id, kind, i, int(warm), s) for warm, i, s in _raw(samples.warm_up, samples.values)]
        connection.executemany("insert into seconds values (?, ?, ?, ?, ?)", raw)


def _raw(warm_up: Sequence[float], values: Sequence[float]) -> Iterator[tuple[bool, int, float]]:
    yield from ((True, i, s) for i, s in enumerate(warm_up))
    yield from ((False, i, s) for i, s in enumerate(values))


def _tables(connection: sqlite3.Connection) -> list[tuple[str, list[str]]]:
    names = ("records", "facts", "timings", "seconds")
    return [(name, [row["name"] for row in connection.execute(f"pragma table_xinfo({name})")]) for name in names]
