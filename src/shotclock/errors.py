"""Errors a user can act on: what was found, what is allowed, the way out, and the exit code of each kind.

Knows nothing of the rest of the program.
"""

from __future__ import annotations

from typing import Any

EXIT_VERDICT, EXIT_RESUME, EXIT_MEMORY_FLOOR, EXIT_OVERRUN = 4, 75, 90, 92  # beside those of the errors below


class ShotclockError(Exception):
    """A refusal or failure in the user's terms: ``found``, ``allowed`` and ``way_out`` are sentences with numbers."""

    exit_code = 1

    def __init__(self, found: str, *, allowed: str, way_out: str) -> None:
        super().__init__(found)
        self.found = found
        self.allowed = allowed
        self.way_out = way_out

    def __str__(self) -> str:
        return f"{self.found}; allowed: {self.allowed}; way out: {self.way_out}"


class RequestError(ShotclockError):
    """The request cannot be rendered as written (wrong usage)."""

    exit_code = 2


class CheckpointError(ShotclockError):
    """A file of weights is not what this program can load; raised from the header, before any weight is read."""

    exit_code = 2


class RunDirError(ShotclockError):
    """A run folder is in use, unreadable or holds another run."""

    exit_code = 2


class DoesNotFit(ShotclockError):
    """The plan needs more time, memory or disk than there is.

    Whoever knows them adds what was asked for and what was expected of it, for the record of the refusal.
    """

    exit_code = 3
    request: Any = None
    forecast: Any = None


class RenderFailed(ShotclockError):
    """A render began and could not end."""

    exit_code = 1


class OutOfMemory(RenderFailed):
    """The device's memory did not do in ``phase``; what ended before is kept."""

    phase: str | None = None


class RenderStopped(ShotclockError):
    """A render was ended on purpose at a boundary; ``line`` is what the event log says of it.

    ``exit_code`` is 75 where it can be resumed, 90 at the memory floor, 92 for a projected overrun.
    """

    def __init__(self, found: str, *, allowed: str, way_out: str, exit_code: int, line: dict[str, object]) -> None:
        super().__init__(found, allowed=allowed, way_out=way_out)
        self.exit_code = exit_code
        self.line = line


def unreachable(error: OSError) -> ShotclockError:
    """What the system refused to a command that foresaw no refusal: the path and the system's reason."""
    where = "" if error.filename is None else f"{error.filename}: "
    return ShotclockError(
        f"{where}{error.strerror or error}",
        allowed="paths that this user may read and write, on a disk with free space",
        way_out="check the path, its permissions and the free space",
    )
