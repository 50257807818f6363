"""A run held against another implementation: the same job in a child process, then gates, curve, timings, one result.

Until this has run, a record says PENDING. Knows no implementation: adapters/ holds commands that read a job.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from shotclock.bench.child import Ran, run_command
from shotclock.bench.decoded import decode_gates
from shotclock.bench.job import Workload, write_job
from shotclock.bench.ours import DTYPES, trajectory
from shotclock.errors import RenderFailed
from shotclock.plan.planner import Plan
from shotclock.record.clips import ClipComparison, compare_clips, read_media
from shotclock.record.facts import Samples, canonical
from shotclock.record.gates import Gate, forced_gate, jump_in, staged_gates, step_curve
from shotclock.record.ledger import Ledger, places
from shotclock.rundir import RunDir, write_aside

FORMAT = "shotclock/oracle/1"
RESULT = "oracle.json"
THEIRS = "seconds of one forward, device-synchronised, as the adapter measured it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run and how much of it. ``per_step`` runs our sampler again, to compare step by step."""

    command: str
    limit_s: float
    device: str
    decode: bool
    compile_blocks: bool
    per_step: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Everything that came of it; ``summary`` is one sentence for a record."""

    implementation: str
    summary: str
    clips: ClipComparison
    stages: tuple[Gate, ...]
    curve: dict[str, tuple[float, ...]]
    theirs: Samples
    wall_s: float
    timings: dict[str, Any] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a person."""
        said = [f"{self.implementation}, {self.wall_s:.1f} s in its own process", *(g.line() for g in self.stages)]
        for stream, curve in self.curve.items():
            jump = jump_in(curve)
            end = f"jumps at step {jump}: look for a bug there" if jump else "grows smoothly"
            said.append(f"{stream} distance by step {' '.join(f'{one:.1e}' for one in curve)}: {end}")
        return [*said, *self.clips.lines(), f"a forward of theirs: {self.theirs}", self.summary]

    def to_json(self) -> dict[str, Any]:
        """As it is stored; names without folders."""
        return {
            "format": FORMAT,
            "implementation": self.implementation,
            "summary": self.summary,
            "clips": self.clips.to_json(),
            "stages": [{"stage": g.stage, "outcome": g.outcome, "said": g.said} for g in self.stages],
            "curve": {stream: list(curve) for stream, curve in self.curve.items()},
            "forward": self.theirs.model_dump(mode="json"),
            "wall_s": self.wall_s,
            "timings": self.timings,
        }


def ask_oracle(path: Path, asked: Asked, *, home: Path, out: Path | None = None) -> Result:
    """Run the oracle on the workload of a finished run and write ``oracle.json``; a record of the run is told.

    Raises :class:`RequestError` for a job that the oracle refuses and :class:`RenderFailed` where it fails.
    """
    run = RunDir.existing(path)
    folder = out or path / "oracle"
    work = write_job(run, folder, device=asked.device, decode=asked.decode, compile_blocks=asked.compile_blocks)
    ran = run_command(asked.command, work.job, folder / "out", limit_s=asked.limit_s)
    result = judge(work, ran, folder / "out", asked)
    write_aside(path / RESULT, canonical(result.to_json()))
    there = str(path.resolve())
    for name in sorted(key for key, place in places(home).items() if place == there):
        Ledger.of(home).add_oracle(name, result.to_json())
    return result


def judge(work: Workload, ran: Ran, out: Path, asked: Asked) -> Result:
    """Compare what the oracle left with the run; raises :class:`RenderFailed` where it left no latents."""
    if not (out / "latents.safetensors").is_file() or not (out / "timings.json").is_file():
        raise RenderFailed(
            f"{PurePath(shlex.split(ran.command)[-1]).name} left no latents or no timings",
            allowed="latents.safetensors and timings.json in its folder",
            way_out="see adapters/oracle_diffusers.py for what an adapter leaves",
        )
    timings = json.loads((out / "timings.json").read_text())
    clips = compare_clips(read_media(work.run.path), read_media(out))
    stages, curve = _stages(work, out, asked) if asked.per_step else ((), {})
    if asked.decode:
        stages = (*stages, *decode_gates(work, out, torch.device(asked.device)))
    implementation = _name(ran, timings)
    theirs = forward_samples(timings)
    return Result(
        implementation=implementation,
        summary=_summary(clips, stages, theirs, work.plan, timings),
        clips=clips,
        stages=stages,
        curve=curve,
        theirs=theirs,
        wall_s=ran.wall_s,
        timings={name: timings.get(name) for name in ("device", "dtype", "compile", "torch", "packages", "load_s")},
    )


def _stages(work: Workload, out: Path, asked: Asked) -> tuple[tuple[Gate, ...], dict[str, tuple[float, ...]]]:
    """The first forward of each leg, every step from their latents, and the distance of the latents after each step."""
    steps = _arrays(out / "per_step.safetensors")
    ours = trajectory(work, torch.device(asked.device), steps)
    theirs = _arrays(out / "forward.safetensors")
    again = Gate(stage="our sampler once more", outcome="PASS", said=ours.line())
    gates = staged_gates(
        {f"forward {name}": value for name, value in ours.first.items()},
        {f"forward {name}": value for name, value in theirs.items()},
    )
    rounding = torch.finfo(DTYPES[work.plan.dtype]).eps
    forced = [
        forced_gate(
            f"step {k} {stream}, from theirs", steps[stream][k - 2], mine, steps[stream][k - 1], rounding=rounding
        )
        for stream, many in ours.forced.items()
        for k, mine in enumerate(many, 2)
    ]
    curve = {stream: step_curve(mine, list(steps[stream])) for stream, mine in ours.steps.items() if stream in steps}
    return (again, *gates, *forced), curve


def _arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        return {}
    return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}


def forward_samples(timings: dict[str, Any]) -> Samples:
    """Their forwards; the first is theirs to warm up with."""
    seconds = [float(one["seconds"]) for one in timings.get("forwards") or ()]
    return Samples(
        unit="s",
        method=THEIRS,
        values=tuple(seconds[1:]),
        warm_up=tuple(seconds[:1]),
        reason=None if len(seconds) > 1 else "the adapter timed no forward after its first",
    )


def _name(ran: Ran, timings: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in sorted((timings.get("packages") or {}).items()))
    return packages or PurePath(shlex.split(ran.command)[-1]).name


def _summary(
    clips: ClipComparison, stages: tuple[Gate, ...], theirs: Samples, plan: Plan, timings: dict[str, Any]
) -> str:
    latents = [gate for gate in clips.gates if gate.stage.startswith("latents")]
    run = [gate for gate in (*stages, *latents) if gate.outcome != "not run"]
    failed = [gate.stage for gate in run if gate.outcome == "FAIL"]
    gates = (
        f"{len(failed)} of {len(run)} gates failed: {', '.join(failed)}" if failed else (f"all {len(run)} gates passed")
    )
    distance = "" if clips.distance is None else f", final latents at cosine distance {clips.distance:.1e}"
    same = str(timings.get("device", "")).partition(",")[0] == plan.device
    speed = (
        f"a forward of theirs {theirs}" if same else f"on another device ({timings.get('device')}): no speed compared"
    )
    return f"{gates}{distance}; {speed}"
