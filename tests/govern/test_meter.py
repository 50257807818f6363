"""Readings of memory: own demand, the floor, waiting for it, and what a machine does not tell."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from shotclock.govern import meter
from shotclock.govern.meter import Gauge, Meter, Reading, default_floor_bytes, demand_of, wait_above

GIB = 2**30
IDLE = Reading(
    host_available_bytes=100 * GIB, host_total_bytes=120 * GIB, swap_used_bytes=0, device_used_bytes=None,
    device_total_bytes=None, device_utilisation=None, device_clock_mhz=None, throttle=None,
)  # fmt: skip


def available(*gib: float) -> list[Reading]:
    return [replace(IDLE, host_available_bytes=int(one * GIB)) for one in gib]


def test_own_demand_is_the_peak_less_the_start() -> None:
    """A dirtier start is no larger demand (seeds: the 26 GiB that were none)."""
    clean, dirty = demand_of(available(115, 40, 90)), demand_of(available(89, 14, 64))
    assert clean is not None and dirty is not None
    assert clean.own_demand_bytes == dirty.own_demand_bytes == 75 * GIB
    assert clean.min_available_bytes == 40 * GIB and "OWN_DEMAND=75.000GiB" in clean.line()
    assert demand_of([]) is None


def test_a_device_with_its_own_memory_is_what_counts() -> None:
    """Host memory only where there is no other."""
    own = [replace(IDLE, device_used_bytes=used, device_total_bytes=140 * GIB) for used in (1 * GIB, 39 * GIB)]
    found = demand_of(own)
    assert found is not None and found.own_demand_bytes == 38 * GIB


def test_the_floor_is_12_gib_or_a_tenth() -> None:
    """Of a 128 GB machine, and of a small one."""
    assert default_floor_bytes(128 * GIB) == 12 * GIB and default_floor_bytes(20 * GIB) == 2 * GIB


def test_a_start_waits_for_memory_and_says_each_reading() -> None:
    """Until it is there, or for so many readings."""
    readings, said, pauses = iter(available(1, 2, 13, 13)), list[str](), list[None]()
    assert wait_above(lambda: next(readings), 12 * GIB, tries=5, pause=lambda: pauses.append(None), say=said.append)
    assert len(said) == len(pauses) == 2 and "1.000GiB available" in said[0] and "2 of 5" in said[1]
    readings = iter(available(1, 2, 3))
    assert not wait_above(lambda: next(readings), 12 * GIB, tries=3, pause=lambda: None, say=said.append)


def test_a_reading_a_period_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first before the work begins; the first breach is kept; each is written with its seconds."""
    monkeypatch.setattr(meter, "PERIOD_S", 0.0005)
    readings, written = iter([*available(50, 20, 5), *available(30) * 100000]), list[tuple[float, Reading]]()
    enough = threading.Event()

    def write(t_s: float, reading: Reading) -> None:
        written.append((t_s, reading))
        if len(written) >= 5:
            enough.set()

    with Meter(lambda: next(readings), now_s=lambda: 7.0, floor_bytes=12 * GIB, write=write) as running:
        assert enough.wait(60)
    assert running.breach == available(5)[0] and written[0] == (7.0, available(50)[0])
    assert len(written) == len(running.readings)


def test_the_cpu_has_no_device_to_read() -> None:
    """Not available is None, never 0."""
    found = Gauge(torch.device("cpu")).read()
    assert found.host_total_bytes > found.host_available_bytes > 0
    assert found.device_used_bytes is found.device_utilisation is found.throttle is None
