"""Compares two records: refuses where a checked fact differs, else ratios with their spread, and what noise explains.

Pure: records in, sentences out. Memory is compared by own demand only, never by peaks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from shotclock.errors import RequestError
from shotclock.record.facts import MIN_N, Fact, Samples
from shotclock.record.runfacts import MemoryRow, RunFacts

Word = Literal["same within noise", "slower", "faster", "no claim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """B over A of one kind of pass: medians, the band that both spreads allow, and what may be said of it."""

    kind: str
    a: Samples
    b: Samples

    @property
    def value(self) -> float | None:
        """Median over median."""
        return self.b.median / self.a.median if self.a.median and self.b.median is not None else None

    @property
    def noise(self) -> float | None:
        """The wider of the two spreads; a difference below it is none."""
        spreads = [one for one in (self.a.spread, self.b.spread) if one is not None]
        return max(spreads) if len(spreads) == 2 else None

    @property
    def word(self) -> Word:
        """Nothing is claimed from fewer than 5 passes a side, or without raw values to take a spread from."""
        if self.value is None or self.noise is None or min(self.a.n, self.b.n) < MIN_N:
            return "no claim"
        if abs(self.value - 1) <= self.noise:
            return "same within noise"
        return "slower" if self.value > 1 else "faster"

    def line(self) -> str:
        """ "KIND: B/A 1.31, 21.5 s against 16.4 s ..."."""
        shown = "not available" if self.value is None else f"{self.value:.3f}"
        wide = "no spread known" if self.noise is None else f"noise {self.noise:.1%}"
        return f"{self.kind}: B/A {shown} ({wide}), {self.b} against {self.a}: {self.word}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that two records allow to say about each other."""

    a: str
    b: str
    across: tuple[str, ...]
    unknown: tuple[str, ...]
    ratios: tuple[Ratio, ...]
    memory: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person."""
        said = [f"A {self.a}", f"B {self.b}"]
        said += [f"compared across {', '.join(self.across)}, as asked"] if self.across else []
        said += [ratio.line() for ratio in self.ratios] or ["no kind of pass that both ran"]
        said += list(self.memory)
        said += [f"not known of either: {', '.join(self.unknown)}"] if self.unknown else []
        return [*said, *self.notes]

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        ratios = [
            {"kind": r.kind, "ratio": r.value, "noise": r.noise, "word": r.word, "n_a": r.a.n, "n_b": r.b.n}
            for r in self.ratios
        ]
        return {
            "format": "shotclock/comparison/1",
            "a": self.a,
            "b": self.b,
            "across": list(self.across),
            "unknown": list(self.unknown),
            "ratios": ratios,
            "memory": list(self.memory),
            "notes": list(self.notes),
        }


def differences(a: RunFacts, b: RunFacts) -> dict[str, str]:
    """Checked facts in which two runs differ, with both values; one that is known of only one side differs too."""
    found = {}
    for name in sorted(a.checked.keys() | b.checked.keys()):
        one, other = a.checked.get(name), b.checked.get(name)
        if _value(one) != _value(other):
            found[name] = f"{name}: {_shown(one)}, not {_shown(other)}"
    return found


def compare(a: RunFacts, b: RunFacts, *, across: Collection[str] = ()) -> Comparison:
    """Raises :class:`RequestError` naming every checked fact that differs and is not one of ``across``."""
    differing = differences(a, b)
    if unasked := [text for name, text in differing.items() if name not in across]:
        raise RequestError(
            f"{b.id} and {a.id} cannot be compared: {'; '.join(unasked)}",
            allowed="runs whose checked facts are the same",
            way_out=f"compare runs of one key, or say --across {' --across '.join(sorted(differing))}",
        )
    mine, theirs = a.timings(), b.timings()
    unknown = tuple(name for name in sorted(a.checked) if _value(a.checked[name]) is None)
    return Comparison(
        a=a.id,
        b=b.id,
        across=tuple(name for name in differing if name in across),
        unknown=unknown,
        ratios=tuple(Ratio(kind=kind, a=mine[kind], b=theirs[kind]) for kind in mine if kind in theirs),
        memory=compare_memory(a, b),
        notes=_notes(a, b),
    )


def compare_memory(a: RunFacts, b: RunFacts) -> tuple[str, ...]:
    """Own demand of both; peaks are not compared, and a start that differs is named instead of a regression."""
    said = []
    for place in ("device", "host"):
        mine, theirs = _largest(a.memory, place), _largest(b.memory, place)
        if mine is None or theirs is None:
            said.append(f"{place} memory: own demand is not known of {'either' if mine is theirs else 'both'}")
            continue
        own_a, start_a = mine
        own_b, start_b = theirs
        said.append(
            f"{place} memory: own demand {_gib(own_b)} against {_gib(own_a)}, n=1 a side: no spread, so no claim; "
            f"B began with {_gib(start_b)} in use, A with {_gib(start_a)}, so peaks say nothing"
        )
    return tuple(said)


def _largest(rows: tuple[MemoryRow, ...], place: Literal["device", "host"]) -> tuple[float, float] | None:
    found = [(own.value, getattr(row, f"{place}_start").value) for row in rows if (own := row.own(place)).value]
    return max((float(own), float(start)) for own, start in found) if found else None


def _notes(a: RunFacts, b: RunFacts) -> tuple[str, ...]:
    said = [f"{run.id} {run.end.kind}" for run in (a, b) if run.end.kind != "finished"]
    said += [f"{run.id}: {warning}" for run in (a, b) for warning in run.warnings]
    return (*said, "ratios are of intervals around passes, not of what inside them takes the time")


def _value(fact: Fact | None) -> object:
    return None if fact is None else fact.value


def _shown(fact: Fact | None) -> str:
    return "not recorded" if fact is None else str(fact)


def _gib(count: float) -> str:
    return f"{count / 2**30:.3f} GiB"
