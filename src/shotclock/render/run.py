"""Begins a render, or goes on with one: resolves what was asked for, expects, refuses or renders.

Everything that can be refused is refused here, before the run folder is made and before any weight is read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from shotclock import __version__
from shotclock.device import limit
from shotclock.errors import DoesNotFit, RequestError, RunDirError
from shotclock.lease import Lease
from shotclock.model.config import transformer_config
from shotclock.plan.forecast import Forecast
from shotclock.plan.memory import Room
from shotclock.plan.planner import Plan, read_plan, splits_for
from shotclock.plan.pricing import Scope
from shotclock.plan.spread import WISHES
from shotclock.recipes import all_passes
from shotclock.render.again import planned_for, render_or_smaller
from shotclock.render.ahead import Machine, Window, look_ahead, read_room
from shotclock.render.begins import first_line
from shotclock.render.capacity import parse_bytes
from shotclock.render.crew import Crew
from shotclock.render.finish import decode_draft
from shotclock.render.given import gather_again, keep_media
from shotclock.render.job import Job, Judge, Outcome, Times
from shotclock.render.journal import Listener
from shotclock.render.launch import require_alike
from shotclock.render.pipeline import render
from shotclock.render.prompts import FOLDER, PromptCache
from shotclock.render.ranks import Seat
from shotclock.render.reopen import device_of, headers_of, logged, paths_of
from shotclock.render.replay import replay
from shotclock.render.resolve import resolve
from shotclock.render.settings import (
    DTYPES,
    Settings,
    command,
    device_name,
)
from shotclock.render.show import LiveBar, PlainLines
from shotclock.render.snapshot import legs_in_force, newest_snapshot
from shotclock.request import Request, read_request
from shotclock.rundir import RunDir, write_aside
from shotclock.weights.checkpoint import CheckpointHeaders, transformer_settings
from shotclock.weights.fp8 import require_asked
from shotclock.weights.transformer import require_fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under what a render runs: its lease and what happens at the end of it. ``leases`` is None for any number.

    ``seat`` is this process's, rank 0's, where the render has several.
    """

    lease: Lease
    leases: int | None
    on_overrun: str
    rehearse: str
    accept_seam: bool
    trace_nonfinite: bool
    judge: Judge | None
    seat: Seat | None = None

    def require_seat(self, plan: Plan) -> None:
        """Raises :class:`RequestError` for a render on several GPUs in a process that nobody else sits beside."""
        ranks = 1 if self.seat is None else self.seat.ranks
        if ranks != plan.gpus:
            raise RequestError(
                f"a render on {plan.gpus} GPUs in a process with {ranks - 1} beside it",
                allowed="one process a GPU, as `shotclock render --gpus N` and `shotclock resume` start them",
                way_out="use these commands, or --gpus 1",
            )
        if plan.device != "cpu" and ranks > 1:
            require_alike([device_name(torch.device("cuda", number)) for number in range(ranks)])


def start(settings: Settings, terms: Terms, *, home: Path, times: Times, console: Console | None) -> Outcome:
    """Resolve, refuse or render into a new folder."""
    found = resolve(settings, home, sayer(console))
    settings, request, headers = found.settings, found.request, found.headers
    terms.require_seat(found.plan)

    def expected_in(run: RunDir | None, wish: Request, most_resident: int | None) -> Forecast:
        room = replace(read_room(found.device, settings.cap_bytes), most_resident=most_resident)
        given = {"device": found.device, "home": home, "contexts": settings.contexts, "times": times}
        return expect(wish, found.plan, headers, terms, **given, run=run, room=room)  # type: ignore[arg-type]

    expected = expected_in(None, request, None)
    require_accepted(expected, request)
    plan = found.plan.model_copy(update={"forecast": expected.document})
    run = RunDir.create(settings.run)
    job = replace(
        job_of(request, plan, expected, headers, run, found.device, terms, settings.contexts),
        given=found.given,
        prompts=home / FOLDER,
    )
    with job.run.writing():
        job.run.require_empty()
        write_aside(job.run.request, request.to_json().encode())
        write_aside(job.run.plan, plan.to_json().encode())
        keep_media(found.given, request, job.run, found.image_crf)
        begun = partial(begin, seat=terms.seat, said=command(request, settings), console=console)
        return render_or_smaller(job, expected, times, attempt=begun, expect=partial(expected_in, run))


def require_accepted(expected: Forecast, request: Request) -> None:
    """Raises :class:`DoesNotFit` with what the record of a refusal needs."""
    try:
        expected.require()
    except DoesNotFit as refused:
        refused.request, refused.forecast = request, expected
        raise


def sayer(console: Console | None) -> Callable[[str], None]:
    """Prints a line for a person, or nothing."""

    def say(line: str) -> None:
        if console is not None:
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    return say


def resume(
    path: Path,
    terms: Terms,
    *,
    models: Path | None,
    home: Path,
    times: Times,
    console: Console | None,
    gpus: int | None = None,
    memory: str | None = None,
) -> Outcome | None:
    """Go on with the render of a folder; None where it has ended already. ``gpus`` is None for as many as it began on.

    Another number of them splits the forwards anew: other numerics. ``memory`` is what may be used, None for what the
    first attempt was allowed.
    """
    run = RunDir.existing(path)
    request, plan = read_request(run.request.read_text()), read_plan(run.plan.read_text())
    if any(line.get("event") == "RunEnds" for line in logged(run)):
        return None
    headers = headers_of(run, request, plan, models)
    require_fit(headers, pinned_config=plan.pinned_config)
    device = device_of(plan)
    require_asked(request.quantise, device, DTYPES[plan.dtype])
    if gpus not in (None, plan.gpus):
        config = transformer_config(transformer_settings(headers.transformer, pinned_config=plan.pinned_config))
        splits = splits_for(request, config, gpus=gpus, device_type=device.type, wish=WISHES[0])
        plan = plan.on(gpus, splits)
    terms.require_seat(plan)
    cap_bytes = allowed_by(plan) if memory is None else parse_bytes(memory)
    limit(device, cap_bytes)
    legs = legs_in_force(run)

    def expected_of(wish: Request, most_resident: int | None) -> Forecast:
        room = replace(read_room(device, cap_bytes), most_resident=most_resident)
        return expect(wish, plan, headers, terms, device=device, home=home, times=times, run=run, room=room)

    asked = request.model_copy(update={"legs_per_pass": legs or request.legs_per_pass})
    expected = expected_of(asked, None)
    require_accepted(expected, request)
    here = planned_for(plan, asked).model_copy(update={"device": device_name(device)})
    paths = paths_of(plan, models)
    job = replace(
        job_of(request, here, expected, headers, run, device, terms, None),
        given=gather_again(request, paths, headers),
        prompts=home / FOLDER,
        legs_per_pass=legs,
    )
    with run.writing():
        run.sweep()
        said = next((line["command"] for line in logged(run) if line.get("event") == "RunBegins"), "")
        begun = partial(begin, seat=terms.seat, said=said, console=console)
        return render_or_smaller(job, expected, times, attempt=begun, expect=expected_of)


def allowed_by(plan: Plan) -> int | None:
    """What of the device's memory the first attempt was allowed."""
    placed = None if plan.forecast is None else plan.forecast.placement
    return None if placed is None else placed.cap_bytes


def draft(path: Path, *, models: Path | None) -> Path:
    """Decode the denoised estimate of the last finished step beside the run; needs the decoders only."""
    run = RunDir.existing(path)
    request, plan = read_request(run.request.read_text()), read_plan(run.plan.read_text())
    found = newest_snapshot(run)
    if found is None or found.state.video_x0 is None:
        raise RunDirError(
            f"{path} holds no finished step" + (": its latents are final" if run.latents.is_file() else ""),
            allowed="a run with a snapshot",
            way_out="`shotclock resume` finishes the clip",
        )
    device = device_of(plan)
    decode_draft(run, request, plan, headers_of(run, request, plan, models), device, DTYPES[plan.dtype], found.state)
    return run.draft(found.state.step)


def prove(path: Path, *, models: Path | None) -> list[str]:
    """Replay from the older snapshot to the newest and compare every bit; what a person reads of it.

    Raises :class:`RenderFailed` where a bit differs.
    """
    run = RunDir.existing(path)
    request, plan = read_request(run.request.read_text()), read_plan(run.plan.read_text())
    if plan.gpus > 1:
        raise RequestError(
            f"a proof of a render on {plan.gpus} GPUs ({plan.split})",
            allowed="runs on one GPU: a replay is one process, which rounds otherwise",
            way_out="resume a copy of its folder and compare both latents.safetensors",
        )
    headers = headers_of(run, request, plan, models)
    given, device = gather_again(request, paths_of(plan, models), headers), device_of(plan)
    require_asked(request.quantise, device, DTYPES[plan.dtype])
    return replay(run, request, plan, headers, given, device)


def job_of(
    request: Request,
    plan: Plan,
    expected: Forecast,
    headers: CheckpointHeaders,
    run: RunDir,
    device: torch.device,
    terms: Terms,
    contexts: Path | None,
) -> Job:
    """One attempt of a render."""
    return Job(
        request=request,
        plan=plan,
        foreseen=expected.document,
        headers=headers,
        run=run,
        device=device,
        dtype=DTYPES[plan.dtype],
        lease=terms.lease,
        on_overrun=terms.on_overrun,
        rehearse=terms.rehearse,
        judge=terms.judge,
        accept_seam=terms.accept_seam,
        trace_nonfinite=terms.trace_nonfinite,
        contexts=contexts,
    )


def begin(
    job: Job, expected: Forecast, times: Times, *, seat: Seat | None, said: str, console: Console | None
) -> Outcome:
    """Say what will happen and do it, with the other ranks where there are any; the caller holds the folder."""
    with ExitStack() as stack:
        listeners: list[Listener] = []
        if console is not None:
            console.print(f"shotclock {__version__}: {said}", highlight=False, markup=False, soft_wrap=True)
            for line in [*job.lease.lines(times.clock()), *job.plan.lines(), *expected.lines()]:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            listeners.append(_listener(job.plan, console, stack))
        if seat is not None:
            job = replace(job, crew=stack.enter_context(Crew(seat, job.device, job.foreseen.law)))
        return render(job, times=times, first_line=first_line(said, job), listeners=listeners)


def _listener(plan: Plan, console: Console, stack: ExitStack) -> Listener:
    if console.is_terminal:
        return stack.enter_context(LiveBar(plan, console))
    return PlainLines(plan, lambda line: print(line, file=console.file, flush=True))


def expect(
    request: Request,
    plan: Plan,
    headers: CheckpointHeaders,
    terms: Terms,
    *,
    device: torch.device,
    home: Path,
    times: Times,
    run: RunDir | None = None,
    contexts: Path | None = None,
    room: Room | None = None,
) -> Forecast:
    """What is left of the render, against the lease and the memory there is; ``room`` None is all that is free now."""
    found = newest_snapshot(run) if run is not None else None
    scope = Scope(
        encodes_text=encodes_text(request, headers, device, plan, home, run, contexts),
        rehearses=terms.rehearse != "never" and found is None,
        verifies=terms.judge is not None,
        passes_done=passes_done(request, plan, run),
    )
    return look_ahead(
        request,
        headers,
        Machine(
            device=device,
            name=plan.device,
            dtype=DTYPES[plan.dtype],
            room=room or read_room(device),
            gpus=plan.gpus,
            split=plan.split,
            parts=tuple(one.share for one in plan.splits),
        ),
        scope=scope,
        window=Window(lease=terms.lease, began_s=times.began_s, now_s=times.clock(), leases=terms.leases),
        home=home,
        others={role: file.bytes for role, file in plan.files.items()},
        pinned_config=plan.pinned_config,
    )


def encodes_text(
    request: Request,
    headers: CheckpointHeaders,
    device: torch.device,
    plan: Plan,
    home: Path,
    run: RunDir | None,
    contexts: Path | None,
) -> bool:
    """Whether the text encoder will be loaded: not for contexts that are there, nor for prompts that are known."""
    if contexts is not None or headers.text_encoder is None or (run is not None and run.contexts.is_file()):
        return False
    cache = PromptCache.of(home / FOLDER, headers.text_encoder, device=device_name(device), dtype=DTYPES[plan.dtype])
    return not (cache.holds(request.prompt) and cache.holds(request.negative_prompt))


def passes_done(request: Request, plan: Plan, run: RunDir | None) -> int:
    """Passes that need not run again: those before the newest snapshot, or all where the latents are final."""
    if run is None:
        return 0
    if run.latents.is_file():
        return plan.passes
    found = newest_snapshot(run)
    if found is None:
        return 0
    every = all_passes(request.stages, plan.blocks)
    steps = sum(len(step) for step in every[: found.state.step])
    begun = every[found.state.step] if found.state.legs else ()
    return steps + sum(set(launch.legs) <= set(found.state.legs) for launch in begun)
