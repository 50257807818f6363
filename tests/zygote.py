"""A process that has imported everything and forks a real render for each order: real kills without the imports.

Reads one JSON object a line: ``argv``, ``environment``, ``log`` (a file for what it prints) and ``die``, where the
child kills itself with SIGKILL: ``{"line": {...}}`` right after an event line with these fields was written,
``{"fsync": n}`` in place of its n-th fsync, ``{"rename": n}`` in place of its n-th rename, ``{"signal": name, "line":
{...}}`` sends a signal to itself instead and goes on, ``{"rank": n, "place": text}`` where that rank has said that it
is there. Answers with the child's wait status, one a line.

A render on several ranks starts them as it does elsewhere, but for what it executes: they are forked, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import shotclock.render.run  # the imports that take seconds; no thread of torch has started yet
from shotclock.cli import main
from shotclock.render import ranks
from shotclock.render.interrupt import Interrupts
from shotclock.render.journal import Journal

HEARING: list[Interrupts] = []


def die() -> None:
    """As the kernel ends a process: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def send(name: str, times: int) -> None:
    """A signal to this process; goes on once it was heard, or, after a second one, never: it must end the process."""
    for _ in range(times):
        os.kill(os.getpid(), signal.Signals[name])
        while HEARING and HEARING[-1].asked is None:
            os.sched_yield()
    if times > 1:
        signal.pause()


def hearing(real: Callable[[Interrupts], Interrupts]) -> Callable[[Interrupts], Interrupts]:
    """``Interrupts.__enter__`` that remembers who listens."""

    def enter(self: Interrupts) -> Interrupts:
        HEARING.append(self)
        return real(self)

    return enter


def nth(count: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """``real``, but for its ``count``-th call, in place of which the process dies."""
    calls = 0

    def replaced(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            die()
        return real(*arguments, **options)

    return replaced


class Forked:
    """What ``subprocess.Popen`` starts of this program, without the imports: same descriptors, group and signals."""

    def __init__(self, argv: list[str], *, pass_fds: tuple[int, ...], stdout: int | None, **_: Any) -> None:
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.closerange(3, min(pass_fds))
            if stdout is not None:
                os.dup2(stdout, 1)
            os._exit(command(argv[argv.index("shotclock") + 1 :]))

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def arrange(order: dict[str, Any]) -> None:
    """Put the death where the order says."""
    ranks.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    wanted = order.get("die") or {}
    if "place" in wanted:
        say = ranks.Seat.say

        def say_and_die(self: ranks.Seat, place: str, **more: Any) -> None:
            say(self, place, **more)
            if (self.rank, place) == (wanted["rank"], wanted["place"]):
                die()

        ranks.Seat.say = say_and_die  # type: ignore[method-assign]
    if "fsync" in wanted:
        os.fsync = nth(wanted["fsync"], os.fsync)
    if "rename" in wanted:
        Path.replace = nth(wanted["rename"], Path.replace)  # type: ignore[method-assign]
    if "line" in wanted:
        real, left = Journal.write, [wanted.get("times", 1)]

        def write(self: Journal, line: dict[str, Any]) -> None:
            real(self, line)
            if left[0] and wanted["line"].items() <= line.items():
                left[0] -= 1
                send(wanted.get("signal", "SIGKILL"), wanted.get("repeat", 1))

        Journal.write = write  # type: ignore[method-assign]
        Interrupts.__enter__ = hearing(Interrupts.__enter__)  # type: ignore[method-assign]


def child(order: dict[str, Any]) -> int:
    """Run the command line; its exit code."""
    os.environ.update(order.get("environment", {}))
    with Path(order["log"]).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(1)
    arrange(order)
    return command(order["argv"])


def command(argv: list[str]) -> int:
    """One command line; its exit code."""
    sys.argv = ["shotclock", *argv]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def serve() -> None:
    """Fork a child an order until standard input ends."""
    for line in sys.stdin:
        number = os.fork()
        if number == 0:
            code = child(json.loads(line))
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(number, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    assert shotclock.render.run
    serve()
