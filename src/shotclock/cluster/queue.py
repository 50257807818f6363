"""How a submitted batch stands, request by request: read from its run folders and from the scheduler by job id.

Reads and never writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.table import Table

from shotclock.cluster.slurm import Queue, job_states, read_queue
from shotclock.cluster.tally import Tally, progress, read_tally
from shotclock.lease import length_text
from shotclock.record.status import Standing, Status, read_status
from shotclock.record.timeline import read_timeline
from shotclock.rundir import RunDir

PROMPT_CHARACTERS = 40
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SUSPENDED", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "CONFIGURING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"})


class Stage(StrEnum):
    """Where a request is."""

    WAITING = "waiting"  # for its first lease
    RUNNING = "running"
    BETWEEN = "between leases"
    FINISHED = "finished"
    FAILED = "failed"  # for good, or given up
    LOST = "not in the queue"  # neither ended nor known to the scheduler: `shotclock resume` goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A request of the table. ``left_s`` is what its last projection leaves, without waiting for a lease."""

    name: str
    prompt: str
    job_id: str
    state: Stage
    leases: int
    step: int
    steps: int | None
    left_s: float | None
    verdict: str | None
    said: str | None


def read_lines(folder: Path, *, now_s: float, states: Mapping[str, str] | None = None) -> list[Line]:
    """Every request in the order of the batch; ``states`` replaces the question to the scheduler."""
    queue = read_queue(folder)
    asked = job_states(queue) if states is None else states
    return [_line(queue, number, folder, asked, now_s) for number in range(len(queue.requests))]


def _line(queue: Queue, number: int, folder: Path, asked: Mapping[str, str] | None, now_s: float) -> Line:
    request = queue.requests[number]
    run = folder / request.name
    tally = read_tally(run)
    status = read_status(run, now_s=now_s) if RunDir(run).request.is_file() else None
    state = stage_of(tally, status, None if asked is None else asked.get(request.job_id, ""))
    steps = _steps(run)
    latents, snapshot_step = RunDir(run).latents.is_file(), int(progress(run).split("-")[-2])
    return Line(
        name=request.name,
        prompt=request.prompt,
        job_id=request.job_id,
        state=state,
        leases=tally.leases if tally else 0,
        step=steps if latents and steps is not None else snapshot_step,
        steps=steps,
        left_s=_left_s(status) if state in (Stage.RUNNING, Stage.BETWEEN) else None,
        verdict=_verdict(run) if state is Stage.FINISHED else None,
        said=None if state is Stage.FINISHED or tally is None else tally.said,
    )


def stage_of(tally: Tally | None, status: Status | None, job: str | None) -> Stage:
    """Where a request is. ``job`` is the scheduler's word: empty for a job it does not know, None if not asked."""
    if status is not None and status.standing is Standing.FINISHED:
        return Stage.FINISHED
    if tally is not None and tally.over:
        return Stage.FAILED
    between = Stage.WAITING if tally is None else Stage.BETWEEN
    if job is not None:
        if job in WAITING:
            return between
        return Stage.RUNNING if job in RUNNING else Stage.LOST
    if status is not None and status.standing is Standing.RUNNING:
        return Stage.RUNNING
    return between


def _steps(run: Path) -> int | None:
    """Steps in all, from the plan; None before there is one."""
    try:
        return int(json.loads(RunDir(run).plan.read_bytes())["steps"])
    except (FileNotFoundError, KeyError, ValueError):
        return None


def _left_s(status: Status | None) -> float | None:
    """What the newest projection leaves after the time that has gone by."""
    if status is None or status.projection is None or status.projection.total_s is None:
        return None
    return max(status.projection.total_s - status.elapsed_s, 0.0)


def _verdict(run: Path) -> str | None:
    last = read_timeline(run).last
    return str(last.ended["verdict"]) if last is not None and last.ended and last.ended.get("verdict") else None


def to_json(lines: list[Line]) -> dict[str, Any]:
    """One document."""
    return {"format": "shotclock/queue-lines/1", "requests": [asdict(line) for line in lines]}


def table(lines: list[Line]) -> Table:
    """What a person reads."""
    shown = Table(box=None, pad_edge=False)
    for name in ("request", "prompt", "job", "state", "leases", "step", "ETA", "verdict"):
        shown.add_column(name, overflow="fold")
    for line in lines:
        prompt = line.prompt if len(line.prompt) <= PROMPT_CHARACTERS else line.prompt[: PROMPT_CHARACTERS - 1] + "…"
        step = f"{line.step}/{line.steps}" if line.steps is not None else "-"
        left = "-" if line.left_s is None else length_text(line.left_s)
        row = (line.name, prompt, line.job_id, str(line.state), str(line.leases), step, left)
        shown.add_row(*row, line.verdict or "-")
    return shown


def last_words(lines: list[Line]) -> list[str]:
    """Why requests that will not go on by themselves ended."""
    return [f"{line.name}: {line.said or line.state}" for line in lines if line.state in (Stage.FAILED, Stage.LOST)]
