"""Side-by-side steps for BENCHMARKS.md: documents that ``shotclock bench --out`` wrote, kept below the recipes.

Reads files and returns lines; statistics follow from the raw values, none is taken from a document. Imports no torch.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from shotclock.record.facts import MIN_N, spread

BENCHES = "recipes/benches"
FORMAT = "shotclock/bench-steps/1"
OURS = "ours"
HEADING = "## Guided steps side by side"
NOTE = """Same random weights and inputs, one process, alternating order. The official packages run in a process of
their own, between two measurements of ours; they are **PENDING** until somebody who has them runs both sides.
"""
TABLE = (
    "| geometry | side | n | median | spread | over ours | device | torch | code | document |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def benches(root: Path) -> list[str]:
    """Lines of the section, none where nothing was measured yet."""
    paths = sorted((root / BENCHES).glob("*.json"))
    if not paths:
        return []
    lines = [HEADING, "", NOTE, TABLE]
    for path in paths:
        document = json.loads(path.read_text())
        if document.get("format") != FORMAT:
            continue
        for row in document["rows"]:
            lines += [_row(document, row, side, path.name) for side in row["sides"]]
    return [*lines, ""]


def _row(document: dict[str, Any], row: dict[str, Any], side: str, name: str) -> str:
    values, ours = row["sides"][side]["values"], row["sides"][OURS]["values"]
    wide = spread(values)
    provisional = ", provisional" if len(values) < MIN_N else ""
    cells = (
        str(row["geometry"]),
        side + provisional,
        str(len(values)),
        f"{statistics.median(values):.4g} s",
        "-" if wide is None else f"{wide:.1%}",
        f"{statistics.median(values) / statistics.median(ours):.3f}",
        f"{document['device']}, {document['dtype']}",
        str(document["torch"]),
        f"`{document['commit']}`",
        f"[{name}]({BENCHES}/{name})",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
