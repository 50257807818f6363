"""How long a pass may take before its rank counts as hung."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from shotclock.events import PassBegins, PassEnds
from shotclock.guidance import LegName
from shotclock.plan.estimate import around
from shotclock.render import crew
from shotclock.render.crew import Crew, Go
from shotclock.render.journal import Tick
from shotclock.render.ranks import Seat


def test_a_pass_is_late_by_the_longest_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a kind by the law or a bound without one, later ones by what was seen of it."""
    told: list[Any] = []
    monkeypatch.setattr(crew, "tell", told.append)
    read, write = os.pipe()
    seat = Seat(rank=0, ranks=2, said=write, alive=-1, rendezvous=Path())

    def words(of: Crew, *passes: tuple[LegName, float]) -> list[tuple[str, int, float | None]]:
        for index, (leg, last_s) in enumerate(passes, start=1):
            event = PassBegins(index=index, step=index, steps=9, legs=(leg,))
            of.heed(Tick(event=event, t_s=0.0, last_s=None))
            of.heed(
                Tick(event=PassEnds(**{name: getattr(event, name) for name in event.__slots__}), t_s=0.0, last_s=last_s)
            )
        lines = [json.loads(line) for line in os.read(read, 65536).splitlines()]
        return [(line["place"], line["number"], line["within_s"]) for line in lines]

    by_law = Crew(seat, torch.device("cpu"), {"cond": around(2.0, 1.5, "law"), "uncond": around(1.0, 1.5, "law")})
    cond, other = LegName.COND, LegName.PERTURBED
    assert words(by_law, (cond, 20.0), (other, 5.0), (cond, 100.0), (other, 1.0), (cond, 1.0))[::2] == [
        ("pass 1", 1, 70.0),
        ("pass 2", 2, 70.0),
        ("pass 3", 3, 70.0),
        ("pass 4", 4, 47.5),
        ("pass 5", 5, 190.0),
    ]
    assert told == [Go()] * 5
    assert words(Crew(seat, torch.device("cpu"), {}), (cond, 1.0)) == [
        ("pass 1", 1, 1800.0),
        ("the boundary after pass 1", 1, None),
    ]
    os.close(read)
    os.close(write)
