"""Finds the first stage of a render whose numbers are not finite, before a conversion to integers hides it.

Works on NumPy arrays and on anything with torch's ``isfinite`` method, and imports neither torch nor a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from shotclock.errors import RequestError

FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}  # dtypes of the safetensors format that NumPy knows


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The first stage with NaN or Inf: how many of how many values, and the index of the first one."""

    stage: str
    nans: int
    infinities: int
    values: int
    first_index: tuple[int, ...]

    def __str__(self) -> str:
        where = ", ".join(map(str, self.first_index))
        return f"{self.stage}: {self.nans} NaN and {self.infinities} Inf of {self.values} values, first at [{where}]"


def first_non_finite(stages: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> NonFinite | None:
    """The first stage, in the order given, that holds NaN or Inf; ``None`` when all are finite.

    Stages are arrays or tensors of any shape and dtype; an iterator of pairs is read only as far as needed, so that
    a stage may be computed lazily. On a device this costs one reduction and one read of a boolean a stage.
    """
    pairs = stages.items() if isinstance(stages, Mapping) else stages
    for stage, values in pairs:
        finite = values.isfinite() if hasattr(values, "isfinite") else np.isfinite(np.asarray(values))
        if not bool(finite.all()):
            return _describe(stage, values)
    return None


def _describe(stage: str, values: Any) -> NonFinite:
    """Counts and the first place, taken on the host; ``double`` because NumPy has no bfloat16."""
    host = values.detach().double().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    bad = ~np.isfinite(host)
    first = np.unravel_index(int(np.argmax(bad)), host.shape)
    return NonFinite(
        stage=stage,
        nans=int(np.isnan(host).sum()),
        infinities=int(np.isinf(host).sum()),
        values=int(host.size),
        first_index=tuple(int(axis) for axis in first),
    )


def stored_tensors(path: Path, *, most_bytes: int) -> Iterator[tuple[str, Any]]:
    """(stage, values) of every tensor of a safetensors file in the order of names, bfloat16 widened to float32.

    Raises :class:`RequestError` when it is no such file, larger than ``most_bytes``, or of a dtype not read here.
    """
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise _refusal(path, f"has {size:,} bytes, over the limit of {most_bytes:,}")
        found = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]  # it has no annotations
    except (OSError, SafetensorError) as error:
        raise _refusal(path, f"cannot be read: {error}") from error
    for name, tensor in sorted(found, key=lambda named: str(named[0])):
        yield f"{path.stem} {name}", _array(path, tensor)


def _array(path: Path, tensor: Mapping[str, Any]) -> np.ndarray:
    content, shape = tensor["data"], tensor["shape"]
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        return (np.frombuffer(content, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if tensor["dtype"] not in FLOATS:
        raise _refusal(path, f"holds {tensor['dtype']}")
    return np.frombuffer(content, FLOATS[tensor["dtype"]]).reshape(shape)


def _refusal(path: Path, what: str) -> RequestError:
    return RequestError(
        f"{path} {what}",
        allowed=f"safetensors of BF16, {', '.join(FLOATS)}",
        way_out="let the render write its latents again, or judge its clip.mp4 alone",
    )
