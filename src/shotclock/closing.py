"""What follows a render, however it ended: the clip's tag, its verdict, the record. For the commands and the workers.

The render itself knows none of them: it is handed :func:`finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import shotclock
from shotclock.errors import DoesNotFit, ShotclockError
from shotclock.lease import Lease
from shotclock.record.derive import run_id
from shotclock.record.essence import write_tag
from shotclock.record.folder import read_folder
from shotclock.record.ledger import Ledger, record_refusal, write_record
from shotclock.record.machine import examine
from shotclock.record.runfacts import Term
from shotclock.record.rungs import rejected_rungs
from shotclock.record.show import history_warnings
from shotclock.render.job import Judged
from shotclock.request import read_request
from shotclock.rundir import RunDir
from shotclock.verify.runs import judge_run

logger = logging.getLogger(__name__)


def finish(path: Path, *, verify: bool, embed: bool) -> Judged:
    """Tag the clip of a run folder with the run that made it, and judge it; raises what either raises."""
    run = RunDir(path)
    if embed and run.events.is_file() and run.clip.is_file():  # a rehearsal has no events, a stopped run no clip
        attempts, request = read_folder(path).attempts, read_request(run.request.read_text())
        write_tag(
            run.clip,
            run=run_id(attempts[0].begins),
            request_sha256=request.digest,
            version=shotclock.__version__,
            seams=tuple(_seam(line) for attempt in attempts for line in attempt.of("Seam")),
            quantised=request.quantise,
        )
    if not verify:
        return Judged(outcome="NOT JUDGED", lines=("no verdict: --no-verify",))
    verdict = judge_run(path, sheet=run.sheet)
    return Judged(outcome=str(verdict.outcome), lines=tuple(verdict.lines()))


def _seam(line: Mapping[str, Any]) -> str:
    return f"after step {line['step']}: {', '.join(sorted(line['differs']))}"


@contextmanager
def recorded(path: Path, home: Path, lease: Lease, *, began_s: float, private: bool, job: str | None) -> Iterator[None]:
    """Leave one record of what happens inside, whether it ends, fails, is stopped or refused by the plan.

    A record that cannot be written is said and does not change how the render ended.
    """
    try:
        yield
    except DoesNotFit as refused:
        with _warned():
            _refusal(home, refused, private=private, job=job)
        raise
    finally:
        with _warned():
            if (path / "events.jsonl").is_file():
                _record(path, home, lease, began_s=began_s, private=private, job=job)


@contextmanager
def _warned() -> Iterator[None]:
    try:
        yield
    except (ShotclockError, OSError) as bad:
        logger.warning("no record of this run: %s", bad)
    except Exception as bad:  # files that somebody edited, say: the render ended as it did
        logger.warning("no record of this run: %s: %s", type(bad).__name__, bad)


def _record(path: Path, home: Path, lease: Lease, *, began_s: float, private: bool, job: str | None) -> None:
    entry = write_record(
        path,
        home,
        examine(device_index=_device_index()),
        private=private,
        job=job,
        lease_source=lease.source,
        lease_s=lease.length_s(began_s),
    )
    records = Ledger.of(home).records()
    mine = [record for record in records if record.entry["n"] == entry["n"]]
    earlier = [record for record in records if record.entry["n"] < entry["n"]]
    for line in history_warnings(mine[0], earlier) if mine else ():
        logger.warning(line)


def _refusal(home: Path, refused: DoesNotFit, *, private: bool, job: str | None) -> None:
    if refused.request is None:
        return  # refused by something smaller than a plan
    ledger = refused.forecast.ledger
    record_refusal(
        home,
        examine(device_index=_device_index()),
        request=refused.request.model_dump(mode="json"),
        request_sha256=refused.request.digest,
        error=refused,
        private=private,
        rejected=rejected_rungs(refused.forecast.reach.rejected),
        terms=tuple(Term(name=row.name, seconds=row.estimate.typical_s) for row in ledger.rows),
        budget_s=ledger.lease_s,
        job=job,
    )


def _device_index() -> int | None:
    """The CUDA device of this process; None where there is none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None
