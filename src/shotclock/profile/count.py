"""Operations and bytes of each part of a step, from the shapes that its operations are really called with.

Bytes are the least that an operation moves: each input, weight and output once. Counts, not seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shotclock.model.quantise import RowScaledLinear
from shotclock.profile.ranges import At, Do, Part, marked, part_of
from shotclock.profile.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a part of the step needs at least."""

    flops: int
    moved_bytes: int


def count(work: Workload) -> Mapping[Part, Counted]:
    """Run one step and count; matrix products and attention have operations, everything named has bytes."""
    found: dict[Part, list[int]] = {part: [0, 0] for part in Part}
    at: list[At] = []

    def counted(label: At | Do, arguments: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        if isinstance(label, At):
            at.append(label)
            try:
                return run()
            finally:
                at.pop()
        out = run()
        entry = found[part_of(at[-1] if at else None, label)]
        entry[0] += flops_of(label, arguments)
        entry[1] += sum(map(bytes_of, _tensors(arguments))) + sum(map(bytes_of, _tensors(out)))
        return out

    with marked(counted):
        work.step()
    return {part: Counted(flops=flops, moved_bytes=moved) for part, (flops, moved) in found.items()}


def flops_of(label: Do, arguments: tuple[Any, ...]) -> int:
    """Two an addend of a matrix product."""
    if label is Do.ATTEND:
        q, k, v = arguments[:3]
        return int(2 * q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3]))
    if label is Do.PROJECT:
        first, second = arguments[0], arguments[1]  # (layer, x) or, of linear_gelu, (x, weight)
        x, weight = (second, first.weight) if isinstance(first, nn.Module) else (first, second)
        return int(2 * x.numel() * torch.as_tensor(weight).shape[0])
    return 0


def bytes_of(tensor: Tensor) -> int:
    """Bytes that a tensor has in memory: an axis that repeats one value costs nothing."""
    values = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        values *= size if stride else 1
    return values * tensor.element_size()


def _tensors(value: object) -> list[Tensor]:
    """All tensors in it; those of a layer are its weights."""
    match value:
        case torch.Tensor():
            return [value]
        case RowScaledLinear() | nn.Linear():
            return [*value.parameters(), *value.buffers()]
        case list() | tuple():
            return [tensor for one in value for tensor in _tensors(one)]
        case _ if hasattr(value, "cos") and hasattr(value, "sin"):
            return [value.cos, value.sin]
        case _:
            return []
