"""What an attempt says first: the line of the log from which a run can be repeated. Launches nothing."""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from typing import Any

import torch

from shotclock import __version__
from shotclock.render.ahead import cached_shares
from shotclock.render.diffusion_decode import attention_for, attention_name
from shotclock.render.job import Job
from shotclock.render.reopen import logged
from shotclock.render.snapshot import newest_snapshot


def first_line(said: str, job: Job) -> dict[str, Any]:
    """The first line of an attempt: everything that reproduces the run."""
    earlier = sum(line.get("event") == "RunBegins" for line in logged(job.run))
    found = newest_snapshot(job.run) if earlier else None
    plan, lease = job.plan, job.lease
    return {
        "event": "RunBegins",
        "run_id": new_id(),
        "attempt": earlier + 1,
        "resumed_from": found.name if found else None,
        "command": said,
        "version": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "device": plan.device,
        "ranks": [plan.device] * plan.gpus,
        "split": plan.split,
        "dtype": plan.dtype,
        "decoder": job.request.decoder,
        "decoder_attention": decoder_attention(job),
        "law_key": job.foreseen.law_key.model_dump(mode="json"),
        "lease": {"source": lease.source, "end": lease.sources[0].end.isoformat() if lease.sources else None},
        "cached_shares": cached_shares(job.headers),
        "legs_per_pass": job.asked.legs_per_pass,
        "placement": None if (placed := job.foreseen.placement) is None else placed.model_dump(mode="json"),
        "smaller": job.smaller,
        "request_sha256": plan.request_sha256,
        "sigmas_sha256": plan.sigmas_sha256,
        "files": {name: file.model_dump() for name, file in plan.files.items()},
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def new_id() -> str:
    """Of an attempt: its UTC second and six random digits, so that two that begin together are two."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def decoder_attention(job: Job) -> str | None:
    """How the diffusion decoder attends on this device: part of the pictures' numerics, not of the latents'."""
    if job.request.decoder != "diffusion":
        return None
    return attention_name(attention_for(job.device, job.dtype))
