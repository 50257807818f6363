"""Runs to a law that outlives them: reads, merges, keeps, fits, and says what came out.

The raw passes are kept even where they are too few for a law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.plan.estimate import Estimate
from shotclock.plan.law import Curve, Law, Timings, fit_law
from shotclock.plan.rate import Rates, fixed_and_rate
from shotclock.plan.store import keep_rates, keep_timings
from shotclock.record.fit import Measured, fit_runs
from shotclock.record.shapes import check_shapes, shape_lines, shapes_of
from shotclock.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is now known of one key. ``law`` is None where too little was measured, and ``why`` says what is missing."""

    law_path: Path
    rates_path: Path
    timings: Timings
    rates: Rates
    law: Law | None
    why: str | None
    shapes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Key, curves with errors and points, what is unfit, rates, and the check of shapes where it was asked for."""
        key = self.timings.key
        said = [f"law of {key.device}, {key.build}", f"  {key.model}, {key.dtype}, attention {key.attention}"]
        said.append(
            f"  {key.launch}, {key.legs_per_pass} legs a pass, stg blocks {list(key.stg_blocks)}, "
            f"quantisation {key.quantisation}, {key.gpus} GPU"
        )
        if self.law is None:
            said.append(f"no law yet: {self.why}")
        else:
            for kind, curve in self.law.curves.items():
                said += curve_lines(kind, curve)
            said += [f"unfit: {one}" for one in self.law.unfit]
        said += rate_lines(self.rates)
        return [*said, *self.shapes, f"kept: {self.law_path}", f"kept: {self.rates_path}"]

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        curves = self.law.curves if self.law else {}
        return {
            "law_path": str(self.law_path),
            "rates_path": str(self.rates_path),
            "key": self.timings.key.model_dump(mode="json"),
            "curves": {kind: curve_json(curve) for kind, curve in curves.items()},
            "unfit": list(self.law.unfit) if self.law else [self.why],
            "shapes": list(self.shapes),
            "passes": sum(len(sample.pass_s) for sample in self.timings.samples),
        }


def fit_and_keep(runs: Sequence[Path], home: Path, *, shapes: bool) -> Kept:
    """Merge the runs into what is known of their key below ``home``; raises as :func:`fit_runs` does."""
    return keep(fit_runs([RunDir(path) for path in runs]), home, shapes=shapes)


def measured_shapes(measure: Callable[[Sequence[Geometry]], Measured], size: str, home: Path) -> Kept:
    """Time clips of the tokens of ``size`` and join them to the law; what is said of shapes is of these alone."""
    found = measure(shapes_of(size))
    kept = keep(found, home, shapes=False)
    return replace(kept, shapes=tuple(shape_lines(check_shapes(found.timings))))


def keep(measured: Measured, home: Path, *, shapes: bool) -> Kept:
    """Merge, write and fit."""
    law_path, timings = keep_timings(home, measured.timings)
    rates_path, rates = keep_rates(home, measured.rates)
    law, why = None, None
    try:
        law = fit_law(timings)
    except RequestError as bad:
        why = f"{bad.found}; {bad.way_out}"
    return Kept(
        law_path=law_path,
        rates_path=rates_path,
        timings=timings,
        rates=rates,
        law=law,
        why=why,
        shapes=tuple(shape_lines(check_shapes(timings))) if shapes else (),
    )


def curve_lines(kind: str, curve: Curve) -> list[str]:
    """Both forms, the interval, and each point with what the chosen form makes of it."""
    first, last = curve.points[0], curve.points[-1]
    middle = curve.predict((first.tokens * last.tokens) ** 0.5)
    said = [f"{kind}:", f"  {curve.chosen.form}: {curve.chosen}", f"  not chosen: {curve.other}"]
    said.append(
        f"  interval within {first.tokens:,.0f} to {last.tokens:,.0f} tokens: times or over {_factor(middle):.3f}"
    )
    for point in curve.points:
        fitted_s = curve.chosen.seconds(point.tokens)
        said.append(
            f"  {point.tokens:>10,.1f} tokens  {point.seconds:10.4f} s (n={point.n}, spread {point.spread_ratio:.1%})  "
            f"fitted {fitted_s:10.4f} s ({fitted_s / point.seconds - 1:+.1%})"
        )
    warm_up = curve.warm_up_extra_s
    return [*said, f"  warm-up: {'not measured' if warm_up is None else f'{warm_up:.2f} s more, at most'}"]


def curve_json(curve: Curve) -> dict[str, Any]:
    """Terms, errors and points."""
    return {
        "form": curve.chosen.form,
        "terms": list(curve.chosen.terms),
        "left_out_error": curve.chosen.error,
        "worst_left_out": curve.chosen.worst,
        "other": {"form": curve.other.form, "terms": list(curve.other.terms), "left_out_error": curve.other.error},
        "warm_up_extra_s": curve.warm_up_extra_s,
        "points": [
            {"tokens": p.tokens, "seconds": p.seconds, "n": p.n, "spread_ratio": p.spread_ratio} for p in curve.points
        ],
    }


def rate_lines(rates: Rates) -> list[str]:
    """Each phase: its fixed seconds and its rate."""
    said = []
    for phase in dict.fromkeys(sample.phase for sample in rates.samples):
        samples = [sample for sample in rates.samples if sample.phase == phase]
        fixed_s, unit_s = fixed_and_rate(samples)
        said.append(f"rate of {phase}: {fixed_s:.4g} s + {unit_s:.4g} s a unit, n={len(samples)}")
    return said


def _factor(estimate: Estimate) -> float:
    return estimate.high_s / estimate.typical_s
