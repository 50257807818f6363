"""Reads the documents that stages of a run left, as far as they are there: request, plan, verdict, record.

A document that is missing or is none says why. Fields that another version adds are left alone, fields it dropped are
None. Imports neither the writers of these files nor torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Judgement = Literal["PASS", "WARN", "FAIL", "NOT JUDGED"]
S = TypeVar("S", bound="Seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """Something that was not recorded, and why."""

    reason: str


class Seen(BaseModel):
    """Base of what is read here: no coercion, no NaN, unknown fields are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class ScalesSeen(Seen):
    """Guidance of one stream."""

    cfg: float | None = None
    stg: float | None = None
    modality: float | None = None
    rescale: float | None = None
    stg_blocks: list[int] | None = None
    skip_step: int | None = None


class RequestSeen(Seen):
    """What was asked for."""

    prompt: str
    negative_prompt: str | None = None
    recipe: str | None = None
    width: int
    height: int
    frames: int
    fps: str
    seed: int
    steps: int
    video: ScalesSeen | None = None
    audio: ScalesSeen | None = None
    legs_per_pass: int | None = None


class EstimateSeen(Seen):
    """A duration with its interval and where it comes from."""

    low_s: float
    typical_s: float
    high_s: float
    source: str


class RowSeen(Seen):
    """One part of the planned ledger; ``basis`` says what the estimate rests on."""

    name: str
    estimate: EstimateSeen
    basis: str | None = None


class LedgerSeen(Seen):
    """Parts in the order they run, and the lease; None is a lease without an end."""

    lease_s: float | None = None
    lease_source: str | None = None
    reserve_s: float | None = None
    rows: list[RowSeen]


class DemandSeen(Seen):
    """Memory that a phase was expected to hold at its widest."""

    phase: str
    where: str
    need_bytes: int


class ForecastSeen(Seen):
    """What the plan expected of time and memory."""

    ledger: LedgerSeen
    memory: list[DemandSeen] = []


class PlanSeen(Seen):
    """What was planned: forwards by leg over all steps, launches, tokens, sigmas, and what they were to take."""

    request_sha256: str | None = None
    forwards: dict[str, int]
    passes: int
    steps: int
    device: str | None = None
    dtype: str | None = None
    video_tokens: int | None = None
    audio_tokens: int | None = None
    sigmas: list[float] | None = None
    step_flops: int | None = None
    decode_flops: int | None = None
    forecast: ForecastSeen | None = None


class FindingSeen(Seen):
    """One rule of the verdict: ``margin`` is relative to the threshold, negative where it is broken."""

    rule: str
    arm: str
    outcome: Judgement
    metric: str
    value: float | None
    comparison: str
    threshold: float
    margin: float | None
    condition: str | None = None
    as_asked: str | None = None
    source: str
    meaning: str
    way_out: str | None = None


class VerdictSeen(Seen):
    """The verdict on the clip, by arm and by rule."""

    clip: str
    clip_sha256: str | None = None
    outcome: Judgement
    arms: dict[str, Judgement]
    findings: list[FindingSeen]
    numbers: dict[str, float | None] = {}
    not_judged: list[str] = []


def read_request(folder: Path) -> RequestSeen | Missing:
    """``request.json`` of the run."""
    return _read(folder / "request.json", RequestSeen)


def read_plan(folder: Path) -> PlanSeen | Missing:
    """``plan.json`` of the run."""
    return _read(folder / "plan.json", PlanSeen)


def read_verdict(folder: Path) -> VerdictSeen | Missing:
    """``verdict.json`` of the run."""
    return _read(folder / "verdict.json", VerdictSeen)


def read_object(path: Path) -> dict[str, Any] | Missing:
    """Any JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Missing(reason=f"there is no {path.name}")
    except OSError as bad:
        return Missing(reason=f"{path.name} cannot be read: {bad.strerror}")
    except (ValueError, RecursionError):
        return Missing(reason=f"{path.name} is no JSON")
    return value if isinstance(value, dict) else Missing(reason=f"{path.name} is no JSON object")


def _read(path: Path, kind: type[S]) -> S | Missing:
    found = read_object(path)
    if isinstance(found, Missing):
        return found
    try:
        return kind.model_validate_json(json.dumps(found))
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Missing(reason=f"{path.name} is not what this version reads: {where}: {first['msg']}")
