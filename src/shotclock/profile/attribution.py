"""Where the time of one guided step goes: compute by part and by leg, transfer, gaps; beside ceilings and the floor.

Steps with and without the profiler alternate, so that what it costs is known. An interval is not a profile: every
figure says what it brackets.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shotclock.profile.count import Counted, count
from shotclock.profile.ranges import STEP, Part, named, pass_range
from shotclock.profile.trace import NOT_TOLD, Reading, Split, read_trace
from shotclock.profile.workload import Lap, Workload, wait
from shotclock.record.facts import Samples
from shotclock.render.ahead import matrix_sample

FORMAT = "shotclock/profile/1"
AGREE = 0.05  # parts with the interval, and steps with the profiler with steps without (issue: within 5 %)
WARM_UPS = 2
COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # of the copy that measures memory
COPY_ROUNDS = 5
WITHOUT = "no device events: parts are operators of the CPU, their launch and their compute together"
REFUSED = "the profiler gave no kernels (CUPTI refused or taken): the parts are launch times; see device seconds"
HOW = "wall of one guided step, host clock, from before its first launch to device-synchronised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Fastest matrix product and copy (read + write) of this device, measured in the same run."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What was measured of one way to run the step. ``median`` is the split of the profiled step of median wall."""

    work: Workload
    plain: tuple[Lap, ...]
    profiled: tuple[Lap, ...]
    reading: Reading
    counted: Mapping[Part, Counted]
    ceilings: Ceilings

    @property
    def wall(self) -> Samples:
        """Steps without the profiler."""
        return Samples(unit="s", method=HOW, values=tuple(lap.wall_s for lap in self.plain))

    @property
    def median(self) -> Split:
        """The profiled step whose wall is the (lower) median."""
        return sorted(self.reading.steps, key=lambda one: one.wall_s)[(len(self.reading.steps) - 1) // 2]

    @property
    def stretch_ratio(self) -> float:
        """How much longer a profiled step takes."""
        return statistics.median(lap.wall_s for lap in self.profiled) / statistics.median(self.wall.values)

    @property
    def closure_ratio(self) -> float:
        """Sum of all parts, transfer and gaps over the wall that the host clock measured of the same steps."""
        pairs = zip(self.reading.steps, self.profiled, strict=True)
        return statistics.median(split.sum_s / lap.wall_s for split, lap in pairs)

    @property
    def floor_s(self) -> float:
        """Seconds of the step's arithmetic at the measured matrix rate."""
        return self.work.flops / self.ceilings.flops_per_s

    @property
    def plain_gaps_s(self) -> float:
        """Gaps of a step without the profiler: its wall less compute and transfer, which a device does not slow down.

        Without device events the profiler slows operators down too, and the gaps are those of the profiled step.
        """
        split = self.median
        if not self.reading.device_events:
            return split.gaps_s
        return max(statistics.median(self.wall.values) - split.compute_s - split.transfer_s, 0.0)

    @property
    def dominant(self) -> str:
        """One sentence."""
        split = self.median
        parts: dict[str, float] = {str(part): seconds for part, seconds in split.parts.items()}
        parts |= {"transfer": split.transfer_s, "gaps (host glue)": self.plain_gaps_s}
        name, seconds = max(parts.items(), key=lambda item: item[1])
        whole_s = split.compute_s + split.transfer_s + self.plain_gaps_s
        return f"Dominant: {name}, {seconds:.4g} s, {seconds / whole_s:.0%} of the step."

    def warnings(self) -> list[str]:
        """What the reader must know."""
        cuda = self.work.machine.device.type == "cuda"
        said = [] if self.reading.device_events else [REFUSED if cuda else WITHOUT]
        if abs(self.closure_ratio - 1) > AGREE:
            said.append(f"parts sum to {self.closure_ratio:.1%} of the measured interval, outside of {AGREE:.0%}")
        if abs(self.stretch_ratio - 1) > AGREE:
            said.append(
                f"a profiled step takes {self.stretch_ratio:.2f} times a plain one: gaps are the profiler's too"
            )
        if self.wall.provisional:
            said.append(f"n={self.wall.n}: provisional, nothing follows from it")
        return said

    def rates(self) -> dict[str, dict[str, float | None]]:
        """Achieved operations and bytes a second of each part, None for a part without."""
        found: dict[str, dict[str, float | None]] = {}
        for part, seconds in self.median.parts.items():
            need = self.counted[part]
            found[str(part)] = {
                "flops_per_s": need.flops / seconds if need.flops and seconds else None,
                "bytes_per_s": need.moved_bytes / seconds if need.moved_bytes and seconds else None,
            }
        return found

    def lines(self) -> list[str]:
        """For a person."""
        split, machine = self.median, self.work.machine
        legs = self.work.guidance.legs_per_pass
        unit = "kernels" if self.reading.device_events else "operators"
        said = [
            f"guided step of {self.work.geometry}, legs a pass: {legs}, {machine.name}, {machine.dtype_name}: "
            f"{self.wall}",
            f"compute {split.compute_s:.4g} s, transfer {split.transfer_s:.4g} s, gaps {split.gaps_s:.4g} s "
            f"of a profiled step of {split.wall_s:.4g} s, {split.kernels:,} {unit}; gaps of a plain step "
            f"{self.plain_gaps_s:.4g} s",
            *(self._part_line(part) for part in Part if split.parts.get(part)),
        ]
        if len(split.passes) > 1:
            for name, parts in split.passes.items():
                inside = ", ".join(f"{part} {seconds:.3g}" for part, seconds in sorted(parts.items(), key=_dearest)[:4])
                place = "outside of passes" if name == NOT_TOLD else name
                said.append(f"  {place}: {sum(parts.values()):.4g} s ({inside})")
        said += [
            f"floor {self.floor_s:.4g} s: {self.work.flops:.4g} operations at {self.ceilings.flops_per_s / 1e12:.4g} "
            f"TFLOP/s measured; the step reaches {self.floor_s / statistics.median(self.wall.values):.0%} of it",
            f"parts sum to {self.closure_ratio:.1%} of the interval; profiled / plain {self.stretch_ratio:.3f}",
            *(f"note: {warning}" for warning in self.warnings()),
            self.dominant,
        ]
        return said

    def _part_line(self, part: Part) -> str:
        seconds, rate = self.median.parts[part], self.rates()[str(part)]
        flops, moved = rate["flops_per_s"], rate["bytes_per_s"]
        shown = "" if flops is None else f", {flops / 1e12:.4g} TFLOP/s ({flops / self.ceilings.flops_per_s:.0%})"
        shown += "" if moved is None else f", {moved / 1e9:.4g} GB/s ({moved / self.ceilings.bytes_per_s:.0%})"
        return f"  {part}: {seconds:.4g} s, {seconds / self.median.wall_s:.1%}{shown}"

    def to_json(self) -> dict[str, Any]:
        """The whole of it."""
        split, machine = self.median, self.work.machine
        return {
            "format": FORMAT,
            "geometry": str(self.work.geometry),
            "video_tokens": self.work.geometry.video_tokens,
            "legs_per_pass": self.work.guidance.legs_per_pass,
            "device": machine.name,
            "dtype": machine.dtype_name,
            "torch": torch.__version__,
            "device_events": self.reading.device_events,
            "wall": self.wall.model_dump(mode="json") | {"median": self.wall.median, "spread": self.wall.spread},
            "laps": {
                name: [{"wall_s": lap.wall_s, "launch_s": lap.launch_s, "device_s": lap.device_s} for lap in laps]
                for name, laps in (("plain", self.plain), ("profiled", self.profiled))
            },
            "profiled_wall_s": split.wall_s,
            "compute_s": split.compute_s,
            "transfer_s": split.transfer_s if self.reading.device_events else None,
            "gaps_s": split.gaps_s,
            "plain_gaps_s": self.plain_gaps_s,
            "parts_s": {str(part): seconds for part, seconds in split.parts.items()},
            "passes_s": {
                legs: {str(part): seconds for part, seconds in parts.items()} for legs, parts in split.passes.items()
            },
            "rates": self.rates(),
            "ceilings": {"flops_per_s": self.ceilings.flops_per_s, "bytes_per_s": self.ceilings.bytes_per_s},
            "flops": self.work.flops,
            "floor_s": self.floor_s,
            "closure_ratio": self.closure_ratio,
            "stretch_ratio": self.stretch_ratio,
            "kernels": split.kernels,
            "longest": [
                {"name": name, "count": number, "seconds": seconds}
                for name, (number, seconds) in sorted(split.names.items(), key=lambda item: -item[1][1])[:20]
            ],
            "dominant": self.dominant,
            "warnings": self.warnings(),
        }


def _dearest(item: tuple[Part, float]) -> float:
    return -item[1]


def attribute(work: Workload, ceilings: Ceilings, rounds: int) -> Attribution:
    """Warm up, then ``rounds`` steps without and with the profiler in turn."""
    for _ in range(WARM_UPS):
        work.lap()
    counted = count(work)
    traced(work)  # the first profile of a process starts the profiler
    plain: list[Lap] = []
    profiled: list[Lap] = []
    steps: list[Split] = []
    seen = True
    for _ in range(rounds):
        plain.append(work.lap())
        lap, reading = traced(work)
        profiled.append(lap)
        steps += reading.steps
        seen = seen and reading.device_events
    return Attribution(
        work=work,
        plain=tuple(plain),
        profiled=tuple(profiled),
        reading=Reading(steps=tuple(steps), device_events=seen),
        counted=counted,
        ceilings=ceilings,
    )


def traced(work: Workload) -> tuple[Lap, Reading]:
    """One step under the profiler, every part a range."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if work.machine.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    whole = torch.profiler.record_function(f"{STEP}0")
    with torch.profiler.profile(activities=activities) as profile, named(), whole:
        lap = work.lap(pass_range)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return lap, read_trace(json.loads(path.read_text()))


def measure_ceilings(work: Workload) -> Ceilings:
    """A square matrix product in the step's dtype, and a copy of a large block."""
    device = work.machine.device
    product = matrix_sample(device, work.machine.dtype)
    block = torch.ones(COPY_BYTES[device.type] // 4, device=device)
    target = torch.empty_like(block)
    seconds: list[float] = []
    for _ in range(COPY_ROUNDS + 1):
        wait(device)
        begun_s = time.perf_counter()
        target.copy_(block)
        wait(device)
        seconds.append(time.perf_counter() - begun_s)
    return Ceilings(
        flops_per_s=product.units / product.seconds,
        bytes_per_s=2 * COPY_BYTES[device.type] / min(seconds[1:]),
    )


def rows_of(attributions: Sequence[Attribution]) -> list[tuple[str, Mapping[str, float]]]:
    """Bars of a picture: a name and seconds by part, transfer and gaps last; passes of a step that has several."""
    rows: list[tuple[str, Mapping[str, float]]] = []
    for one in attributions:
        split = one.median
        whole = {str(part): split.parts.get(part, 0.0) for part in Part}
        rows.append(
            (
                f"step, legs a pass: {one.work.guidance.legs_per_pass}",
                {**whole, "transfer": split.transfer_s, "gaps": split.gaps_s},
            )
        )
        if len(split.passes) > 2:
            rows += [
                (legs, {str(part): seconds for part, seconds in parts.items()})
                for legs, parts in split.passes.items()
                if legs != NOT_TOLD
            ]
    return rows
