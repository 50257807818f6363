"""Runs become a law file and a rates file of their key, which grow and are read again by the planner."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from test_fit import KEY, request, write_run

from shotclock.errors import RequestError, RunDirError
from shotclock.plan.store import law_path, read_known
from shotclock.record.laws import fit_and_keep

SIZES = {(64, 32): 1.0, (128, 64): 4.0, (256, 128): 16.0}


def runs(folder: Path) -> list[Path]:
    """Three sizes, three passes each, the first slow."""
    return [
        write_run(folder / str(width), request(width, height), [[9.0 + seconds, seconds, seconds]]).path
        for (width, height), seconds in SIZES.items()
    ]


def test_three_sizes_are_a_law_that_the_planner_finds(tmp_path: Path) -> None:
    """Law, error, interval, points and warm-up are said; the file's key is the run's."""
    kept = fit_and_keep(runs(tmp_path), tmp_path / "home", shapes=True)
    assert kept.law is not None
    assert kept.law_path == law_path(tmp_path / "home", KEY)
    text = "\n".join(kept.lines())
    assert "left-out error" in text
    assert "interval within" in text
    assert "warm-up: 9.00 s more" in text
    assert "rate of decode-video" in text
    assert "not checked, no two shapes" in text
    known = read_known(tmp_path / "home", KEY)
    assert known.timings == kept.timings
    assert known.rates == kept.rates
    assert known.stale_lines(KEY) == []
    assert json.loads(json.dumps(kept.to_json()))["passes"] == 6


def test_too_few_sizes_are_kept_until_there_are_enough(tmp_path: Path) -> None:
    """No law after two, and a law after the third although it came alone; a run counts once."""
    first, second, third = runs(tmp_path)
    home = tmp_path / "home"
    few = fit_and_keep([first, second], home, shapes=False)
    assert few.law is None
    assert "no law yet: too little was measured for a law: cond+uncond+perturbed+isolated: 2 of 3" in "\n".join(
        few.lines()
    )
    assert fit_and_keep([third], home, shapes=False).law is not None
    again = fit_and_keep([first, third], home, shapes=False)
    assert len(again.timings.samples) == 3
    assert again.timings.samples[-1].pass_s == (16.0, 16.0)


def test_a_law_of_another_device_is_stale_and_its_fields_are_named(tmp_path: Path) -> None:
    """Device and dtype; of several laws the nearest is said."""
    fit_and_keep(runs(tmp_path), tmp_path / "home", shapes=False)
    wanted = KEY.model_copy(update={"device": "NVIDIA H200", "dtype": "bfloat16"})
    known = read_known(tmp_path / "home", wanted)
    assert known.timings is None
    assert known.rates.samples == ()
    assert known.stale_lines(wanted) == [
        "STALE: a law was measured with device cpu, not NVIDIA H200; dtype float32, not bfloat16"
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("4.0", "NaN", 1), "pass_s"),
        (lambda text: text[:100], "not a law"),
        (lambda text: text.replace("cpu", "tpu"), "holds the law of another key: device tpu, not cpu"),
    ],
)
def test_a_broken_law_file_is_named_and_left_as_it_is(tmp_path: Path, change: object, said: str) -> None:
    """NaN timings, half a file, a file under another key's name."""
    kept = fit_and_keep(runs(tmp_path), tmp_path / "home", shapes=False)
    broken = change(kept.law_path.read_text())  # type: ignore[operator]
    kept.law_path.write_text(broken)
    with pytest.raises(RequestError, match=said) as caught:
        read_known(tmp_path / "home", KEY)
    assert str(kept.law_path) in caught.value.found
    assert kept.law_path.read_text() == broken


def test_a_broken_law_of_another_key_is_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must not keep this device from planning."""
    kept = fit_and_keep(runs(tmp_path), tmp_path / "home", shapes=False)
    (kept.law_path.parent / "other.json").write_text("{")
    known = read_known(tmp_path / "home", KEY)
    assert known.timings == kept.timings
    assert known.others == ()
    assert "other.json" in caplog.text


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With the way out."""
    (tmp_path / "home").write_text("a file")
    with pytest.raises(RunDirError, match="SHOTCLOCK_HOME"):
        fit_and_keep(runs(tmp_path), tmp_path / "home", shapes=False)


def test_two_processes_that_fit_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each reads, merges and writes while no other does."""
    paths, home = runs(tmp_path), tmp_path / "home"
    with ThreadPoolExecutor(3) as pool:  # a lock of its own for each open file, threads as well as processes
        list(pool.map(lambda path: fit_and_keep([path], home, shapes=False), paths))
    known = read_known(home, KEY)
    assert known.timings is not None
    assert len(known.timings.samples) == 3
    assert len({sample.run for sample in known.rates.samples}) == 3
