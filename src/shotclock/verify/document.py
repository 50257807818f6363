"""``verdict.json``: every number, finding and fact of a verdict, strict, so that other thresholds can be applied later.

The form on disk only; it judges nothing and knows no clip.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_serializer

from shotclock.errors import RequestError
from shotclock.verify.expectation import Expectation
from shotclock.verify.rules import Finding, Outcome

FORMAT = "shotclock.verdict/1"
EXPECTATION = TypeAdapter(Expectation)  # a request as JSON, for the child process


class VerdictDocument(BaseModel):
    """The whole of ``verdict.json``: no coercion, no unknown keys, no NaN; the rate is a fraction in text.

    ``clip`` and ``wav`` are names without a folder, digests are SHA-256 in hex.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    format: Literal["shotclock.verdict/1"] = "shotclock.verdict/1"
    clip: str
    clip_sha256: str | None
    wav: str | None
    wav_sha256: str | None
    outcome: Outcome
    arms: dict[str, Outcome]
    numbers: dict[str, float | None]
    facts: dict[str, str]
    findings: tuple[Finding, ...]
    not_judged: tuple[str, ...]
    expectation: Expectation

    @field_serializer("expectation", mode="wrap")
    def _in_order(self, value: Expectation, write: Any) -> dict[str, Any]:
        """A set has no order, a document has one."""
        entry: dict[str, Any] = write(value)
        return entry | {"expect": sorted(entry["expect"])}

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
