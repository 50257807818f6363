"""What a worker does with submitit, without a render: a module of its own, since another process imports it."""

from __future__ import annotations

import signal
from pathlib import Path

from submitit.helpers import DelayedSubmission


class Once:
    """Hands its first lease back; in the second it ends."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self) -> str:
        if self.mark.exists():
            return "done"
        self.mark.touch()
        signal.raise_signal(signal.SIGUSR2)
        raise AssertionError("the handler ends the process")

    def checkpoint(self) -> DelayedSubmission:
        """The same again."""
        return DelayedSubmission(self)
