"""Arguments of ``shotclock bench``. Returns a question; cli.py asks it and prints the answer. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shotclock.errors import RequestError
from shotclock.record.command import AsJson, Question


def bench(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished render, for --oracle; without it steps are timed.")
    ] = None,
    oracle: Annotated[
        str | None, typer.Option(help="Command that reads JOB and writes into OUT: adapters/oracle_....py.")
    ] = None,
    limit_s: Annotated[float, typer.Option("--limit", min=1, help="Seconds after which the oracle is killed.")] = 3600,
    device: Annotated[str, typer.Option(help="cuda or cpu, for the oracle and for --per-step.")] = "cpu",
    decode: Annotated[
        bool, typer.Option("--decode", help="Have the oracle decode too, and compare what it shows.")
    ] = False,
    compile_blocks: Annotated[bool, typer.Option("--compile", help="Let the oracle compile its blocks.")] = False,
    per_step: Annotated[
        bool, typer.Option("--per-step", help="Run our sampler once more: first forwards and every step compared.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the job and the oracle's files; file for the steps' document.")
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="Steps of tiny widths, in seconds on a CPU.")] = False,
    geometry: Annotated[
        list[str] | None, typer.Option(help="WIDTHxHEIGHTxFRAMES of a step; repeatable.", show_default="four sizes")
    ] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="diffusers, ltx_core; repeatable.", show_default="diffusers")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all sides, in alternating order.")] = 5,
    quantise: Annotated[str | None, typer.Option(help="fp8: our step in float8 too, with its error.")] = None,
    as_json: AsJson = False,
) -> Question:
    """Time guided steps side by side; or hold a finished render against another implementation on the same inputs."""
    if run is None:
        from shotclock.bench.steps_asked import StepsAsked, ask_steps

        steps = StepsAsked(
            device=device,
            tiny=tiny,
            geometries=tuple(geometry or ()),
            against=tuple(against or ("diffusers",)),
            rounds=rounds,
            quantise=quantise,
            out=out,
            oracle=oracle,
            limit_s=limit_s,
        )
        return Question(ask=lambda _: ask_steps(steps, as_json=as_json), as_json=as_json)
    if oracle is None:
        raise RequestError(f"{run} without --oracle", allowed="a command that reads a job", way_out="--oracle COMMAND")

    asked = {"limit_s": limit_s, "decode": decode, "compile_blocks": compile_blocks, "per_step": per_step}
    return _of_run(run, out, as_json=as_json, command=oracle, device=device, **asked)


def _of_run(run: Path, out: Path | None, *, as_json: bool, **asked: Any) -> Question:
    """The question whether another implementation gives the run's clip."""

    def ask(home: Path) -> object:
        from shotclock.bench.oracle import Asked, ask_oracle
        from shotclock.record.answers import Answer

        found = ask_oracle(run, Asked(**asked), home=home, out=out)
        return Answer(lines=found.lines(), document=found.to_json())

    return Question(ask=ask, as_json=as_json)  # type: ignore[arg-type]
