"""Whether only the token count sets the cost: tall, wide and long clips of equal tokens, compared.

Pure: picks shapes and judges measured samples. The claim is printed with its error, or withdrawn.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from shotclock.errors import RequestError
from shotclock.geometry import SPACE_SCALE, TIME_SCALE, Geometry
from shotclock.plan.law import Sample, Timings, spread

TOLERANCE = 0.03  # shapes that differ by less cost alike; the left-out error of the published law is about as large
STRETCH = 4  # a tall or wide clip is up to this many times as long in one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeGroup:
    """Clips of one kind of pass with equal video tokens: seconds by geometry, and the largest spread among them.

    ``audio_tokens`` by geometry: a longer clip has more, which is no matter of its shape.
    """

    kind: str
    video_tokens: int
    seconds: Mapping[str, float]
    spread_ratio: float
    audio_tokens: Mapping[str, int]

    @property
    def alike(self) -> float | None:
        """The error among the shapes that most share their audio tokens with; None where no two do."""
        counted = Counter(self.audio_tokens.values())
        tokens, shapes = counted.most_common(1)[0]
        seconds = [self.seconds[name] for name, audio in self.audio_tokens.items() if audio == tokens]
        return max(seconds) / min(seconds) - 1 if shapes > 1 else None

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
        shapes = ", ".join(
            f"{geometry} ({self.audio_tokens[geometry]:,} audio tokens) {seconds:.4g} s"
            for geometry, seconds in self.seconds.items()
        )
        among = "" if self.alike is None else f", those of equal audio tokens by {self.alike:.1%}"
        return f"{self.kind}, {self.video_tokens:,} video tokens: {shapes}: differ by {self.error:.1%}{among}"


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
            audio = {sample.geometry: sample.audio_tokens for sample in samples}
            groups.append(
                ShapeGroup(
                    kind=kind,
                    video_tokens=tokens,
                    seconds=medians,
                    spread_ratio=widest,
                    audio_tokens={geometry: audio[geometry] for geometry in medians},
                )
            )
    return tuple(groups)


def shape_lines(groups: tuple[ShapeGroup, ...]) -> list[str]:
    """The groups and what follows from them."""
    if not groups:
        return ["only the token count matters: not checked, no two shapes of equal tokens were measured"]
    worst = max(groups, key=lambda group: group.error)
    if all(group.error <= TOLERANCE for group in groups):
        verdict = f"holds within {worst.error:.1%}"
    elif all(group.holds for group in groups):
        verdict = (
            f"not told here, shapes differ by {worst.error:.1%} and passes of one shape by {worst.spread_ratio:.1%}"
        )
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


def shapes_of(size: str) -> tuple[Geometry, ...]:
    """Clips of the tokens of ``WIDTHxHEIGHTxFRAMES``; raises :class:`RequestError` where there are no two."""
    parts = size.split("x")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise RequestError(f"size {size[:40]!r}", allowed="WIDTHxHEIGHTxFRAMES", way_out="write it like 768x448x25")
    width, height, frames = (int(part[:9]) for part in parts)
    clips = tuple(equal_shapes(Geometry(width=width, height=height, frames=frames, fps=Fraction(24))).values())
    if len(clips) < 2:
        raise RequestError(
            f"{size} has no other shape of its tokens", allowed="sides whose product divides", way_out="try 768x448x25"
        )
    return clips


def _clip(base: Geometry, latent_frames: int, rows: int, columns: int) -> Geometry:
    return Geometry(
        width=columns * SPACE_SCALE,
        height=rows * SPACE_SCALE,
        frames=(latent_frames - 1) * TIME_SCALE + 1,
        fps=base.fps,
    )
