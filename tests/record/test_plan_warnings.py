"""What the plan warned of is in the record of the run."""

from __future__ import annotations

import pytest

from shotclock.record.derive import plan_warnings


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"warnings": ["unguided dev: ...", "a.safetensors was made for version 2.3.0"]}, 2),
        ({"warnings": []}, 0),
        ({}, 0),
        ({"warnings": "not a list"}, 0),
        ({"warnings": [1, None, "kept"]}, 1),
    ],
)
def test_warnings_of_a_plan_are_taken_over(plan: dict[str, object], said: int) -> None:
    """Text only: a plan.json may come from elsewhere."""
    found = plan_warnings(plan)
    assert len(found) == said and all(isinstance(line, str) for line in found)
