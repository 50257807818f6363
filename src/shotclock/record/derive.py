"""From a run folder to what its record says: the one derivation, used when the record is written and when audited.

Pure: the same folder, machine and settings give the same facts. A missing fact gets its reason here.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Any

from shotclock.record.drift import drift_warnings
from shotclock.record.facts import Fact, fact, known, missing, sha256
from shotclock.record.folder import Attempt, Folder, Line
from shotclock.record.machine import Machine
from shotclock.record.memory import memory_row, throttle_spots
from shotclock.record.notshown import not_shown
from shotclock.record.runfacts import METHOD, End, Oracle, PassRow, PhaseRow, RunFacts, Rung, Spot, Term

KEY_FIELDS = ("build", "model", "dtype", "attention", "quantisation", "launch", "gpus", "stg_blocks")  # of LawKey
WARM_UP_PASSES = {"eager": 1, "graph": 2, "compiled": 1}  # as plan/law.py
NO_KEY = "the first event line holds no law_key"
PENDING = Oracle(status="PENDING", reason="no other implementation has run this workload")
ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
PATH = re.compile(r"(?<![\w.:/])/(?:[^/\s:;,'\"]+/)+[^/\s:;,'\"]*")  # absolute, two parts at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the folder does not hold: whether texts stay out, who held the lease, and rungs that were rejected."""

    private: bool
    job: str | None = None
    lease_source: str | None = None
    lease_s: float | None = None
    rejected: tuple[Rung, ...] = ()


def run_id(begins: Line) -> str:
    """The id of an attempt, "20260819T150230Z-0a43a7": as its first line says, else its second and digits of the line.

    Logs that were written before ids were given keep theirs.
    """
    given = begins.get("run_id")
    said = isinstance(given, str) and ID.fullmatch(given)
    return str(given) if said else stamp_id(str(begins.get("utc", "")), begins)


def stamp_id(utc: str, content: Mapping[str, Any]) -> str:
    """UTC in ISO form and any content to an id; a time that is none gives "00000000T000000Z"."""
    digits = "".join(c for c in utc[:19] if c.isdigit())
    stamp = f"{digits[:8]}T{digits[8:]}Z" if len(digits) == 14 else "00000000T000000Z"
    return f"{stamp}-{sha256(repr(sorted(content.items())).encode())[:6]}"


def derive(folder: Folder, machine: Machine, context: Context) -> RunFacts:
    """All facts of the run as the folder holds them now."""
    request, plan = folder.documents.get("request.json", {}), folder.documents.get("plan.json", {})
    ids = [run_id(attempt.begins) for attempt in folder.attempts] or [stamp_id("", request)]
    first = folder.attempts[0].begins if folder.attempts else {}
    key = first.get("law_key") if isinstance(first.get("law_key"), dict) else None
    passes = tuple(row for attempt in folder.attempts for row in _passes(attempt))
    memory = tuple(row for attempt in folder.attempts if (row := memory_row(attempt)))
    end = how_it_ended(folder)
    launch = str((key or {}).get("launch", "eager"))
    values: dict[str, Any] = {
        "end": end,
        "checked": checked_facts(request, plan, first, key, machine),
        "facts": _facts(folder, plan, passes, context),
        "planned_forwards": dict(plan.get("forwards", {})),
        "executed_forwards": dict(Counter(leg for row in passes for leg in row.legs.split("+"))),
        "repeated_forwards": _repeated(passes),
        "passes": passes,
        "phases": tuple(row for attempt in folder.attempts for row in _phases(attempt)),
        "projections": tuple(
            {"attempt": attempt.number, **without_paths(dict(line))}
            for attempt in folder.attempts
            for line in attempt.of("Projected")
        ),
        "memory": memory,
        "memory_reason": None if memory else folder.absent.get("memory.jsonl", "memory.jsonl holds no sample"),
        "throttles": tuple(spot for attempt in folder.attempts for spot in throttle_spots(attempt)),
        "snapshots": _spots(folder.attempts, "Snapshotted", "name"),
        "seams": _spots(folder.attempts, "Seam", "event"),
        "rejected": context.rejected or plan_rungs(plan),
        "notes": (*folder.notes, *smaller_notes(folder)),
    }
    draft = RunFacts(
        id=ids[-1],
        run=ids[0],
        attempt=max(1, len(folder.attempts)),
        continues=ids[-2] if len(ids) > 1 else None,
        source="shotclock",
        method=METHOD,
        warm_up_passes=WARM_UP_PASSES.get(launch, 1),
        reported={},
        warnings=(),
        oracle=PENDING,
        not_shown=(),
        **values,
    )
    warned = draft.model_copy(
        update={"warnings": plan_warnings(plan) + drift_warnings(draft) + patch_warnings(machine)}
    )
    said = not_shown(warned, request, folder.documents.get("verdict.json"), machine)
    return warned.model_copy(update={"not_shown": said})


def smaller_notes(folder: Folder) -> list[str]:
    """What an attempt said that was tried after the one before ran out of memory."""
    tried = ((attempt.number, attempt.begins.get("smaller")) for attempt in folder.attempts)
    return [f"attempt {number}: {without_paths(said)}" for number, said in tried if isinstance(said, str)]


def how_it_ended(folder: Folder) -> End:
    """The end of the last attempt; a log without one is a kill, and says what was in flight."""
    last = folder.attempts[-1] if folder.attempts else None
    line = None if last is None else last.end
    if last is None:
        return End(kind="killed", exit_code=None, found="no event was written")
    if line is None:
        return End(kind="killed", exit_code=None, found=in_flight(last))
    if line["event"] == "RunStops":
        return End(
            kind="stopped",
            exit_code=line.get("exit_code"),
            found=without_paths(line.get("reason")),
            way_out=without_paths(line.get("way_out")),
            terms=tuple(Term(name=str(t["name"]), seconds=float(t["seconds"])) for t in line.get("terms") or ()),
            sum_s=_float(line.get("sum_s")),
            budget_s=_float(line.get("budget_s")),
        )
    if line["event"] == "RunFails":
        said = {name: without_paths(line.get(name)) for name in ("found", "allowed", "way_out")}
        return End(kind="failed", exit_code=line.get("exit_code"), **said)
    if folder.documents.get("verdict.json", {}).get("outcome") == "FAIL":
        failed = [one["rule"] for one in folder.documents["verdict.json"]["findings"] if one["outcome"] == "FAIL"]
        return End(kind="verdict failed", exit_code=4, found=f"the verdict failed: {', '.join(failed)}")
    return End(kind="finished", exit_code=0)


def without_paths(value: Any) -> Any:
    """Texts with the last part of each absolute path only: a record names files, not places."""
    if isinstance(value, str):
        return PATH.sub(lambda match: PurePath(match[0]).name, value)
    if isinstance(value, dict):
        return {name: without_paths(one) for name, one in value.items()}
    return [without_paths(one) for one in value] if isinstance(value, list | tuple) else value


def in_flight(attempt: Attempt) -> str:
    """What the last line of a killed attempt names."""
    line = attempt.lines[-1]
    where = f"in phase {line['phase']}" if line.get("phase") else "before the first phase"
    if line["event"] == "PassBegins":
        where += f", pass {line.get('index')} (step {line.get('step')} of {line.get('steps')}) was in flight"
    return f"the log ends after {line['event']} {where}"


def checked_facts(request: Line, plan: Line, first: Line, key: Line | None, machine: Machine) -> dict[str, Fact]:
    """What must agree before two runs are compared."""
    found: dict[str, Fact] = {
        name: _text(key[name]) if key and key.get(name) is not None else missing(NO_KEY) for name in KEY_FIELDS
    }
    for name in ("streaming", "split"):  # where not all weights stay, where not one GPU does all
        if (key or {}).get(name, "none") != "none":
            found[name] = _text((key or {})[name])
    device = (key or {}).get("device") or first.get("device")
    found["device"] = fact(device, "no event was written")
    found["driver"] = machine.facts.get("driver", missing("not looked at"))
    if not key and first.get("torch"):
        found["build"] = known(f"torch {first['torch']}")
    if not key and first.get("dtype"):
        found["dtype"] = known(str(first["dtype"]))
    no_request = "no request.json"
    found["legs_per_pass"] = fact(request.get("legs_per_pass"), no_request)
    found["legs"] = known("+".join(plan["legs"])) if plan.get("legs") else missing("no plan.json")
    found["geometry"] = geometry_fact(request)
    found["method"] = known(METHOD)
    return found


def geometry_fact(request: Line) -> Fact:
    """ "768x448, 25 frames at 24"."""
    if not all(name in request for name in ("width", "height", "frames", "fps")):
        return missing("no request.json")
    return known(f"{request['width']}x{request['height']}, {request['frames']} frames at {request['fps']}")


def _facts(folder: Folder, plan: Line, passes: Sequence[PassRow], context: Context) -> dict[str, Fact]:
    first = folder.attempts[0] if folder.attempts else None
    begins = first.of("PassBegins") if first else []
    last = folder.attempts[-1].end if folder.attempts else None
    ended = last if last is not None and last["event"] == "RunEnds" else None
    no_end = "the run did not end with a clip"
    lease = (first.begins.get("lease") if first else None) or {}
    wall = sum(float(attempt.lines[-1].get("t_s", 0.0)) for attempt in folder.attempts)
    return {
        "first_dit": fact(_float(begins[0]["t_s"]) if begins else None, "no pass was launched", "s"),
        "wall": known(wall, "s") if folder.attempts else missing("no event was written", "s"),
        "peak": fact((ended or {}).get("peak_bytes"), no_end, "B"),
        "sigmas_sha256": fact(plan.get("sigmas_sha256"), "no plan.json"),
        "transformer": fact(checkpoint_name(plan, "transformer"), "no plan.json"),
        "steps": fact(plan.get("steps"), "no plan.json"),
        "video_tokens": fact(plan.get("video_tokens"), "no plan.json"),
        "audio_tokens": fact(plan.get("audio_tokens"), "no plan.json"),
        "planned_passes": fact(plan.get("passes"), "no plan.json"),
        "executed_passes": known(len(passes)),
        "step_flops": fact(plan.get("step_flops"), "no plan.json", "FLOP"),
        "lease": fact(lease_s(first, context), "no end of the lease was given", "s"),
        "lease_source": fact(lease.get("source") or context.lease_source, "not told to the record"),
        "job": fact(context.job, "no scheduler's job id was found"),
        "median_pass": _median(passes),
        **({"ranks": _ranks(first.begins["ranks"])} if first and len(first.begins.get("ranks", ())) > 1 else {}),
        **expected_facts(plan),
    }


def _ranks(devices: Sequence[str]) -> Fact:
    """The processes of the first attempt by number, each with its device."""
    return known(", ".join(f"rank {number} on {device}" for number, device in enumerate(devices)))


def lease_s(first: Attempt | None, context: Context) -> float | None:
    """Seconds of the lease from the first attempt's begin, as its first line or the caller says."""
    begins = first.begins if first else {}
    end, utc = (begins.get("lease") or {}).get("end"), begins.get("utc")
    if not end or not utc:
        return context.lease_s
    return (datetime.fromisoformat(end) - datetime.fromisoformat(utc)).total_seconds()


def expected_facts(plan: Line) -> dict[str, Fact]:
    """What the plan expected of each part, to be read beside what was measured."""
    rows = ((plan.get("forecast") or {}).get("ledger") or {}).get("rows") or ()
    return {
        f"expected {row['name']}": known(float(row["estimate"]["typical_s"]), "s")
        for row in rows
        if isinstance(row.get("estimate"), dict) and isinstance(row["estimate"].get("typical_s"), int | float)
    }


def checkpoint_name(plan: Line, part: str) -> str | None:
    """The name of a file of the plan, without its folder."""
    planned = plan.get("files", {}).get(part)
    return PurePath(planned["path"]).name if planned else None


def _median(passes: Sequence[PassRow]) -> Fact:
    kinds = {row.legs for row in passes}
    if len(kinds) > 1:
        return missing("passes of several kinds have no common median", "s")
    return fact(statistics.median([row.seconds for row in passes]) if passes else None, "no pass ended", "s")


def _passes(attempt: Attempt) -> list[PassRow]:
    return [
        PassRow(
            attempt=attempt.number,
            step=line["step"],
            legs="+".join(line["legs"]),
            seconds=float(line["last_s"]),
            launch_s=_float(line.get("launch_s")),
            device_s=_float(line.get("device_s")),
        )
        for line in attempt.of("PassEnds")
        if line.get("last_s") is not None
    ]


def _repeated(passes: Sequence[PassRow]) -> int:
    """Forwards that ran once more after a resume."""
    forwards = [(row.step, leg) for row in passes for leg in row.legs.split("+")]
    return len(forwards) - len(set(forwards))


def _phases(attempt: Attempt) -> list[PhaseRow]:
    rows: list[PhaseRow] = []
    open_row: PhaseRow | None = None
    for line in attempt.of("PhaseBegins", "PhaseEnds"):
        if line["event"] == "PhaseBegins":
            if open_row:
                rows.append(open_row)
            open_row = PhaseRow(
                attempt=attempt.number, phase=str(line["phase"]), begin_s=float(line["t_s"]), seconds=None
            )
        elif open_row and open_row.phase == line["phase"]:
            rows.append(open_row.model_copy(update={"seconds": float(line["last_s"])}))
            open_row = None
    return [*rows, *([open_row] if open_row else [])]


def _spots(attempts: Sequence[Attempt], event: str, what: str) -> tuple[Spot, ...]:
    return tuple(
        Spot(
            attempt=attempt.number,
            t_s=_float(line.get("t_s")),
            what=str(line.get(what, event)),
            detail={name: without_paths(value) for name, value in line.items() if name not in ("event", "t_s", what)},
        )
        for attempt in attempts
        for line in attempt.of(event)
    )


def plan_rungs(plan: Line) -> tuple[Rung, ...]:
    """Rungs that the plan lists as rejected, where it does."""
    return tuple(
        Rung(
            geometry=str(one.get("geometry")),
            video_tokens=one.get("video_tokens"),
            needs_s=_float(one.get("needs_s")),
            leaves_s=_float(one.get("leaves_s")),
            line=str(one.get("line", "")),
        )
        for one in plan.get("rejected", ())
        if isinstance(one, dict)
    )


def plan_warnings(plan: Line) -> tuple[str, ...]:
    """What the plan warned of before the render: weights and guidance that do not go together, LoRAs."""
    said = plan.get("warnings")
    return tuple(line for line in said if isinstance(line, str)) if isinstance(said, list) else ()


def patch_warnings(machine: Machine) -> tuple[str, ...]:
    """Operations whose code is not torch's own."""
    return tuple(f"{name} is {machine.operations[name]}: another package replaced it" for name in machine.patched)


def _text(value: Any) -> Fact:
    return known(",".join(str(one) for one in value) if isinstance(value, list) else value)


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
