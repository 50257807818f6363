"""Rungs that a plan rejected, as a record holds them: the arithmetic of each, in numbers and in words.

Reads the plan's values and computes nothing; imports no plan at run time, and so no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shotclock.record import runfacts

if TYPE_CHECKING:
    from shotclock.plan.reach import Rung

DENOISE = "denoise"  # plan/ledger.py


def rejected_rungs(rungs: Iterable[Rung]) -> tuple[runfacts.Rung, ...]:
    """Those of a plan's search that do not fit, in its order."""
    return tuple(
        runfacts.Rung(
            geometry=str(rung.geometry),
            video_tokens=rung.geometry.video_tokens,
            needs_s=rung.ledger.row(DENOISE).typical_s,
            leaves_s=rung.ledger.leaves_s(DENOISE),
            line=rung.line(),
        )
        for rung in rungs
        if not rung.fits
    )
