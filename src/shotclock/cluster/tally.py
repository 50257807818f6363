"""What a render has used of its leases: how many, and whether each left more finished work in the run folder.

Lies beside the run folder, so that a worker that was killed is counted too. Knows no scheduler and no clock.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from shotclock.errors import RenderFailed, RunDirError
from shotclock.request import Document
from shotclock.rundir import RunDir, write_aside

MAX_IDLE = 3  # restarts without progress in a row; a worker that believes its lease is over would go on for ever


class Tally(Document):
    """Leases that began, how far the render was then, and restarts in a row that brought it no further.

    ``running`` is whether nobody has said that the newest lease ended, ``said`` why the last one did that said so;
    ``over`` is that no other will be asked for.
    """

    format: Literal["shotclock/leases/1"] = "shotclock/leases/1"
    leases: Annotated[int, Field(ge=1)]
    progress: str
    idle: Annotated[int, Field(ge=0)]
    running: bool
    said: str | None = None
    over: bool = False


def tally_of(run: Path) -> Path:
    """The tally of a run folder."""
    return run.with_name(f"{run.name}.leases.json")


def read_tally(run: Path) -> Tally | None:
    """What was counted so far; None before the first lease."""
    path = tally_of(run)
    try:
        return Tally.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as bad:
        raise RunDirError(
            f"{path} is no tally of leases: {bad}",
            allowed="what a worker of `shotclock submit` wrote",
            way_out=f"go on by hand: shotclock resume {run}",
        ) from None


def progress(run: Path) -> str:
    """How far the files of a run folder are, as text that sorts: more finished work is greater."""
    files = RunDir(run)
    snapshot = max((path.name[9:16] for path in run.glob("snapshot-?????-?-*.safetensors")), default="00000-0")
    stages = len(list(run.glob("stage-*.safetensors")))
    done = [files.clip.is_file(), files.latents.is_file(), stages, files.contexts.is_file()]
    return "-".join([*(str(int(one)) for one in done), snapshot])


def begin_lease(run: Path) -> Tally:
    """Count a lease that begins; raises :class:`RenderFailed` where the restarts before it brought nothing."""
    before, now = read_tally(run), progress(run)
    if before is None:
        return _kept(run, Tally(leases=1, progress=now, idle=0, running=True))
    idle = _idle(before, now) if before.running else before.idle  # killed: nobody counted its end
    more = {"leases": before.leases + 1, "progress": now, "idle": idle, "running": True, "over": False}
    return _kept(run, before.model_copy(update=more))


def end_lease(run: Path, said: str) -> None:
    """Count a lease that ended early; raises :class:`RenderFailed` where another would be one too many."""
    tally = read_tally(run)
    assert tally is not None, "a lease that began"
    now = progress(run)
    _kept(run, tally.model_copy(update={"progress": now, "idle": _idle(tally, now), "said": said, "running": False}))


def close(run: Path, said: str) -> None:
    """Write down that no other lease will be asked for, and why."""
    tally = read_tally(run)
    assert tally is not None, "a lease that began"
    write_aside(
        tally_of(run), tally.model_copy(update={"said": said, "running": False, "over": True}).to_json().encode()
    )


def _idle(before: Tally, now: str) -> int:
    return 0 if now > before.progress else before.idle + (before.leases > 1)


def _kept(run: Path, tally: Tally) -> Tally:
    """Written down; one restart too many is the last."""
    over = tally.idle >= MAX_IDLE
    write_aside(
        tally_of(run), tally.model_copy(update={"over": over, "running": tally.running and not over}).to_json().encode()
    )
    if over:
        raise RenderFailed(
            f"{tally.idle} restarts of {run.name} without progress; the last: {tally.said or 'it said nothing'}",
            allowed=f"less than {MAX_IDLE} in a row that finish no pass and no stage",
            way_out=f"a longer --lease, or shotclock resume {run} to see what happens",
        )
    return tally
