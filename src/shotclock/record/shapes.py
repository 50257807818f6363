"""Whether only the token count sets the cost: tall, wide and long clips of equal tokens, compared.

Pure: picks shapes and judges measured samples. The claim is printed with its error, or withdrawn.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shotclock.geometry import SPACE_SCALE, TIME_SCALE, Geometry
from shotclock.plan.law import Sample, Timings, spread

TOLERANCE = 0.03  # shapes that differ by less cost alike; the left-out error of the published law is about as large
STRETCH = 4  # a tall or wide clip is up to this many times as long in one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeGroup:
    """Clips of one kind of pass with equal video tokens: seconds by geometry, and the largest spread among them."""

    kind: str
    video_tokens: int
    seconds: Mapping[str, float]
    spread_ratio: float

    @property
    def error(self) -> float:
        """Dearest over cheapest shape, minus 1."""
        return max(self.seconds.values()) / min(self.seconds.values()) - 1

    @property
    def holds(self) -> bool:
        """Within 3 %, or within what passes of one shape differ by."""
        return self.error <= max(TOLERANCE, self.spread_ratio)

    def line(self) -> str:
        """Each shape with its seconds."""
        shapes = ", ".join(f"{geometry} {seconds:.4g} s" for geometry, seconds in self.seconds.items())
        return f"{self.kind}, {self.video_tokens:,} video tokens: {shapes}: differ by {self.error:.1%}"


def check_shapes(timings: Timings) -> tuple[ShapeGroup, ...]:
    """Groups of at least two geometries of equal video tokens."""
    grouped: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in timings.samples:
        if sample.pass_s:
            grouped[sample.kind, sample.video_tokens].append(sample)
    groups = []
    for (kind, tokens), samples in sorted(grouped.items()):
        passes: dict[str, list[float]] = defaultdict(list)
        for sample in samples:
            passes[sample.geometry] += sample.pass_s
        if len(passes) > 1:
            medians = {geometry: statistics.median(seconds) for geometry, seconds in sorted(passes.items())}
            widest = max(spread(seconds) for seconds in passes.values())
            groups.append(ShapeGroup(kind=kind, video_tokens=tokens, seconds=medians, spread_ratio=widest))
    return tuple(groups)


def shape_lines(groups: tuple[ShapeGroup, ...]) -> list[str]:
    """The groups and what follows from them."""
    if not groups:
        return ["only the token count matters: not checked, no two shapes of equal tokens were measured"]
    worst = max(groups, key=lambda group: group.error)
    if all(group.holds for group in groups):
        verdict = f"holds within {worst.error:.1%}"
    else:
        verdict = f"withdrawn, shapes of {worst.video_tokens:,} video tokens differ by {worst.error:.1%}"
    return [*(group.line() for group in groups), f"only the token count matters: {verdict}"]


def equal_shapes(base: Geometry) -> dict[str, Geometry]:
    """Clips with the video tokens of ``base``: as it is, tall, wide, and long, where the numbers allow it."""
    area = base.rows * base.columns
    pairs = [(rows, area // rows) for rows in range(1, area + 1) if not area % rows]
    stretched = [pair for pair in pairs if 1 < pair[1] / pair[0] <= STRETCH]
    found = {"base": base}
    if stretched:
        rows, columns = max(stretched, key=lambda pair: pair[1] / pair[0])
        found["wide"] = _clip(base, base.latent_frames, rows, columns)
        found["tall"] = _clip(base, base.latent_frames, columns, rows)
    if base.latent_frames > 1 and not area % STRETCH:
        smaller = area // STRETCH
        rows = max(rows for rows in range(1, smaller + 1) if not smaller % rows and rows * rows <= smaller)
        found["long"] = _clip(base, STRETCH * base.latent_frames, rows, smaller // rows)
    return {name: clip for name, clip in found.items() if name == "base" or clip != base}


def _clip(base: Geometry, latent_frames: int, rows: int, columns: int) -> Geometry:
    return Geometry(
        width=columns * SPACE_SCALE,
        height=rows * SPACE_SCALE,
        frames=(latent_frames - 1) * TIME_SCALE + 1,
        fps=base.fps,
    )
