"""A record as in-toto statements: the render with an SLSA-provenance-shaped predicate, the verdict as a test result.

Builds plain JSON from a folder that was read, the facts derived from it and the machine; writes nothing. Holds names,
never paths; with ``private`` neither prompt is in it, only their digest.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from shotclock import __version__
from shotclock.record.derive import Context
from shotclock.record.facts import Fact, sha256
from shotclock.record.folder import FileSeen, Folder, Line
from shotclock.record.machine import Machine
from shotclock.record.runfacts import RunFacts, Rung, read_run_facts

STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
BUILD_TYPE = "urn:shotclock:render:1"
REPORTED_TYPE = "urn:shotclock:reported:1"  # a figure that another program measured and this one only holds
RESULTS = {"PASS": "PASSED", "WARN": "WARNED", "FAIL": "FAILED"}  # a verdict that judged nothing is no test result
SUBJECTS = ("clip.mp4", "clip.wav", "latents.safetensors")
TEXTS = ("prompt", "negative_prompt")

Statement = dict[str, Any]
Hash = Callable[[Path], str]


def run_statement(
    folder: Folder,
    run: RunFacts,
    machine: Machine,
    context: Context,
    *,
    checkpoint_sha256: Hash,
    packets_sha256: str | None,
) -> Statement:
    """The statement of a run. ``checkpoint_sha256`` may raise ``OSError``: then the digest is missing with a reason."""
    request, plan = folder.documents.get("request.json", {}), folder.documents.get("plan.json", {})
    begun = str(folder.attempts[0].begins.get("utc", "")) if folder.attempts else ""
    logs = [_resource(seen) for seen in folder.files if seen.name not in SUBJECTS]
    return {
        "_type": STATEMENT,
        "subject": _subjects(folder, packets_sha256),
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": external(request, private=context.private),
                "internalParameters": {"sigmas": plan.get("sigmas"), "plan_sha256": _digest(folder, "plan.json")},
                "resolvedDependencies": _dependencies(plan, machine, checkpoint_sha256),
            },
            "runDetails": {
                "builder": {"id": builder_id(machine), "version": {"shotclock": __version__}},
                "metadata": {
                    "invocationId": run.id,
                    "startedOn": begun or None,
                    "finishedOn": _finished(begun, run),
                },
                "byproducts": logs,
            },
            "shotclock_run": run.model_dump(mode="json"),
            "shotclock_machine": machine_document(machine),
            "shotclock_context": context_document(context),
            "shotclock_absent": dict(sorted(folder.absent.items())),
        },
    }


def refusal_statement(
    request: Mapping[str, Any], run: RunFacts, machine: Machine, context: Context, *, request_sha256: str, utc: str
) -> Statement:
    """The statement of a render that was refused before it had a folder; its subject is the request."""
    return {
        "_type": STATEMENT,
        "subject": [{"name": "request.json", "digest": {"sha256": request_sha256}}],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": external(request, private=context.private),
                "internalParameters": {"sigmas": None, "plan_sha256": None},
                "resolvedDependencies": _dependencies({}, machine, lambda _: ""),
            },
            "runDetails": {
                "builder": {"id": builder_id(machine), "version": {"shotclock": __version__}},
                "metadata": {"invocationId": run.id, "startedOn": utc, "finishedOn": utc},
                "byproducts": [],
            },
            "shotclock_run": run.model_dump(mode="json"),
            "shotclock_machine": machine_document(machine),
            "shotclock_context": context_document(context),
            "shotclock_absent": {},
        },
    }


def verdict_statement(folder: Folder) -> Statement | None:
    """The verdict as a test result about the clip; None where none was passed, or it judged nothing."""
    verdict = folder.documents.get("verdict.json")
    clip = folder.file("clip.mp4")
    if verdict is None or clip is None or verdict["outcome"] not in RESULTS:
        return None
    by_outcome: dict[str, list[str]] = {name: [] for name in RESULTS}
    for finding in verdict["findings"]:
        by_outcome.get(finding["outcome"], []).append(f"{finding['arm']}/{finding['rule']}")
    return {
        "_type": STATEMENT,
        "subject": [{"name": clip.name, "digest": {"sha256": clip.sha256}}],
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": RESULTS[verdict["outcome"]],
            "configuration": [_resource(seen) for name in ("request.json",) if (seen := folder.file(name))],
            "passedTests": by_outcome["PASS"],
            "warnedTests": by_outcome["WARN"],
            "failedTests": by_outcome["FAIL"],
            "shotclock_verdict": {
                "judged_sha256": verdict["clip_sha256"],
                "numbers": verdict["numbers"],
                "facts": verdict["facts"],
                "findings": verdict["findings"],
                "not_judged": verdict["not_judged"],
                "verdict_sha256": _digest(folder, "verdict.json"),
            },
        },
    }


def external(request: Mapping[str, Any], *, private: bool) -> dict[str, Any]:
    """The request, from which everything rendered follows; texts only where they may be shown."""
    shown = {name: value for name, value in request.items() if not (private and name in TEXTS)}
    texts = [str(request.get(name, "")) for name in TEXTS]
    return {**shown, "prompts_sha256": sha256("\0".join(texts).encode()) if request else None, "private": private}


def builder_id(machine: Machine) -> str:
    """Which kind of machine: its device and driver, not its name."""
    device, driver = machine.facts.get("device"), machine.facts.get("driver")
    parts = [str(one.value) if one is not None and one.value is not None else "none" for one in (device, driver)]
    if parts[0] == "cpu":
        parts[1] = str(machine.facts["processor"].value or platform.machine()) if "processor" in machine.facts else ""
    return f"urn:shotclock:machine:{quote(parts[0])}:{quote(parts[1])}"


def machine_document(machine: Machine) -> dict[str, Any]:
    """All facts of the machine."""
    return {
        "facts": {name: fact.model_dump(mode="json") for name, fact in sorted(machine.facts.items())},
        "libraries": dict(sorted(machine.libraries.items())),
        "modules": dict(sorted(machine.modules.items())),
        "operations": dict(sorted(machine.operations.items())),
    }


def read_machine(document: Mapping[str, Any]) -> Machine:
    """The machine of a statement, for deriving again."""
    return Machine(
        facts={name: Fact.model_validate(value) for name, value in document["facts"].items()},
        libraries=document["libraries"],
        modules=document["modules"],
        operations=document["operations"],
    )


def context_document(context: Context) -> dict[str, Any]:
    """What else the derivation was told."""
    return {
        "private": context.private,
        "job": context.job,
        "lease_source": context.lease_source,
        "lease_s": context.lease_s,
        "rejected": [rung.model_dump(mode="json") for rung in context.rejected],
    }


def read_context(document: Mapping[str, Any]) -> Context:
    """The context of a statement, for deriving again."""
    rungs = tuple(Rung.model_validate(one) for one in document["rejected"])
    return Context(**{**document, "rejected": rungs})


def facts_of(statement: Mapping[str, Any]) -> RunFacts:
    """What a statement says of its run; raises pydantic's ValidationError or KeyError for one that is not ours."""
    return read_run_facts(statement["predicate"])


def _subjects(folder: Folder, packets_sha256: str | None) -> list[dict[str, Any]]:
    found = []
    for name in SUBJECTS:
        if seen := folder.file(name):
            resource = _resource(seen)
            if name == "clip.mp4":
                resource["annotations"] |= {
                    "packets_sha256": packets_sha256,
                    "raw_frames_sha256": None,
                    "raw_frames_reason": "frames are not hashed before they are encoded",
                }
            found.append(resource)
    if not found and (seen := folder.file("request.json")):
        found.append(_resource(seen))
    return found


def _resource(seen: FileSeen) -> dict[str, Any]:
    return {"name": seen.name, "digest": {"sha256": seen.sha256}, "annotations": {"bytes": seen.bytes}}


def _digest(folder: Folder, name: str) -> str | None:
    seen = folder.file(name)
    return seen.sha256 if seen else None


def _dependencies(plan: Line, machine: Machine, checkpoint_sha256: Hash) -> list[dict[str, Any]]:
    found = []
    for part, planned in sorted(plan.get("files", {}).items()):
        annotations = {"part": part, **{k: v for k, v in planned.items() if k != "path"}}
        resource: dict[str, Any] = {"name": PurePath(planned["path"]).name, "annotations": annotations}
        try:
            resource["digest"] = {"sha256": checkpoint_sha256(Path(planned["path"]))}
        except OSError as error:
            annotations["sha256_reason"] = f"the file cannot be read: {error.strerror}"
        found.append(resource)
    commit = machine.facts.get("commit")
    code: dict[str, Any] = {"name": "shotclock", "uri": f"pkg:pypi/shotclock@{__version__}", "annotations": {}}
    if commit is not None and commit.value is not None:
        code["digest"] = {"gitCommit": commit.value}
        code["annotations"]["dirty"] = machine.facts["dirty"].value
    elif commit is not None:
        code["annotations"]["commit_reason"] = commit.reason
    packages = [
        {"name": name, "uri": f"pkg:pypi/{name}@{quote(version)}"} for name, version in machine.libraries.items()
    ]
    return [*found, code, *packages]


def _finished(begun: str, run: RunFacts) -> str | None:
    """Begin of the first attempt plus its wall; None after a resume, whose pauses the log does not time."""
    wall = run.facts["wall"].value
    if not begun or run.attempt > 1 or not isinstance(wall, float):
        return None
    return (datetime.fromisoformat(begun) + timedelta(seconds=wall)).astimezone(UTC).isoformat(timespec="seconds")
