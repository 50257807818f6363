"""Where the seconds of passes go: the host's time until all was enqueued beside the device's own time. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FULL = 0.9  # of a pass: from here on the device, or launching, fills it; a choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Medians of ``n`` passes in seconds: all of it, its launch, and the device's time; None without its clock."""

    n: int
    pass_s: float
    launch_s: float
    device_s: float | None

    @property
    def bound(self) -> str:
        """What a pass waits for, or the reason why that cannot be told. Two intervals, not a profile."""
        if self.device_s is None:
            return "no device clock, as on a CPU, where launching is computing"
        if self.launch_s >= FULL * self.pass_s:
            return "host-bound: launching takes as long as the pass"
        if self.device_s >= FULL * self.pass_s:
            return "compute-bound: the device works while the host waits"
        return "neither launching nor the device fills the pass"

    def __str__(self) -> str:
        device = "" if self.device_s is None else f", device {self.device_s:.4g} s"
        return f"launch {self.launch_s:.4g} s{device} of {self.pass_s:.4g} s (n={self.n}); {self.bound}"


def split_of(rows: Sequence[tuple[float, float | None, float | None]]) -> Split | None:
    """Of (whole, launch, device) seconds a pass; passes without a launch time are left out, None where all are."""
    known = [(whole, launch, device) for whole, launch, device in rows if launch is not None]
    if not known:
        return None
    device_s = [device for _, _, device in known if device is not None]
    return Split(
        n=len(known),
        pass_s=statistics.median([whole for whole, _, _ in known]),
        launch_s=statistics.median([launch for _, launch, _ in known]),
        device_s=statistics.median(device_s) if len(device_s) == len(known) else None,
    )
