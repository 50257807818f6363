"""Runs any command with a job and an output folder in a child process, bounded in time; knows nothing of either.

The child has a process group of its own, so that what it starts ends with it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shotclock.errors import RenderFailed, RequestError

TAIL_CHARACTERS = 2000  # of what the child said last


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A child that ended well: its wall seconds, all of it (start, imports, loading)."""

    command: str
    wall_s: float


def run_command(command: str, job: Path, out: Path, *, limit_s: float) -> Ran:
    """``COMMAND JOB OUT``. Raises :class:`RequestError` where the command is not there or refuses the job (exit 2).

    :class:`RenderFailed` where it fails or takes longer than ``limit_s``: then it and all its children are killed.
    """
    words = shlex.split(command)
    if not words or shutil.which(words[0]) is None:
        raise RequestError(
            f"oracle command {command!r}", allowed="a program that is there", way_out="python adapters/oracle_...py"
        )
    out.mkdir(parents=True, exist_ok=True)
    log = out / "oracle.log"
    began_s = time.monotonic()
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*words, str(job), str(out)], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # whatever it has left behind, and itself on any way out
            child.wait()
    said = tail(log)
    if code == 2:
        raise RequestError(
            f"{words[-1]} refuses the job: {said}", allowed="what it can run", way_out="see the adapter's text"
        )
    if code != 0:
        how = f"was killed after {limit_s:g} s" if code is None else f"ended with code {code}"
        raise RenderFailed(
            f"{words[-1]} {how}: {said}", allowed="exit code 0 in time", way_out=f"read {log}; --limit gives more time"
        )
    return Ran(command=command, wall_s=time.monotonic() - began_s)


def tail(log: Path) -> str:
    """What the child said last, on one line."""
    text = log.read_text(errors="replace")[-TAIL_CHARACTERS:].strip()
    return " / ".join(text.splitlines()[-4:]) or "it said nothing"
