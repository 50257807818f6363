"""Everything a report reads of one run folder, read once: log, memory, documents, frames and sound.

Reads files and writes nothing. What is not there is a :class:`Missing` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.record.attempt import Timeline
from shotclock.record.digest import file_sha256
from shotclock.record.memory_log import MemorySample, read_memory
from shotclock.record.pictures import Film, Wave, read_film, read_wave
from shotclock.record.seen import (
    Missing,
    PlanSeen,
    RequestSeen,
    VerdictSeen,
    read_object,
    read_plan,
    read_request,
    read_verdict,
)
from shotclock.record.status import Standing, newest_draft, standing_of
from shotclock.record.timeline import read_timeline

CLIP, WAV, SHEET, RECORD = "clip.mp4", "clip.wav", "sheet.png", "record.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run folder at one moment; ``shown`` is the clip, or the newest draft where there is no clip, or None."""

    folder: Path
    timeline: Timeline
    standing: Standing
    memory: tuple[MemorySample, ...]
    request: RequestSeen | Missing
    plan: PlanSeen | Missing
    verdict: VerdictSeen | Missing
    record: dict[str, Any] | Missing
    shown: Path | None
    film: Film | Missing
    wave: Wave | Missing
    clip_sha256: str | None

    @property
    def has_clip(self) -> bool:
        """Whether what is shown is the clip itself."""
        return self.shown is not None and self.shown.name == CLIP


def read_run(folder: Path) -> RunSeen:
    """Read the folder; raises :class:`RunDirError` where it holds no run."""
    timeline = read_timeline(folder)
    clip = folder / CLIP
    shown = clip if clip.is_file() else newest_draft(folder)
    return RunSeen(
        folder=folder,
        timeline=timeline,
        standing=standing_of(folder, timeline),
        memory=read_memory(folder),
        request=read_request(folder),
        plan=read_plan(folder),
        verdict=read_verdict(folder),
        record=read_object(folder / RECORD),
        shown=shown,
        film=read_film(shown or clip),
        wave=read_wave(folder / WAV, shown or clip),
        clip_sha256=file_sha256(clip) if clip.is_file() else None,
    )
