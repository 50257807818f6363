"""What the ranks of one render tell one another between forwards: whether to go on, and that a snapshot is written.

Knows torch.distributed and a seat; not what is decided or written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from shotclock.render.ranks import Seat


@contextmanager
def joined(seat: Seat, device: torch.device, *, timeout_s: float) -> Iterator[None]:
    """Within it, the processes of all seats are one group; collectives that wait longer than ``timeout_s`` raise.

    ``device`` is this rank's own: a CUDA device exchanges through NCCL, whatever lies on the host through gloo.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{seat.rendezvous}",
        rank=seat.rank,
        world_size=seat.ranks,
        timeout=timedelta(seconds=timeout_s),
    )
    yield
    distributed.destroy_process_group()  # not after an error: it may wait for a rank that is gone


def agreed(code: int) -> int:
    """The largest of all ranks' codes, so that one decision is taken at one boundary: 0 goes on, others end.

    Every rank calls it at each boundary; one that left on its own would let the others hang in their next exchange.
    """
    codes = torch.tensor([code], dtype=torch.int64)
    distributed.all_reduce(codes, op=distributed.ReduceOp.MAX)
    return int(codes)


def wait_for_all() -> None:
    """Returns once every rank is here: after rank 0 wrote a snapshot, say."""
    agreed(0)
