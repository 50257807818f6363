"""Arguments of ``shotclock record ...``. Each command returns a question; cli.py asks it and prints the answer.

Prints nothing, reads no environment and imports nothing heavy: a question imports what it needs when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shotclock.record.answers import Answer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document as the last line of stdout.")]
Id = Annotated[str, typer.Argument(help="A record's id, or how it begins.")]

app = typer.Typer(no_args_is_help=True, help="Records of runs: list, show, query, audit, compare, correct.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """``ask`` takes the home folder."""

    ask: Callable[[Path], Answer]
    as_json: bool


@app.command("list")
def list_records(as_json: AsJson = False) -> Question:
    """Every run: finished, failed, refused, stopped or killed; superseded ones too."""
    from shotclock.record import answers

    return Question(ask=answers.list_records, as_json=as_json)


@app.command()
def show(name: Id, as_json: AsJson = False) -> Question:
    """One record in full, and what it does not show."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.show(home, name), as_json=as_json)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over records, facts, timings, seconds.")],
    as_json: AsJson = False,
) -> Question:
    """Ask the index in SQL; it is rebuilt from the files where they are newer."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.query(home, sql), as_json=as_json)


@app.command()
def audit(
    ledger: Annotated[Path | None, typer.Option(help="Another ledger's folder, e.g. recipes/records.")] = None,
    as_json: AsJson = False,
) -> Question:
    """Derive every claim again; exit 1 where a line, a record or a file was edited, deleted or reordered."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.audit(home, ledger), as_json=as_json)


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="Id, or run folder.")],
    b: Annotated[str, typer.Argument(help="Id, or run folder.")],
    across: Annotated[list[str] | None, typer.Option(help="A checked fact that may differ: build, driver, ...")] = None,
    as_json: AsJson = False,
) -> Question:
    """Two runs of one key: ratios with their spread, memory by own demand."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.compare(home, a, b, across or []), as_json=as_json)


@app.command()
def clips(
    a: Annotated[Path, typer.Argument(help="Run folder.")],
    b: Annotated[Path, typer.Argument(help="Run folder of the same workload.")],
    band: Annotated[
        list[Path] | None, typer.Option(help="Runs that differ in kernels only (3 or more): what rounding does.")
    ] = None,
    as_json: AsJson = False,
) -> Question:
    """Two clips of one workload: latents by step, pictures, sound; same up to rounding or not."""
    from shotclock.record import answers

    return Question(ask=lambda _: answers.clips(a, b, band or []), as_json=as_json)


@app.command()
def supersede(
    old: Id,
    why: Annotated[str, typer.Option(help="Why it no longer holds.")],
    by: Annotated[str | None, typer.Option(help="The record that stands in its place.")] = None,
    as_json: AsJson = False,
) -> Question:
    """Correct a record: it stays readable, and says what took its place."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.supersede(home, old, by, why), as_json=as_json)


@app.command()
def add(
    run: Annotated[Path, typer.Argument(help="Run folder of a render that was killed.")],
    private: Annotated[bool, typer.Option("--private", help="Leave both prompts out.")] = False,
    as_json: AsJson = False,
) -> Question:
    """Record a run that could not do so itself."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.add(home, run, private=private), as_json=as_json)


@app.command()
def recipe(name: Id, as_json: AsJson = False) -> Question:
    """The recipe that renders a recorded run once more."""
    from shotclock.record import answers

    return Question(ask=lambda home: answers.recipe(home, name), as_json=as_json)


@app.command()
def benchmarks(
    root: Annotated[Path, typer.Option(help="A checkout of shotclock.")] = Path(),
    write: Annotated[bool, typer.Option("--write", help="Write BENCHMARKS.md there.")] = False,
    as_json: AsJson = False,
) -> Question:
    """BENCHMARKS.md from the records below recipes/."""
    from shotclock.record import answers

    return Question(ask=lambda _: answers.benchmarks(root, write=write), as_json=as_json)
