"""The command line: reads arguments and environment, calls one function, prints, and turns errors into exit codes.

The only module that prints or reads the environment. Heavy imports happen inside the commands, and are timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from shotclock import __version__
from shotclock.errors import ShotclockError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
stderr = Console(stderr=True)


def main() -> None:
    """Run the command line; our errors end with their message and exit code, never with a traceback."""
    try:
        app()
    except ShotclockError as error:
        fail(error)


def fail(error: ShotclockError) -> NoReturn:
    """Print found, allowed and way out, and exit."""
    stderr.print("error:", style="bold red", end=" ")
    for line in (error.found, f"  allowed: {error.allowed}", f"  way out: {error.way_out}"):
        stderr.print(line, highlight=False, markup=False, soft_wrap=True)
    sys.exit(error.exit_code)


def home() -> Path:
    """Where state that outlives a run lies: ``SHOTCLOCK_HOME`` or the platform's user data folder."""
    from platformdirs import user_data_path

    return Path(os.environ.get("SHOTCLOCK_HOME") or user_data_path("shotclock"))


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Guided LTX-2.5 audio-video renders on a GPU that is held for a bounded time."""
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(help="Checkpoint files.")],
    sha256: Annotated[bool, typer.Option("--sha256", help="Read the whole file and print its digest.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say what checkpoint files are, from their headers alone."""
    from shotclock.weights.inspect import Inspection
    from shotclock.weights.inspect import inspect as inspect_file

    found: list[Inspection] = []
    refused: list[ShotclockError] = []
    for path in files:
        try:
            found.append(inspect_file(path, sha256=sha256))
        except ShotclockError as error:
            refused.append(error)
    if as_json:
        typer.echo(json.dumps([one.to_json() for one in found], sort_keys=True))
    else:
        for one in found:
            typer.echo("\n".join(one.lines()))
    if refused:
        fail(refused[0])
    if any(one.refusal for one in found):
        raise typer.Exit(2)


@app.command()
def doctor(
    folder: Annotated[Path, typer.Argument(help="Folder whose disk is measured.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say in one screen what this machine can do."""
    from shotclock.doctor import examine

    seen = examine(folder)
    typer.echo(json.dumps(seen.to_json(), sort_keys=True) if as_json else "\n".join(seen.lines()))


@app.command()
def render(
    prompt: Annotated[str, typer.Argument(help="What the clip shows and how it sounds; @FILE reads a file.")],
    run: Annotated[Path, typer.Option(help="Run folder, new or empty.")],
    models: Annotated[
        str, typer.Option(help="Folder with the four LTX-2.5 files; tiny: built-in random model.")
    ] = "tiny",
    negative_prompt: Annotated[str | None, typer.Option(help="What to stay away from; @FILE reads a file.")] = None,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT in pixels, multiples of 32.")] = None,
    frames: Annotated[int | None, typer.Option(help="8k+1 frames.")] = None,
    fps: Annotated[str, typer.Option(help="Exact rate: 24, 25, 24000/1001.")] = "24",
    seed: Annotated[int, typer.Option(help="The same seed is the same starting noise on every device.")] = 10,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.", show_default="the recipe's")] = None,
    cfg: Annotated[float | None, typer.Option(help="Video guidance scale; 1 is off.")] = None,
    audio_cfg: Annotated[float | None, typer.Option(help="Audio guidance scale; follows --cfg 1.")] = None,
    stg: Annotated[float | None, typer.Option(help="Perturbed-leg scale of both streams; 0 is off.")] = None,
    stg_blocks: Annotated[str | None, typer.Option(help="Blocks that the perturbed leg changes, e.g. 28.")] = None,
    modality: Annotated[float | None, typer.Option(help="Isolated-leg scale of both streams; 1 is off.")] = None,
    rescale: Annotated[float | None, typer.Option(help="Guidance rescale of both streams; 0 is off.")] = None,
    skip_step: Annotated[int, typer.Option(help="Reuse the last denoised state for K steps after each.")] = 0,
    legs_per_pass: Annotated[int, typer.Option(help="Legs in one launch, 1 to 4.")] = 4,
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:1 or cpu.", show_default="cuda if there is one")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32.", show_default="by device")] = None,
    contexts: Annotated[
        Path | None, typer.Option(help="contexts.safetensors of a run, instead of a text encoder.")
    ] = None,
    transformer: Annotated[
        Path | None, typer.Option(help="This transformer file, where a folder holds several.")
    ] = None,
    text_encoder: Annotated[Path | None, typer.Option(help="This text encoder file.")] = None,
    video_vae: Annotated[Path | None, typer.Option(help="This conv video VAE file.")] = None,
    audio_vae: Annotated[Path | None, typer.Option(help="This audio VAE file.")] = None,
    pinned_config: Annotated[bool, typer.Option(help="Use the released 2.5 config for a file without one.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line of stdout.")] = False,
) -> None:
    """Render PROMPT to an mp4 with sound."""
    options = dict(locals())
    for name in ("quiet", "as_json"):
        del options[name]
    began_s = time.monotonic()
    from shotclock.render.run import Settings, start  # torch, transformers and diffusers: seconds

    imported_s = time.monotonic()
    console = None if quiet else stderr
    outcome = start(Settings(**options), home=home(), began_s=began_s, imported_s=imported_s, console=console)
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), sort_keys=True))
    elif not quiet:
        typer.echo(outcome.clip)


@app.command()
def verify(
    target: Annotated[Path | None, typer.Argument(help="A clip (mp4, mov, mkv, webm) or a run folder.")] = None,
    expect: Annotated[str, typer.Option(help="What was asked for: silent,static,fade,... (docs/verify.md).")] = "",
    wav: Annotated[Path | None, typer.Option(help="The clip's float sound, judged instead of its own.")] = None,
    sheet: Annotated[Path | None, typer.Option(help="Draw a contact sheet (PNG) to this file.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="WARN fails too.")] = False,
    max_seconds: Annotated[float, typer.Option(help="Give up on a clip after this long; that is a FAIL.")] = 120.0,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Judge clips with planted faults; print how many are caught.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document as the last line of stdout.")] = False,
) -> None:
    """Judge a clip by numbers: exit code 0 for PASS and WARN, 4 for FAIL. A run folder gets its verdict.json."""
    from shotclock.verify.command import answer

    def say(line: str) -> None:
        stderr.print(line, highlight=False, markup=False, soft_wrap=True)

    done = answer(
        target, expect=expect, wav=wav, sheet=sheet, max_seconds=max_seconds, run_self_test=self_test, say=say
    )
    for line in done.lines:
        say(line)
    if as_json:
        typer.echo(json.dumps(done.document, sort_keys=True))
    raise typer.Exit(done.strict_exit_code if strict else done.exit_code)
