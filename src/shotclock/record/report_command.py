"""Arguments of ``shotclock report``: a question that cli.py asks, about one run or about the whole ledger.

Prints nothing and imports nothing heavy: plots and templates are loaded when the question is asked.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shotclock.errors import RequestError
from shotclock.record.command import AsJson, Question

if TYPE_CHECKING:
    from shotclock.record.answers import Answer

EXTRA = ("jinja2", "matplotlib")  # of pyproject.toml's extra "report"
MIB = 2**20


def report(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run, however it ended.")] = None,
    every: Annotated[bool, typer.Option("--all", help="An index of the ledger instead, with filters.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where the index of --all goes.", show_default="records.html in the home folder")
    ] = None,
    embed_mib: Annotated[
        float, typer.Option(help="A clip up to so many MiB goes into the page; a larger one is linked.", min=0)
    ] = 24.0,
    private: Annotated[bool, typer.Option("--private", help="Leave both prompts out.")] = False,
    as_json: AsJson = False,
) -> Question:
    """Write report.html into the run folder: one file that holds all it shows, the clip too, and loads nothing."""

    def ask(home: Path) -> Answer:
        return _index(home, out) if every and run is None else _report(run, every, out, round(embed_mib * MIB), private)

    return Question(ask=ask, as_json=as_json)


def _index(home: Path, out: Path | None) -> Answer:
    _require_extra()
    from shotclock.record.answers import Answer
    from shotclock.record.ledger_page import write_index

    path = write_index(home, out)
    return Answer(document={"index": str(path)}, lines=[str(path)])


def _report(run: Path | None, every: bool, out: Path | None, embed_limit_bytes: int, private: bool) -> Answer:
    if run is None or every or out is not None:
        raise RequestError(
            "neither a run folder nor --all" if run is None else "a run folder with --all or --out",
            allowed="one of them",
            way_out="`shotclock report RUN`, or `shotclock report --all --out INDEX`",
        )
    _require_extra()
    from shotclock.record.answers import Answer
    from shotclock.record.report import write_report

    path = write_report(run, embed_limit_bytes=embed_limit_bytes, private=private)
    return Answer(document={"report": str(path)}, lines=[str(path)])


def _require_extra() -> None:
    if missing := [name for name in EXTRA if find_spec(name) is None]:
        raise RequestError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            allowed="the extra `report`",
            way_out="pip install 'shotclock[report]'",
        )
