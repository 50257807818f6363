"""The lease: when the device is taken away, read once, kept on the monotonic clock.

Settings and the scheduler's answers come as text; the earliest end wins and all are said. Reads no clock and no
environment: it is given one reading of both clocks, and later steps of the wall clock move nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from shotclock.errors import RequestError

UNIT_S = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
PARTS = re.compile(r"(\d+(?:\.\d+)?)(d|h|min|m|s)")
CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")  # Slurm's own way: [days-]hours:minutes:seconds
MAX_LEASE_S = 366 * 86400.0  # a longer one is a typing error
NO_END = {"", "N/A", "NONE", "UNKNOWN", "UNLIMITED", "INVALID"}  # what squeue prints where a job has no end time


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One reading of both clocks. ``zone`` is that of times written without one; None means the machine's."""

    monotonic_s: float
    wall: datetime
    zone: tzinfo | None = None

    def __post_init__(self) -> None:
        assert self.wall.tzinfo is not None, "a wall time that knows its zone"

    def monotonic_at(self, end: datetime) -> float:
        """Reading of the monotonic clock at ``end``."""
        return self.monotonic_s + (end - self.wall).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One statement of an end: what said it, and the end as wall time and as a reading of the monotonic clock."""

    name: str
    end_s: float
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """All statements, the earliest first; none means that the device is held without a known end."""

    sources: tuple[Source, ...]

    @property
    def end_s(self) -> float | None:
        """Monotonic reading at which the device is gone; None where there is no end."""
        return self.sources[0].end_s if self.sources else None

    @property
    def source(self) -> str:
        """What said the end that counts."""
        return self.sources[0].name if self.sources else "no lease given"

    def length_s(self, since_s: float) -> float | None:
        """Seconds from a monotonic reading to the end."""
        return None if self.end_s is None else self.end_s - since_s

    def lines(self, now_s: float) -> list[str]:
        """What a person reads: the end that counts first, then the others and how much later they are."""
        if not self.sources:
            return ["lease: unbounded, no end was given (--lease, --lease-end) and no Slurm job was found"]
        first = self.sources[0]
        said = [f"lease: ends in {length_text(first.end_s - now_s)}, at {_stamp(first.end)}, from {first.name}"]
        for other in self.sources[1:]:
            later = length_text(other.end_s - first.end_s)
            said.append(f"lease: {other.name} says {_stamp(other.end)}, {later} later: the earlier end counts")
        return said


def resolve_lease(
    now: Moment,
    *,
    began_s: float,
    length: str | None = None,
    end: str | None = None,
    slurm_end_time: str | None = None,
    squeue_end: str | None = None,
) -> Lease:
    """The lease from all that was said; None is not said.

    ``length`` counts from ``began_s`` (monotonic, when the command began); ``slurm_end_time`` is the text of
    ``SLURM_JOB_END_TIME``, ``squeue_end`` what ``squeue -h -j JOB -o %e`` printed. Raises :class:`RequestError` for
    what cannot be read, and for an end that is not ahead.
    """
    sources = []
    if length is not None:
        seconds = parse_length(length)
        wall = now.wall + timedelta(seconds=seconds - (now.monotonic_s - began_s))
        sources.append(Source(name=f"--lease {length}", end_s=began_s + seconds, end=wall))
    for name, wall_end in _wall_ends(now, end, slurm_end_time, squeue_end):
        sources.append(Source(name=name, end_s=now.monotonic_at(wall_end), end=wall_end))
    for source in sources:
        _require_ahead(source, now)
    return Lease(sources=tuple(sorted(sources, key=lambda source: source.end_s)))


def _wall_ends(
    now: Moment, end: str | None, slurm_end_time: str | None, squeue_end: str | None
) -> Sequence[tuple[str, datetime]]:
    found = []
    if end is not None:
        found.append((f"--lease-end {end}", parse_end(end, now.zone)))
    if slurm_end_time is not None:
        found.append(("SLURM_JOB_END_TIME", _parse_epoch(slurm_end_time)))
    elif squeue_end is not None and squeue_end.strip().upper() not in NO_END:
        found.append(("squeue", parse_end(squeue_end.strip(), now.zone)))
    return found


def parse_length(text: str) -> float:
    """ "4h", "1h30m", "2.5h", "90min", "45s", or Slurm's "1-12:00:00", to seconds."""
    parts = PARTS.findall(text)
    clock = CLOCK.fullmatch(text)
    if clock:
        days, hours, minutes, seconds_part = (int(part or 0) for part in clock.groups())
        seconds = float(86400 * days + 3600 * hours + 60 * minutes + seconds_part)
    elif parts and "".join(number + unit for number, unit in parts) == text:
        seconds = math.fsum(float(number) * UNIT_S[unit] for number, unit in parts)
    else:
        raise RequestError(
            f"lease {text!r}", allowed="a length with units", way_out="write it like 4h, 1h30m, 90min or 2:30:00"
        )
    if not 0 < seconds <= MAX_LEASE_S:
        raise RequestError(
            f"lease {text!r} is {seconds:g} s", allowed="more than 0 s, at most 366 d", way_out="write it like 4h"
        )
    return seconds


def parse_end(text: str, zone: tzinfo | None) -> datetime:
    """An ISO time; without an offset it is one of ``zone``, and where clocks go back the earlier of the two."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f"lease end {text!r}",
            allowed="a date and time, with an offset from UTC or in local time",
            way_out="write it like 2026-12-01T18:00 or 2026-12-01T17:00+00:00",
        ) from None
    if not 1970 < found.year < 9999:  # zones would leave the calendar
        raise RequestError(
            f"lease end {text!r}", allowed="a year that a device is held in", way_out="write it like 2026-12-01T18:00"
        )
    if found.tzinfo is not None:
        return found.astimezone(UTC)
    if len(text) <= len("2026-12-01"):
        raise RequestError(
            f"lease end {text!r} has no time of day", allowed="a date and time", way_out=f"write it like {text}T18:00"
        )
    folds = [found.replace(fold=fold, tzinfo=zone) for fold in (0, 1)]
    return min(one.astimezone(UTC) for one in folds)


def _parse_epoch(text: str) -> datetime:
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        raise RequestError(
            f"SLURM_JOB_END_TIME {text!r}",
            allowed="seconds since 1970",
            way_out="unset it and say --lease, or ask the cluster's administrators",
        ) from None


def _require_ahead(source: Source, now: Moment) -> None:
    left_s = source.end_s - now.monotonic_s
    if left_s <= 0:
        raise RequestError(
            f"the lease of {source.name} ended {length_text(-left_s)} ago, at {_stamp(source.end)}",
            allowed=f"an end after {_stamp(now.wall)}",
            way_out="say a later end, or a length such as --lease 4h",
        )
    if left_s > MAX_LEASE_S:
        raise RequestError(
            f"the lease of {source.name} ends at {_stamp(source.end)}",
            allowed="at most 366 d ahead",
            way_out="check the year, or say a length such as --lease 4h",
        )


def length_text(seconds: float) -> str:
    """Seconds as "3:59:58", days in front where there are some; parts of a second where that is all."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02}:{rest:02}"


def _stamp(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
