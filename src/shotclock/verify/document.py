"""``verdict.json``: every number, finding and fact of a verdict, strict, so that other thresholds can be applied later.

The form on disk only; it judges nothing and knows no clip.
"""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shotclock.errors import RequestError
from shotclock.verify.expectation import Expectation

FORMAT = "shotclock.verdict/1"


class Strict(BaseModel):
    """No coercion, no unknown keys, no NaN."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class FindingEntry(Strict):
    """One rule: see :class:`shotclock.verify.rules.Finding`."""

    rule: str
    arm: str
    outcome: Literal["PASS", "WARN", "FAIL", "NOT JUDGED"]
    metric: str
    value: float | None
    comparison: str
    threshold: float
    margin: float | None
    condition: str
    as_asked: str | None
    source: str
    meaning: str
    way_out: str


class ExpectationEntry(Strict):
    """See :class:`Expectation`; the rate is a fraction in text, "24000/1001"."""

    frames: int | None
    fps: str | None
    width: int | None
    height: int | None
    has_audio: bool | None
    sample_rate_hz: int | None
    channels: int | None
    raw_distinct_frames: int | None
    expect: list[str]
    tile_columns: list[int]
    tile_rows: list[int]
    tile_frames: list[int]

    def expectation(self) -> Expectation:
        """Back to the value."""
        values = self.model_dump()
        return Expectation(
            **values
            | {
                "fps": None if self.fps is None else Fraction(self.fps),
                "expect": frozenset(self.expect),
                **{name: tuple(values[name]) for name in ("tile_columns", "tile_rows", "tile_frames")},
            }
        )


class VerdictDocument(Strict):
    """The whole of ``verdict.json``; ``clip`` is a name without a folder, digests are SHA-256 in hex."""

    format: Literal["shotclock.verdict/1"] = "shotclock.verdict/1"
    clip: str
    clip_sha256: str | None
    wav: str | None
    wav_sha256: str | None
    outcome: Literal["PASS", "WARN", "FAIL", "NOT JUDGED"]
    arms: dict[str, Literal["PASS", "WARN", "FAIL", "NOT JUDGED"]]
    numbers: dict[str, float | None]
    facts: dict[str, str]
    findings: list[FindingEntry]
    not_judged: list[str]
    expectation: ExpectationEntry

    def to_json(self) -> str:
        """Sorted keys and a final newline."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> VerdictDocument:
        """Read a document; raises :class:`RequestError` when it is not one of this format."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise RequestError(
                f"not a verdict: {'.'.join(map(str, first['loc']))}: {first['msg']}",
                allowed=f"a verdict.json with format {FORMAT}",
                way_out="run shotclock verify CLIP again",
            ) from error

    def write(self, path: Path) -> None:
        """Write aside, flush, rename: a reader sees the old file or the new one."""
        aside = path.with_name(path.name + ".part")
        with aside.open("w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)


def expectation_entry(expectation: Expectation) -> ExpectationEntry:
    """The document's form of a request."""
    return ExpectationEntry(
        frames=expectation.frames,
        fps=None if expectation.fps is None else str(expectation.fps),
        width=expectation.width,
        height=expectation.height,
        has_audio=expectation.has_audio,
        sample_rate_hz=expectation.sample_rate_hz,
        channels=expectation.channels,
        raw_distinct_frames=expectation.raw_distinct_frames,
        expect=sorted(expectation.expect),
        tile_columns=list(expectation.tile_columns),
        tile_rows=list(expectation.tile_rows),
        tile_frames=list(expectation.tile_frames),
    )
