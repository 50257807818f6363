"""``shotclock plan``: everything that a render would say before its first forward, and what else the lease could hold.

Resolves the same settings through the same functions as a render; writes no run folder and loads no weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shotclock.plan.forecast import Forecast
from shotclock.plan.picture import draw
from shotclock.plan.planner import Plan
from shotclock.plan.table import Table, reach_table
from shotclock.render.ahead import read_room
from shotclock.render.job import Times
from shotclock.render.resolve import resolve
from shotclock.render.run import Terms, expect
from shotclock.render.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Plan, forecast and the table around the wish."""

    plan: Plan
    forecast: Forecast
    table: Table

    def lines(self) -> list[str]:
        """Counts, ledger, memory, what fits instead, the table, and the price of each other way out."""
        said = [*self.plan.lines(), "", *self.forecast.lines(), "", *self.forecast.reach.lines(), ""]
        said += [*self.table.lines(), ""]
        return [*said, *(f"price of {option.line()}" for option in self.forecast.options)]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``: the plan as plan.json has it, and what is not in there."""
        reach = self.forecast.reach
        return {
            "plan": self.plan.model_dump(mode="json"),
            "accepted": self.forecast.accepted,
            "refused_by_memory": self.forecast.refused,
            "largest": str(reach.largest.geometry) if reach.largest else None,
            "runner_up": str(reach.runner_up.geometry) if reach.runner_up else None,
            "leases": self.forecast.document.leases,
            "table": self.table.to_json(),
            "options": [
                {
                    "flags": option.flags,
                    "seconds": option.ledger.needs.typical_s,
                    "fit": str(option.ledger.fit),
                }
                for option in self.forecast.options
            ],
        }

    def draw(self, path: Path) -> None:
        """The picture of it."""
        draw(self.forecast, path)


def preview(settings: Settings, terms: Terms, *, home: Path, times: Times) -> Preview:
    """Plan a render without rendering; raises what can be refused for the request itself."""
    found = resolve(settings, home, lambda _line: None)
    plan = found.plan
    forecast = expect(
        found.request,
        plan,
        found.headers,
        terms,
        device=found.device,
        home=home,
        times=times,
        contexts=settings.contexts,
        room=read_room(found.device, settings.cap_bytes),
    )
    return Preview(
        plan=plan.model_copy(update={"forecast": forecast.document}), forecast=forecast, table=reach_table(forecast)
    )
