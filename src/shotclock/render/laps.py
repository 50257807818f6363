"""Where a pass's seconds go, always on: the host's time until it was enqueued, and the device's own time for it.

One pair of device events a pass, read after the wait that ends the pass anyway: nothing waits for them (lease.md,
sampling and attribution). Knows no pass and no log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class DeviceClock(Protocol):
    """Marks in the order of the device's work."""

    def mark(self, number: int) -> None: ...

    def between_s(self) -> float: ...


class CudaClock:
    """Two CUDA events on the stream that a render launches on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def mark(self, number: int) -> None:
        """Enqueue mark 0 or 1; returns at once."""
        self._events[number].record(torch.cuda.current_stream(self._device))

    def between_s(self) -> float:
        """Seconds from mark 0 to mark 1, both of which the device has passed."""
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


class Stopwatch:
    """Splits one pass after the other. Without ``device``, as on a CPU, nothing but the host's time is known."""

    def __init__(self, clock: Callable[[], float], device: DeviceClock | None) -> None:
        self._clock = clock
        self._device = device
        self._begun_s = 0.0

    @classmethod
    def of(cls, clock: Callable[[], float], device: torch.device) -> Stopwatch:
        """For a render on ``device``."""
        return cls(clock, CudaClock(device) if device.type == "cuda" else None)

    def begin(self) -> None:
        """Just before a launch."""
        if self._device is not None:
            self._device.mark(0)
        self._begun_s = self._clock()

    def launched_s(self) -> float:
        """Seconds since :meth:`begin`; call it when everything is enqueued and before the device is waited for."""
        if self._device is not None:
            self._device.mark(1)
        return self._clock() - self._begun_s

    def device_s(self) -> float | None:
        """Seconds of the pass on the device, after it was waited for; None where it has no clock of its own."""
        return None if self._device is None else self._device.between_s()
