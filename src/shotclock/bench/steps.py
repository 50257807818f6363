"""A guided step, ours against others, in one run on one device: same weights and inputs, alternating order.

Correctness first: velocities of every leg are compared before anything is timed. A side that is not here is PENDING.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch

from shotclock.bench.library import call_of, library
from shotclock.bench.official import Official, measure_official
from shotclock.errors import RenderFailed
from shotclock.guidance import LegName
from shotclock.model.quantise import device_product, quantise_in_place, reference_product, same_weights, velocity_errors
from shotclock.profile.workload import Workload, wait
from shotclock.record.facts import Samples

FORMAT = "shotclock/bench-steps/1"
GEOMETRIES = ("768x448x25", "1024x576x49", "1024x576x121", "1920x1088x121")  # of the table that must be reached
TINY_GEOMETRY = "64x64x9"
WARM_UPS = 2
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.1}  # relative L2 of velocities; bf16 rounds in 48 blocks on both sides
PENDING = "PENDING: not in this run; --against ltx_core, where the packages are installed"
AGAIN = "ours, again after the official packages"
METHOD = "four legs of one step, host clock, from before the first launch to device-synchronised"
OURS, UNGUIDED, DIFFUSERS, FP8 = "ours", "ours, cond alone", "diffusers, one leg a call", "ours, fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One geometry: seconds by side, clocks in MHz sampled while each round ran, errors by side and leg.

    ``official`` says with which packages the official code ran, or PENDING and why it did not.
    """

    geometry: str
    video_tokens: int
    flops: int
    sides: Mapping[str, Samples]
    clocks_mhz: tuple[float, ...]
    clocks_reason: str | None
    errors: Mapping[str, Mapping[str, tuple[float, float]]]
    peak_above_weights_bytes: int | None
    official: str = PENDING

    def seconds(self, side: str) -> float:
        """Median of a side."""
        return statistics.median(self.sides[side].values)

    @property
    def multipliers(self) -> dict[str, float]:
        """Guided over unguided, and each leg run alone over the cond leg."""
        cond_s = self.seconds(UNGUIDED)
        alone = {name: f"ours, {name} alone" for name in LegName if name is not LegName.COND}
        found = {str(name): self.seconds(side) / cond_s for name, side in alone.items() if side in self.sides}
        return {"guided": self.seconds(OURS) / cond_s, **found}

    def lines(self) -> list[str]:
        """For a person."""
        said = [f"{self.geometry}, {self.video_tokens:,} video tokens"]
        for side, samples in self.sides.items():
            said.append(f"  {side}: {samples}, {self.seconds(side) / self.seconds(OURS):.3f} times ours")
        said.append(f"  official packages: {self.official}")
        said.append("  over cond alone: " + ", ".join(f"{k} {v:.3f}" for k, v in self.multipliers.items()))
        for side, legs in self.errors.items():
            shown = ", ".join(f"{leg} {video:.2e} / {audio:.2e}" for leg, (video, audio) in legs.items())
            said.append(f"  {side}, relative error (video / audio): {shown}")
        clocks = f"{min(self.clocks_mhz):g} to {max(self.clocks_mhz):g} MHz" if self.clocks_mhz else "not available"
        return [*said, f"  clock: {clocks}" + (f" ({self.clocks_reason})" if self.clocks_reason else "")]

    def to_json(self) -> dict[str, Any]:
        """The whole row."""
        return {
            "geometry": self.geometry,
            "video_tokens": self.video_tokens,
            "flops": self.flops,
            "sides": {
                side: samples.model_dump(mode="json") | {"median": samples.median, "spread": samples.spread}
                for side, samples in self.sides.items()
            },
            "official": self.official,
            "ratios_to_ours": {side: self.seconds(side) / self.seconds(OURS) for side in self.sides},
            "multipliers": self.multipliers,
            "errors": {
                side: {str(leg): list(pair) for leg, pair in legs.items()} for side, legs in self.errors.items()
            },
            "clocks_mhz": list(self.clocks_mhz),
            "clocks_reason": self.clocks_reason,
            "peak_above_weights_bytes": self.peak_above_weights_bytes,
        }


def measure(work: Workload, *, rounds: int, against: Sequence[str], fp8: bool) -> Row:
    """Compare, warm up, then ``rounds`` rounds of all sides, every second one backwards.

    Raises :class:`RenderFailed` where a side's velocities are not ours.
    """
    transformer, streams = work.transformer, work.streams
    legs = work.guidance.legs(transformer.config.blocks)
    rows = list(legs.values())
    calls: dict[str, Callable[[], object]] = {OURS: lambda: transformer(*streams, rows)}
    errors: dict[str, Mapping[str, tuple[float, float]]] = {}
    for name, leg in legs.items():
        side = UNGUIDED if name is LegName.COND else f"ours, {name} alone"
        calls[side] = lambda leg=leg: transformer(*streams, [leg])  # type: ignore[misc]
    if "diffusers" in against:
        call = call_of(library(transformer), work)
        errors[DIFFUSERS] = agreement(work, lambda: [call(leg) for leg in rows])
        calls[DIFFUSERS] = lambda: [call(leg) for leg in rows]
    if fp8:
        other = same_weights(transformer)
        cuda = work.machine.device.type == "cuda"
        quantise_in_place(other, device_product if cuda else reference_product)
        errors[FP8] = {str(k): v for k, v in velocity_errors(transformer, other, streams, legs).items()}
        calls[FP8] = lambda: other(*streams, rows)
    for call_ in calls.values():
        for _ in range(WARM_UPS):
            call_()
    seconds, clocks, reason = timed(calls, work.machine.device, rounds)
    return Row(
        geometry=str(work.geometry),
        video_tokens=work.geometry.video_tokens,
        flops=work.flops,
        sides={side: Samples(unit="s", method=METHOD, values=tuple(found)) for side, found in seconds.items()},
        clocks_mhz=tuple(clocks),
        clocks_reason=reason,
        errors=errors,
        peak_above_weights_bytes=peak_of(calls[OURS], work.machine.device),
    )


def with_official(row: Row, work: Workload, official: Official, rounds: int) -> Row:
    """The row with the sides of the official packages, and ours once more behind them: what drifted shows there."""
    ran = measure_official(work, official, rounds)
    again, clocks, _ = timed({AGAIN: lambda: work.transformer(*work.streams, work.rows)}, work.machine.device, rounds)
    sides = {side: one.samples for side, one in ran.items() if one.samples.values}
    sides[AGAIN] = Samples(unit="s", method=METHOD, values=tuple(again[AGAIN]))
    names = "; ".join(sorted({one.implementation for one in ran.values()}))
    all_official = all(one.is_official for one in ran.values())
    return replace(
        row,
        sides={**row.sides, **sides},
        errors={**row.errors, **{side: {"what the first step moves": one.error} for side, one in ran.items()}},
        clocks_mhz=(*row.clocks_mhz, *clocks),
        official=f"RAN: {names}" if all_official else f"PENDING: the adapter ran {names}",
    )


def agreement(work: Workload, theirs: Callable[[], list[tuple[Any, Any]]]) -> dict[str, tuple[float, float]]:
    """Relative L2 of each leg's velocities, video and audio; raises :class:`RenderFailed` beyond the dtype's bound."""
    legs = work.guidance.legs(work.transformer.config.blocks)
    ours = work.transformer(*work.streams, list(legs.values()))
    found: dict[str, tuple[float, float]] = {}
    for row, (name, pair) in enumerate(zip(legs, theirs(), strict=True)):
        video, audio = (
            float((ours[s][row].double() - pair[s][0].double()).norm() / pair[s][0].double().norm()) for s in (0, 1)
        )
        found[str(name)] = (video, audio)
    bound = BOUNDS[work.transformer.dtype]
    if not all(error <= bound for pair in found.values() for error in pair):
        raise RenderFailed(
            f"velocities differ from ours: {found}", allowed=f"relative error up to {bound:g}", way_out="find out why"
        )
    return found


def timed(
    calls: Mapping[str, Callable[[], object]], device: torch.device, rounds: int
) -> tuple[dict[str, list[float]], list[float], str | None]:
    """Seconds of each side in each round, and the clock while the device was busy with it."""
    seconds: dict[str, list[float]] = {side: [] for side in calls}
    clocks: list[float] = []
    reason = None if device.type == "cuda" else "a CPU's clock is not sampled"
    for number in range(rounds):
        order = list(calls) if number % 2 == 0 else list(calls)[::-1]
        for side in order:
            wait(device)
            begun_s = time.perf_counter()
            calls[side]()
            wait(device)
            seconds[side].append(time.perf_counter() - begun_s)
        if device.type == "cuda" and reason is None:
            next(iter(calls.values()))()
            try:
                clocks.append(float(torch.cuda.clock_rate(device)))  # before waiting: the device is busy
            except (RuntimeError, ModuleNotFoundError) as bad:
                reason = f"{type(bad).__name__}: {bad}"
            wait(device)
    return seconds, clocks, reason


def peak_of(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes above what is held anyway; None on a CPU, whose allocator does not say."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    call()
    wait(device)
    return int(torch.cuda.max_memory_allocated(device) - held)


def document_of(rows: Sequence[Row], work: Workload, commit: str) -> dict[str, Any]:
    """What is printed last and kept for BENCHMARKS.md."""
    return {
        "format": FORMAT,
        "device": work.machine.name,
        "dtype": work.machine.dtype_name,
        "torch": torch.__version__,
        "diffusers": metadata.version("diffusers"),
        "commit": commit,
        "rows": [row.to_json() for row in rows],
    }
