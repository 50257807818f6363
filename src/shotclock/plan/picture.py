"""The plan as a picture: which lengths and sizes fit the lease at how many steps, and where the lease's time goes.

Draws a forecast; decides nothing. Needs matplotlib (the ``report`` extra).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.lease import length_text
from shotclock.plan.forecast import Forecast
from shotclock.plan.ledger import Basis, Fit, Ledger
from shotclock.plan.table import MIN_STEPS, STEP_SHARES, scaled
from shotclock.rundir import aside

AREA_SHARES = (0.06, 0.12, 0.2, 0.3, 0.42, 0.56, 0.75, 1.0, 1.3, 1.7, 2.2, 3.0, 4.0)
LENGTH_SHARES = (0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.35, 1.75, 2.2)
COLOURS = {  # of the ledger's bars by what an estimate rests on
    Basis.LAW: "#1b7837",
    Basis.RATE: "#5aae61",
    Basis.MEASURED: "#2166ac",
    Basis.FLOOR: "#e08214",
    Basis.GUESS: "#fdb863",
    Basis.NONE: "#cccccc",
}
RESERVE, FREE = "#b2abd2", "#f0f0f0"
LINES = ("#d73027", "#4d4d4d", "#4575b4")  # of the boundaries: fewest steps last
REFUSED = "#bbbbbb"


def draw(forecast: Forecast, path: Path) -> None:
    """Write a PNG (or what the suffix says); raises :class:`RequestError` where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError(
            "--plot needs matplotlib", allowed="the report extra", way_out="pip install 'shotclock[report]'"
        ) from None
    figure = Figure(figsize=(13, 6.2), layout="constrained")
    reach, spent = figure.subplots(1, 2, width_ratios=(3, 2))
    _reach(reach, forecast)
    _spent(spent, forecast.ledger)
    figure.suptitle(f"{forecast.case.geometry}, {forecast.case.steps} steps on {forecast.case.key.device}", fontsize=13)
    with aside(path) as temporary:
        figure.savefig(temporary, dpi=110)


def _reach(axes: Any, forecast: Forecast) -> None:
    """Clips of the wish's shape: length across, size upwards, colour is hours, a line where the lease ends."""
    case, wish = forecast.case, forecast.case.geometry
    lengths = sorted({clip.frames for share in LENGTH_SHARES if (clip := scaled(wish, 1.0, share))})
    sizes = sorted({(c.columns, c.rows) for share in AREA_SHARES if (c := scaled(wish, share, 1.0))})
    grid = [[_clip(wish, columns, rows, frames) for frames in lengths] for columns, rows in sizes]
    seconds = [frames / float(wish.fps) for frames in lengths]
    pixels = [columns * rows * 1024 / 1e6 for columns, rows in sizes]
    for number, steps in enumerate(_steps(forecast)):
        ledgers = [[forecast.price(clip, case.guidance, steps) for clip in row] for row in grid]
        if number == 0:
            _shade(axes, seconds, pixels, ledgers, grid, forecast)
        _boundary(axes, seconds, pixels, ledgers, LINES[number], steps)
    _mark(axes, wish, "*", "wish", "#d73027")
    if forecast.reach.largest is not None and forecast.reach.largest.geometry != wish:
        found = forecast.reach.largest.geometry
        _mark(
            axes,
            found,
            "D",
            f"{forecast.reach.largest_is}: {found.width}x{found.height}, {found.frames} frames",
            "black",
        )
    axes.set_yscale("log")
    axes.set_yticks(pixels[::2], [f"{c * 32}x{r * 32}" for c, r in sizes[::2]])
    axes.minorticks_off()
    axes.set_xlabel(f"clip length in seconds, at {wish.fps} frames a second")
    axes.set_ylabel("size")
    axes.set_title("What fits" if forecast.ledger.lease_s is not None else "What it takes: no lease was given")
    axes.legend(loc="upper right", fontsize=9, framealpha=0.95)


def _shade(
    axes: Any,
    seconds: Sequence[float],
    pixels: Sequence[float],
    ledgers: Sequence[Sequence[Ledger]],
    grid: Sequence[Sequence[Geometry]],
    forecast: Forecast,
) -> None:
    """Minutes of every clip at the wish's steps, and what memory refuses in grey."""
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import LogLocator

    minutes = [[ledger.needs.typical_s / 60 for ledger in row] for row in ledgers]
    flat = [value for row in minutes for value in row]
    mesh = axes.pcolormesh(
        seconds, pixels, minutes, norm=LogNorm(min(flat), max(flat)), cmap="YlGnBu", shading="nearest", alpha=0.85
    )
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.01, format="%g", ticks=LogLocator(subs=(1, 2, 5)))
    bar.ax.minorticks_off()
    bar.set_label(f"minutes in all at {forecast.case.steps} steps")
    refused = [[1.0 if forecast.refuses(clip) else float("nan") for clip in row] for row in grid]
    if any(value == 1.0 for row in refused for value in row):
        axes.pcolormesh(seconds, pixels, refused, cmap=ListedColormap([REFUSED]), shading="nearest")
        axes.plot([], [], "s", color=REFUSED, label="memory refuses")


def _boundary(
    axes: Any,
    seconds: Sequence[float],
    pixels: Sequence[float],
    ledgers: Sequence[Sequence[Ledger]],
    colour: str,
    steps: int,
) -> None:
    """The line on which typical durations and the reserve are the lease."""
    lease_s = ledgers[0][0].lease_s
    if lease_s is None:
        return
    shares = [[(ledger.needs.typical_s + ledger.reserve_s) / lease_s for ledger in row] for row in ledgers]
    flat = [value for row in shares for value in row]
    label = f"{steps} steps fit {length_text(lease_s)} below this line"
    if min(flat) < 1 < max(flat):
        axes.contour(seconds, pixels, shares, levels=[1.0], colors=[colour], linewidths=2)
    else:
        label = f"{steps} steps: {'everything here fits' if max(flat) <= 1 else 'nothing here fits'}"
    axes.plot([], [], color=colour, linewidth=2, label=label)


def _mark(axes: Any, clip: Geometry, marker: str, label: str, colour: str) -> None:
    at = float(clip.duration_s), clip.width * clip.height / 1e6
    axes.plot(*at, marker, color=colour, markersize=14 if marker == "*" else 8, markeredgecolor="white", label=label)


def _spent(axes: Any, ledger: Ledger) -> None:
    """The ledger as bars with their intervals, by what they rest on."""
    rows = [row for row in ledger.rows if row.basis is not Basis.NONE]
    names = [row.name for row in rows] + ["reserve"]
    values = [row.estimate.typical_s for row in rows] + [ledger.reserve_s]
    colours = [COLOURS[row.basis] for row in rows] + [RESERVE]
    low = [row.estimate.typical_s - row.estimate.low_s for row in rows] + [0.0]
    high = [row.estimate.high_s - row.estimate.typical_s for row in rows] + [0.0]
    if ledger.free_s is not None and ledger.free_s > 0:
        names, values, colours = [*names, "free"], [*values, ledger.free_s], [*colours, FREE]
        low, high = [*low, 0.0], [*high, 0.0]
    places = range(len(names))
    axes.barh(places, values, color=colours, edgecolor="#888888", linewidth=0.5)
    axes.errorbar(values, places, xerr=[low, high], fmt="none", ecolor="#444444", elinewidth=1, capsize=2)
    widest = max(value + above for value, above in zip(values, high, strict=True))
    for place, value, above in zip(places, values, high, strict=True):
        axes.text(value + above + 0.015 * widest, place, _said(value), va="center", fontsize=9)
    axes.set_xlim(0, 1.2 * widest)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("seconds, with intervals")
    for basis in dict.fromkeys(row.basis for row in rows):
        axes.barh([0], [0], color=COLOURS[basis], label=str(basis))
    axes.legend(loc="lower right", fontsize=9, title="rests on")
    verdict = "too long" if ledger.fit is Fit.TOO_LONG else str(ledger.fit).split(",")[0]
    lease = "no lease" if ledger.lease_s is None else f"lease {ledger.lease_s:,.0f} s: {verdict}"
    axes.set_title(f"{ledger.needs.typical_s:,.0f} s in all, {lease}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _said(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _steps(forecast: Forecast) -> list[int]:
    """The wish's first."""
    case = forecast.case
    shares = (1.0,) if case.fixed_steps else STEP_SHARES
    return sorted({max(MIN_STEPS, round(share * case.steps)) for share in shares}, reverse=True)


def _clip(wish: Geometry, columns: int, rows: int, frames: int) -> Geometry:
    return Geometry(width=32 * columns, height=32 * rows, frames=frames, fps=wish.fps)
