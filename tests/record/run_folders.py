"""Run folders written by hand: every way in which a render can end, with times that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shotclock.record.facts import canonical, known, missing
from shotclock.record.machine import Machine

PROMPT, NEGATIVE = "a red circle moves right", "smeared picture"
LEGS = ["cond", "uncond", "perturbed", "isolated"]
SCALES = {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "skip_step": 0, "stg_blocks": [2]}
REQUEST = {
    "format": "shotclock/request/1",
    "recipe": "one_stage",
    "prompt": PROMPT,
    "negative_prompt": NEGATIVE,
    "width": 768,
    "height": 448,
    "frames": 25,
    "fps": "24",
    "seed": 10,
    "steps": 8,
    "video": SCALES,
    "audio": {**SCALES, "cfg": 7.0},
    "legs_per_pass": 4,
}
KEY = {
    "device": "NVIDIA H200",
    "build": "torch 2.13.0+cu130",
    "model": "48 blocks",
    "dtype": "bfloat16",
    "attention": "cudnn",
    "quantisation": "none",
    "launch": "eager",
    "legs_per_pass": 4,
    "stg_blocks": [28],
    "gpus": 1,
}
PASS_S = (2.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0)
STOPS = {
    "event": "RunStops",
    "exit_code": 92,
    "reason": "projected overrun",
    "terms": [{"name": "so far", "seconds": 481.5}, {"name": "60 forwards", "seconds": 9720.0}],
    "sum_s": 10201.5,
    "budget_s": 7153.0,
}
FAILS = {
    "event": "RunFails",
    "exit_code": 1,
    "found": "/scratch/runs/a/clip.mp4: No space left on device in phase decode-video",
    "allowed": "room",
    "way_out": "free space",
}
ENDS = {"event": "RunEnds", "peak_bytes": 123, "clip": "/scratch/runs/a/clip.mp4"}


def machine(**facts: Any) -> Machine:
    """An H200 with a clean checkout, or other facts."""
    known_facts = {
        "device": known("NVIDIA H200"),
        "driver": known("580.65"),
        "commit": known("c" * 40),
        "dirty": known(False),
        "cores": known(16),
        **facts,
    }
    return Machine(facts=known_facts, libraries={"torch": "2.13.0"}, modules={}, operations={})


def events(
    pass_s: Sequence[float] = PASS_S,
    *,
    end: dict[str, Any] | None = ENDS,
    utc: str = "2026-12-01T10:00:00+00:00",
    first_step: int = 1,
    extra: Sequence[dict[str, Any]] = (),
    key: dict[str, Any] | None = KEY,
) -> list[dict[str, Any]]:
    """Event lines of one attempt: one pass of four legs a step."""
    begins: dict[str, Any] = {"event": "RunBegins", "utc": utc, "device": "NVIDIA H200", "torch": "2.13.0+cu130"}
    begins |= {"dtype": "bfloat16", "version": "0.1.0"}
    lines = [begins | ({"law_key": key} if key else {})]
    t_s = 5.0
    lines += [{"event": "PhaseBegins", "phase": "import", "t_s": 0.0}]
    lines += [{"event": "PhaseEnds", "phase": "import", "t_s": t_s, "last_s": t_s}]
    lines += [{"event": "PhaseBegins", "phase": "denoise", "t_s": t_s}]
    for step, seconds in enumerate(pass_s, start=first_step):
        row = {"index": step, "step": step, "steps": len(PASS_S), "legs": LEGS, "phase": "denoise"}
        lines.append({"event": "PassBegins", "t_s": t_s, "last_s": None, **row})
        t_s += seconds
        lines.append({"event": "PassEnds", "t_s": t_s, "last_s": seconds, **row})
    lines += [{"t_s": t_s, **line} for line in extra]
    if end is not None:
        lines.append({"event": "PhaseEnds", "phase": "denoise", "t_s": t_s, "last_s": t_s - 5.0})
        lines.append({"t_s": t_s, **end})
    return lines


def sample(t_s: float, attempt: int = 1, **values: Any) -> dict[str, Any]:
    """One line of memory.jsonl."""
    line = {
        "t_s": t_s,
        "attempt": attempt,
        "host_available_bytes": 100 << 30,
        "host_total_bytes": 128 << 30,
        "swap_used_bytes": 0,
        "device_used_bytes": 5 << 30,
        "device_total_bytes": 140 << 30,
        "device_utilisation": 99,
        "device_clock_mhz": 1980,
        "throttle": None,
    }
    return line | values


def verdict(outcome: str = "PASS") -> dict[str, Any]:
    """As much of verdict.json as a record reads."""
    finding = {"rule": "grad_kurt", "arm": "pixels", "outcome": outcome}
    return {
        "format": "shotclock.verdict/1",
        "clip": "clip.mp4",
        "clip_sha256": "d" * 64,
        "outcome": outcome,
        "numbers": {"grad_kurt": 9.5},
        "facts": {},
        "findings": [finding, {"rule": "frames", "arm": "container", "outcome": "PASS"}],
        "not_judged": ["a wrong prompt"],
    }


def make_run(
    run: Path,
    lines: Sequence[dict[str, Any]] | None = None,
    *,
    memory: Sequence[dict[str, Any]] = (),
    judged: dict[str, Any] | None = None,
    models: Path | None = None,
    clip: bytes | None = b"not a real clip",
    request: dict[str, Any] = REQUEST,
) -> Path:
    """Write a run folder; with ``models`` the plan names a file there."""
    run.mkdir(parents=True, exist_ok=True)
    steps = request["steps"]
    plan: dict[str, Any] = {
        "forwards": dict.fromkeys(LEGS, steps),
        "legs": LEGS,
        "passes": steps,
        "steps": steps,
        "sigmas": [1.0, 0.0],
        "sigmas_sha256": "5" * 64,
        "video_tokens": 1344,
        "audio_tokens": 26,
        "step_flops": 10**15,
        "files": {},
    }
    if models is not None:
        models.mkdir(exist_ok=True)
        weights = models / "ltx-transformer.safetensors"
        weights.write_bytes(b"weights")
        plan["files"] = {"transformer": {"path": str(weights), "bytes": 7, "tensors": 1, "model_version": "2.5.0"}}
    (run / "request.json").write_bytes(canonical(request))
    (run / "plan.json").write_text(json.dumps(plan))
    write_lines(run / "events.jsonl", events() if lines is None else lines)
    if memory:
        write_lines(run / "memory.jsonl", memory)
    if judged is not None:
        (run / "verdict.json").write_text(json.dumps(judged))
    if clip is not None:
        (run / "clip.mp4").write_bytes(clip)
    return run


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """JSON lines, appended."""
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


NOTHING = missing("not looked at")
