"""What the ranks of one render tell one another between forwards: rank 0 speaks, the others do as it says.

Knows torch.distributed and a seat; not what is said.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
from torch import distributed

from shotclock.errors import RenderFailed
from shotclock.render.ranks import Seat

LONGEST_WAIT_S = 24 * 3600.0  # of a collective: ranks wait while rank 0 encodes text, and their starter sees hangs


def _frozen(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


copyreg.pickle(MappingProxyType, lambda frozen: (_frozen, (dict(frozen),)))  # headers hold such


@contextmanager
def joined(seat: Seat, device: torch.device, *, timeout_s: float = LONGEST_WAIT_S) -> Iterator[None]:
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


def tell(word: object) -> None:
    """Of rank 0: every other rank's :func:`hear` returns ``word``, whose tensors lie on the CPU."""
    distributed.broadcast_object_list([word], src=0, device=torch.device("cpu"))


def hear() -> Any:
    """What rank 0 tells next; one decision at one boundary, since no rank goes on without it.

    A rank that left on its own would let the others hang in their next exchange.
    """
    words: list[Any] = [None]
    distributed.broadcast_object_list(words, src=0, device=torch.device("cpu"))
    return words[0]


def wait_for_all() -> None:
    """Returns once every rank is here."""
    distributed.all_reduce(torch.zeros(1))


def lost(seat: Seat, error: RuntimeError) -> RenderFailed | None:
    """The error in the user's terms where it says that another rank is gone; None where it says something else."""
    if not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
        return None
    return RenderFailed(
        f"rank {seat.rank} of {seat.ranks} lost another one: {str(error).splitlines()[0][:200]}",
        allowed="ranks that all live as long as the render",
        way_out="`shotclock resume RUN` goes on from the last snapshot; the last message names the rank that failed",
    )
