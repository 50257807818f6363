"""Launch and device time of passes, and utilisation beside them: from the log to record, page and sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folders import events, machine, make_run, sample

from shotclock.record.derive import Context, derive
from shotclock.record.figures import seconds_text
from shotclock.record.folder import read_folder
from shotclock.record.page_facts import memory_section
from shotclock.record.page_time import passes_section
from shotclock.record.run_seen import read_run
from shotclock.record.split import split_of


def run_with(folder: Path, *split: dict[str, Any]) -> Path:
    """A run whose warm passes took 100 s each and were split like this."""
    lines = events([400.0] + [100.0] * len(split))
    ends = [line for line in lines if line["event"] == "PassEnds"]
    for line, more in zip(ends, ({}, *split), strict=True):
        line.update(more)
    return make_run(folder, lines)


@pytest.mark.parametrize(
    ("launch_s", "device_s", "bound"),
    [
        (2.0, 97.0, "compute-bound"),
        (95.0, 96.0, "host-bound"),
        (40.0, 60.0, "neither"),
        (100.0, None, "no device clock"),
    ],
)
def test_what_a_pass_waits_for(tmp_path: Path, launch_s: float, device_s: float | None, bound: str) -> None:
    """The raw values are in the record, medians of the warm ones follow; the page has the same."""
    each = [{"launch_s": launch_s + more, "device_s": device_s} for more in (-1.0, 0.0, 3.0)]
    run = run_with(tmp_path / "run", *each)
    facts = derive(read_folder(run), machine(), Context(private=False))
    assert [row.launch_s for row in facts.passes] == [None, launch_s - 1, launch_s, launch_s + 3]
    (split,) = facts.splits().values()
    assert (split.n, split.pass_s, split.launch_s, split.device_s) == (3, 100.0, launch_s, device_s)
    assert split.bound.startswith(bound)
    (row,) = passes_section(read_run(run)).tables[1].rows
    assert row[3] == split.bound and row[1] == seconds_text(launch_s)


def test_a_log_without_them_is_read_as_before(tmp_path: Path) -> None:
    """Nothing is made up: no split in the record, no table on the page."""
    run = run_with(tmp_path / "run", {}, {})
    assert derive(read_folder(run), machine(), Context(private=False)).splits() == {}
    assert len(passes_section(read_run(run)).tables) == 1 and split_of([(1.0, None, None)]) is None


@pytest.mark.parametrize(("told", "load"), [(99, "SATURATED"), (0.99, "SATURATED"), (None, None)])
def test_a_saturated_device_is_called_so(tmp_path: Path, told: float | None, load: str | None) -> None:
    """In the record and on the page, in percent or as a share; a counter that was not there gives its reason."""
    memory = [sample(float(t_s), device_utilisation=told) for t_s in range(5)]
    run = make_run(tmp_path / "run", memory=memory)
    (row,) = derive(read_folder(run), machine(), Context(private=False)).memory
    assert row.load.value == load and row.idle_edges.value == (None if load is None else 0)
    assert row.load.reason == (None if load else "the counter was not available")
    notes = " ".join(memory_section(read_run(run)).notes)
    assert ("SATURATED: no forward can be seen from outside" in notes) is (load is not None)
