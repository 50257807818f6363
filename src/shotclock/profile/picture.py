"""Draws rows of named seconds as stacked horizontal bars, one PNG. Knows no profile and no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDE_IN, ROW_IN, HEAD_IN = 10.0, 0.45, 2.2  # inches
LEGEND_COLUMNS = 5
COLOURS = ("#3b6fb6", "#6aa3d8", "#a9cbe8", "#d98f3d", "#5f9e6e", "#b8a13c", "#8c6bb1", "#9a9a9a", "#c95f5f", "#e3e3e3")
LABEL_SHARE = 0.045  # narrower stretches have no number on them


def draw(path: Path, title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> None:
    """One bar a row, the first on top; names keep one colour in all rows, those of nothing but zeros are left out."""
    names = list(dict.fromkeys(name for _, parts in rows for name, seconds in parts.items() if seconds > 0))
    longest_s = max(sum(parts.values()) for _, parts in rows)
    figure = Figure(figsize=(WIDE_IN, HEAD_IN + ROW_IN * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        for place, (_, parts) in enumerate(rows):
            seconds = parts.get(name, 0.0)
            left = sum(parts.get(before, 0.0) for before in names[:number])
            colour = COLOURS[number % len(COLOURS)]
            axes.barh(place, seconds, left=left, color=colour, label=name if place == 0 else None, height=0.7)
            if seconds >= LABEL_SHARE * longest_s:
                axes.text(left + seconds / 2, place, f"{seconds:.3g}", ha="center", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_xlim(0, longest_s * 1.01)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)
