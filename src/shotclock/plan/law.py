"""The cost law: seconds of a transformer pass as a function of its tokens, fitted to measured passes of one key.

Two forms are fitted, a power law and ``a + b n + c n^2`` with non-negative terms, and the one that predicts left-out
geometries better is used. Pure arithmetic on samples: reads no file and no clock.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError
from scipy.optimize import nnls

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.guidance import Pass
from shotclock.plan.estimate import Estimate
from shotclock.request import Document

AUDIO_WEIGHT = 0.25  # (2048 / 4096)^2: linear layers of an audio token against a video token (ltx25.md section 1.1)
MIN_GEOMETRIES = 3  # two points fit any power law exactly: no error could be seen
LATER = " in stage "  # after the kind of a pass that another stage than the first launches
MIN_STEP = 1.1  # token counts nearer than this count as one geometry: tall, wide and long clips are no curve
SPREAD_TAIL = 0.05  # a spread leaves out this share of passes at either end: one hiccup in a hundred is no spread
WARM_UP_MARGIN = 2.0  # on the largest warm-up seen: few processes have been
ONE = "none"  # field ``split``: the forwards of a render on one GPU
RESIDENT = "none"  # field ``streaming``: all weights stay on the device
WARM_UP_PASSES = {"eager": 1, "graph": 2, "compiled": 1}  # captured graphs: the first is eager, the second captured

Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Form = Literal["power", "quadratic"]
Terms = tuple[float, ...]


class LawKey(Document):
    """What a law belongs to; another value of any field makes it stale."""

    device: str
    build: str
    model: str
    dtype: str
    attention: str
    quantisation: str
    launch: Literal["eager", "graph", "compiled"]
    legs_per_pass: Annotated[int, Field(ge=1, le=4)]
    stg_blocks: tuple[int, ...]
    gpus: Annotated[int, Field(ge=1)]
    split: str = ONE
    streaming: str = RESIDENT

    def to_json(self) -> str:
        """Canonical text; without ``streaming`` where nothing streams, as keys were before there was any."""
        said = self.model_dump(mode="json", exclude={"streaming"} if self.streaming == RESIDENT else None)
        return json.dumps(said, sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @property
    def warm_up_passes(self) -> int:
        """First passes of a process that are kept apart."""
        return WARM_UP_PASSES[self.launch]

    def differences(self, other: LawKey) -> tuple[str, ...]:
        """One text a field in which ``other`` is not this key, "device GB10, not NVIDIA H200"."""
        mine, theirs = self.model_dump(), other.model_dump()
        return tuple(f"{name} {theirs[name]}, not {mine[name]}" for name in mine if mine[name] != theirs[name])


class Sample(Document):
    """Passes of one kind in one run: raw seconds in the order they ran, those of the warm-up apart."""

    geometry: str
    video_tokens: Annotated[int, Field(ge=1)]
    audio_tokens: Annotated[int, Field(ge=0)]
    kind: str
    warm_up_s: tuple[Duration, ...]
    pass_s: tuple[Duration, ...]
    run: str


class Timings(Document):
    """A law on disk: its key and every measured pass. The curves follow from it and are not stored."""

    format: Literal["shotclock/law/1"] = "shotclock/law/1"
    key: LawKey
    audio_weight: Annotated[float, Field(ge=0, le=1)]
    samples: tuple[Sample, ...]

    def merged(self, newer: Timings) -> Timings:
        """With the runs of ``newer``, which replace their own earlier samples; raises where the keys differ."""
        require_same_key(self.key, newer.key)
        runs = {sample.run for sample in newer.samples}
        kept = (sample for sample in self.samples if sample.run not in runs)
        return self.model_copy(update={"samples": (*kept, *newer.samples)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One geometry: weighted tokens, median seconds of ``n`` passes, and (5 to 95 %) spread over median."""

    tokens: float
    seconds: float
    n: int = 1
    spread_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One form with its terms, (coefficient, exponent) or (a, b, c), and the error at each left-out geometry.

    ``left_out`` holds predicted over measured minus 1, in the order of the points.
    """

    form: Form
    terms: Terms
    left_out: tuple[float, ...]

    def seconds(self, tokens: float) -> float:
        """Predicted seconds of a pass."""
        return _seconds(self.form, self.terms, tokens)

    @property
    def error(self) -> float:
        """Root mean square of the left-out errors as logarithms: what the choice goes by."""
        return math.sqrt(statistics.fmean(math.log1p(error) ** 2 for error in self.left_out))

    @property
    def worst(self) -> float:
        """Largest left-out error as a logarithm."""
        return max(abs(math.log1p(error)) for error in self.left_out)

    def __str__(self) -> str:
        if self.form == "power":
            said = f"{self.terms[0]:.4g} * tokens^{self.terms[1]:.4f}"
        else:
            said = "{:.4g} + {:.4g} * tokens + {:.4g} * tokens^2".format(*self.terms)
        return f"{said}, left-out error {self.error:.2%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Seconds of one kind of pass: the chosen form, the other one, and the points both were fitted to.

    ``warm_up_extra_s`` is the most by which a warm-up pass exceeded the warm median of its run; None where none was.
    """

    chosen: Fit
    other: Fit
    points: tuple[Point, ...]
    warm_up_extra_s: float | None = None

    def predict(self, tokens: float) -> Estimate:
        """Seconds of a pass of ``tokens``: the interval is the worst left-out error and the spread of passes.

        Beyond the measured range it grows with the distance and the source says ``extrapolated``.
        """
        typical_s = self.chosen.seconds(tokens)
        low, high = self.points[0].tokens, self.points[-1].tokens
        outside = max(math.log(tokens / high), math.log(low / tokens), 0.0) / math.log(high / low)
        spread = max(point.spread_ratio for point in self.points) / 2
        factor = math.exp(self.chosen.worst * (1 + outside) + math.log1p(spread))
        source = f"law ({self.chosen.form}, {len(self.points)} geometries"
        source += f", extrapolated from {low:,.0f} to {high:,.0f} tokens)" if outside else ")"
        return Estimate(low_s=typical_s / factor, typical_s=typical_s, high_s=typical_s * factor, source=source)

    def ceiling_tokens(self, seconds: float) -> float:
        """Tokens whose pass takes ``seconds``; 0 where even none would take longer, inf where cost does not grow."""
        return _tokens(self.chosen.form, self.chosen.terms, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """Curves by kind of pass. ``unfit`` says of which kinds too little was measured."""

    key: LawKey
    audio_weight: float
    curves: Mapping[str, Curve]
    unfit: tuple[str, ...]

    def tokens(self, geometry: Geometry, appended: int = 0) -> float:
        """Video tokens, those that conditions append too, and weighted audio tokens."""
        return geometry.video_tokens + appended + self.audio_weight * geometry.audio_tokens

    def predict(self, kind: str, geometry: Geometry, appended: int = 0) -> Estimate:
        """Seconds of one pass; raises :class:`RequestError` for a kind that was not measured."""
        if kind not in self.curves:
            raise RequestError(
                f"the law has no passes of {kind}",
                allowed=", ".join(sorted(self.curves)),
                way_out="measure them with `shotclock calibrate` or `shotclock fit` on runs that have them",
            )
        return self.curves[kind].predict(self.tokens(geometry, appended))

    def warm_up_ratio(self, kind: str, geometry: Geometry) -> float | None:
        """Bound of a warm-up pass over a warm one, twice the largest extra time measured; None where none was."""
        extra_s = self.curves[kind].warm_up_extra_s
        typical_s = self.predict(kind, geometry).typical_s
        return None if extra_s is None else 1 + WARM_UP_MARGIN * extra_s / typical_s

    def require(self, wanted: LawKey) -> None:
        """Raises :class:`RequestError` that begins with STALE and names the fields in which ``wanted`` differs."""
        require_same_key(self.key, wanted)


def require_same_key(measured: LawKey, wanted: LawKey) -> None:
    """Raises :class:`RequestError` that begins with STALE where the keys differ."""
    if differences := wanted.differences(measured):
        raise RequestError(
            f"STALE: the law was measured with {'; '.join(differences)}",
            allowed="a law of the same key",
            way_out="measure again: `shotclock calibrate`",
        )


def kind_of(launch: Pass) -> str:
    """Name of all passes that cost the same: their legs, the stream where only one runs, and a later stage."""
    alone = "" if launch.video and launch.audio else (" video alone" if launch.video else " audio alone")
    return "+".join(launch.legs) + alone + ("" if launch.stage == 1 else f"{LATER}{launch.stage}")


def curve_of(kind: str) -> str:
    """The kind whose curve prices ``kind``: a later stage is the same pass at another size."""
    return kind.partition(LATER)[0]


def fit_law(timings: Timings) -> Law:
    """Fit every kind of pass; raises :class:`RequestError` where no kind has three geometries."""
    points: dict[str, list[Point]] = {}
    for kind in sorted({sample.kind for sample in timings.samples}):
        points[kind] = points_of([sample for sample in timings.samples if sample.kind == kind], timings.audio_weight)
    fit = {
        kind: replace(fit_curve(found), warm_up_extra_s=_warm_up_extra_s(kind, timings.samples))
        for kind, found in points.items()
        if _enough(found)
    }
    unfit = tuple(
        f"{kind}: {_geometries(found)} of {MIN_GEOMETRIES} geometries"
        for kind, found in points.items()
        if kind not in fit
    )
    if not fit:
        raise RequestError(
            f"too little was measured for a law: {'; '.join(unfit) or 'no pass at all'}",
            allowed=f"warm passes at {MIN_GEOMETRIES} or more token counts",
            way_out="add runs of other sizes, or run `shotclock calibrate`",
        )
    return Law(key=timings.key, audio_weight=timings.audio_weight, curves=fit, unfit=unfit)


def points_of(samples: Sequence[Sample], audio_weight: float) -> list[Point]:
    """One point a token pair, ascending: the median of all warm passes there, of whatever run."""
    pooled: dict[float, list[float]] = defaultdict(list)
    for sample in samples:
        pooled[sample.video_tokens + audio_weight * sample.audio_tokens] += sample.pass_s
    return [
        Point(tokens=tokens, seconds=statistics.median(passes), n=len(passes), spread_ratio=spread(passes))
        for tokens, passes in sorted(pooled.items())
        if passes
    ]


def _warm_up_extra_s(kind: str, samples: Sequence[Sample]) -> float | None:
    extras = [
        max(max(sample.warm_up_s) - statistics.median(sample.pass_s), 0.0)
        for sample in samples
        if sample.kind == kind and sample.warm_up_s and sample.pass_s
    ]
    return max(extras, default=None)


def spread(passes: Sequence[float]) -> float:
    """Distance of the 5 and 95 % quantiles over the median."""
    low, high = np.quantile(passes, [SPREAD_TAIL, 1 - SPREAD_TAIL])
    return float((high - low) / statistics.median(passes))


def fit_curve(points: Sequence[Point]) -> Curve:
    """Both forms, of which that with the smaller left-out error is chosen; below 3 geometries, a RequestError."""
    if not _enough(points):
        raise RequestError(
            f"{_geometries(points)} geometries",
            allowed=f"{MIN_GEOMETRIES} or more",
            way_out="measure more sizes: two points fit any law",
        )
    ordered = sorted(points, key=lambda point: point.tokens)
    power, quadratic = fit_form("power", ordered), fit_form("quadratic", ordered)
    chosen, other = (quadratic, power) if quadratic.error < power.error else (power, quadratic)
    return Curve(chosen=chosen, other=other, points=tuple(ordered))


def fit_form(form: Form, points: Sequence[Point]) -> Fit:
    """One form fitted to all points, and to all but each (and its near neighbours) in turn."""
    left_out = []
    for point in points:
        terms = _FITTERS[form]([other for other in points if not _near(other, point)])
        left_out.append(_seconds(form, terms, point.tokens) / point.seconds - 1)
    return Fit(form=form, terms=_FITTERS[form](points), left_out=tuple(left_out))


def _power(points: Sequence[Point]) -> Terms:
    """Least squares of log seconds over log tokens; an exponent below 0 is held at 0."""
    x = np.log([point.tokens for point in points])
    y = np.log([point.seconds for point in points])
    centred = x - x.mean()
    exponent = max(float(centred @ y / (centred @ centred)), 0.0)
    return math.exp(float(y.mean()) - exponent * float(x.mean())), exponent


def _quadratic(points: Sequence[Point]) -> Terms:
    """Least squares of relative errors, all terms >= 0; columns are scaled to the largest token count.

    Two points, as left-out fits of three geometries have, do not determine three terms: the constant is 0 there.
    """
    seconds = np.array([point.seconds for point in points])
    largest = max(point.tokens for point in points)
    x = np.array([point.tokens for point in points]) / largest
    powers = (0, 1, 2) if len(points) > 2 else (1, 2)
    found, _ = nnls(np.stack([x**power for power in powers], axis=1) / seconds[:, None], np.ones_like(x))
    terms = dict(zip(powers, found, strict=True))
    return float(terms.get(0, 0.0)), float(terms[1]) / largest, float(terms[2]) / largest**2


_FITTERS: Mapping[Form, Callable[[Sequence[Point]], Terms]] = {"power": _power, "quadratic": _quadratic}


def _seconds(form: Form, terms: Terms, tokens: float) -> float:
    if form == "power":
        return terms[0] * math.pow(tokens, terms[1])
    return terms[0] + terms[1] * tokens + terms[2] * tokens**2


def _tokens(form: Form, terms: Terms, seconds: float) -> float:
    if form == "power":
        return math.pow(seconds / terms[0], 1 / terms[1]) if terms[1] else math.inf
    a, b, c = terms
    if seconds <= a:
        return 0.0
    root = math.sqrt(b * b + 4 * c * (seconds - a))
    return 2 * (seconds - a) / (b + root) if root else math.inf  # this form of the root has no cancellation


def _near(one: Point, other: Point) -> bool:
    return max(one.tokens, other.tokens) < MIN_STEP * min(one.tokens, other.tokens)


def _geometries(points: Sequence[Point]) -> int:
    """Token counts that are apart."""
    counted: list[Point] = []
    for point in sorted(points, key=lambda point: point.tokens):
        if not counted or not _near(counted[-1], point):
            counted.append(point)
    return len(counted)


def _enough(points: Sequence[Point]) -> bool:
    return _geometries(points) >= MIN_GEOMETRIES


def read_timings(text: str) -> Timings:
    """Parse a law file; raises :class:`RequestError` naming the first field that is wrong."""
    try:
        return Timings.model_validate_json(text)
    except ValidationError as bad:
        first = bad.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RequestError(
            f"not a law: {where}: {first['msg']}",
            allowed="what `shotclock calibrate` or `shotclock fit` wrote",
            way_out="measure again: `shotclock calibrate`",
        ) from None
