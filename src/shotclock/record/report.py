"""Writes the report of a run: one HTML file that needs nothing beside it and no network.

Fills templates and writes one file aside. Everything that a run said is escaped; only this package's own SVG and data
URIs are put in as they are, and the page's policy forbids whatever else it could be made to load.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from shotclock import __version__
from shotclock.record.page import make_page
from shotclock.record.run_seen import read_run
from shotclock.record.seen import Missing
from shotclock.rundir import write_aside

REPORT = "report.html"
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
CODE = re.compile(r"`([^`]+)`")
DIGEST = re.compile(r"[0-9a-f]{32,}")
EMBED_LIMIT_BYTES = 24 * 2**20  # of a clip: a page of 32 MiB still opens on a phone and passes most mail servers


def write_report(folder: Path, *, embed_limit_bytes: int = EMBED_LIMIT_BYTES, private: bool = False) -> Path:
    """Write ``report.html`` into the run folder and return its path; the same folder gives the same bytes.

    ``private`` leaves both prompts out. Raises :class:`RunDirError` where the folder holds no run.
    """
    page = make_page(read_run(folder), embed_limit_bytes=embed_limit_bytes, private=private, version=__version__)
    path = folder / REPORT
    write_aside(path, fill("report.html", page=page))
    return path


def spoken(text: str) -> list[tuple[str, bool]]:
    """A text in parts, and whether each stood between backticks, to be set as code."""
    return [(part, place % 2 == 1) for place, part in enumerate(CODE.split(text)) if part]


def fill(template: str, **values: Any) -> bytes:
    """A template of this package with the style sheet and the script inside; what no page may hold is U+FFFD."""
    environment = Environment(
        loader=PackageLoader("shotclock.record"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests["missing"] = lambda value: isinstance(value, Missing)
    environment.tests["digest"] = lambda value: DIGEST.fullmatch(value) is not None
    environment.filters["spoken"] = spoken
    loader = environment.loader
    assert loader is not None, "the package holds its templates"
    style, script = (
        loader.get_source(environment, name)[0] for name in ("style.css", template.replace(".html", ".js"))
    )
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = environment.get_template(template).render(values, style=style, script=script, script_sha256=allowed)
    return UNPRINTABLE.sub("\ufffd", text).encode()
