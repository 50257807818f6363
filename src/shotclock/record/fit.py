"""Reads the passes and phases of finished or broken runs from their event logs, to be fitted into a cost law.

Reads run folders and writes nothing. Knows no model and no device: the key of a run is what its first line says.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from shotclock.errors import RequestError, RunDirError
from shotclock.events import Phase
from shotclock.guidance import LegName, Pass
from shotclock.plan.law import AUDIO_WEIGHT, LawKey, Sample, Timings, kind_of
from shotclock.plan.rate import FILES, PhaseSample, Rates, media_units, phase_of, units_of
from shotclock.request import Request, read_request
from shotclock.rundir import RunDir

Kind = tuple[str, int]  # of a pass, and the number of its stage


@dataclass(slots=True)
class Attempt:
    """One process that worked on a run: from one RunBegins line to the next.

    ``apart`` are phases whose seconds say nothing of others: weights were elsewhere than on the device.
    """

    key: LawKey
    name: str
    file_bytes: Mapping[str, int]
    cached_shares: Mapping[str, float]
    apart: frozenset[str]
    warm_up_s: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    pass_s: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    phase_s: list[tuple[str, float]] = field(default_factory=list)
    passes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What runs of one key took: their passes, and their other phases."""

    timings: Timings
    rates: Rates


def fit_runs(runs: Sequence[RunDir]) -> Measured:
    """All passes and phases of the runs; raises :class:`RequestError` where their keys differ.

    :class:`RunDirError` names a folder or a line that cannot be read. A line that a kill cut off is left out.
    """
    read = [(run, attempt, request) for run in runs for attempt, request in read_attempts(run)]
    if not read:
        raise RequestError("no runs", allowed="at least one run folder", way_out="name the folders of --run")
    key = read[0][1].key
    for run, attempt, _ in read:
        if differences := key.differences(attempt.key):
            raise RequestError(
                f"{run.path} was measured with {'; '.join(differences)}",
                allowed="runs of one key",
                way_out="fit the runs of each key on their own",
            )
    passes = tuple(sample for _, attempt, request in read for sample in samples_of(attempt, request))
    phases = tuple(sample for _, attempt, request in read for sample in phases_of(attempt, request))
    return Measured(
        timings=Timings(key=key, audio_weight=AUDIO_WEIGHT, samples=passes),
        rates=Rates(device=key.device, build=key.build, samples=phases),
    )


def read_attempts(run: RunDir) -> list[tuple[Attempt, Request]]:
    """Every process that worked on the run, oldest first."""
    try:
        request = read_request(run.request.read_text())
    except OSError as bad:
        raise RunDirError(
            f"{run.request} cannot be read: {bad.strerror}",
            allowed="the folder of a run",
            way_out="name a folder that `shotclock render --run` made",
        ) from None
    attempts: list[Attempt] = []
    for number, line in read_lines(run):
        if line["event"] == "RunBegins":
            attempts.append(_attempt(run, number, line))
        elif attempts:
            _take(run, number, line, attempts[-1], request)
    return [(attempt, request) for attempt in attempts]


def read_lines(run: RunDir) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Complete lines of the event log with their numbers from 1; raises :class:`RunDirError` for one that is none."""
    try:
        text = run.events.read_text()
    except FileNotFoundError:
        return
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            found = None
        if not (isinstance(found, dict) and isinstance(found.get("event"), str)):
            raise _bad_line(run, number, line[:60])
        yield number, found


def _attempt(run: RunDir, number: int, line: Mapping[str, Any]) -> Attempt:
    if "law_key" not in line:
        raise _bad_line(run, number, "RunBegins without law_key")
    try:
        key = LawKey.model_validate_json(json.dumps(line["law_key"]))
    except ValidationError as bad:
        raise _bad_line(run, number, f"law_key: {bad.errors()[0]['msg']}") from None
    try:
        file_bytes = {name: int(file["bytes"]) for name, file in line.get("files", {}).items()}
        shares = {name: float(share) for name, share in line.get("cached_shares", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _bad_line(run, number, "RunBegins whose files have no bytes") from None
    return Attempt(
        key=key,
        name=f"{line.get('request_sha256', '')[:12]} {line.get('utc', '')} {run.path.name}",
        file_bytes=file_bytes,
        cached_shares=shares,
        apart=_apart(line.get("placement")),
    )


def _apart(placement: object) -> frozenset[str]:
    """Of a text encoder that did not fit, and of a transformer whose blocks stayed in the file."""
    said = placement if isinstance(placement, Mapping) else {}
    text = {Phase.LOAD_TEXT, Phase.ENCODE} if said.get("text") in ("layers", "cpu") else set()
    return frozenset(text | ({Phase.LOAD_TRANSFORMER} if said.get("streamed") else set()))


def _take(run: RunDir, number: int, line: Mapping[str, Any], attempt: Attempt, request: Request) -> None:
    """Add a pass or a phase that has ended; everything else says nothing about cost."""
    if line["event"] not in ("PassEnds", "PhaseEnds"):
        return
    seconds, is_pass = line.get("last_s"), line["event"] == "PassEnds"
    good = (
        isinstance(seconds, float | int) and math.isfinite(seconds) and (seconds > 0 or (seconds == 0 and not is_pass))
    )
    if not good:
        raise _bad_line(run, number, f"{line['event']} with last_s {seconds}")
    assert isinstance(seconds, float | int), "checked above"
    try:
        if is_pass:
            _take_pass(line, float(seconds), attempt, request)
        else:
            attempt.phase_s.append((str(line["phase"]), float(seconds)))
    except (KeyError, TypeError, ValueError) as bad:
        raise _bad_line(run, number, f"{line['event']}: {bad}") from None


def _take_pass(line: Mapping[str, Any], seconds: float, attempt: Attempt, request: Request) -> None:
    step = line["step"] - 1
    stage = next((stage for stage in reversed(request.stages) if stage.first <= step), request.stages[0])
    runs = stage.guidance.video.runs(step - stage.first), stage.guidance.audio.runs(step - stage.first)
    launch = Pass(legs=tuple(LegName(leg) for leg in line["legs"]), video=runs[0], audio=runs[1])
    warm = attempt.passes >= attempt.key.warm_up_passes
    (attempt.pass_s if warm else attempt.warm_up_s)[kind_of(launch), stage.number].append(seconds)
    attempt.passes += 1


def samples_of(attempt: Attempt, request: Request) -> list[Sample]:
    """One sample a kind of pass and stage; a stage has its own size."""
    clips = {stage.number: stage.geometry for stage in request.stages}
    return [
        Sample(
            geometry=str(clips[stage]),
            video_tokens=clips[stage].video_tokens + request.appended_tokens(clips[stage]),
            audio_tokens=clips[stage].audio_tokens,
            kind=kind,
            warm_up_s=tuple(attempt.warm_up_s[kind, stage]),
            pass_s=tuple(attempt.pass_s[kind, stage]),
            run=attempt.name,
        )
        for kind, stage in sorted(attempt.pass_s.keys() | attempt.warm_up_s.keys())
    ]


def phases_of(attempt: Attempt, request: Request) -> list[PhaseSample]:
    """One sample a phase that ended, but the denoising: its passes are there one by one."""
    media = media_units(request.geometry, len(request.images), sound=request.sound is not None)
    return [
        PhaseSample(
            phase=phase_of(phase, request.decoder),
            units=units_of(phase, request.geometry, attempt.file_bytes, media),
            seconds=seconds,
            run=attempt.name,
            cached_share=_cached_share(phase, attempt),
        )
        for phase, seconds in attempt.phase_s
        if phase != Phase.DENOISE and phase not in attempt.apart
    ]


def _cached_share(phase: str, attempt: Attempt) -> float | None:
    """Of the files that the phase reads; None where the log does not say it of all."""
    files = FILES[Phase(phase)] if phase in FILES else ()
    sizes = {name: attempt.file_bytes.get(name, 0) for name in files if name in attempt.cached_shares}
    total = sum(sizes.values())
    if not total or len(sizes) < len(files):
        return None
    return sum(size * attempt.cached_shares[name] for name, size in sizes.items()) / total


def _bad_line(run: RunDir, number: int, found: str) -> RunDirError:
    return RunDirError(
        f"{run.events} line {number}: {found}",
        allowed="the event log of a render of this version",
        way_out="leave this run out",
    )
