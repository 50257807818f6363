"""The sha256 of files: read once, remembered by path, size and time of change, so that 42 GB are not read twice.

The memory lies in one JSON file of the home folder and may be lost at any time; a path never leaves it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from shotclock.record.facts import canonical
from shotclock.rundir import write_aside

FORMAT = "shotclock/digests/1"
BLOCK_BYTES = 16 << 20  # reading and hashing, not Python, take the time


def file_sha256(path: Path) -> str:
    """Hex sha256 of a whole file, read now. Raises ``OSError``."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


class Digests:
    """Digests of files that do not change; ``store`` is the JSON file that remembers them, None forgets."""

    def __init__(self, store: Path | None) -> None:
        self._store = store
        self._known = {} if store is None else _read(store)
        self.read = 0  # files that had to be read

    def sha256(self, path: Path) -> str:
        """The remembered digest where size and time of change are the same, else a new one. Raises ``OSError``."""
        before = _identity(path)
        name = str(path.resolve())
        if (found := self._known.get(name)) and found[:2] == before:
            return str(found[2])
        digest = file_sha256(path)
        self.read += 1
        if _identity(path) == before:  # not changed while it was read
            self._known[name] = [*before, digest]
            self._save()
        return digest

    def _save(self) -> None:
        if self._store is not None:
            self._store.parent.mkdir(parents=True, exist_ok=True)
            merged = _read(self._store) | self._known  # another process may have added to it
            write_aside(self._store, canonical({"format": FORMAT, "files": merged}))


def _identity(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _read(store: Path) -> dict[str, list[int | str]]:
    """What was remembered; a store that is not there or not whole is empty: everything in it can be read again."""
    try:
        document = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        return {}
    return dict(document["files"])
