"""Full digests of weight files that were read once, kept by what can be told in milliseconds (weights/digest.py).

Tells dev from distilled weights without reading 42 GB again. Knows one small file.
"""

from __future__ import annotations

import json
from pathlib import Path

from shotclock.rundir import write_aside
from shotclock.weights.digest import sampled_sha256
from shotclock.weights.released import DIGESTS

FILE = "digests.json"  # below the home of state that outlives a run


def remember(home: Path, path: Path, sha256: str) -> None:
    """Keep the full digest of ``path`` under its sampled one."""
    home.mkdir(parents=True, exist_ok=True)
    known = _read(home) | {sampled_sha256(path): sha256}
    write_aside(home / FILE, (json.dumps(known, sort_keys=True, indent=1) + "\n").encode())


def class_of(home: Path, path: Path) -> str | None:
    """dev or distilled where the file's digest was read before and is a released one's; else None."""
    known = _read(home)
    sha256 = known.get(sampled_sha256(path), "") if known else ""
    matching = (name for name, (first, last) in DIGESTS.items() if sha256.startswith(first) and sha256.endswith(last))
    return next(matching, None)


def _read(home: Path) -> dict[str, str]:
    try:
        found = json.loads((home / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
