"""Submits a batch: refused before anything is submitted, or every request of it is in the queue."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit import Job

from shotclock.cluster.batch import Entry, read_batch
from shotclock.cluster.slurm import QUEUE, Queue, Queued, executor_of, require_cluster, require_new
from shotclock.cluster.worker import Clocks, Rules, Worker, job_id
from shotclock.errors import RequestError
from shotclock.lease import parse_length
from shotclock.rundir import write_aside

ON_OVERRUN = ("snapshot", "draft")  # stopping for good is no use to a queue


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a batch goes: a new folder, a cluster (slurm or local), and what only Slurm is told."""

    folder: Path
    cluster: str
    partition: str | None
    sbatch: Mapping[str, str | bool]


def submit_batch(
    path: Path,
    defaults: Mapping[str, Any],
    target: Target,
    rules: Rules,
    clocks: Clocks,
    *,
    home: Path,
    say: Callable[[str], None],
) -> Queue:
    """Read and check the whole batch, then submit it; ``defaults`` and ``say`` are those of :func:`read_batch`."""
    require_cluster(target.cluster, target.sbatch, target.partition)
    parse_length(rules.lease)
    if rules.on_overrun not in ON_OVERRUN:
        raise RequestError(
            f"--on-overrun {rules.on_overrun!r}", allowed=", ".join(ON_OVERRUN), way_out="a queue goes on by itself"
        )
    require_new(target.folder)
    entries = read_batch(path, defaults, folder=target.folder, home=home, say=say)
    return submit(entries, target, rules, clocks, home=home)


def submit(entries: Sequence[Entry], target: Target, rules: Rules, clocks: Clocks, *, home: Path) -> Queue:
    """Submit every entry, or none: what the scheduler took before it refused one is cancelled."""
    folder, home = target.folder.absolute(), home.absolute()
    executor = executor_of(folder, target.cluster, rules.lease, target.partition, target.sbatch)
    jobs: list[Job[Any]] = []
    for entry in entries:
        run = folder / entry.name
        worker = Worker(run=run, options=entry.options, rules=rules, home=home, clocks=clocks, job=job_id)
        try:
            executor.update_parameters(name=f"shotclock-{entry.name}")
            jobs.append(executor.submit(worker))
        except (OSError, RuntimeError, subprocess.SubprocessError) as bad:
            for job in jobs:
                job.cancel(check=False)
            raise RequestError(
                f"the scheduler refused {entry.name}: {bad}",
                allowed="what sbatch takes",
                way_out="correct --partition, --lease or --sbatch; nothing is left in the queue",
            ) from None
    queued = tuple(
        Queued(line=entry.line, name=entry.name, prompt=str(entry.options["prompt"]), job_id=str(job.job_id))
        for entry, job in zip(entries, jobs, strict=True)
    )
    said = {"cluster": target.cluster, "partition": target.partition, "lease": rules.lease, "requests": queued}
    queue = Queue.model_validate(said)
    write_aside(folder / QUEUE, queue.to_json().encode())
    return queue
