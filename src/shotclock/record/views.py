"""The parts a report page is made of, as values that a template can show without deciding anything.

Knows neither runs nor HTML. A cell that was not recorded says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from shotclock.record.pictures import Film
from shotclock.record.plots import Plot
from shotclock.record.seen import Missing

Cell = str | Missing
NARROW_COLUMNS, NARROW_LETTERS = 4, 44  # of a row that still fits on a phone


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A labelled figure; ``note`` says what it brackets."""

    label: str
    value: Cell
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows below their heads. ``numbers`` are columns set flush right.

    On a phone a wide table becomes cards, one a row; two columns of words stand one above the other.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    numbers: tuple[int, ...] = ()
    title: str = ""
    note: str = ""

    @property
    def form(self) -> str:
        """Of the style sheet: plain, pairs or cards."""
        if len(self.head) == 2 and not self.numbers:
            return "cards pairs"
        longest = max((sum(len(cell) for cell in row if isinstance(cell, str)) for row in self.rows), default=0)
        return "cards" if len(self.head) > NARROW_COLUMNS or longest > NARROW_LETTERS else "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a strip: ``share_percent`` of its length, in the colour of ``tone``."""

    label: str
    share_percent: float
    tone: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Time from left to right."""

    label: str
    parts: tuple[Part, ...]
    legend: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page. ``missing`` stands in for all of it where nothing was recorded."""

    name: str
    title: str
    lead: str = ""
    missing: Missing | None = None
    facts: tuple[Fact, ...] = ()
    strips: tuple[Strip, ...] = ()
    plot: Plot | None = None
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that must be read first: why it stopped, with the sum, or what failed and the way out."""

    tone: str
    title: str
    lines: tuple[str, ...]
    table: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """The clip as the page plays it: ``source`` is a data URI or the name of a file beside the page."""

    source: str
    poster: str | None
    width: int
    height: int
    note: str
    draft: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule of the verdict, ready to be shown."""

    rule: str
    arm: str
    outcome: str
    tone: str
    metric: str
    value: Cell
    limit: str
    margin: Cell
    source: str
    meaning: str
    as_asked: str
    way_out: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict: outcome, arms, findings that ask for attention, those that pass, and what was not judged."""

    outcome: str
    tone: str
    arms: tuple[tuple[str, str, str], ...]
    loud: tuple[Finding, ...]
    quiet: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole report. ``tone`` colours the word that says how the run stands."""

    title: str
    line: str
    word: str
    tone: str
    lead: str
    alerts: tuple[Alert, ...]
    tiles: tuple[Fact, ...]
    player: Player | Missing
    film: Film | Missing
    sheet: str | None
    sound: Plot | Missing
    sound_line: str
    sections: tuple[Section, ...]
    judged: Judged | Missing
    command: str | Missing
    not_shown: tuple[str, ...] | Missing
    provenance: Section
    version: str
