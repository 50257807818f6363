"""A hash-chained file of JSON lines: locked, fsynced, never rewritten; a kill in a write costs no entry that was said.

Each line holds the sha256 of itself and of the line before. A head file beside it counts the lines, so that a cut-off
end is seen too. Knows nothing of what the lines say.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import RunDirError
from shotclock.record.facts import sha256
from shotclock.rundir import fsync_folder, write_aside

GENESIS = "0" * 64  # what stands before the first line
FORMAT = "shotclock/chain/1"

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A chain as it is: whole lines, what is wrong with them, and the torn end that a kill left (empty if none)."""

    entries: tuple[Entry, ...]
    broken: tuple[str, ...]
    torn: bytes
    whole_bytes: int

    @property
    def head(self) -> str:
        """sha256 of the last line."""
        return str(self.entries[-1].get("sha256", GENESIS)) if self.entries else GENESIS


class Chain:
    """The chain in ``folder``; :meth:`append` is the only way to change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "ledger.jsonl"
        self.head = folder / "head.json"

    def read(self) -> Reading:
        """All lines, checked one by one; raises :class:`RunDirError` where the file cannot be read."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        except OSError as bad:
            raise _unreadable(self.path, bad) from None
        *rows, torn = content.split(b"\n")
        entries: list[Entry] = []
        broken: list[str] = []
        before = GENESIS
        for number, row in enumerate(rows, start=1):
            entry = _entry(row)
            if entry is None:
                broken.append(f"line {number} is not a JSON object")
                continue
            broken += _faults(number, entry, before)
            before = str(entry.get("sha256"))
            entries.append(entry)
        broken += self._head_faults(entries)
        return Reading(entries=tuple(entries), broken=tuple(broken), torn=torn, whole_bytes=len(content) - len(torn))

    def append(self, content: Mapping[str, Any]) -> Entry:
        """Add one line and return it, with its number and digests; it is on disk when this returns.

        Raises :class:`RunDirError` where the chain before it is broken: nothing is built on what was changed.
        """
        with self.locked():
            reading = self.read()
            if reading.broken:
                raise RunDirError(
                    f"the ledger is broken: {reading.broken[0]}",
                    allowed="a ledger that was only appended to",
                    way_out="see `shotclock record audit`; restore ledger.jsonl, or move it aside and begin anew",
                )
            self._drop_torn(reading)
            entry = {**content, "n": len(reading.entries) + 1, "prev": reading.head}
            entry["sha256"] = line_sha256(entry)
            with self.path.open("ab", buffering=0) as file:
                file.write(_row(entry))
                os.fsync(file.fileno())
            fsync_folder(self.folder)
            self._write_head(entry)
            return entry

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time; the kernel releases the lock at any death."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("ab")
        except OSError as bad:
            raise _unreadable(self.folder, bad) from None
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _drop_torn(self, reading: Reading) -> None:
        """Take a torn end off the file; its bytes stay in a file of their own."""
        if reading.torn:
            write_aside(self.folder / f"torn-{sha256(reading.torn)[:12]}", reading.torn)
            with self.path.open("r+b") as file:
                file.truncate(reading.whole_bytes)
                os.fsync(file.fileno())

    def _write_head(self, entry: Entry) -> None:
        document = {"format": FORMAT, "n": entry["n"], "sha256": entry["sha256"]}
        write_aside(self.head, (json.dumps(document, sort_keys=True) + "\n").encode())

    def _head_faults(self, entries: list[Entry]) -> list[str]:
        """The head may lag behind the last line, which a kill explains; it can never be ahead or elsewhere."""
        try:
            head = json.loads(self.head.read_text())
            count, digest = int(head["n"]), str(head["sha256"])
        except FileNotFoundError:
            lost = len(entries) > 1  # the first line may lie there without its head
            return ["head.json is missing: whether the last lines were deleted cannot be told"] if lost else []
        except (OSError, ValueError, KeyError, TypeError):
            return ["head.json cannot be read: whether the last lines were deleted cannot be told"]
        if count > len(entries):
            return [f"{count} lines were written, {len(entries)} are there: {count - len(entries)} deleted"]
        if entries[count - 1].get("sha256") != digest:
            return [f"line {count} is not the one that was written"]
        return [] if len(entries) - count <= 1 else [f"{len(entries) - count} lines were added without the head"]


def line_sha256(entry: Mapping[str, Any]) -> str:
    """Digest of a line without its own digest."""
    return sha256(json.dumps({k: v for k, v in entry.items() if k != "sha256"}, sort_keys=True).encode())


def _row(entry: Entry) -> bytes:
    return json.dumps(entry, sort_keys=True).encode() + b"\n"


def _entry(row: bytes) -> Entry | None:
    try:
        found = json.loads(row)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _faults(number: int, entry: Entry, before: str) -> list[str]:
    faults = []
    if entry.get("sha256") != line_sha256(entry):
        faults.append(f"line {number} was edited: its digest is another")
    if entry.get("n") != number:
        faults.append(f"line {number} says it is number {entry.get('n')}: lines were deleted or reordered")
    if entry.get("prev") != before:
        faults.append(f"line {number} does not follow the line before it")
    return faults


def _unreadable(path: Path, bad: OSError) -> RunDirError:
    return RunDirError(
        f"{path}: {bad.strerror}",
        allowed="a folder that can be read and written",
        way_out="set SHOTCLOCK_HOME to another folder",
    )
