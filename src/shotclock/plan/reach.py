"""What a lease can reach: the largest legal clip that fits, those that were rejected, and renders over several leases.

Searches geometries and sums durations; what a geometry costs, and whether memory refuses it, is told by the caller.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from shotclock.errors import DoesNotFit
from shotclock.geometry import AUDIO_LATENTS_HZ, SPACE_SCALE, TIME_SCALE, Geometry
from shotclock.plan.ledger import DENOISE, Fit, Ledger

ASPECT_TOLERANCE = 0.02  # width over height may differ by this share from the wished one
MARGIN = 1.5  # times the tokens at the border: from there on every candidate is priced
FEW = 64  # candidates: all are priced
NEAREST_REJECTED = 3  # rungs just above the largest that fits, shown with their arithmetic

Price = Callable[[Geometry], Ledger]
Refuses = Callable[[Geometry], str | None]  # why memory cannot hold a geometry; None where it can


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A geometry with its ledger, and why memory refuses it, if it does."""

    geometry: Geometry
    ledger: Ledger
    refused: str | None

    @property
    def fits(self) -> bool:
        """Within the lease at typical durations that were measured, and within memory."""
        return self.possible and self.ledger.fit in (Fit.FITS, Fit.LIKELY)

    @property
    def possible(self) -> bool:
        """Not known to be too much: what rests on a floor or on guesses may fit."""
        return self.refused is None and self.ledger.fit is not Fit.TOO_LONG

    def line(self) -> str:
        """The arithmetic of the decision."""
        denoise, leaves_s = self.ledger.row(DENOISE), self.ledger.leaves_s(DENOISE)
        said = f"{self.geometry}: {self.geometry.video_tokens:,} tokens, denoise {denoise.typical_s:,.0f} s"
        said += f" ({denoise.typical_s / 3600:.1f} h)"
        if leaves_s is not None:
            said += f" {'>' if self.ledger.fit is Fit.TOO_LONG else '<='} {leaves_s:,.0f} s that the lease leaves"
        return f"{said}: {self.refused or self.ledger.fit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The answer of the search. ``rejected`` are the nearest rungs above ``largest``, the nearest first.

    Where nothing is known to fit, ``largest`` and the others are merely not excluded.
    """

    wish: Rung
    largest: Rung | None
    runner_up: Rung | None
    rejected: tuple[Rung, ...]
    same_length: Rung | None
    same_size: Rung | None

    @property
    def largest_is(self) -> str:
        """What ``largest`` is called."""
        return "largest that fits" if self.largest is None or self.largest.fits else "largest that may fit"

    def lines(self) -> list[str]:
        """The wish, what fits instead, and the rungs between."""
        named = (
            ("wish", self.wish),
            (self.largest_is, self.largest),
            ("runner-up", self.runner_up),
            ("same length, smaller", self.same_length),
            ("same size, shorter", self.same_size),
        )
        said = [f"{name}: {rung.line() if rung else 'none'}" for name, rung in named]
        return [*said, *(f"rejected: {rung.line()}" for rung in self.rejected)]

    def require(self, options: Sequence[str]) -> None:
        """Raises :class:`DoesNotFit` where the wish does not fit; ``options`` are other ways out, with their prices."""
        if self.wish.possible:
            return
        clip, ledger = self.wish.geometry, self.wish.ledger
        needs_s, leaves_s = ledger.row(DENOISE).typical_s, ledger.leaves_s(DENOISE)
        found = f"{clip} needs {_seconds(needs_s)} s of denoising"
        allowed = "a clip that memory holds" if leaves_s is None else f"the lease leaves {_seconds(max(leaves_s, 0))} s"
        largest = f"{self.largest_is}: {self.largest.geometry}" if self.largest else "no smaller clip fits either"
        raise DoesNotFit(
            f"{found}{f', and {self.wish.refused}' if self.wish.refused else ''}",
            allowed=allowed,
            way_out="; ".join([largest, *options]),
        )


def candidates(wish: Geometry) -> list[Geometry]:
    """Legal geometries no larger and no longer than the wish, within 2 % of its aspect; most tokens first.

    Of equal token counts the longer clip goes first. The wish is one of them.
    """
    aspect = wish.width / wish.height
    sizes = [
        (columns, rows)
        for rows in range(1, wish.rows + 1)
        for columns in range(1, wish.columns + 1)
        if abs(columns / rows / aspect - 1) <= ASPECT_TOLERANCE
    ]
    found = [
        Geometry(width=columns * SPACE_SCALE, height=rows * SPACE_SCALE, frames=frames, fps=wish.fps)
        for columns, rows in sizes
        for frames in range(wish.frames, 0, -TIME_SCALE)
        if round(frames / float(wish.fps) * AUDIO_LATENTS_HZ) >= 1  # shorter has no sound and is illegal
    ]
    return sorted(found, key=lambda clip: (clip.video_tokens, clip.frames, clip.width), reverse=True)


def search(wish: Geometry, price: Price, refuses: Refuses, legal: Callable[[Geometry], bool]) -> Reach:
    """The largest candidate that fits, the next one, and the rungs just above; ``legal`` ones alone are looked at.

    Durations and memory grow with the tokens but for a few percent (sound, shapes), so that the border is found by
    halving and only candidates of up to half as many tokens more are priced one by one. A few are all priced.
    """
    clips = [clip for clip in candidates(wish) if legal(clip)]
    made: dict[Geometry, Rung] = {}

    def rung(clip: Geometry) -> Rung:
        if clip not in made:
            made[clip] = Rung(geometry=clip, ledger=price(clip), refused=refuses(clip))
        return made[clip]

    def first(listed: Sequence[Geometry], good: Callable[[Rung], bool], count: int = 1) -> list[Rung]:
        most = math.inf
        if len(listed) > FEW:
            border = bisect_left(listed, True, key=lambda clip: good(rung(clip)))
            if border == len(listed):
                return []
            most = MARGIN * listed[border].video_tokens
        near = (rung(clip) for clip in listed if clip.video_tokens <= most)
        return list(islice((one for one in near if good(one)), count))

    good: Callable[[Rung], bool] = _fits
    fitting = first(clips, good, 2)
    if not fitting:
        good = _possible
        fitting = first(clips, good, 2)
    largest = fitting[0] if fitting else None
    above = clips[: clips.index(largest.geometry)] if largest else clips
    return Reach(
        wish=rung(wish),
        largest=largest,
        runner_up=fitting[1] if len(fitting) > 1 else None,
        rejected=tuple(rung(clip) for clip in reversed(above[-NEAREST_REJECTED:])),
        same_length=_first(first([clip for clip in clips if clip.frames == wish.frames], good)),
        same_size=_first(
            first([clip for clip in clips if (clip.width, clip.height) == (wish.width, wish.height)], good)
        ),
    )


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _fits(rung: Rung) -> bool:
    return rung.fits


def _possible(rung: Rung) -> bool:
    return rung.possible


def _first(rungs: Sequence[Rung]) -> Rung | None:
    return next(iter(rungs), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One of several leases: seconds before its first pass, its passes, and whether the clip is finished in it."""

    setup_s: float
    passes: int
    finishes: bool
    used_s: float


def split(
    passes: int, pass_s: float, *, lease_s: float, first_s: float, resume_s: float, tail_s: float, reserve_s: float
) -> tuple[Share, ...]:
    """A render over as many leases of one length as it takes.

    ``first_s`` and ``resume_s`` go by before the first pass of the first and of every later lease, ``tail_s`` after the
    last pass. Raises :class:`DoesNotFit` where a lease gets nowhere.
    """
    shares: list[Share] = []
    left = passes
    while not shares or not shares[-1].finishes:
        setup_s = resume_s if shares else first_s
        room_s = lease_s - setup_s - reserve_s
        count = min(left, int(max(room_s, 0.0) / pass_s))
        left -= count
        finishes = left == 0 and room_s - count * pass_s >= tail_s
        if not (count or finishes):
            task = f"one pass of {pass_s:,.0f} s" if left else f"the tail of {tail_s:,.0f} s"
            raise DoesNotFit(
                f"{task} after {setup_s:,.0f} s of setup does not fit a lease of {lease_s:,.0f} s",
                allowed=f"leases of {setup_s + reserve_s + (pass_s if left else tail_s):,.0f} s or more",
                way_out="longer leases, fewer legs per pass, or a smaller clip",
            )
        used_s = setup_s + count * pass_s + (tail_s if finishes else 0.0)
        shares.append(Share(setup_s=setup_s, passes=count, finishes=finishes, used_s=used_s))
    return tuple(shares)
