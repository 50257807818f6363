"""Reads a run folder as it is, whole or broken: documents, event lines by attempt, memory samples, files' digests.

Tolerates what a kill leaves: a missing file has a reason, a torn last line is left out and said. Derives nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import RunDirError
from shotclock.record.digest import file_sha256
from shotclock.record.facts import sha256

DOCUMENTS = ("request.json", "plan.json", "verdict.json")
LOGS = ("events.jsonl", "memory.jsonl")
ARTIFACTS = ("clip.mp4", "clip.wav", "latents.safetensors")
OTHERS = ("contexts.safetensors", "sheet.png")

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Event lines of one process, "RunBegins" first; memory samples beside them."""

    number: int
    lines: tuple[Line, ...]
    memory: tuple[Line, ...]

    @property
    def begins(self) -> Line:
        """The "RunBegins" line."""
        return self.lines[0]

    def of(self, *events: str) -> list[Line]:
        """Lines of these events, in order."""
        return [line for line in self.lines if line["event"] in events]

    @property
    def end(self) -> Line | None:
        """How it ended: the last of "RunEnds", "RunStops", "RunFails"; None where it was killed."""
        ends = self.of("RunEnds", "RunStops", "RunFails")
        return ends[-1] if ends else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    """A file of the folder: name, size, sha256. Logs may grow later; the digest is of the first ``bytes``."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Everything of a run folder; ``absent`` has a reason a file, ``notes`` say what was left out."""

    documents: Mapping[str, Mapping[str, Any]]
    attempts: tuple[Attempt, ...]
    files: tuple[FileSeen, ...]
    absent: Mapping[str, str]
    notes: tuple[str, ...]

    def file(self, name: str) -> FileSeen | None:
        """A file by its name."""
        return next((one for one in self.files if one.name == name), None)


def read_folder(run: Path, *, limits: Mapping[str, int] | None = None) -> Folder:
    """Read ``run``; ``limits`` are bytes of the logs that count, for a record that was made before a log grew.

    Raises :class:`RunDirError` where there is no run.
    """
    documents: dict[str, Mapping[str, Any]] = {}
    absent: dict[str, str] = {}
    notes: list[str] = []
    files: list[FileSeen] = []
    if not run.is_dir() or not (run / "request.json").exists():
        raise RunDirError(
            f"{run} holds no run", allowed="a folder with a request.json", way_out="name the --run folder of a render"
        )
    logs: dict[str, list[Line]] = {}
    for name in (*DOCUMENTS, *LOGS, *ARTIFACTS, *OTHERS, *snapshots(run)):
        path = run / name
        try:
            if name in LOGS:
                content = path.read_bytes()[: (limits or {}).get(name)]
                logs[name] = _lines(name, content, notes)
                files.append(_seen(name, content))
            elif name in DOCUMENTS:
                content = path.read_bytes()
                documents[name] = _object(name, content)
                files.append(_seen(name, content))
            else:
                files.append(FileSeen(name=name, bytes=path.stat().st_size, sha256=file_sha256(path)))
        except FileNotFoundError:
            absent[name] = "the run left no such file"
        except OSError as error:
            absent[name] = f"cannot be read: {error.strerror}"
        except ValueError as error:
            absent[name] = str(error)
    return Folder(
        documents=documents,
        attempts=_attempts(logs.get("events.jsonl", []), logs.get("memory.jsonl", []), notes),
        files=tuple(files),
        absent=absent,
        notes=tuple(notes),
    )


def snapshots(run: Path) -> list[str]:
    """Names of the snapshots that lie there."""
    return sorted(path.name for path in run.glob("snapshot-*.safetensors"))


def _seen(name: str, content: bytes) -> FileSeen:
    return FileSeen(name=name, bytes=len(content), sha256=sha256(content))


def _object(name: str, content: bytes) -> Mapping[str, Any]:
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object")
    return document


def _lines(name: str, content: bytes, notes: list[str]) -> list[Line]:
    """Complete lines; a torn last one is noted, and so is every other line that is none."""
    rows = content.split(b"\n")
    if rows.pop():
        notes.append(f"{name}: the last line was cut off and is left out")
    found: list[Line] = []
    for number, row in enumerate(rows, start=1):
        try:
            line = json.loads(row)
        except ValueError:
            line = None
        if isinstance(line, dict):
            found.append(line)
        else:
            notes.append(f"{name}: line {number} is not a JSON object and is left out")
    return found


def _attempts(events: list[Line], memory: list[Line], notes: list[str]) -> tuple[Attempt, ...]:
    groups: list[list[Line]] = []
    for line in events:
        if not isinstance(line.get("event"), str):
            notes.append("events.jsonl: a line without an event is left out")
        elif line["event"] == "RunBegins":
            groups.append([line])
        elif groups:
            groups[-1].append(line)
        else:
            notes.append(f"events.jsonl: {line['event']} before RunBegins is left out")
    return tuple(
        Attempt(
            number=number,
            lines=tuple(lines),
            memory=tuple(row for row in memory if row.get("attempt", 1) == number),
        )
        for number, lines in enumerate(groups, start=1)
    )
