"""Memory of host and device, utilisation, clocks and swap, read every second while a render runs.

Knows devices, not renders. A value that cannot be read is None, never 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil
import torch

from shotclock.device import is_unified

T = TypeVar("T")

PERIOD_S = 1.0
FLOOR_BYTES = 12 * 2**30  # the seeds' floor on a 128 GB machine
THROTTLES = {  # nvml.h, nvmlClocksEventReason*
    "power cap": 0x4,
    "hardware slowdown": 0x8,
    "thermal (software)": 0x20,
    "thermal (hardware)": 0x40,
    "power brake": 0x80,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Memory and state of host and device at one moment; None is what this machine does not tell, never 0."""

    host_available_bytes: int
    host_total_bytes: int
    swap_used_bytes: int | None
    device_used_bytes: int | None
    device_total_bytes: int | None
    device_utilisation: float | None
    device_clock_mhz: int | None
    throttle: str | None

    @property
    def used_bytes(self) -> int:
        """Of the memory that a render fills: the device's own, else the host's."""
        if self.device_used_bytes is not None:
            return self.device_used_bytes
        return self.host_total_bytes - self.host_available_bytes


class Gauge:
    """Reads :class:`Reading` of one device. NVML is optional; what it refuses is None from then on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unified = is_unified(device)
        self._nvml, self._handle = _nvml(device)

    def read(self) -> Reading:
        """One reading; takes well under a millisecond without NVML."""
        memory = psutil.virtual_memory()
        used = total = None
        if not self._unified:
            free, total = torch.cuda.mem_get_info(self._device)
            used = total - free
        return Reading(
            host_available_bytes=int(memory.available),
            host_total_bytes=int(memory.total),
            swap_used_bytes=int(psutil.swap_memory().used),
            device_used_bytes=used,
            device_total_bytes=total,
            device_utilisation=self._ask(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            device_clock_mhz=self._ask(
                lambda nvml, handle: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            ),
            throttle=self._ask(_throttle),
        )

    def _ask(self, question: Callable[[Any, Any], T]) -> T | None:
        if self._nvml is None:
            return None
        try:
            return question(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None


def _nvml(device: torch.device) -> tuple[Any, Any]:
    if device.type != "cuda":
        return None, None
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None, None


def _throttle(nvml: Any, handle: Any) -> str:
    """Names of the reasons for lower clocks that act now, comma between; empty for none."""
    mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    return ",".join(name for name, bit in THROTTLES.items() if mask & bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Memory over a run: where it began, its peak, and what of that is the run's own."""

    readings: int
    baseline_used_bytes: int
    peak_used_bytes: int
    min_available_bytes: int

    @property
    def own_demand_bytes(self) -> int:
        """Peak less start: the only figure that runs may be compared by."""
        return self.peak_used_bytes - self.baseline_used_bytes

    def line(self) -> str:
        """As a person reads it."""
        return (
            f"memory: baseline_used={_gib(self.baseline_used_bytes)} peak_used={_gib(self.peak_used_bytes)} "
            f"OWN_DEMAND={_gib(self.own_demand_bytes)} min_avail={_gib(self.min_available_bytes)} n={self.readings}"
        )


def demand_of(readings: Sequence[Reading]) -> Demand | None:
    """None where there are no readings."""
    if not readings:
        return None
    return Demand(
        readings=len(readings),
        baseline_used_bytes=readings[0].used_bytes,
        peak_used_bytes=max(reading.used_bytes for reading in readings),
        min_available_bytes=min(reading.host_available_bytes for reading in readings),
    )


def default_floor_bytes(host_total_bytes: int) -> int:
    """Free host memory below which a render stops: 12 GiB, or a tenth on a smaller machine (seeds)."""
    return min(FLOOR_BYTES, host_total_bytes // 10)


def wait_above(
    take: Callable[[], Reading],
    floor_bytes: int,
    *,
    tries: int,
    pause: Callable[[], object],
    say: Callable[[str], None],
) -> bool:
    """Whether host memory reaches the floor within ``tries`` readings; each is said, with a ``pause`` between them."""
    for number in range(1, tries + 1):
        available = take().host_available_bytes
        if available >= floor_bytes:
            return True
        say(f"memory: {_gib(available)} available, {_gib(floor_bytes)} needed to start, reading {number} of {tries}")
        if number < tries:
            pause()
    return False


class Meter:
    """Takes a reading every second in a thread, from :meth:`__enter__` to :meth:`__exit__`.

    ``write`` is told each reading and its seconds. ``breach`` holds the first reading below the floor.
    """

    def __init__(
        self,
        read: Callable[[], Reading],
        *,
        now_s: Callable[[], float],
        floor_bytes: int,
        write: Callable[[float, Reading], None],
    ) -> None:
        self._read, self._now_s, self._write = read, now_s, write
        self._floor_bytes = floor_bytes
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self.readings: list[Reading] = []
        self.breach: Reading | None = None

    def __enter__(self) -> Meter:
        self.take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def take(self) -> Reading:
        """One reading now."""
        reading = self._read()
        self.readings.append(reading)
        self._write(self._now_s(), reading)
        if reading.host_available_bytes < self._floor_bytes and self.breach is None:
            self.breach = reading
        return reading

    def forget_breach(self) -> None:
        """Begin anew: memory was waited for."""
        self.breach = None

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            self.take()


def _gib(count: int) -> str:
    return f"{count / 2**30:.3f}GiB"
