"""The cluster: submitit's executor as this project uses it, what was submitted, and the scheduler's word on it.

The queue's folder holds ``queue.json``, a run folder for each request with its tally beside it, and ``jobs``, which is
submitit's own. Knows nothing of rendering.
"""

from __future__ import annotations

import logging
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from pydantic import ValidationError

from shotclock.errors import RequestError, RunDirError, ShotclockError
from shotclock.lease import parse_length
from shotclock.request import Document

if TYPE_CHECKING:
    from submitit import AutoExecutor

logger = logging.getLogger(__name__)

QUEUE = "queue.json"
JOBS = "jobs"  # submitit's files lie there, beside the run folders
MAX_LEASES = 10_000  # submitit's own bound is 3, and it fails a healthy job there (lease.md)
SECONDS_ASKED = 30.0
# A signal before submitit listens (128 + SIGUSR2) and a second one while a pass runs (75) end the process without a
# word to the scheduler: the batch script asks for the next lease then.
ASK_AGAIN = 'case $? in 75|140) scontrol requeue "$SLURM_JOB_ID";; esac'


class Queued(Document):
    """A request that was submitted: line of the batch, name of its run folder, its prompt, the scheduler's job id."""

    line: int
    name: str
    prompt: str
    job_id: str


class Queue(Document):
    """A batch that was submitted: queue.json."""

    format: Literal["shotclock/queue/1"] = "shotclock/queue/1"
    cluster: Literal["slurm", "local"]
    partition: str | None
    lease: str
    requests: tuple[Queued, ...]


def read_queue(folder: Path) -> Queue:
    """The batch of a folder; raises :class:`RunDirError` where there is none."""
    try:
        return Queue.model_validate_json((folder / QUEUE).read_bytes())
    except (OSError, ValidationError) as bad:
        why = bad.strerror if isinstance(bad, OSError) else f"{QUEUE} is not what submit writes"
        raise RunDirError(
            f"{folder} holds no queue: {why}",
            allowed="a folder that `shotclock submit` made",
            way_out="name the folder that it printed",
        ) from None


def parse_sbatch(pairs: Sequence[str]) -> dict[str, str | bool]:
    """ "gres=gpu:1" and "exclusive" as options of sbatch."""
    found: dict[str, str | bool] = {}
    for pair in pairs:
        name, equals, value = pair.removeprefix("--").partition("=")
        if not name or (equals and not value):
            raise RequestError(f"--sbatch {pair!r}", allowed="NAME or NAME=VALUE", way_out="write it like gres=gpu:1")
        found[name] = value if equals else True
    return found


def require_new(folder: Path) -> None:
    """Refuse a folder that holds anything: the run folders have to be new."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunDirError(
            f"{folder} is not empty",
            allowed="a new or empty folder",
            way_out="name another --folder; `shotclock queue` shows one that was submitted",
        )


def require_cluster(cluster: str, sbatch: Mapping[str, str | bool], partition: str | None) -> None:
    """Refuse a cluster that submitit is not asked for here, and what only Slurm understands elsewhere."""
    if cluster not in ("slurm", "local"):
        raise RequestError(f"--cluster {cluster!r}", allowed="slurm or local", way_out="name one of them")
    if cluster == "local" and (sbatch or partition):
        raise RequestError(
            "--partition or --sbatch on the local cluster", allowed="them on slurm", way_out="leave them out"
        )


def executor_of(
    folder: Path, cluster: str, lease: str, partition: str | None, sbatch: Mapping[str, str | bool]
) -> AutoExecutor:
    """submitit as this project uses it: every lease a whole number of minutes, requeued until done."""
    from submitit import AutoExecutor

    folder.mkdir(parents=True, exist_ok=True)
    limits = {"slurm_max_num_timeout": MAX_LEASES, "local_max_num_timeout": MAX_LEASES}
    try:
        executor = AutoExecutor(folder=folder / JOBS, cluster=cluster, **limits)
    except RuntimeError as bad:
        raise RequestError(
            f"no Slurm here: {bad}", allowed="a machine with srun and sbatch", way_out="--cluster local tries a batch"
        ) from None
    minutes = math.ceil(parse_length(lease) / 60)
    executor.update_parameters(
        timeout_min=minutes + (cluster == "local"),  # its early signal cannot be moved: 30 s before the end
        slurm_partition=partition,
        slurm_signal_delay_s=0,  # the wall clock decides; Slurm's early signal comes up to a minute earlier than asked
        slurm_additional_parameters={"requeue": True, "open-mode": "append", **sbatch},
        slurm_srun_args=["--open-mode=append"],
        slurm_teardown=[ASK_AGAIN],
        local_gpus_per_node=_gpus() if cluster == "local" else None,
    )
    return executor


def _gpus() -> int:
    """GPUs that a local worker may see: all."""
    import torch

    return torch.cuda.device_count()


def job_states(queue: Queue) -> dict[str, str] | None:
    """The scheduler's word on each job by id, in Slurm's words; a job it does not know is left out.

    None where it cannot be asked.
    """
    ids = {request.job_id for request in queue.requests}
    if queue.cluster == "local":
        return {one: "RUNNING" for one in ids if _is_controller(int(one))}
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--me", "--states=all", "--format=%i %T"],
            capture_output=True,
            text=True,
            timeout=SECONDS_ASKED,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as bad:
        logger.warning("the scheduler cannot be asked: %s", bad)
        return None
    return {one: state for one, state in map(str.split, asked.stdout.splitlines()) if one in ids}


def _is_controller(number: int) -> bool:
    """Whether a process is submitit's local scheduler of a job, not another that has its number by now."""
    try:
        process = psutil.Process(number)
        return "submitit.local._local" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def require_submitit() -> None:
    """Raises :class:`ShotclockError` with the command that installs it."""
    try:
        import submitit
    except ModuleNotFoundError:
        raise ShotclockError(
            "submitit is not installed", allowed="the extra `slurm`", way_out="pip install 'shotclock[slurm]'"
        ) from None
    assert submitit
