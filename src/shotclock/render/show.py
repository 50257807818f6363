"""What a person sees while a render runs: a live bar on a terminal, plain lines elsewhere.

Listens to ticks; decides nothing. The remaining time counts the decode and the verdict too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from shotclock.events import Notice, PassBegins, PassEnds, Phase, PhaseBegins, PhaseEnds
from shotclock.events import Progress as Progressed
from shotclock.plan.planner import Plan
from shotclock.plan.pricing import VERIFY
from shotclock.plan.rate import FILES
from shotclock.render.journal import Tick


class Outlook:
    """Seconds left of a render: passes at the median of those measured, then the tail that the plan expects.

    A plan without a forecast, as older versions wrote, counts its passes only.
    """

    def __init__(self, plan: Plan) -> None:
        self._passes = plan.passes
        self._tail_s = 0.0 if plan.forecast is None else plan.forecast.tail.typical_s
        self._after_decode_s = 0.0 if plan.forecast is None else plan.forecast.ledger.row(VERIFY).typical_s
        self._pass_s: list[float] = []
        self._ended = 0  # index of the last pass that ended, earlier attempts' included
        self._ended_s = 0.0
        self._decode_began_s: float | None = None
        self._decoded = 0.0

    def see(self, tick: Tick) -> None:
        """Take a tick into account."""
        match tick.event:
            case PassEnds(index=index) if tick.last_s is not None:
                self._pass_s.append(tick.last_s)
                self._ended, self._ended_s = index, tick.t_s
            case PhaseBegins(phase=Phase.DECODE_VIDEO):
                self._decode_began_s = tick.t_s
            case Progressed(phase=Phase.DECODE_VIDEO, done=done, total=total):
                self._decoded = done / total
            case _:
                pass

    def left_s(self, now_s: float) -> float | None:
        """Seconds left at ``now_s``; None before the first pass has ended."""
        if self._decode_began_s is not None and self._decoded:
            return (now_s - self._decode_began_s) * (1 / self._decoded - 1) + self._after_decode_s
        if not self._pass_s:
            return None
        left = self._passes - self._ended
        if not left:
            return max(self._tail_s - (now_s - self._ended_s), 0.0)
        return left * statistics.median(self._pass_s) + self._tail_s


class Joined:
    """Puts the pieces of denoise, between which snapshots are written, together for a person."""

    def __init__(self) -> None:
        self._denoise_s: float | None = None
        self._snapshots: list[float] = []
        self._ended_s = 0.0

    def __call__(self, tick: Tick) -> list[Tick]:
        """The ticks to show for one that came."""
        match tick.event:
            case PhaseBegins(phase=Phase.SNAPSHOT):
                return []
            case PhaseEnds(phase=Phase.SNAPSHOT):
                self._snapshots.append(tick.last_s or 0.0)
                return []
            case PhaseEnds(phase=Phase.DENOISE):
                self._denoise_s = (self._denoise_s or 0.0) + (tick.last_s or 0.0)
                self._ended_s = tick.t_s
                return []
            case PhaseBegins(phase=Phase.DENOISE) if self._denoise_s is not None:
                return []
            case PhaseBegins() if self._denoise_s is not None:
                return [*self._whole(), tick]
            case _:
                return [tick]

    def _whole(self) -> list[Tick]:
        ends = Tick(event=PhaseEnds(phase=Phase.DENOISE), t_s=self._ended_s, last_s=self._denoise_s)
        text = f"{len(self._snapshots)} snapshots, {sum(self._snapshots):.3f} s beside it"
        self._denoise_s, self._snapshots = None, []
        return [ends, Tick(event=Notice(text=text), t_s=self._ended_s, last_s=None)]


def clock_text(seconds: float | None) -> str:
    """Seconds as h:mm:ss or m:ss, rounded up: 0:00 is only said when nothing is left; dashes where unknown."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moved(phase: Phase, done: int, total: int) -> str:
    """How far a phase is: loads count bytes."""
    return f"{done / 1e9:.1f}/{total / 1e9:.1f} GB" if phase in FILES else f"{done}/{total}"


class PlainLines:
    """One line for each phase and each pass, for logs and pipes."""

    def __init__(self, plan: Plan, write: Callable[[str], None]) -> None:
        self._outlook = Outlook(plan)
        self._joined = Joined()
        self._plan = plan
        self._write = write

    def __call__(self, tick: Tick) -> None:
        """Write the tick's line, if it has one."""
        self._outlook.see(tick)
        for shown in self._joined(tick):
            self._line(shown)

    def _line(self, tick: Tick) -> None:
        match tick.event:
            case PhaseBegins(phase=phase):
                self._write(f"phase {phase} begins t={tick.t_s:.3f}s")
            case PhaseEnds(phase=phase):
                self._write(f"phase {phase} ends t={tick.t_s:.3f}s last={tick.last_s:.3f}s")
            case Notice(text=text):
                self._write(f"note: {text}")
            case Progressed(phase=phase, done=done, total=total) if phase in FILES:
                self._write(f"phase {phase} {moved(phase, done, total)} t={tick.t_s:.3f}s")
            case PassBegins() as event:
                last = "" if tick.last_s is None else f" last={tick.last_s:.3f}s"
                eta = clock_text(self._outlook.left_s(tick.t_s))
                self._write(
                    f"pass {event.index}/{self._plan.passes} phase denoise step {event.step}/{event.steps} "
                    f"legs {'+'.join(event.legs)} t={tick.t_s:.3f}s{last} eta={eta}"
                )
            case _:
                pass


class LiveBar:
    """A single live line on a terminal; a context manager."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._outlook = Outlook(plan)
        self._joined = Joined()
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<17}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[detail]}"),
            TextColumn("left {task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._passes = plan.passes
        self._task: TaskID = self._progress.add_task("starting", total=None, detail="", left="-:--")

    def __enter__(self) -> LiveBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, tick: Tick) -> None:
        """Move the bar."""
        self._outlook.see(tick)
        for shown in self._joined(tick):
            self._move(shown)

    def _move(self, tick: Tick) -> None:
        left = clock_text(self._outlook.left_s(tick.t_s))
        match tick.event:
            case PhaseBegins(phase=phase):
                total = self._passes if phase is Phase.DENOISE else None
                self._progress.update(
                    self._task, description=str(phase), total=total, completed=0, detail="", left=left
                )
            case PassEnds() as event:
                detail = f"step {event.step}/{event.steps}  {tick.last_s:.3f} s a pass"
                self._progress.update(self._task, completed=event.index, detail=detail, left=left)
            case Progressed(phase=phase, done=done, total=total):
                detail = moved(phase, done, total)
                self._progress.update(self._task, completed=done, total=total, detail=detail, left=left)
            case Notice(text=text):
                self._console.print(f"note: {text}", highlight=False, markup=False)
            case PhaseEnds(phase=phase):
                self._console.print(f"{phase:<17}{tick.last_s:9.3f} s", highlight=False)
            case _:
                pass
