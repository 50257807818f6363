"""Draws the report's plots as SVG that takes the colours of the page: light, dark and print from one drawing.

Each plot is drawn twice, for a phone and for a desk, so that its letters stay readable. Knows no files; the same
values give the same text.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shotclock.record.figures import duration_text

NARROW, WIDE = 340, 860  # CSS pixels
PIXELS_AN_INCH = 72  # of matplotlib's SVG: one unit a pixel
LETTERS = 12  # pixels
SHARP = 1  # image pixels a CSS pixel: a spectrogram of 2 would be 0.5 MB
# Colours that nobody draws with: each becomes a variable of the page's style sheet.
INK, FAINT, LINE, PAPER = "#010101", "#010102", "#010103", "#010104"
SERIES = ("#010201", "#010202", "#010203", "#010204", "#010205", "#010206")
GOOD, WARN, BAD = "#010301", "#010302", "#010303"
VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    LINE: "--line",
    PAPER: "--paper",
    GOOD: "--good",
    WARN: "--warn",
    BAD: "--bad",
    **{colour: f"--series-{place}" for place, colour in enumerate(SERIES, start=1)},
}
SETTINGS = {
    "svg.fonttype": "none",  # letters stay letters: selectable, and in the font of the page
    "svg.hashsalt": "shotclock",
    "font.size": LETTERS,
    "axes.labelsize": LETTERS,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 1,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
}
LEFT, RIGHT, TOP, BOTTOM, AXIS_LABEL, LEGEND_ROW = 46, 16, 26, 24, 18, 20  # pixels around the axes
FAR = 3.0  # a lease that ends this many times later than the run is named, not drawn to scale
COLUMNS = 600  # of a wave form or a thinned series
SPECTRUM_SAMPLES, DARKEST_DB = 1024, 90.0

Draw = Callable[[Figure, bool], None]  # the figure, and whether it is for a phone


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """The same drawing for a phone and for a desk, as SVG elements; ``says`` is for who cannot see it."""

    name: str
    says: str
    narrow: str
    wide: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dots:
    """Points of one kind; ``hollow`` are kept apart from the statistics."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    hollow: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line over time in seconds; a gap is NaN."""

    label: str
    t_s: tuple[float, ...]
    y: tuple[float, ...]

    def broken(self, after: Sequence[int]) -> Curve:
        """With a gap behind each of these points, where another attempt begins."""
        t_s, y = list(self.t_s), list(self.y)
        for place in sorted(after, reverse=True):
            t_s.insert(place + 1, t_s[place])
            y.insert(place + 1, math.nan)
        return Curve(label=self.label, t_s=tuple(t_s), y=tuple(y))


def draw_passes(dots: Sequence[Dots], median_s: float | None, breaks: Sequence[float]) -> Plot:
    """Seconds of each pass in the order they ran; ``breaks`` are where another attempt goes on."""

    def draw(figure: Figure, phone: bool) -> None:
        axes = figure.subplots()
        for place, kind in enumerate(dots):
            colour = SERIES[place % len(SERIES)]
            for hollow in (False, True):
                picked = [(x, y) for x, y, h in zip(kind.x, kind.y, kind.hollow, strict=True) if h is hollow]
                if picked:
                    face = "none" if hollow else colour
                    label = ("warm-up" if len(dots) == 1 else f"{kind.label}, warm-up") if hollow else kind.label
                    axes.plot(*zip(*picked, strict=True), "o", ms=5, mfc=face, mec=colour, mew=1.4, label=label)
        if median_s is not None:
            axes.axhline(median_s, color=FAINT, lw=1, ls=(0, (4, 3)), label="median, warm-up left out")
        for x in breaks:
            axes.axvline(x, color=FAINT, lw=1, ls=":")
        top = max((y for kind in dots for y in kind.y), default=1.0)
        axes.set_ylim(0, top * 1.12)
        axes.set_xlim(0.3, max((x for kind in dots for x in kind.x), default=1.0) + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(6 if phone else 12, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel("pass")
        _title(axes, "seconds a pass")
        _legend(figure, axes, phone)

    count = sum(len(kind.x) for kind in dots)
    return _plot("passes", f"Seconds of {count} passes in the order they ran", draw, heights=(250, 260))


def draw_projection(
    total: Curve, high: Curve, budgets: Sequence[tuple[float, float, float]], end_s: float | None
) -> Plot:
    """Where the render was expected to end, as time went on; ``budgets`` are (from, to, lease end) of each attempt.

    Everything in seconds, attempts end to end; ``end_s`` is where it did end.
    """

    def draw(figure: Figure, phone: bool) -> None:
        axes = figure.subplots()
        x = np.array(total.t_s)
        axes.fill_between(x, total.y, high.y, color=SERIES[0], alpha=0.15, lw=0, label="with the tail's upper end")
        marker = "o" if len(x) < 2 else ""
        axes.plot(x, total.y, color=SERIES[0], marker=marker, label="projected end")
        if end_s is not None:
            axes.axhline(end_s, color=GOOD, lw=1.4, label="ended")
        values = [*total.y, *high.y, *([] if end_s is None else [end_s])]
        top = max((value for value in values if np.isfinite(value)), default=1.0)
        near = [budget for budget in budgets if budget[2] < FAR * top]
        for place, (begin, end, budget) in enumerate(near):
            axes.plot([begin, end], [budget] * 2, color=BAD, lw=1.4, ls=(0, (5, 3)), label=None if place else "lease")
        if budgets and not near:
            said = f"lease until {duration_text(min(budget for _, _, budget in budgets))}, far above"
            axes.text(1, 1.02, said, transform=axes.transAxes, ha="right", va="bottom", color=BAD)
        axes.set_ylim(0, max([top, *(budget for _, _, budget in near)]) * 1.15)
        _clock(axes.xaxis, max(total.t_s, default=0.0), 5 if phone else 9)
        _clock(axes.yaxis, axes.get_ylim()[1], 4)
        axes.set_xlabel("time of the projection")
        _title(axes, "end of the run")
        _legend(figure, axes, phone)

    return _plot("projection", "Projected end of the run against the lease", draw, heights=(270, 260))


def draw_memory(curves: Sequence[Curve], unit: str) -> Plot:
    """Memory in use over time, in ``unit``."""

    def draw(figure: Figure, phone: bool) -> None:
        axes = figure.subplots()
        for place, curve in enumerate(curves):
            x, y = thin(curve.t_s, curve.y)
            axes.plot(x, y, color=SERIES[place], label=curve.label, marker="o" if len(x) < 2 else "", ms=4)
        top = max((value for curve in curves for value in curve.y if np.isfinite(value)), default=1.0)
        axes.set_ylim(0, top * 1.12 or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        _clock(axes.xaxis, max((t for curve in curves for t in curve.t_s), default=0.0), 5 if phone else 9)
        _title(axes, f"in use, {unit}")
        _legend(figure, axes, phone)

    return _plot("memory", "Memory in use while the run went on", draw, heights=(230, 230))


def draw_sound(samples: Float[np.ndarray, "c n"], rate_hz: int) -> Plot:
    """Wave form of each channel, and a spectrogram of their mean below."""
    seconds = samples.shape[1] / rate_hz
    channels = samples[:2]
    finite = np.nan_to_num(samples.astype(np.float64))
    picture = spectrogram(finite.mean(axis=0), rate_hz)

    def draw(figure: Figure, phone: bool) -> None:
        rows = len(channels)
        heights = [*([1.0] * rows), 2.2]
        every = figure.subplots(rows + 1, 1, sharex=True, gridspec_kw={"height_ratios": heights, "hspace": 0.46})
        for axes, channel, name in zip(every, finite, ("left", "right") if rows > 1 else ("mono",), strict=False):
            low, high = envelope(channel, COLUMNS // 2 if phone else COLUMNS)
            x = np.linspace(0, seconds, len(low))
            axes.fill_between(x, low, high, color=SERIES[0], lw=0.4)
            axes.set_ylim(-1.05, 1.05)
            axes.set_yticks([-1, 0, 1], ["-1", "0", "1"])
            axes.tick_params(labelbottom=False)
            axes.text(1, 1.0, name, transform=axes.transAxes, ha="right", va="bottom", color=FAINT)
        _title(every[0], "wave form, full scale 1")
        below = every[-1]
        reach = (0, seconds, 0, rate_hz / 2000)
        below.imshow(picture, extent=reach, aspect="auto", origin="lower", cmap="magma", interpolation="bilinear")
        below.grid(visible=False)
        below.tick_params(axis="x", pad=7)
        below.yaxis.set_major_locator(MaxNLocator(4))
        _clock(below.xaxis, seconds, 5 if phone else 9)
        _title(below, f"spectrogram, kHz, {DARKEST_DB:.0f} dB down to black")

    return _plot("sound", f"Wave form and spectrogram of {seconds:.2f} s of sound", draw, heights=(390, 390))


def envelope(wave: Float[np.ndarray, " n"], columns: int) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """Lowest and highest sample of each column."""
    parts = [part for part in np.array_split(wave, columns) if part.size]
    return np.array([part.min() for part in parts]), np.array([part.max() for part in parts])


def spectrogram(wave: Float[np.ndarray, " n"], rate_hz: int) -> Float[np.ndarray, "f t"]:
    """Level in dB below the loudest bin, lowest frequency first; silence is the darkest everywhere."""
    size = min(SPECTRUM_SAMPLES, len(wave))
    starts = np.linspace(0, len(wave) - size, min(COLUMNS, max(1, len(wave) * 4 // rate_hz * 100))).astype(int)
    window = np.hanning(size)
    power = np.array([np.abs(np.fft.rfft(wave[start : start + size] * window)) for start in starts]).T
    loudest = power.max()
    if loudest <= 0:
        return np.full(power.shape, -DARKEST_DB)
    level: Float[np.ndarray, "f t"] = np.clip(20 * np.log10(np.maximum(power / loudest, 1e-12)), -DARKEST_DB, 0)
    return level


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most twice ``COLUMNS`` points: the lowest and highest of each stretch, in order."""
    if len(x) <= 2 * COLUMNS:
        return list(x), list(y)
    values = np.array(y)
    kept: set[int] = {0, len(x) - 1}
    for part in np.array_split(np.arange(len(x)), COLUMNS):
        known = part[np.isfinite(values[part])]
        if known.size:
            kept |= {int(known[values[known].argmin()]), int(known[values[known].argmax()])}
        else:
            kept.add(int(part[0]))
    order = sorted(kept)
    return [x[place] for place in order], [y[place] for place in order]


def _plot(name: str, says: str, draw: Draw, *, heights: tuple[int, int]) -> Plot:
    drawn = []
    for width, height, phone in ((NARROW, heights[0], True), (WIDE, heights[1], False)):
        with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]  # its stubs list every key as a type of its own
            figure = Figure(figsize=(width / PIXELS_AN_INCH, height / PIXELS_AN_INCH), dpi=PIXELS_AN_INCH)
            FigureCanvasSVG(figure)
            draw(figure, phone)
            _place(figure, height)
            file = io.StringIO()
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", metadata=nothing, dpi=PIXELS_AN_INCH * SHARP)
        drawn.append(inline(file.getvalue(), f"{name}-{'narrow' if phone else 'wide'}"))
    return Plot(name=name, says=says, narrow=drawn[0], wide=drawn[1])


def inline(svg: str, prefix: str) -> str:
    """An SVG file as an element of a page: own ids, the page's colours and letters, no names of other places."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    svg = re.sub(r"font: [^;\"]*", f"font-size: {LETTERS}px", svg)
    svg = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.strip()


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=LETTERS, color=FAINT, pad=8)


def _clock(axis: object, longest_s: float, ticks: int) -> None:
    """Seconds, minutes or hours, whichever the longest time reads best in."""
    unit_s, unit = (3600, "h") if longest_s > 3 * 3600 else (60, "min") if longest_s > 300 else (1, "s")
    steps = [1, 2, 3, 6, 10] if unit_s > 1 else [1, 2, 5, 10]

    class Locator(MaxNLocator):
        def tick_values(self, vmin: float, vmax: float) -> list[float]:
            return [float(tick) * unit_s for tick in super().tick_values(vmin / unit_s, vmax / unit_s)]

    axis.set_major_locator(Locator(ticks, steps=steps))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_s:g} {unit}" if value else "0"))  # type: ignore[attr-defined]


def _legend(figure: Figure, axes: Axes, phone: bool) -> None:
    """Below the axes, in as many columns as fit; the figure grows by its rows."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) < 2:
        return
    longest = max(map(len, labels)) * LETTERS * 0.56 + 52  # pixels of a letter, and of the handle before it
    columns = max(1, min(len(labels), int((NARROW if phone else WIDE) / longest)))
    rows = -(-len(labels) // columns)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + rows * LEGEND_ROW / PIXELS_AN_INCH)
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 0), ncols=columns, borderaxespad=0)


def _place(figure: Figure, plain_height: int) -> None:
    """The same margins in pixels for every plot, so that their axes begin below each other.

    What the figure is higher than ``plain_height`` belongs to the legend.
    """
    width, height = figure.get_size_inches() * PIXELS_AN_INCH
    below = BOTTOM + (AXIS_LABEL if any(axes.get_xlabel() for axes in figure.axes) else 0) + height - plain_height
    figure.subplots_adjust(left=LEFT / width, right=1 - RIGHT / width, bottom=below / height, top=1 - TOP / height)
