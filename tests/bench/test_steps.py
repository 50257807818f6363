"""The harness of guided steps, on tiny widths: other sides agree with ours before they are timed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from shotclock.bench.command import bench
from shotclock.bench.steps import DIFFUSERS, FP8, OURS, UNGUIDED, timed
from shotclock.errors import RequestError


def test_the_table_comes_with_errors_multipliers_and_a_document(tmp_path: Path) -> None:
    """Every side n times; float32 velocities of diffusers within 1e-4, float8 not; the last line is the document."""
    out = tmp_path / "steps.json"
    answer = bench(device="cpu", tiny=True, rounds=2, quantise="fp8", out=out).ask(tmp_path)
    document = json.loads(answer.lines[-1])
    assert document == json.loads(out.read_text())
    (row,) = document["rows"]
    assert {OURS, UNGUIDED, DIFFUSERS, FP8} <= set(row["sides"])
    assert all(len(side["values"]) == 2 for side in row["sides"].values())
    assert set(row["multipliers"]) == {"guided", "uncond", "perturbed", "isolated"}
    assert set(row["errors"][DIFFUSERS]) == {"cond", "uncond", "perturbed", "isolated"}
    assert all(error < 1e-4 for pair in row["errors"][DIFFUSERS].values() for error in pair)
    assert all(1e-3 < error < 0.1 for pair in row["errors"][FP8].values() for error in pair)
    assert row["official"].startswith("PENDING") and row["clocks_mhz"] == [] and row["clocks_reason"]
    assert row["ratios_to_ours"][OURS] == 1


def test_rounds_alternate() -> None:
    """Every second round runs the sides backwards."""
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}  # type: ignore[misc]
    seconds, _, _ = timed(calls, torch.device("cpu"), 3)
    assert "".join(seen) == "abccbaabc"
    assert all(len(found) == 3 for found in seconds.values())


@pytest.mark.parametrize(
    "said", [{"against": ["other"]}, {"quantise": "int4"}, {"geometry": ["big"]}, {"run": Path("somewhere")}]
)
def test_what_cannot_be_measured_is_refused(said: dict[str, object], tmp_path: Path) -> None:
    """Before weights are made; a run needs an oracle."""
    with pytest.raises(RequestError):
        bench(**({"tiny": True} | said)).ask(tmp_path)  # type: ignore[arg-type]


def test_float8_on_a_cpu_is_for_tiny_only(tmp_path: Path) -> None:
    """At released widths it is refused before 38 GB are drawn."""
    with pytest.raises(RequestError, match="without float8"):
        bench(device="cpu", quantise="fp8").ask(tmp_path)
