"""The question of ``shotclock bench`` without a run: which steps, on what, against whom; answers with a table.

Reads no environment; imports torch when it is asked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shotclock.errors import RequestError

if TYPE_CHECKING:
    from shotclock.record.answers import Answer

KNOWN = ("diffusers", "ltx_core")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsAsked:
    """What was said on the command line; no geometry means those of the table.

    ``oracle`` is the command of an adapter for ``ltx_core``, killed after ``limit_s``; None is the checkout's own.
    """

    device: str
    tiny: bool
    geometries: tuple[str, ...]
    against: tuple[str, ...]
    rounds: int
    quantise: str | None
    out: Path | None
    oracle: str | None = None
    limit_s: float = 3600.0


def ask_steps(asked: StepsAsked, *, as_json: bool) -> Answer:
    """Measure every geometry; raises :class:`RequestError` for what cannot be measured, before weights are made."""
    import torch

    from shotclock.bench import official, steps
    from shotclock.model.attention import attention_backends
    from shotclock.profile.workload import RANDOM, RANDOM_TINY, clip, machine_of, model_for, workload
    from shotclock.record.answers import Answer
    from shotclock.record.facts import canonical
    from shotclock.record.machine import code_version
    from shotclock.rundir import write_aside
    from shotclock.weights.fp8 import require_fp8

    if unknown := [name for name in asked.against if name not in KNOWN]:
        raise RequestError(f"--against {unknown[0]}", allowed=", ".join(KNOWN), way_out=steps.PENDING)
    if asked.oracle is not None and official.LTX_CORE not in asked.against:
        raise RequestError(
            "--oracle without a run",
            allowed="a run to compare, or --against ltx_core for its steps",
            way_out="shotclock bench RUN --oracle COMMAND",
        )
    if asked.quantise not in (None, "fp8"):
        raise RequestError(f"--quantise {asked.quantise}", allowed="fp8", way_out="leave it out for bf16")
    machine = machine_of(asked.device, None)
    if asked.quantise and not asked.tiny:
        require_fp8(machine.device)
    wanted = official.LTX_CORE in asked.against
    adapter, pending = official.find(asked.oracle, asked.limit_s) if wanted else (None, "")
    names = asked.geometries or ((steps.TINY_GEOMETRY,) if asked.tiny else steps.GEOMETRIES)
    clips = [clip(*_sides(name)) for name in names]
    with torch.inference_mode(), attention_backends():
        transformer, recipe = model_for(RANDOM_TINY if asked.tiny else RANDOM, machine, Path(), pinned_config=False)
        rows = []
        for geometry in clips:
            work = workload(transformer, recipe, geometry, machine, 4)
            row = steps.measure(work, rounds=asked.rounds, against=asked.against, fp8=asked.quantise is not None)
            rows.append(row if adapter is None else steps.with_official(row, work, adapter, asked.rounds))
    if pending:
        rows = [replace(row, official=pending) for row in rows]
    commit, dirty = code_version(Path(__file__).parent)
    said = f"{commit.value or commit.reason}{' (changed)' if dirty.value else ''}"
    document = steps.document_of(rows, work, said)
    if asked.out is not None:
        write_aside(asked.out, canonical(document))
    lines = [line for row in rows for line in row.lines()]
    if asked.quantise and machine.device.type != "cuda":
        lines.append("fp8 ran its float32 reference here: its error holds, its seconds say nothing")
    last = [] if as_json else [json.dumps(document, sort_keys=True)]
    return Answer(lines=[*lines, *last], document=document)


def _sides(name: str) -> tuple[str, int]:
    """``WIDTHxHEIGHTxFRAMES`` apart."""
    size, _, frames = name.rpartition("x")
    if not frames.isdecimal():
        raise RequestError(f"geometry {name!r}", allowed="WIDTHxHEIGHTxFRAMES", way_out="768x448x25")
    return size, int(frames)
