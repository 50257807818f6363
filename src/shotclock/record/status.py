"""Where a run stands, read from its folder alone: for whoever watches it from another terminal or another machine.

Reads and never writes: not even a lock is taken, so that watching cannot get in the way of the render.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from shotclock.record.attempt import Attempt, PassSeen, ProgressSeen, ProjectionSeen, SnapshotSeen, Timeline
from shotclock.record.figures import bytes_text, demand, duration_text, seconds_text
from shotclock.record.memory_log import MemorySample, read_memory
from shotclock.record.timeline import EVENTS, read_timeline

LOCKS = Path("/proc/locks")
LOCK = ".lock"  # held by the one writer of a run (rundir.py)
DRAFT = "draft-step-"


class Standing(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    SILENT = "without a last line"  # killed, or written by a machine that cannot be seen from here


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A run at one moment. ``quiet_s`` is how long ago its log was written; None is what is not known."""

    standing: Standing
    attempts: int
    phase: str | None
    progress: ProgressSeen | None
    passes_done: int
    pass_in_flight: PassSeen | None
    last_pass: PassSeen | None
    elapsed_s: float
    quiet_s: float | None
    projection: ProjectionSeen | None
    snapshot: SnapshotSeen | None
    memory: MemorySample | None
    host_demand_bytes: int | None
    device_demand_bytes: int | None
    draft: str | None
    said: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """What a person reads, at most seven lines."""
        heard = "" if self.quiet_s is None else f", log written {duration_text(max(self.quiet_s, 0.0))} ago"
        attempt = f", attempt {self.attempts}" if self.attempts > 1 else ""
        shown = [f"{self.standing}{attempt}, {duration_text(self.elapsed_s)} since it began{heard}"]
        shown += [self.said] if self.said else []
        if self.phase is not None:
            moved = self.progress if self.progress and self.progress.phase == self.phase else None
            shown.append(f"phase {self.phase}" + (f" {moved.done}/{moved.total}" if moved else ""))
        if line := self._pass_line():
            shown.append(line)
        if line := self._projection_line():
            shown.append(line)
        if line := self._memory_line():
            shown.append(line)
        kept = [f"snapshot after step {self.snapshot.step}"] if self.snapshot else []
        kept += [f"last draft {self.draft}"] if self.draft else []
        return shown + ([", ".join(kept)] if kept else [])

    def _pass_line(self) -> str | None:
        seen = self.pass_in_flight or self.last_pass
        if seen is None:
            return None
        last = f", the last took {seconds_text(self.last_pass.seconds)}" if self.last_pass else ""
        flight = f"pass {seen.index} ended"
        if self.pass_in_flight:
            flight = f"pass {seen.index} {'refused' if self.standing is Standing.STOPPED else 'in flight'}"
        return f"step {seen.step}/{seen.steps}, {flight} ({' + '.join(seen.legs)}){last}"

    def _projection_line(self) -> str | None:
        seen = self.projection
        if seen is None:
            return None
        if seen.total_s is None:
            return "projection: nobody can say yet"
        budget = "no lease" if seen.budget_s is None else f"lease {duration_text(seen.budget_s)}"
        few = ", provisional" if seen.provisional else ""
        said = f"by {seen.source}, n={seen.n}{few}: {seen.verdict}"
        return f"projection: {duration_text(seen.total_s)} in all, {budget}, {said}"

    def _memory_line(self) -> str | None:
        if self.memory is None:
            return None
        parts = [
            f"{name} {bytes_text(used)} in use, own demand {bytes_text(own)}"
            for name, used, own in (
                ("host", self.memory.host_used_bytes, self.host_demand_bytes),
                ("device", self.memory.device_used_bytes, self.device_demand_bytes),
            )
            if used is not None and own is not None
        ]
        return "memory: " + ("; ".join(parts) if parts else "not available")


def read_status(folder: Path, *, now_s: float) -> Status:
    """Read where the run stands; ``now_s`` is the wall clock in seconds since 1970, as file times are.

    Raises :class:`RunDirError` where the folder holds no run. Every moment of a render can be read.
    """
    timeline = read_timeline(folder)
    attempt, samples = timeline.last, read_memory(folder)
    own = [sample for sample in samples if attempt is not None and sample.attempt == attempt.number]
    ended = [seen for seen in attempt.passes if seen.seconds is not None] if attempt else []
    try:
        quiet_s: float | None = now_s - (folder / EVENTS).stat().st_mtime
    except OSError:
        quiet_s = None
    draft = newest_draft(folder)
    return Status(
        standing=standing_of(folder, timeline),
        attempts=len(timeline.attempts),
        phase=attempt.phase if attempt else None,
        progress=attempt.progress if attempt else None,
        passes_done=len(ended),
        pass_in_flight=attempt.in_flight if attempt else None,
        last_pass=ended[-1] if ended else None,
        elapsed_s=attempt.last_s if attempt else 0.0,
        quiet_s=quiet_s,
        projection=attempt.projections[-1] if attempt and attempt.projections else None,
        snapshot=attempt.snapshots[-1] if attempt and attempt.snapshots else None,
        memory=own[-1] if own else None,
        host_demand_bytes=demand([sample.host_used_bytes for sample in own]),
        device_demand_bytes=demand([sample.device_used_bytes for sample in own]),
        draft=draft.name if draft else None,
        said=_last_word(attempt),
    )


def newest_draft(folder: Path) -> Path | None:
    """The draft of the latest step."""
    drafts = sorted(folder.glob(f"{DRAFT}*.mp4"), key=lambda path: (len(path.name), path.name))
    return drafts[-1] if drafts else None


def _last_word(attempt: Attempt | None) -> str | None:
    """Why it stopped or failed."""
    if attempt is None:
        return None
    if attempt.failure is not None:
        return f"failed, exit code {attempt.failure.exit_code}: {attempt.failure.found}"
    return f"stopped, exit code {attempt.stop.exit_code}: {attempt.stop.reason}" if attempt.stop else None


def standing_of(folder: Path, timeline: Timeline) -> Standing:
    """How the newest attempt stands; a run that nobody is seen writing and that said no end is silent."""
    last = timeline.last
    if is_written(folder):
        return Standing.RUNNING
    if last is None or not last.closed:
        return Standing.SILENT
    if last.ended is not None:
        return Standing.FINISHED
    return Standing.STOPPED if last.stop is not None else Standing.FAILED


def is_written(folder: Path) -> bool:
    """Whether a process of this machine holds the run's lock. False also where locks cannot be seen.

    Asks the kernel's table and takes no lock. Some file systems report another device number there than to ``stat``,
    so the inode number alone decides.
    """
    try:
        inode = (folder / LOCK).stat().st_ino
        table = LOCKS.read_text()
    except OSError:
        return False
    held = [line.split() for line in table.splitlines() if " FLOCK " in line and "->" not in line]
    return any(words[5].rpartition(":")[2] == str(inode) for words in held if len(words) > 5)
