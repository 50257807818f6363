"""Reads ``memory.jsonl``: what host and device had in use once a second while a run ran.

Reads one file and writes nothing. What could not be sampled is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.record.timeline import number, read_lines

MEMORY = "memory.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """One line of ``memory.jsonl``: bytes at ``t_s`` of ``attempt``; None is what could not be read."""

    t_s: float
    attempt: int
    host_available_bytes: int | None
    host_total_bytes: int | None
    swap_used_bytes: int | None
    device_used_bytes: int | None
    device_total_bytes: int | None
    device_utilisation: float | None
    device_clock_mhz: float | None
    throttle: str | None

    @property
    def host_used_bytes(self) -> int | None:
        """Total less available."""
        if self.host_total_bytes is None or self.host_available_bytes is None:
            return None
        return self.host_total_bytes - self.host_available_bytes


def read_memory(folder: Path) -> tuple[MemorySample, ...]:
    """Samples of ``memory.jsonl`` in order; empty where there is no such file."""
    lines, _ = read_lines(folder / MEMORY)
    return tuple(_sample(line) for _, line in lines or [] if number(line, "t_s") is not None)


def _sample(line: Mapping[str, Any]) -> MemorySample:
    sizes = {name: number(line, name) for name in MemorySample.__slots__ if name.endswith("_bytes")}
    throttle = line.get("throttle")
    return MemorySample(
        t_s=number(line, "t_s") or 0.0,
        attempt=int(number(line, "attempt") or 1),
        **{name: None if size is None else int(size) for name, size in sizes.items()},
        device_utilisation=number(line, "device_utilisation"),
        device_clock_mhz=number(line, "device_clock_mhz"),
        throttle=_words(throttle) if throttle else None,
    )


def _words(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value)
    return str(value)
