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

from shotclock.errors import RenderFailed

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # a scheduler, a person, Slurm's --signal=USR2
ORPHANED = 1  # exit code of a rank whose starter is gone
STARTED = "its start"
BEAT_S = 5.0  # between the signs of life of a rank, whatever it is doing
SILENCE_S = 40.0  # without one, while ranks are in a pass: stopped, swapped out or wedged


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a rank is told: its number, how many there are, its ends of both pipes, and the file where they meet.

    ``began_s`` is the monotonic clock's reading when the command of all of them began: the lease counts from there.
    """

    rank: int
    ranks: int
    said: int
    alive: int
    rendezvous: Path
    began_s: float = 0.0

    def text(self) -> str:
        """As one argument of a command line."""
        return f"{self.rank}/{self.ranks}/{self.said}/{self.alive}/{self.began_s!r}/{self.rendezvous}"

    @staticmethod
    def parse(text: str) -> Seat:
        """Undo :meth:`text`."""
        *numbers, began_s, path = text.split("/", 5)
        rank, ranks, said, alive = map(int, numbers)
        return Seat(rank=rank, ranks=ranks, said=said, alive=alive, rendezvous=Path(path), began_s=float(began_s))

    def say(self, place: str, *, number: int, within_s: float | None) -> None:
        """Where this rank is, the number of passes that it has begun, and the seconds within which it speaks again.

        ``within_s`` is None where that is not known.
        """
        word = {"place": place, "number": number, "within_s": within_s}
        os.write(self.said, json.dumps(word).encode() + b"\n")

    def part(self) -> None:
        """Of rank 0: the others have done their part, and how they end is no matter any more."""
        os.write(self.said, json.dumps({"parted": True}).encode() + b"\n")

    def beat(self) -> None:
        """From here on a thread says every few seconds that this process is alive."""
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _beat(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            os.write(self.said, b"\n")

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

    seat: int
    process: subprocess.Popen[bytes]
    said: int
    pid_fd: int
    place: str = STARTED
    number: int = 0
    deadline_s: float | None = None
    heard_s: float | None = None
    parted: bool = False
    code: int | None = None
    heard: bytes = b""

    def hear(self, now_s: float) -> bool:
        """Take in what it has said; False once it can say no more."""
        if not (data := os.read(self.said, 65536)):
            return False
        self.heard_s = now_s
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in filter(None, lines):
            word = json.loads(line)
            if "parted" in word:
                self.parted, self.deadline_s = True, None
                continue
            self.place, self.number = word["place"], word["number"]
            self.deadline_s = None if word["within_s"] is None else now_s + word["within_s"]
        return True

    def ended(self) -> str:
        """How, and where it last said it was."""
        assert self.code is not None, "only of a rank that ended"
        how = f"ended with code {self.code}" if self.code >= 0 else f"was ended by {signal.Signals(-self.code).name}"
        return f"rank {self.seat} {how} at {self.place}"


@dataclass(slots=True)
class _Watch:
    """All ranks, in the order they began; ``first`` is the first that failed while others ran.

    ``refused`` says that rank 0 ended before it needed the others: what it said and its code stand.
    """

    ranks: list[_Rank]
    grace_s: float
    silence_s: float
    clock: Callable[[], float]
    refused: bool = False
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
        if deadlines:
            deadlines += [rank.heard_s + self.silence_s for rank in self.running if rank.heard_s is not None]
        deadlines += [self.kill_s] if self.kill_s is not None else []
        return max(0.0, min(deadlines) - self.clock()) if deadlines else None

    @property
    def together(self) -> bool:
        """Ranks wait for one another; what is left of one alone takes the time it takes."""
        return len(self.running) > 1 and self.first is None and self.hung is None and not self.ranks[0].parted

    def note_end(self, rank: _Rank) -> None:
        """It ended; if it failed the others have their grace, for they may have been told to end as well."""
        rank.code = rank.process.wait()
        if not self.running or self.first is not None or self.hung is not None or self.refused:
            return
        if rank.seat == 0 and rank.place == STARTED and rank.code >= 0:
            self.refused = True
            self.send(signal.SIGKILL)
        elif rank.seat == 0 or (rank.code and not self.ranks[0].parted):
            self.first = rank if rank.code else None
            self.kill_s = self.clock() + self.grace_s

    def judge(self) -> None:
        """End all when one is late with its next word or gives no sign of life, and after the grace."""
        now_s = self.clock()
        if self.together and (found := self.behind(now_s)):
            self.hung = found
            self.send(signal.SIGKILL)
        elif self.kill_s is not None and self.kill_s <= now_s:
            self.send(signal.SIGKILL)
            self.kill_s = None

    def behind(self, now_s: float) -> str | None:
        """Who keeps the others waiting: those without a sign of life, else those with the fewest passes begun."""
        waiting = [rank for rank in self.running if rank.deadline_s is not None]
        silent = [rank for rank in self.running if waiting and (rank.heard_s or now_s) + self.silence_s <= now_s]
        if silent:
            return f"no sign of life for {self.silence_s:g} s: {_places(silent)}"
        if not any(rank.deadline_s is not None and rank.deadline_s <= now_s for rank in waiting):
            return None
        fewest = min(rank.number for rank in self.running)
        return f"no word in time; behind: {_places([rank for rank in self.running if rank.number == fewest])}"


def _places(ranks: Sequence[_Rank]) -> str:
    return ", ".join(f"rank {rank.seat} at {rank.place}" for rank in ranks)


def run_ranks(
    ranks: int,
    command: Callable[[Seat], Sequence[str]],
    *,
    agreed: Collection[int],
    grace_s: float,
    silence_s: float = SILENCE_S,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run ``command(seat)`` for each rank until all have ended; rank 0's exit code.

    ``agreed`` are the codes other than 0 with which all ranks may end together, a lease that ended among them.

    A rank that fails or is killed gives the others ``grace_s`` to end by themselves, then they are killed; so are all
    when one is late with its next word, or gives no sign of life for ``silence_s`` while one of them is due to speak.
    Where rank 0 ends before its first word or after it has parted from the others, its own code stands. Signals that
    ask to end are passed on. Raises :class:`RenderFailed` naming the rank and where it was; files that are written
    aside and renamed stay whole. Call from the main thread.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shotclock-ranks-")))
        watch = _Watch(_start(ranks, command, folder / "rendezvous", stack), grace_s, silence_s, clock)
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
    ranks = len(watch.ranks)
    code, *others = [rank.code for rank in watch.ranks]
    assert code is not None, "all ended"
    if watch.hung:
        raise _failed(ranks, watch.hung)
    if watch.refused or (code >= 0 and (watch.ranks[0].parted or set(others) <= {0})):
        return code
    if watch.first and not (code in agreed and set(others) == {code}):
        failed = _failed(ranks, watch.first.ended())
        if watch.first.seat == 0 and code > 0:
            failed.exit_code = code
        raise failed
    if code < 0:
        raise _failed(ranks, watch.ranks[0].ended())
    return code


def _failed(ranks: int, found: str) -> RenderFailed:
    return RenderFailed(
        f"one of {ranks} ranks failed and the others were ended: {found}",
        allowed="ranks that all live as long as the render",
        way_out="`shotclock resume RUN` goes on from the last snapshot; what that rank printed says more",
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
