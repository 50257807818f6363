"""Starts the ranks of one render: the command that was given, once more as rank 0, and processes that follow it.

Light: the process that starts and watches the others imports no torch unless it has to count GPUs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shotclock.errors import (
    EXIT_MEMORY_FLOOR,
    EXIT_OVERRUN,
    EXIT_RESUME,
    RenderFailed,
    RequestError,
    RunDirError,
)
from shotclock.render.ranks import Seat, run_ranks
from shotclock.rundir import RunDir

GRACE_S = 15.0  # for rank 0 to write how the render ended, once another rank is gone
MOST_ON_CPU = 8  # processes: there to try the path, not to be quick
AGREED = (EXIT_RESUME, EXIT_MEMORY_FLOOR, EXIT_OVERRUN)
ENDS = ("RunEnds", "RunStops", "RunFails")


def require_gpus(gpus: int, device: str | None) -> None:
    """Raises :class:`RequestError` where this machine cannot give each rank its own GPU, or its CPU process."""
    if gpus < 1:
        raise RequestError(f"--gpus {gpus}", allowed="1 or more", way_out="leave --gpus out for one")
    if gpus == 1:
        return
    if device not in (None, "cuda", "cpu"):
        raise RequestError(
            f"--gpus {gpus} with --device {device}",
            allowed="--device cuda, for the first GPUs, or cpu",
            way_out="CUDA_VISIBLE_DEVICES chooses among GPUs; leave --device out",
        )
    if device == "cpu":
        if gpus > MOST_ON_CPU:
            raise RequestError(
                f"--gpus {gpus} with --device cpu", allowed=f"up to {MOST_ON_CPU} processes", way_out="ask for fewer"
            )
        return
    import torch  # seconds

    if gpus > (count := torch.cuda.device_count()):  # counted without taking hold of any
        raise RequestError(
            f"--gpus {gpus}, and this machine shows {count}",
            allowed=f"up to {max(count, 1)}",
            way_out="ask for fewer; --device cpu runs so many processes without a GPU, to try it",
        )


def require_alike(names: Sequence[str]) -> None:
    """Raises :class:`RequestError` for devices of different kinds among ``names``."""
    if len(set(names)) > 1:
        raise RequestError(
            f"--gpus {len(names)} of different kinds: {', '.join(names)}",
            allowed="GPUs of one kind, which round alike and wait for none",
            way_out="choose alike ones with CUDA_VISIBLE_DEVICES",
        )


def planned(run: Path) -> tuple[int, str | None]:
    """GPUs that the plan of a run folder asks for, and its device as an option; one where nothing can be read of it."""
    try:
        plan = json.loads((run / "plan.json").read_text())
        return int(plan.get("gpus", 1)), "cpu" if plan["device"] == "cpu" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 1, None  # read again, and refused, as strictly as ever by whoever resumes it


def on_ranks(gpus: int, device: str | None, arguments: Sequence[str], began_s: float) -> int:
    """Run the command line ``arguments``, which began at ``began_s``, on so many ranks; rank 0's exit code.

    Raises :class:`RenderFailed` naming the rank that failed.
    """
    require_gpus(gpus, device)
    program = [sys.executable, "-m", "shotclock"]
    command, *more = arguments

    def of(seat: Seat) -> list[str]:
        seat = replace(seat, began_s=began_s)
        if seat.rank == 0:
            return [*program, command, f"--seat={seat.text()}", *more]
        return [*program, "follow", "--device", "cpu" if device == "cpu" else "cuda", "--", seat.text()]

    return run_ranks(gpus, of, agreed=AGREED, grace_s=GRACE_S)


def note_failure(path: Path, failed: RenderFailed, t_s: float) -> bool:
    """Say in the event log which rank failed; whether rank 0 could not say any more how the attempt ended.

    ``t_s`` are seconds since the command began.
    """
    run = RunDir(path)
    if not run.events.is_file():
        return False
    last = [json.loads(line) for line in run.events.read_bytes().split(b"\n")[-2:-1] if line]
    ended = bool(last) and last[0].get("event") in ENDS
    said = {"found": failed.found, "allowed": failed.allowed, "way_out": failed.way_out}
    line = (
        {"event": "Notice", "text": failed.found}
        if ended
        else {"event": "RunFails", "exit_code": failed.exit_code, **said}
    )
    with suppress(OSError, RunDirError), run.writing(), run.open_events() as log:
        log.write(json.dumps(line | {"t_s": t_s, "phase": None}, sort_keys=True).encode() + b"\n")
    return not ended
