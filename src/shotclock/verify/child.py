"""The child process in which an untrusted clip is decoded: one job on stdin, one JSON answer on stdout.

Started by verifier.py only. Bounds its own memory and processor time first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.verify.document import EXPECTATION
from shotclock.verify.reader import Limits
from shotclock.verify.verifier import judge

GRACE_S = 10  # processor time beyond the wall time, in case the parent is gone and cannot end us
STATM = Path("/proc/self/statm")  # Linux: address space in pages


def main() -> None:
    """Read a job, judge, print the answer; a refusal is an answer too."""
    job = json.load(sys.stdin)
    limits = Limits(**job["limits"])
    _bound(limits)
    print(json.dumps(answer(job, limits)))


def answer(job: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """The verdict, the refusal, or what ran out."""
    try:
        verdict = judge(
            Path(job["clip"]),
            wav=None if job["wav"] is None else Path(job["wav"]),
            expectation=EXPECTATION.validate_json(job["expectation"]),
            limits=limits,
            sheet=None if job["sheet"] is None else Path(job["sheet"]),
        )
    except RequestError as error:
        return {"refused": [error.found, error.allowed, error.way_out]}
    except OSError as error:
        found = f"{error.filename or job['clip']} cannot be read: {error.strerror or error}"
        return {"refused": [found, "a clip that this user may read", "check the path and its permissions"]}
    except MemoryError:
        return {"died": f"out of memory: needs more than {limits.memory_bytes / 2**30:.1f} GiB"}
    return {"verdict": verdict.to_document().to_json()}


def _bound(limits: Limits) -> None:
    """Limit address space (beyond what the interpreter has mapped), processor time and core dumps, where POSIX can."""
    try:
        import resource
    except ImportError:  # Windows: only the parent's time limit holds
        return
    used = int(STATM.read_text().split()[0]) * resource.getpagesize() if STATM.exists() else 0
    _lower(resource, resource.RLIMIT_AS, used + limits.memory_bytes)
    _lower(resource, resource.RLIMIT_CPU, int(limits.wall_s) + GRACE_S)
    _lower(resource, resource.RLIMIT_CORE, 0)


def _lower(resource: Any, which: int, wanted: int) -> None:
    """Lower one limit; a hard limit below ``wanted`` stays."""
    _, hard = resource.getrlimit(which)
    bounded = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (bounded, hard))
