"""A device's utilisation over a run, in words: context beside its forwards, from which no forward is ever inferred.

A counter of busy-to-idle edges sees nothing on a saturated device: zero edges there is SATURATED, not idle (seeds: a
rung above 50 % in 2,704 of 3,191 samples had none). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

BUSY = 0.5  # of a reading's window; the seeds' threshold
MOSTLY = 0.5  # of the readings: from here on no edge means that there was no idle reading to fall to


class Load(StrEnum):
    """What the edges can say."""

    SATURATED = "SATURATED"
    IDLE = "IDLE"
    EDGES = "EDGES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Counts over ``readings`` that told it: above half, and from such a one to one that was not."""

    readings: int
    busy: int
    edges: int

    @property
    def load(self) -> Load:
        """SATURATED where a counter of edges is blind."""
        if self.edges:
            return Load.EDGES
        return Load.SATURATED if self.busy >= MOSTLY * self.readings else Load.IDLE

    def __str__(self) -> str:
        words = {
            Load.SATURATED: "SATURATED: no forward can be seen from outside, and zero is not idle",
            Load.IDLE: "IDLE: the device had nothing to do",
            Load.EDGES: "busy and idle by turns",
        }
        return (
            f"above {BUSY:.0%} in {self.busy:,} of {self.readings:,} readings, {self.edges:,} busy-to-idle edges, "
            f"{words[self.load]} (context only: forwards are timed from inside)"
        )


def utilisation_of(readings: Sequence[float | None]) -> Utilisation | None:
    """Of shares from 0 to 1 in order; a reading that tells none is left out, None where none tells any."""
    known = [one > BUSY for one in readings if one is not None]
    if not known:
        return None
    return Utilisation(
        readings=len(known), busy=sum(known), edges=sum(one and not other for one, other in pairwise(known))
    )
