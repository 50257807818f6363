"""Two runs side by side: what may be compared, what is noise, what changed without being asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folders import KEY, PASS_S, REQUEST, events, machine, make_run, sample

from shotclock.errors import RequestError
from shotclock.record.compare import compare
from shotclock.record.drift import drift_ratio, floor_leak
from shotclock.record.facts import Samples, known, missing
from shotclock.record.ledger import Ledger, write_record
from shotclock.record.runfacts import RunFacts

NAMES = iter(range(10_000))


def run_facts(tmp_path: Path, scale: float = 1.0, driver: str = "580.65", **how: Any) -> RunFacts:
    number = next(NAMES)
    home = tmp_path / f"home-{number}"
    how.setdefault("lines", events([scale * s for s in PASS_S], key=how.pop("key", KEY)))
    write_record(make_run(tmp_path / f"run-{number}", **how), home, machine(driver=known(driver)), private=False)
    return Ledger.of(home).records()[0].facts


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("device", {"key": KEY | {"device": "NVIDIA GB10"}}),
        ("build", {"key": KEY | {"build": "torch 2.14.0+cu130"}}),
        ("dtype", {"key": KEY | {"dtype": "float32"}}),
        ("attention", {"key": KEY | {"attention": "flash"}}),
        ("quantisation", {"key": KEY | {"quantisation": "fp8"}}),
        ("launch", {"key": KEY | {"launch": "graph"}}),
        ("legs_per_pass", {"request": REQUEST | {"legs_per_pass": 2}}),
        ("geometry", {"request": REQUEST | {"frames": 49}}),
        ("driver", {"driver": "570.0"}),
    ],
)
def test_a_checked_fact_that_differs_refuses_and_is_named(tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    """Each of them alone; said with --across it is compared, and said."""
    one, other = run_facts(tmp_path), run_facts(tmp_path, **how)
    with pytest.raises(RequestError) as refused:
        compare(one, other)
    assert f"{name}: " in refused.value.found and name in refused.value.way_out
    assert compare(one, other, across={name}).across == (name,)


def test_a_fact_known_of_one_side_only_differs(tmp_path: Path) -> None:
    """An old log without a key does not pass as the same machine."""
    with pytest.raises(RequestError, match="attention: cudnn, not not available"):
        compare(run_facts(tmp_path), run_facts(tmp_path, key=None))


@pytest.mark.parametrize(
    ("scale", "word"), [(1.0, "same within noise"), (1.03, "same within noise"), (1.3, "slower"), (0.7, "faster")]
)
def test_a_difference_counts_from_the_wider_spread_on(tmp_path: Path, scale: float, word: str) -> None:
    """Passes that spread by 4 % say nothing about 3 %, and 30 % is a difference."""
    (ratio,) = compare(run_facts(tmp_path), run_facts(tmp_path, scale)).ratios
    assert ratio.value == pytest.approx(scale) and ratio.noise == pytest.approx(0.04)
    assert ratio.word == word


def test_few_passes_claim_nothing(tmp_path: Path) -> None:
    """Four passes after the warm-up are below the least n, however different."""
    short = events([9.0] * 5)
    (ratio,) = compare(run_facts(tmp_path), run_facts(tmp_path, lines=short)).ratios
    assert ratio.word == "no claim" and "provisional" in ratio.line()


def test_drift_within_a_run_is_told_with_its_cause(tmp_path: Path) -> None:
    """Passes that end 3x slower while swap grows and clocks fall (users.md row 17)."""
    slow = [1.0] * 8 + [3.0] * 8
    memory = [sample(0.0), sample(9.0, swap_used_bytes=120 << 30, device_clock_mhz=600), sample(10.0)]
    facts = run_facts(tmp_path, lines=events([1.0, *slow]), memory=memory)
    (warning,) = facts.warnings
    assert "ended 3.0x slower than they began" in warning
    assert "swap grew by 120.0 GiB" in warning and "the clock fell to 600 MHz from 1980" in warning
    assert run_facts(tmp_path, lines=events([1.0] * 17), memory=memory).warnings == ()


def test_drift_below_the_noise_of_its_thirds_is_none() -> None:
    """Wild passes drift nowhere."""
    assert drift_ratio([1.0, 2.0, 1.0, 2.0, 1.0, 1.3, 2.4, 1.2, 2.3, 1.3, 1.3, 2.4, 1.2, 2.3, 1.3]) is None
    assert drift_ratio([1.0] * 15) is None
    assert drift_ratio([1.0, 1.0, 1.0, 1.0, 2.0, 2.0]) is None, "two a third are too few"


def test_a_floor_that_rises_from_run_to_run_trips_the_gate() -> None:
    """60 MiB a run over five runs (users.md row 37); one fall, or a floor that stands, does not."""
    rising = [5 << 30, *((5 << 30) + (60 << 20) * k for k in range(1, 6))]
    assert floor_leak(rising) == (
        "memory in use before a run rose by 60 MiB a run over the last 5 runs: it is not given back"
    )
    assert floor_leak(rising[:5]) is None
    assert floor_leak([*rising[:3], rising[0], *rising[3:]]) is None
    assert floor_leak([5 << 30] * 8) is None


def test_samples_state_or_derive_but_never_both() -> None:
    """A median beside raw values could contradict them."""
    with pytest.raises(ValueError, match="follow from raw values"):
        Samples(unit="s", method="m", values=(1.0,), stated_median=1.0)
    with pytest.raises(ValueError, match="a reason why there are none"):
        Samples(unit="s", method="m", values=())
    with pytest.raises(ValueError, match="a value, or a reason"):
        known(None)  # type: ignore[arg-type]
    assert str(missing("no counter")) == "not available (no counter)"


def test_a_spread_leaves_the_outer_twentieth_out_from_20_values_on() -> None:
    """One hiccup in a hundred is no spread; in five it is."""
    many = Samples(unit="s", method="m", values=(*([1.0] * 99), 9.0))
    few = Samples(unit="s", method="m", values=(1.0, 1.0, 1.0, 1.0, 9.0))
    assert (many.spread, few.spread) == (0.0, 8.0)
