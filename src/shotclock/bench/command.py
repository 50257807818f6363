"""Arguments of ``shotclock bench``. Returns a question; cli.py asks it and prints the answer. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shotclock.record.command import AsJson, Question


def bench(
    run: Annotated[Path, typer.Argument(help="Folder of a finished render.")],
    oracle: Annotated[str, typer.Option(help="Command that reads JOB and writes into OUT: adapters/oracle_....py.")],
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds after which the oracle is killed.")] = 3600,
    device: Annotated[str, typer.Option(help="cuda or cpu, for the oracle and for --per-step.")] = "cpu",
    decode: Annotated[
        bool, typer.Option("--decode", help="Have the oracle decode too, and compare what it shows.")
    ] = False,
    compile_blocks: Annotated[bool, typer.Option("--compile", help="Let the oracle compile its blocks.")] = False,
    per_step: Annotated[
        bool, typer.Option("--per-step", help="Run our sampler once more: first forwards and every step compared.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the job and the oracle's files.")] = None,
    as_json: AsJson = False,
) -> Question:
    """Hold a finished render against another implementation, on the same checkpoint, contexts, noise and sigmas."""

    def ask(home: Path) -> object:
        from shotclock.bench.oracle import Asked, ask_oracle
        from shotclock.record.answers import Answer

        asked = Asked(
            command=oracle,
            limit_s=limit_s,
            device=device,
            decode=decode,
            compile_blocks=compile_blocks,
            per_step=per_step,
        )
        found = ask_oracle(run, asked, home=home, out=out)
        return Answer(lines=found.lines(), document=found.to_json())

    return Question(ask=ask, as_json=as_json)  # type: ignore[arg-type]
