"""What runs on a node: one lease of one render, handed back at a boundary until the render has ended.

submitit calls it, pickles it when the lease is handed back, and calls it again in the next one. It holds paths and
configuration only, and its pickle imports nothing heavy: until it is read, a signal would end the process.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from submitit import JobEnvironment
from submitit.helpers import DelayedSubmission

from shotclock.errors import EXIT_RESUME, DoesNotFit, RenderStopped, RequestError, RunDirError, ShotclockError
from shotclock.lease import Lease
from shotclock.rundir import RunDir

if TYPE_CHECKING:
    from shotclock.render.job import Outcome

ReadLease = Callable[[float, str | None, str | None], Lease]  # began_s, length, end: the environment is the caller's


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What all renders of a batch have in common: the length of a lease, and what happens at its end and at theirs."""

    lease: str
    on_overrun: str
    verify: bool
    embed: bool
    private: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """``read_s`` is the monotonic clock, ``began_s`` its reading when this process began, ``lease`` says the end."""

    read_s: Callable[[], float]
    began_s: Callable[[], float]
    lease: ReadLease


def process_began_s() -> float:
    """Reading of the monotonic clock when this process was started: the lease counts from there, not from imports."""
    created: float = psutil.Process().create_time()
    return time.monotonic() - max(time.time() - created, 0.0)


def job_id() -> str:
    """The scheduler's name of the job that this process runs in."""
    return str(JobEnvironment().job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A render of a batch. Called once a lease; ``options`` are those of its line, ``home`` is SHOTCLOCK_HOME."""

    run: Path
    options: Mapping[str, Any]
    rules: Rules
    home: Path
    clocks: Clocks
    job: Callable[[], str]

    def __call__(self) -> dict[str, Any]:
        """Render until the clip is there or the lease ends; what a finished render did.

        A lease that ends first is handed back: the process exits and the job waits for its next lease. Raises what
        ends the render for good.
        """
        from shotclock.cluster.tally import begin_lease, close, end_lease  # torch, by way of the documents

        tally = begin_lease(self.run)
        try:
            outcome = self.attempt()
            return {"ended_already": True} if outcome is None else outcome.to_json()
        except ShotclockError as error:
            if not comes_again(error, first=tally.leases == 1):
                close(self.run, error.found)
                raise
            end_lease(self.run, error.found)
        except Exception as error:
            close(self.run, f"{type(error).__name__}: {error}")
            raise
        signal.raise_signal(signal.SIGUSR2)  # to submitit's handler, which the render put back when it ended
        raise AssertionError("submitit's handler ends this process")

    def checkpoint(self) -> DelayedSubmission:
        """What submitit calls in the next lease: the same again, since all that has changed is in the run folder."""
        return DelayedSubmission(self)

    def lease(self, began_s: float) -> Lease:
        """The lease of this process; one that is over already is a stop at the first boundary of all."""
        try:
            return self.clocks.lease(began_s, self.rules.lease, None)
        except RequestError as error:
            raise RenderStopped(
                error.found, allowed=error.allowed, way_out=error.way_out, exit_code=EXIT_RESUME, line={}
            ) from error

    def attempt(self) -> Outcome | None:
        """Begin or go on; None where the render had ended already."""
        began_s = self.clocks.began_s()
        lease = self.lease(began_s)
        from functools import partial  # what follows takes seconds, and the lease is read before

        from rich.console import Console

        from shotclock.closing import finish, recorded
        from shotclock.cluster.batch import settings_of
        from shotclock.render import run as runs
        from shotclock.render.job import Times

        rules = self.rules
        terms = runs.Terms(
            lease=lease,
            leases=None,
            on_overrun=rules.on_overrun,
            rehearse="auto",
            accept_seam=False,
            trace_nonfinite=False,
            judge=partial(finish, verify=rules.verify, embed=rules.embed) if rules.verify or rules.embed else None,
        )
        times = Times(clock=self.clocks.read_s, began_s=began_s, imported_s=self.clocks.read_s())
        console = Console(file=sys.stderr, width=160)
        with recorded(self.run, self.home, lease, began_s=began_s, private=rules.private, job=self.job()):
            if has_begun(self.run):
                return runs.resume(self.run, terms, models=None, home=self.home, times=times, console=console)
            settings = settings_of(self.options, self.run)
            return runs.start(settings, terms, home=self.home, times=times, console=console)


def comes_again(error: ShotclockError, *, first: bool) -> bool:
    """Whether another lease may do what this one did not.

    A stop at a boundary does, and, once a render has begun, too short a rest of a lease or a folder that a lost node
    still holds. Restarts without progress are counted, so that none goes on for ever.
    """
    return isinstance(error, RenderStopped) or (isinstance(error, DoesNotFit | RunDirError) and not first)


def has_begun(path: Path) -> bool:
    """Whether the folder can be gone on with; what a kill before its plan left is removed."""
    run = RunDir(path)
    if run.request.is_file() and run.plan.is_file():
        return True
    if path.is_dir():
        run.request.unlink(missing_ok=True)
        run.sweep()
    return False
