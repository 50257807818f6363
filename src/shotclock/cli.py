"""The command line: reads arguments and environment, calls one function, prints, and turns errors into exit codes.

The only module that prints or reads the environment. Heavy imports happen inside the commands, and are timed.
"""

from __future__ import annotations

import inspect as inspect_module
import json
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from rich.console import Console

from shotclock import __version__
from shotclock.bench.command import bench
from shotclock.errors import EXIT_VERDICT, DoesNotFit, RenderFailed, RequestError, ShotclockError, unreachable
from shotclock.profile.command import profile
from shotclock.record.command import Question
from shotclock.record.command import app as records
from shotclock.record.report_command import report

if TYPE_CHECKING:
    from typing import TextIO

    from shotclock.geometry import Geometry
    from shotclock.govern.meter import Reading
    from shotclock.lease import Lease
    from shotclock.record.status import Status
    from shotclock.render.job import Outcome
    from shotclock.render.run import Terms

ON_OVERRUN = ("snapshot", "stop", "draft")
REHEARSE = ("auto", "always", "never")
FAIL = "FAIL"

Lease_ = Annotated[
    str | None, typer.Option("--lease", help="How long the device is held, from now: 4h, 90min, 2:30:00.")
]
LeaseEnd = Annotated[str | None, typer.Option(help="When it is taken away: 2026-12-01T18:00. The earlier end counts.")]
Memory = Annotated[
    str | None, typer.Option(help="At most so much device memory, as 20GB; blocks that do not fit are streamed.")
]
Leases = Annotated[str, typer.Option(help="How many leases of this length the render may take, or any.")]
OnOverrun = Annotated[
    str, typer.Option(help="Where the lease ends first: snapshot, draft (and a marked draft clip) or stop (exit 92).")
]
Rehearse = Annotated[str, typer.Option(help="Decode, mux and verdict once before step 1: auto, always, never.")]
Verify = Annotated[bool, typer.Option("--verify/--no-verify", help="Judge the clip with numbers; FAIL is exit code 4.")]
Embed = Annotated[bool, typer.Option("--embed/--no-embed", help="Say in the clip's comment which run made it.")]
Trace = Annotated[bool, typer.Option("--trace-nonfinite", help="Name leg and block where a number stops being finite.")]
Private = Annotated[bool, typer.Option("--private", help="Keep the prompts out of the record.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Nothing on stderr but errors.")]
Seat_ = Annotated[str | None, typer.Option(help="Of a rank; its starter says it.", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document as the last line of stdout.")]

# Options of a render that are not part of what is rendered.
TERMS = (
    "lease",
    "lease_end",
    "leases",
    "on_overrun",
    "rehearse",
    "verify",
    "embed",
    "trace_nonfinite",
    "private",
    "quiet",
    "as_json",
    "seat",
)

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
stderr = Console(stderr=True)


def main() -> None:
    """Run the command line; whatever goes wrong ends with a message and an exit code, never with a traceback."""
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json, log = "--json" in own, logging.getLogger("shotclock")
    level = log.level
    # Threads that spin while they wait are 11 times slower on cores that others use (one render, 2 threads, load 4).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if "--quiet" in own:
            log.setLevel(logging.ERROR)
        if any(word.startswith("--recipe") for word in own):
            from shotclock.record.recipes import expanded

            arguments = expanded(arguments)
        code = app(arguments, standalone_mode=False)  # what typer refuses comes here too
    except typer.TyperException as wrong:
        fail(_usage(wrong), as_json=as_json)
    except ShotclockError as error:
        fail(error, as_json=as_json)
    except OSError as error:
        fail(unreachable(error), as_json=as_json)
    except Exception as mistake:
        fail(_mistake(mistake), as_json=as_json)
    finally:
        log.setLevel(level)
    sys.exit(code if isinstance(code, int) else 0)


def fail(error: ShotclockError, *, as_json: bool = False) -> NoReturn:
    """Say what went wrong, to programs too where ``as_json`` asks for it, and exit."""
    tell(error)
    if as_json:
        said = {"exit_code": error.exit_code, "found": error.found, "allowed": error.allowed, "way_out": error.way_out}
        typer.echo(json.dumps(said, sort_keys=True))
    sys.exit(error.exit_code)


def tell(error: ShotclockError) -> None:
    """Print found, allowed and way out."""
    stderr.print("error:", style="bold red", end=" ")
    for line in (error.found, f"  allowed: {error.allowed}", f"  way out: {error.way_out}"):
        stderr.print(line, highlight=False, markup=False, soft_wrap=True)


def _usage(wrong: typer.TyperException) -> ShotclockError:
    """What typer says of the words of a command, as an error of ours; where it has shown the help, nothing is added."""
    context, words = getattr(wrong, "ctx", None), getattr(wrong, "format_message", wrong.__str__)
    message = words()
    if not message:
        sys.exit(RequestError.exit_code)
    path = "shotclock" if context is None else context.command_path
    usage = path if context is None else " ".join(context.get_usage().split()).removeprefix("Usage: ")
    return RequestError(message.rstrip("."), allowed=usage, way_out=f"see `{path} --help`")


def _mistake(mistake: Exception) -> ShotclockError:
    """An error that nobody foresaw; where it came from is kept in a file for whoever mends it."""
    kept = home() / "mistake.txt"
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("".join(traceback.format_exception(mistake)))
    except OSError as bad:
        kept = Path(f"nowhere ({kept}: {bad.strerror})")
    return RenderFailed(
        f"a mistake of this program: {type(mistake).__name__}: {mistake}",
        allowed="a message that says what to do",
        way_out=f"report it, please; where it came from is kept in {kept}",
    )


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
    from shotclock.weights.remembered import remember

    found: list[Inspection] = []
    refused: dict[str, ShotclockError] = {}
    for path in files:
        try:
            found.append(inspect_file(path, sha256=sha256))
            if (digest := found[-1].sha256) is not None:
                remember(home(), path, digest)
        except ShotclockError as error:
            refused[path.name] = error
    if as_json:
        unread = [{"name": name, "refusal": str(error)} for name, error in refused.items()]
        typer.echo(json.dumps([one.to_json() for one in found] + unread, sort_keys=True))
    else:
        for one in found:
            typer.echo("\n".join(one.lines()))
    for reason in refused.values():
        tell(reason)
    if refused or any(one.refusal for one in found):
        raise typer.Exit(RequestError.exit_code)


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
        str,
        typer.Option(help="Folder with the four LTX-2.5 files; pocket: the small trained model; tiny: random weights."),
    ] = "pocket",
    negative_prompt: Annotated[str | None, typer.Option(help="What to stay away from; @FILE reads a file.")] = None,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT in pixels, multiples of 32.")] = None,
    frames: Annotated[str | None, typer.Option(help="8k+1 frames; auto: as long as the prompt's shot is.")] = None,
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
    legs_per_pass: Annotated[
        int | None, typer.Option(help="Legs in one launch, 1 to 4.", show_default="as many as memory holds")
    ] = None,
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
    video_vae: Annotated[Path | None, typer.Option(help="This video VAE file, of the decoder asked for.")] = None,
    audio_vae: Annotated[Path | None, typer.Option(help="This audio VAE file.")] = None,
    pinned_config: Annotated[bool, typer.Option(help="Use the released 2.5 config for a file without one.")] = False,
    recipe: Annotated[
        str | None,
        typer.Option(help="one_stage, distilled, distilled_draft, two_stage or hq.", show_default="by --class"),
    ] = None,
    model_class: Annotated[
        str | None, typer.Option("--class", help="dev or distilled: the headers of both are equal.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(help="FILE[@FRAME[:STRENGTH]]: a picture the clip passes through; repeatable.")
    ] = None,
    keyframe_slot: Annotated[
        list[int] | None, typer.Option(help="A frame whose keyframe is generated beside the clip; repeatable.")
    ] = None,
    audio: Annotated[Path | None, typer.Option(help="A sound that the clip is made for, at least as long.")] = None,
    lora: Annotated[list[str] | None, typer.Option(help="FILE[:STRENGTH], fused at load; repeatable.")] = None,
    distilled_lora: Annotated[Path | None, typer.Option(help="This distilled LoRA, for two_stage and hq.")] = None,
    upscaler: Annotated[Path | None, typer.Option(help="This spatial upscaler, for recipes of two stages.")] = None,
    duration_head: Annotated[Path | None, typer.Option(help="This duration head, for --frames auto.")] = None,
    decoder: Annotated[str, typer.Option(help="conv, or diffusion: another file, exact tiles, more time.")] = "conv",
    quantise: Annotated[str | None, typer.Option(help="fp8: faster, not exact; needs a GPU with float8.")] = None,
    memory: Memory = None,
    gpus: Annotated[int, typer.Option(help="GPUs of this machine that share the forwards.")] = 1,
    split: Annotated[str, typer.Option(help="How they do: auto, legs or tokens.")] = "auto",
    lease: Lease_ = None,
    lease_end: LeaseEnd = None,
    leases: Leases = "1",
    on_overrun: OnOverrun = "snapshot",
    rehearse: Rehearse = "auto",
    verify: Verify = True,
    embed: Embed = True,
    trace_nonfinite: Trace = False,
    private: Private = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    seat: Seat_ = None,
) -> None:
    """Render PROMPT to an mp4 with sound."""
    options = dict(locals())
    for name in TERMS:
        del options[name]
    began_s = _began_s(seat)
    if gpus != 1 and seat is None:
        _on_ranks(gpus, device, run, lease, lease_end, began_s, private=private)
    from shotclock.render.job import Times  # torch, transformers and diffusers: seconds
    from shotclock.render.run import start
    from shotclock.render.settings import Settings

    times = Times(clock=time.monotonic, began_s=began_s, imported_s=time.monotonic())
    terms = _terms(began_s, lease, lease_end, leases, on_overrun, rehearse, verify, embed, trace_nonfinite, seat=seat)
    console = None if quiet else stderr
    with _recorded(run, terms.lease, began_s, private=private):
        outcome = start(Settings(**options), terms, home=home(), times=times, console=console)
    _end(outcome, run, quiet=quiet, as_json=as_json)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a render that was stopped or killed.")],
    models: Annotated[Path | None, typer.Option(help="Where the files are now, if they have moved.")] = None,
    accept_seam: Annotated[
        bool, typer.Option("--accept-seam", help="Go on under other numerics; record and clip say so.")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Render nothing: replay from the older snapshot and compare bits.")
    ] = False,
    memory: Memory = None,
    lease: Lease_ = None,
    lease_end: LeaseEnd = None,
    leases: Leases = "1",
    on_overrun: OnOverrun = "snapshot",
    rehearse: Rehearse = "auto",
    verify: Verify = True,
    embed: Embed = True,
    trace_nonfinite: Trace = False,
    gpus: Annotated[int | None, typer.Option(help="GPUs, if not as many as it began on: a seam.")] = None,
    private: Private = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    seat: Seat_ = None,
) -> None:
    """Go on with a render from its folder, bit for bit as if it had never stopped."""
    began_s = _began_s(seat)
    if seat is None and not prove:
        from shotclock.render.launch import planned

        ranks, device = planned(run)
        if (ranks := ranks if gpus is None else gpus) != 1:
            _on_ranks(ranks, device, run, lease, lease_end, began_s, private=private)
    from shotclock.render import run as runs
    from shotclock.render.job import Times

    if prove:
        typer.echo("\n".join(runs.prove(run, models=models)))
        return
    times = Times(clock=time.monotonic, began_s=began_s, imported_s=time.monotonic())
    terms = _terms(
        began_s,
        lease,
        lease_end,
        leases,
        on_overrun,
        rehearse,
        verify,
        embed,
        trace_nonfinite,
        accept_seam=accept_seam,
        seat=seat,
    )
    console = None if quiet else stderr
    with _recorded(run, terms.lease, began_s, private=private):
        outcome = runs.resume(
            run, terms, models=models, home=home(), times=times, console=console, gpus=gpus, memory=memory
        )
    _end(outcome, run, quiet=quiet, as_json=as_json)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="Folder of a render, running or not.")],
    once: Annotated[bool, typer.Option("--once", help="Say how it stands and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.", min=0.1)] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Follow a render from another terminal, from its folder alone; ends when the render does."""
    from rich.live import Live
    from rich.text import Text

    from shotclock.record.status import Standing, read_status

    def look() -> Status:
        return read_status(run, now_s=time.time())

    if once or as_json:
        seen = look()
        typer.echo(json.dumps(seen.to_json(), sort_keys=True) if as_json else "\n".join(seen.lines()))
        return
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            seen = look()
            live.update(Text("\n".join(seen.lines())), refresh=True)
            if seen.standing is not Standing.RUNNING:
                return
            time.sleep(every)


@app.command(context_settings={"ignore_unknown_options": True})
def govern(
    command: Annotated[list[str], typer.Argument(help="Program with its arguments, after --.")],
    lease: Lease_ = None,
    lease_end: LeaseEnd = None,
    tick: Annotated[
        str | None,
        typer.Option(help="Expression with groups done and total in its output.", show_default="our event lines"),
    ] = None,
    total: Annotated[int | None, typer.Option(help="Units in all, where the output does not say.", min=1)] = None,
    tail: Annotated[float, typer.Option(help="Seconds that follow the last unit.", min=0)] = 0.0,
    samples: Annotated[Path | None, typer.Option(help="Keep a memory reading a second in this file.")] = None,
) -> None:
    """Run any program under a lease: ended with its whole process group where it cannot finish in time."""
    began_s = time.monotonic()
    import torch

    from shotclock.device import default_device
    from shotclock.govern import meter, supervise
    from shotclock.plan.estimate import around
    from shotclock.plan.ledger import default_reserve_s

    found = _lease(began_s, lease, lease_end)
    for line in found.lines(began_s):
        stderr.print(line, highlight=False, markup=False, soft_wrap=True)
    gauge = meter.Gauge(torch.device(default_device()))
    length_s = found.length_s(began_s)
    bounds = supervise.Bounds(
        end_s=length_s,
        tail=around(tail, 1.5, "--tail"),
        reserve_s=default_reserve_s(length_s),
        total=total,
        floor_bytes=meter.default_floor_bytes(gauge.read().host_total_bytes),
    )
    reader = supervise.tick_reader(tick)
    with ExitStack() as stack:
        kept = stack.enter_context(samples.open("a")) if samples else None
        ended = supervise.supervise(
            command,
            supervise.Watch(bounds, reader),
            clock=time.monotonic,
            gauge=gauge.read,
            sample=lambda t_s, reading: _keep_sample(kept, t_s, reading),
            out=sys.stdout.buffer,
            say=lambda line: stderr.print(line, highlight=False, markup=False, soft_wrap=True),
        )
    raise typer.Exit(ended.exit_code)


def _keep_sample(file: TextIO | None, t_s: float, reading: Reading) -> None:
    if file is not None:
        file.write(json.dumps({"t_s": t_s} | asdict(reading), sort_keys=True) + "\n")
        file.flush()


@app.command()
def draft(
    run: Annotated[Path, typer.Argument(help="Folder of a render that has finished a step.")],
    models: Annotated[Path | None, typer.Option(help="Where the files are now, if they have moved.")] = None,
) -> None:
    """Decode what the last finished step promises, marked as a draft, beside the run."""
    from shotclock.render.run import draft as decode

    typer.echo(decode(run, models=models))


def _terms(
    began_s: float,
    lease: str | None,
    lease_end: str | None,
    leases: str,
    on_overrun: str,
    rehearse: str,
    verify: bool,
    embed: bool,
    trace_nonfinite: bool,
    *,
    accept_seam: bool = False,
    seat: str | None = None,
) -> Terms:
    """The lease from flags and environment, read once, and what happens at its end."""
    from shotclock.closing import finish
    from shotclock.plan.forecast import parse_leases
    from shotclock.render.ranks import Seat
    from shotclock.render.run import Terms

    found = _lease(began_s, lease, lease_end)
    for name, value, allowed in (("on-overrun", on_overrun, ON_OVERRUN), ("rehearse", rehearse, REHEARSE)):
        if value not in allowed:
            raise RequestError(
                f"--{name} {value!r}", allowed=", ".join(allowed), way_out="see `shotclock render --help`"
            )
    return Terms(
        lease=found,
        leases=parse_leases(leases),
        on_overrun=on_overrun,
        rehearse=rehearse,
        accept_seam=accept_seam,
        trace_nonfinite=trace_nonfinite,
        judge=partial(finish, verify=verify, embed=embed) if verify or embed else None,
        seat=None if seat is None else Seat.parse(seat),
    )


def _on_ranks(
    gpus: int,
    device: str | None,
    run: Path,
    lease: str | None,
    lease_end: str | None,
    began_s: float,
    *,
    private: bool,
) -> NoReturn:
    """This very command on several ranks; says which one failed, and leaves a record where rank 0 could not."""
    from shotclock.render.launch import note_failure, on_ranks

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks are of one machine, whose name need not resolve
    try:
        code = on_ranks(gpus, device, sys.argv[1:], began_s)
    except RenderFailed as failed:
        if note_failure(run, failed, time.monotonic() - began_s):
            with _recorded(run, _lease(began_s, lease, lease_end), began_s, private=private):
                raise
        raise
    raise typer.Exit(code)


def _began_s(seat: str | None) -> float:
    """The monotonic clock's reading when the command began, of which this process may be one rank."""
    from shotclock.render.ranks import Seat

    return time.monotonic() if seat is None else Seat.parse(seat).began_s


@app.command(hidden=True)
def follow(
    seat: Annotated[str, typer.Argument(help="As its starter says it.")],
    device: Annotated[str, typer.Option(help="cuda or cpu.")],
) -> None:
    """Be one of the other ranks of a render on several GPUs."""
    from shotclock.render.crew import follow as follow_rank_0
    from shotclock.render.ranks import Seat

    follow_rank_0(Seat.parse(seat), device)


def _lease(began_s: float, length: str | None, end: str | None) -> Lease:
    """Everything that says when the device goes; the earliest end counts."""
    from shotclock.lease import Moment, resolve_lease

    end_time, job = os.environ.get("SLURM_JOB_END_TIME"), os.environ.get("SLURM_JOB_ID")
    return resolve_lease(
        Moment(monotonic_s=time.monotonic(), wall=datetime.now(UTC)),
        began_s=began_s,
        length=length,
        end=end,
        slurm_end_time=end_time,
        squeue_end=_squeue_end(job) if job is not None and end_time is None else None,
    )


def _squeue_end(job: str) -> str | None:
    """What Slurm says of the job's end, in local time; None where it cannot be asked."""
    try:
        asked = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%e"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


@contextmanager
def _recorded(run: Path, lease: Lease, began_s: float, *, private: bool) -> Iterator[None]:
    """One record of whatever happens inside."""
    from shotclock.closing import recorded

    job = os.environ.get("SLURM_JOB_ID")
    with recorded(run, home(), lease, began_s=began_s, private=private, job=job):
        yield


def _end(outcome: Outcome | None, run: Path, *, quiet: bool, as_json: bool) -> None:
    """Print where the clip is; exit 4 where its verdict is FAIL."""
    if outcome is None:
        _ended_already(run, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(outcome.to_json(), sort_keys=True))
    elif not quiet:
        typer.echo(outcome.clip)
    if outcome.verdict == FAIL:
        raise typer.Exit(EXIT_VERDICT)


def _ended_already(run: Path, *, as_json: bool) -> None:
    """Say that nothing was left to do; the exit code is that of the verdict which is there."""
    from shotclock.rundir import RunDir

    file = RunDir(run).verdict
    verdict = json.loads(file.read_bytes())["outcome"] if file.is_file() else None
    said = {"ended_already": True, "verdict": verdict}
    typer.echo(json.dumps(said) if as_json else f"this render has ended already, verdict {verdict or 'not given'}")
    if verdict == FAIL:
        raise typer.Exit(EXIT_VERDICT)


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


def plan(**options: Any) -> None:
    """Say what a render would take, what fits the lease instead, and what each other way out costs. Renders nothing."""
    began_s = time.monotonic()
    from shotclock.render.job import Times
    from shotclock.render.preview import preview
    from shotclock.render.settings import Settings

    times = Times(clock=time.monotonic, began_s=began_s, imported_s=time.monotonic())
    plot, quiet, as_json, _ = (options.pop(name) for name in ("plot", "quiet", "as_json", "private"))
    said = {name: options.pop(name) for name in TERMS if name in options}
    terms = _terms(began_s, **said)
    found = preview(Settings(run=Path(), **options), terms, home=home(), times=times)
    if not quiet:
        for line in [*terms.lease.lines(time.monotonic()), *found.lines()]:
            stderr.print(line, highlight=False, markup=False, soft_wrap=True)
    if plot is not None:
        found.draw(plot)
    if as_json:
        typer.echo(json.dumps(found.to_json(), sort_keys=True))
    try:
        found.forecast.require()
    except DoesNotFit as refused:
        fail(refused, as_json=False)  # the document that was asked for is the last line already


def _as_render(command: Callable[..., None], **more: tuple[object, object]) -> Callable[..., None]:
    """Give ``command`` the options of ``render`` but its run folder, and ``more`` as (type, default) by name."""
    shown, kinds = inspect_module.signature(render), get_type_hints(render, include_extras=True)
    kept = [one.replace(annotation=kinds[name]) for name, one in shown.parameters.items() if name != "run"]
    added = [
        inspect_module.Parameter(name, inspect_module.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
        for name, (kind, default) in more.items()
    ]
    command.__signature__ = shown.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in [*kept, *added]} | {"return": None}
    return command


app.command()(_as_render(plan, plot=(Annotated[Path | None, typer.Option(help="Draw it to this PNG file.")], None)))


@app.command()
def fit(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders of one device, build and model.")] = None,
    check_shapes: Annotated[
        bool, typer.Option("--check-shapes", help="Compare tall, wide and long clips of equal tokens; no run: here.")
    ] = False,
    size: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHTxFRAMES whose tokens they have.", show_default="by models")
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(help="Folder with the files, or tiny.", show_default="random weights on a GPU, tiny on a CPU"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32.", show_default="by device")] = None,
    legs_per_pass: Annotated[int, typer.Option(help="Legs in one launch, 1 to 4: a law belongs to it.")] = 4,
    pinned_config: Annotated[bool, typer.Option(help="Use the released 2.5 config for a file without one.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make finished or broken runs into a cost law and rates, which later plans use."""
    from shotclock.record.laws import fit_and_keep, measured_shapes

    if runs:
        kept = fit_and_keep(runs, home(), shapes=check_shapes)
    elif check_shapes:
        from shotclock.record.fit import Measured
        from shotclock.render.measure_shapes import ShapesAsked, default_size, measure_shapes

        asked = ShapesAsked(models, device, dtype, legs_per_pass, pinned_config)

        def measure(clips: Sequence[Geometry]) -> Measured:
            found = measure_shapes(asked, clips, home=home(), say=lambda line: stderr.print(line, highlight=False))
            return Measured(timings=found.timings, rates=found.rates)

        kept = measured_shapes(measure, size or default_size(asked), home())
    else:
        raise RequestError("fit without a run", allowed="run folders, or --check-shapes", way_out="shotclock fit RUN")
    typer.echo(json.dumps(kept.to_json(), sort_keys=True) if as_json else "\n".join(kept.lines()))


@app.command()
def calibrate(
    models: Annotated[
        str | None,
        typer.Option(help="Folder with the files, pocket or tiny.", show_default="pocket; on a GPU random weights"),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu.")] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32.", show_default="by device")] = None,
    legs_per_pass: Annotated[int, typer.Option(help="Legs in one launch, 1 to 4: a law belongs to it.")] = 4,
    quantise: Annotated[str | None, typer.Option(help="fp8: the law of renders with --quantise fp8.")] = None,
    pinned_config: Annotated[bool, typer.Option(help="Use the released 2.5 config for a file without one.")] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure this device for a minute: a cost law from a few guided steps, and rates of loading, text and decode."""
    from shotclock.record.fit import Measured
    from shotclock.record.laws import keep
    from shotclock.render.calibrate import calibrate_here

    def say(line: str) -> None:
        if not quiet:
            stderr.print(line, highlight=False, markup=False, soft_wrap=True)

    found = calibrate_here(
        models,
        device,
        dtype,
        home=home(),
        legs_per_pass=legs_per_pass,
        quantise=quantise,
        pinned_config=pinned_config,
        say=say,
    )
    kept = keep(Measured(timings=found.timings, rates=found.rates), home(), shapes=False)
    document = kept.to_json() | {"seconds": found.seconds}
    typer.echo(json.dumps(document, sort_keys=True) if as_json else "\n".join(kept.lines()))


def _answer(question: Question, **_: object) -> None:
    """Ask what a command of a sub-application wants to know, and print it."""
    found = question.ask(home())
    typer.echo(json.dumps(found.document, sort_keys=True) if question.as_json else "\n".join(found.lines))
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def _told(command: Callable[..., Question]) -> Callable[..., None]:
    """A command that asks its question at once."""

    @wraps(command)
    def told(**options: object) -> None:
        _answer(command(**options))

    return told


app.add_typer(records, name="record", result_callback=_answer)
app.command("bench")(_told(bench))
app.command("profile")(_told(profile))
app.command("report")(_told(report))


@app.command()
def submit(
    batch: Annotated[Path, typer.Argument(help="A JSON object a line, with the options of render.")],
    lease: Annotated[str, typer.Option(help="Length of every lease: 4h, 90min; Slurm's time limit.")],
    partition: Annotated[str | None, typer.Option(help="Slurm partition.", show_default="the cluster's")] = None,
    cluster: Annotated[str, typer.Option(help="slurm, or local to try a batch: all at once, six leases.")] = "slurm",
    sbatch: Annotated[list[str] | None, typer.Option(help="More for sbatch, as gres=gpu:1; repeatable.")] = None,
    models: Annotated[str | None, typer.Option(help="For lines that name none.", show_default="render's")] = None,
    folder: Annotated[Path | None, typer.Option(help="New folder of the run folders.")] = None,
    on_overrun: OnOverrun = "snapshot",
    verify: Verify = True,
    embed: Embed = True,
    private: Private = False,
    as_json: AsJson = False,
) -> None:
    """Render a batch on a cluster: each request over as many leases as it takes. Refused whole or submitted whole."""
    from shotclock.cluster.slurm import require_submitit

    require_submitit()
    from shotclock.cluster.slurm import parse_sbatch
    from shotclock.cluster.submit import Target, submit_batch
    from shotclock.cluster.worker import Clocks, Rules, process_began_s

    defaults = {name: one.default for name, one in inspect_module.signature(render).parameters.items()}
    defaults = {name: value for name, value in defaults.items() if name not in (*TERMS, "prompt", "run")}
    target = Target(
        folder=folder or Path(f"{batch.stem}-queue"),
        cluster=cluster,
        partition=partition,
        sbatch=parse_sbatch(sbatch or []),
    )
    queue = submit_batch(
        batch,
        defaults | ({} if models is None else {"models": models}),
        target,
        Rules(lease=lease, on_overrun=on_overrun, verify=verify, embed=embed, private=private),
        Clocks(read_s=time.monotonic, began_s=process_began_s, lease=_lease),
        home=home(),
        say=lambda line: stderr.print(line, highlight=False, markup=False, soft_wrap=True),
    )
    typer.echo(
        json.dumps(queue.model_dump(mode="json"), sort_keys=True)
        if as_json
        else f"{len(queue.requests)} requests: shotclock queue {target.folder}"
    )


@app.command()
def queue(
    folder: Annotated[Path, typer.Argument(help="The folder that submit printed.")],
    as_json: AsJson = False,
) -> None:
    """Say how each request of a batch stands: state, leases used, step, ETA, verdict."""
    from shotclock.cluster.queue import last_words, read_lines, table, to_json

    lines = read_lines(folder, now_s=time.time())
    if as_json:
        typer.echo(json.dumps(to_json(lines), sort_keys=True))
    else:
        Console().print(table(lines))
        typer.echo("\n".join(last_words(lines)))
