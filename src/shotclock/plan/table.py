"""Which clips fit a lease at how many steps: a table of sizes and lengths around the wish, every cell with its seconds.

Prices what it is told to; reads no file and draws nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from shotclock.geometry import MAX_FRAMES, MAX_SIDE, SPACE_SCALE, TIME_SCALE, Geometry
from shotclock.plan.forecast import Forecast
from shotclock.plan.ledger import Fit, Ledger

AREAS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the wish's pixels
LENGTHS = (0.25, 0.5, 1.0, 2.0)  # of the wish's frames
STEP_SHARES = (0.25, 0.5, 1.0)  # of the wish's steps
MIN_STEPS = 2
MARKS = {Fit.FITS: "yes", Fit.LIKELY: "yes*", Fit.UNKNOWN: "?", Fit.TOO_LONG: "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One clip: a ledger for each number of steps, and what memory says."""

    geometry: Geometry
    ledgers: tuple[Ledger, ...]
    refused: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows by tokens; ``steps`` are the columns."""

    steps: tuple[int, ...]
    rows: tuple[TableRow, ...]

    def lines(self) -> list[str]:
        """One line a clip: whole seconds and whether they fit."""
        head = f"{'clip':<28}{'tokens':>9}" + "".join(f"{f'{count} steps':>20}" for count in self.steps)
        said = [head]
        for row in self.rows:
            cells = "".join(f"{_cell(ledger, row.refused):>20}" for ledger in row.ledgers)
            said.append(f"{row.geometry!s:<28}{row.geometry.video_tokens:>9,}{cells}")
        said.append(
            "yes: at its upper end; yes*: at its typical value; ?: a floor or a guess; no: too long; memory: refused"
        )
        return said

    def to_json(self) -> list[dict[str, Any]]:
        """For ``--json``."""
        return [
            {
                "geometry": str(row.geometry),
                "video_tokens": row.geometry.video_tokens,
                "refused": row.refused,
                "steps": {
                    str(count): {"seconds": ledger.needs.typical_s, "fit": str(ledger.fit)}
                    for count, ledger in zip(self.steps, row.ledgers, strict=True)
                },
            }
            for row in self.rows
        ]


def reach_table(forecast: Forecast) -> Table:
    """Sizes of the wish's shape from a quarter to four times its area, lengths from a quarter to twice its frames."""
    case = forecast.case
    shares = (1.0,) if case.fixed_steps else STEP_SHARES
    steps = tuple(sorted({max(MIN_STEPS, round(share * case.steps)) for share in shares}))
    clips = {scaled(case.geometry, area, length) for area in AREAS for length in LENGTHS}
    ordered = sorted(
        (clip for clip in clips if clip and case.legal(clip)), key=lambda clip: (clip.video_tokens, clip.frames)
    )
    rows = tuple(
        TableRow(
            geometry=clip,
            ledgers=tuple(forecast.price(clip, case.guidance, count) for count in steps),
            refused=forecast.refuses(clip),
        )
        for clip in ordered
    )
    return Table(steps=steps, rows=rows)


def scaled(wish: Geometry, area: float, length: float) -> Geometry | None:
    """The legal clip nearest to so much of the wish's area and length; None where none is."""
    side = area**0.5
    columns, rows = max(1, round(wish.columns * side)), max(1, round(wish.rows * side))
    frames = TIME_SCALE * max(1, round((wish.frames - 1) * length / TIME_SCALE)) + 1
    too_large = max(columns, rows) * SPACE_SCALE > MAX_SIDE or frames > MAX_FRAMES
    if too_large or Fraction(frames) / wish.fps < Fraction(1, 25):
        return None
    return Geometry(width=columns * SPACE_SCALE, height=rows * SPACE_SCALE, frames=frames, fps=wish.fps)


def _cell(ledger: Ledger, refused: str | None) -> str:
    mark = "memory" if refused else MARKS[ledger.fit] if ledger.lease_s is not None else ""
    return f"{ledger.needs.typical_s:,.0f} s {mark}".rstrip()
