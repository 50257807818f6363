"""Several processes for one render: started together, watched, and ended together when one of them dies or hangs.

The process that starts them renders nothing. Each rank says where it is over a pipe, and how long the next word may
take; a second pipe ends when the starter does, and the ranks with it. Knows no torch: what ranks tell one another is
the matter of together.py, what they run is told by the caller.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shotclock.errors import RenderFailed

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # a scheduler, a person, Slurm's --signal=USR2
ORPHANED = 1  # exit code of a rank whose starter is gone
STARTED = "its start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a rank is told: its number, how many there are, its ends of both pipes, and the file where they meet."""

    rank: int
    ranks: int
    said: int
    alive: int
    rendezvous: Path

    def text(self) -> str:
        """As one argument of a command line."""
        return f"{self.rank}/{self.ranks}/{self.said}/{self.alive}/{self.rendezvous}"

    @staticmethod
    def parse(text: str) -> Seat:
        """Undo :meth:`text`."""
        *numbers, path = text.split("/", 4)
        rank, ranks, said, alive = map(int, numbers)
        return Seat(rank=rank, ranks=ranks, said=said, alive=alive, rendezvous=Path(path))

    def say(self, place: str, within_s: float | None) -> None:
        """Where this rank is, and the seconds within which it will speak again; None where that is not known."""
        os.write(self.said, json.dumps({"place": place, "within_s": within_s}).encode() + b"\n")

    def end_with_starter(self) -> None:
        """From here on this process ends at once when the one that started it does, whatever it is doing."""
        threading.Thread(target=self._wait, name="starter", daemon=True).start()

    def _wait(self) -> None:
        while os.read(self.alive, 1):
            pass
        os._exit(ORPHANED)


@dataclass(slots=True)
class _Rank:
    """A running rank as its starter sees it; ``code`` is negative where a signal ended it."""

    number: int
    process: subprocess.Popen[bytes]
    said: int
    pid_fd: int
    place: str = STARTED
    words: int = 0
    deadline_s: float | None = None
    code: int | None = None
    heard: bytes = b""

    def hear(self, now_s: float) -> bool:
        """Take in what it has said; False once it can say no more."""
        if not (data := os.read(self.said, 65536)):
            return False
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            word = json.loads(line)
            self.place, self.words = word["place"], self.words + 1
            self.deadline_s = None if word["within_s"] is None else now_s + word["within_s"]
        return True

    def ended(self) -> str:
        """How, and where it last said it was."""
        assert self.code is not None, "only of a rank that ended"
        how = f"ended with code {self.code}" if self.code >= 0 else f"was ended by {signal.Signals(-self.code).name}"
        return f"rank {self.number} {how} at {self.place}"


@dataclass(slots=True)
class _Watch:
    """All ranks, in the order they began; ``first`` is the first that failed while others ran."""

    ranks: list[_Rank]
    grace_s: float
    clock: Callable[[], float]
    first: _Rank | None = None
    kill_s: float | None = None
    hung: str | None = None
    poll: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    @property
    def running(self) -> list[_Rank]:
        return [rank for rank in self.ranks if rank.code is None]

    def send(self, number: int) -> None:
        """A signal to every rank that runs."""
        for rank in self.running:
            rank.process.send_signal(number)

    def end_all(self) -> None:
        """Kill and reap what still runs."""
        self.send(signal.SIGKILL)
        for rank in self.running:
            rank.code = rank.process.wait()

    def left_s(self) -> float | None:
        """Until the next deadline; None where there is none."""
        deadlines = [rank.deadline_s for rank in self.running if rank.deadline_s is not None and self.together]
        deadlines += [self.kill_s] if self.kill_s is not None else []
        return max(0.0, min(deadlines) - self.clock()) if deadlines else None

    @property
    def together(self) -> bool:
        """Ranks wait for one another; what is left of one alone takes the time it takes."""
        return len(self.running) > 1 and self.first is None and self.hung is None

    def note_end(self, rank: _Rank) -> None:
        """It ended; if it failed the others have their grace, for they may have been told to end as well."""
        rank.code = rank.process.wait()
        if rank.code and self.running and self.first is None and self.hung is None:
            self.first, self.kill_s = rank, self.clock() + self.grace_s

    def judge(self) -> None:
        """End all when one is late with its next word, and after the grace."""
        now_s = self.clock()
        late = [rank for rank in self.running if rank.deadline_s is not None and rank.deadline_s <= now_s]
        if self.together and late:
            fewest = min(rank.words for rank in self.running)
            behind = [f"rank {rank.number} at {rank.place}" for rank in self.running if rank.words == fewest]
            self.hung = f"no word in time; behind: {', '.join(behind)}"
            self.send(signal.SIGKILL)
        elif self.kill_s is not None and self.kill_s <= now_s:
            self.send(signal.SIGKILL)
            self.kill_s = None


def run_ranks(
    ranks: int,
    command: Callable[[Seat], Sequence[str]],
    *,
    agreed: Collection[int],
    grace_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run ``command(seat)`` for each rank until all have ended; rank 0's exit code.

    ``agreed`` are the codes other than 0 with which all ranks may end together, a lease that ended among them.

    A rank that fails or is killed gives the others ``grace_s`` to end by themselves, then they are killed; so are all
    when one is late with its next word. Signals that ask to end are passed on. Raises :class:`RenderFailed` naming the
    rank and where it was; files that are written aside and renamed stay whole. Call from the main thread.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shotclock-ranks-")))
        watch = _Watch(_start(ranks, command, folder / "rendezvous", stack), grace_s, clock)
        stack.callback(watch.end_all)  # whatever goes wrong here, none is left behind
        signals = stack.enter_context(_signals())
        watch.poll.register(signals, selectors.EVENT_READ)
        for rank in watch.ranks:
            watch.poll.register(rank.said, selectors.EVENT_READ, rank)
            watch.poll.register(rank.pid_fd, selectors.EVENT_READ, rank)
        while watch.running:
            _turn(watch, signals)
    return _outcome(watch, agreed)


def _turn(watch: _Watch, signals: int) -> None:
    """Wait for the next thing that happens and take all of it in: words first, so that an end is placed right."""
    ready = [(key.fd, key.data) for key, _ in watch.poll.select(watch.left_s())]
    for fd, rank in ready:
        if fd == signals:
            for number in os.read(signals, 64):
                if number in FORWARDED:
                    watch.send(number)
        elif fd == rank.said and not rank.hear(watch.clock()):
            watch.poll.unregister(fd)
    ended = [rank for fd, rank in ready if rank is not None and fd == rank.pid_fd]
    for rank in sorted(ended, key=lambda rank: rank.process.wait() >= 0):  # a kill is why the others failed, if it is
        watch.poll.unregister(rank.pid_fd)
        watch.note_end(rank)
    watch.judge()


def _outcome(watch: _Watch, agreed: Collection[int]) -> int:
    if watch.hung:
        _fail(len(watch.ranks), watch.hung)
    code, *others = [rank.code for rank in watch.ranks]
    assert code is not None, "all ended"
    if code >= 0 and set(others) <= {0}:
        return code
    if watch.first and not (code in agreed and set(others) == {code}):
        _fail(len(watch.ranks), watch.first.ended())
    if code < 0:
        _fail(len(watch.ranks), watch.ranks[0].ended())
    return code


def _fail(ranks: int, found: str) -> NoReturn:
    raise RenderFailed(
        f"one of {ranks} ranks failed and the others were ended: {found}",
        allowed="ranks that all live as long as the render",
        way_out="`shotclock resume RUN` goes on from the last snapshot; the log of that rank says more",
    )


def _start(ranks: int, command: Callable[[Seat], Sequence[str]], rendezvous: Path, stack: ExitStack) -> list[_Rank]:
    alive_read, alive_write = os.pipe()
    stack.callback(os.close, alive_write)
    started: list[_Rank] = []
    try:
        for number in range(ranks):
            said_read, said_write = os.pipe()
            stack.callback(os.close, said_read)
            seat = Seat(rank=number, ranks=ranks, said=said_write, alive=alive_read, rendezvous=rendezvous)
            try:
                process = subprocess.Popen(
                    command(seat),
                    pass_fds=(said_write, alive_read),
                    stdin=subprocess.DEVNULL,
                    stdout=None if number == 0 else 2,  # the document that --json prints is rank 0's
                    process_group=0,  # a key press reaches them through their starter, once
                )
            finally:
                os.close(said_write)
            pid_fd = os.pidfd_open(process.pid)
            stack.callback(os.close, pid_fd)
            started.append(_Rank(number, process, said_read, pid_fd))
    except BaseException:
        for rank in started:
            rank.process.kill()
            rank.process.wait()
        raise
    finally:
        os.close(alive_read)
    return started


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that yields the numbers of signals that ask to end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, _nothing) for number in FORWARDED}
    try:
        yield read
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(write)
        os.close(read)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python wants a handler, so that it writes the byte."""
