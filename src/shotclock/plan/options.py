"""Other ways to spend a lease: the same clip with fewer legs or fewer steps, each with its price.

Prices what it is told to; knows neither laws nor devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shotclock.geometry import Geometry
from shotclock.guidance import Guidance
from shotclock.plan.ledger import DENOISE, Fit, Ledger
from shotclock.plan.planner import without

MIN_STEPS = 2  # of a schedule (request.py)
LEGS_OFF = (  # flags of `shotclock render` and the scales that they set in both streams
    ("--stg 0", {"stg": 0.0}),
    ("--modality 1", {"modality": 1.0}),
    ("--cfg 1", {"cfg": 1.0}),
    ("--stg 0 --modality 1", {"stg": 0.0, "modality": 1.0}),
    ("--stg 0 --modality 1 --cfg 1", {"stg": 0.0, "modality": 1.0, "cfg": 1.0}),
)

Pricing = Callable[[Geometry, Guidance, int], Ledger]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way out: the flags that take it, its ledger, and the denoising of the wish that it stands against."""

    flags: str
    ledger: Ledger
    wish_denoise_s: float

    @property
    def fits(self) -> bool:
        """Within the lease at typical durations that were measured."""
        return self.ledger.fit in (Fit.FITS, Fit.LIKELY)

    @property
    def possible(self) -> bool:
        """Not known to be too long."""
        return self.ledger.fit is not Fit.TOO_LONG

    def line(self) -> str:
        """Flags, seconds and share of the wish's denoising."""
        denoise = self.ledger.row(DENOISE)
        share = f" ({denoise.typical_s / self.wish_denoise_s:.0%})" if self.wish_denoise_s else ""
        all_s = self.ledger.needs.typical_s
        return f"{self.flags}: denoise {denoise.typical_s:,.1f} s{share}, {all_s:,.1f} s in all: {self.ledger.fit}"


def fewer_legs(geometry: Geometry, guidance: Guidance, steps: int, price: Pricing) -> tuple[Option, ...]:
    """Each guidance term off that is on, alone and together; the picture changes with them."""
    wish_s = price(geometry, guidance, steps).row(DENOISE).typical_s
    options, seen = [], {guidance}
    for flags, off in LEGS_OFF:
        less = without(guidance, off)
        if less not in seen:
            seen.add(less)
            options.append(Option(flags=flags, ledger=price(geometry, less, steps), wish_denoise_s=wish_s))
    return tuple(options)


def fewer_steps(geometry: Geometry, guidance: Guidance, steps: int, price: Pricing) -> tuple[Option, ...]:
    """The most steps that fit, where the wish has too many; none where not even two do."""
    wish = price(geometry, guidance, steps)
    if wish.fit is not Fit.TOO_LONG:
        return ()
    fitting, too_many = MIN_STEPS - 1, steps
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if price(geometry, guidance, middle).fit is Fit.TOO_LONG:
            too_many = middle
        else:
            fitting = middle
    if fitting < MIN_STEPS:
        return ()
    ledger = price(geometry, guidance, fitting)
    return (Option(flags=f"--steps {fitting}", ledger=ledger, wish_denoise_s=wish.row(DENOISE).typical_s),)
