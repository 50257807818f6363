"""The folder of a run: the names of its files, one writer at a time, and writing that survives a kill.

Knows files only; each stage writes its own and reads those of the stages before (design.md, "two one-way streets").
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from shotclock.errors import RunDirError

UMASK = os.umask(0)  # there is no other way to read it
os.umask(UMASK)


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_aside(path: Path, content: bytes) -> None:
    """Write, fsync, rename: after a crash the old or the new content is there, never a part."""
    with aside(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``: it becomes ``path`` when the block ends well, and vanishes when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~UMASK)  # safetensors writes files for their owner alone
        temporary.replace(path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class RunDir:
    """Paths of a run. Use :meth:`create` for a new one; hold :meth:`writing` while a render writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.request = path / "request.json"
        self.plan = path / "plan.json"
        self.contexts = path / "contexts.safetensors"
        self.events = path / "events.jsonl"
        self.conditions = path / "conditions.safetensors"
        self.latents = path / "latents.safetensors"
        self.clip = path / "clip.mp4"
        self.wave = path / "clip.wav"
        self.memory = path / "memory.jsonl"
        self.verdict = path / "verdict.json"
        self.sheet = path / "sheet.png"
        self.attempt = path / "attempt.json"
        self._lock = path / ".lock"
        self._mine = ""

    @classmethod
    def create(cls, path: Path) -> RunDir:
        """Make the folder; raises :class:`RunDirError` where a run already is or nothing can be written."""
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run.require_empty()
        except (OSError, ValueError) as bad:
            raise RunDirError(
                f"{path} cannot be made: {getattr(bad, 'strerror', None) or bad}",
                allowed="a folder that can be written",
                way_out="name another --run folder",
            ) from None
        return run

    @classmethod
    def existing(cls, path: Path) -> RunDir:
        """The folder of a run that began; raises :class:`RunDirError` where there is none."""
        run = cls(path)
        if missing := [file.name for file in (run.request, run.plan) if not file.is_file()]:
            raise RunDirError(
                f"{path} holds no run: no {' and no '.join(missing)}",
                allowed="a folder that `shotclock render` made",
                way_out="name its folder, or start it with `shotclock render`",
            )
        return run

    def stage(self, number: int) -> Path:
        """Where the latents of a stage before the last one go."""
        return self.path / f"stage-{number}.safetensors"

    def keyframe(self, frame: int) -> Path:
        """Where the picture of a generated keyframe goes."""
        return self.path / f"keyframe-{frame}.png"

    def draft(self, step: int) -> Path:
        """Where the draft of ``step`` goes; never the clip's own name."""
        return self.path / f"draft-step-{step}.mp4"

    def require_empty(self) -> None:
        """Refuse a folder that holds anything; called again by the one writer, who then knows."""
        there = sorted(
            entry.name for entry in self.path.iterdir() if entry.name not in (self._lock.name, self.attempt.name)
        )
        if there:
            what = "already holds a run" if self.request.name in there else f"is not empty: {there[0]}"
            raise RunDirError(
                f"{self.path} {what}", allowed="a new or empty folder", way_out="name another --run folder"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the run for this process; a second writer is refused. The kernel releases it at any death.

        On a shared disk a node that lost contact may go on: :meth:`require_mine` tells it that another took over.
        """
        try:
            lock = self._lock.open("ab")
        except OSError as bad:
            raise RunDirError(
                f"{self.path} cannot be written: {bad.strerror}",
                allowed="a folder with write permission and free space",
                way_out="name another --run folder",
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunDirError(
                    f"{self.path} is being written by another process",
                    allowed="one writer a run",
                    way_out="wait for it, or name another --run folder",
                ) from None
            self._mine = uuid.uuid4().hex
            attempt = {"attempt_id": self._mine, "host": socket.gethostname(), "process": os.getpid()}
            write_aside(self.attempt, json.dumps(attempt, sort_keys=True).encode() + b"\n")
            yield

    def require_mine(self) -> None:
        """Raises :class:`RunDirError` where another attempt has taken the run over since :meth:`writing`."""
        held = json.loads(self.attempt.read_bytes())
        if held["attempt_id"] != self._mine:
            raise RunDirError(
                f"{self.path} was taken over by process {held['process']} on {held['host']}",
                allowed="one writer a run",
                way_out="leave it to that process: this one has stopped writing",
            )

    def sweep(self) -> None:
        """Remove what killed attempts left half written; for the one writer only."""
        for path in self.path.glob(".*.part*"):
            path.unlink(missing_ok=True)

    def open_events(self) -> BinaryIO:
        """The event log, appended without a buffer: a line is the kernel's before the next thing happens.

        A last line that was cut by a kill or a full disk is ended first.
        """
        cut = self.events.is_file() and not self.events.read_bytes().endswith(b"\n") and self.events.stat().st_size
        log = self.events.open("ab", buffering=0)
        if cut:
            log.write(b"\n")
        return log
