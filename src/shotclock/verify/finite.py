"""Finds the first stage of a render whose numbers are not finite, before a conversion to integers hides it.

Works on NumPy arrays and on anything with torch's ``isfinite`` method, and imports neither torch nor a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


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
