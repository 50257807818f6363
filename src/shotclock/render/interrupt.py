"""Signals that ask a render to end: one ends it at the next boundary, a second at once.

A handler in Python runs only when the main thread is back in Python, seconds late inside a long call of torch; the
byte that the interpreter writes for a signal is read by a thread within milliseconds (lease.md). Only flags are set.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from shotclock.errors import EXIT_RESUME

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)  # a scheduler, a person, Slurm's --signal=USR2


class Interrupts:
    """Context manager of the main thread; elsewhere it hears nothing. ``asked`` names the signal that came."""

    def __init__(self) -> None:
        self.asked: str | None = None

    def __enter__(self) -> Interrupts:
        self._here = threading.current_thread() is threading.main_thread()
        if self._here:
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._old = {number: signal.signal(number, _nothing) for number in ASKED}
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._here:
            signal.set_wakeup_fd(self._old_fd)
            for number, handler in self._old.items():
                signal.signal(number, handler)
            os.close(self._write)
            self._thread.join()
            os.close(self._read)

    def _watch(self) -> None:
        while data := os.read(self._read, 1):
            if data[0] not in ASKED:
                continue
            if self.asked is not None:
                os._exit(EXIT_RESUME)  # every finished forward is in a snapshot already
            self.asked = signal.Signals(data[0]).name


def _nothing(number: int, frame: FrameType | None) -> None:
    """Python wants a handler, so that it writes the byte."""
