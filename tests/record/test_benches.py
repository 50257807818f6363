"""Side-by-side steps come into BENCHMARKS.md from their documents, statistics from raw values."""

from __future__ import annotations

import json
from pathlib import Path

from shotclock.record.benches import BENCHES, benches


def test_rows_follow_from_raw_values_and_nothing_is_said_without_a_document(tmp_path: Path) -> None:
    """A median that a document states wrongly is not repeated; fewer than five values are provisional."""
    assert benches(tmp_path) == []
    sides = {
        "ours": {"values": [2.0, 1.0, 3.0, 2.0, 2.0], "median": 99.0},
        "diffusers, one leg a call": {"values": [4.0, 6.0]},
    }
    document = {
        "format": "shotclock/bench-steps/1",
        "device": "some GPU",
        "dtype": "bfloat16",
        "torch": "2.11.0",
        "commit": "abc",
        "rows": [{"geometry": "768x448, 25 frames", "sides": sides}],
    }
    (tmp_path / BENCHES).mkdir(parents=True)
    (tmp_path / BENCHES / "a.json").write_text(json.dumps(document))
    (tmp_path / BENCHES / "other.json").write_text(json.dumps({"format": "something else"}))
    ours, theirs = (line for line in benches(tmp_path) if line.startswith("| 768x448"))
    assert "| ours | 5 | 2 s | 100.0% | 1.000 |" in ours and "99" not in ours
    assert "diffusers, one leg a call, provisional | 2 | 5 s | 40.0% | 2.500 |" in theirs
