"""The ledger of a render: how long each part takes and who says so, and what of the lease it leaves.

Sums only; the parts' durations come from laws, rates and guesses elsewhere. Knows no model, device or clock.
"""

from __future__ import annotations

from enum import StrEnum

from shotclock.plan.estimate import Estimate, Seconds, total
from shotclock.request import Document

DENOISE = "denoise"  # the row that geometry, steps and legs decide
RESERVE_SHARE = 0.02  # of the lease; a guess, no run has measured what goes wrong between the last write and the end
RESERVE_MIN_S, RESERVE_MAX_S = 2.0, 300.0


class Fit(StrEnum):
    """Whether a render ends within its lease."""

    FITS = "fits"  # with every part at its upper end
    LIKELY = "likely"  # with every part at its typical value
    UNKNOWN = "not known, a floor or guesses"
    TOO_LONG = "too long"


class Basis(StrEnum):
    """What an estimate rests on."""

    LAW = "law"  # passes measured on this device, build and model
    RATE = "rate"  # phases measured on this device and build
    FLOOR = "floor"  # counted operations at a measured matrix rate: less cannot be
    GUESS = "guess"  # nothing was measured
    MEASURED = "measured"  # it has already gone by
    NONE = "none"  # it does not happen, or is part of another row


class Row(Document):
    """One part of a render."""

    name: str
    estimate: Estimate
    basis: Basis


class Ledger(Document):
    """Parts in the order they run, the reserve, and the lease; None is a lease without an end."""

    lease_s: Seconds | None
    lease_source: str
    reserve_s: Seconds
    rows: tuple[Row, ...]

    @property
    def needs(self) -> Estimate:
        """All parts, without the reserve."""
        return total((row.estimate for row in self.rows), "sum")

    @property
    def least_s(self) -> float:
        """What is known to be needed: typical parts, and the lower ends of those that are guessed."""
        return sum(row.estimate.low_s if row.basis is Basis.GUESS else row.estimate.typical_s for row in self.rows)

    @property
    def free_s(self) -> float | None:
        """What typical parts and the reserve leave of the lease; negative where they do not fit."""
        return None if self.lease_s is None else self.lease_s - self.needs.typical_s - self.reserve_s

    @property
    def fit(self) -> Fit:
        """Against the lease less the reserve. A guess refuses nothing, a floor and a guess promise nothing."""
        if self.lease_s is None:
            return Fit.FITS
        if self.least_s + self.reserve_s > self.lease_s:
            return Fit.TOO_LONG
        floor = any(row.basis is Basis.FLOOR for row in self.rows)
        if floor or self.needs.typical_s + self.reserve_s > self.lease_s:
            return Fit.UNKNOWN
        return Fit.FITS if self.needs.high_s + self.reserve_s <= self.lease_s else Fit.LIKELY

    def row(self, name: str) -> Estimate:
        """The estimate of a part."""
        return next(row.estimate for row in self.rows if row.name == name)

    def leaves_s(self, name: str) -> float | None:
        """What of the lease is left for the part ``name`` when all others and the reserve are taken off."""
        return None if self.free_s is None else self.free_s + self.row(name).typical_s

    def lines(self) -> list[str]:
        """A table whose typical column sums to the lease."""
        shown = [
            f"{row.name:<15}{row.estimate.typical_s:>12,.1f} s {row.estimate.low_s:>10,.1f} to "
            f"{row.estimate.high_s:>10,.1f} s  {row.estimate.source}"
            for row in self.rows
        ]
        shown.append(f"{'reserve':<15}{self.reserve_s:>12,.1f} s{'guess, kept for what nobody foresaw':>62}")
        if self.lease_s is None:
            return [*shown, f"{'sum':<15}{self.needs.typical_s + self.reserve_s:>12,.1f} s  lease: {self.lease_source}"]
        return [
            *shown,
            f"{'free':<15}{self.free_s or 0.0:>12,.1f} s",
            f"{'lease':<15}{self.lease_s:>12,.1f} s  {self.lease_source}: {self.fit}",
        ]


def default_reserve_s(lease_s: float | None) -> float:
    """2 % of the lease, between 2 and 300 s; the lower end where there is no end to keep away from."""
    return RESERVE_MIN_S if lease_s is None else min(max(RESERVE_SHARE * lease_s, RESERVE_MIN_S), RESERVE_MAX_S)
