"""The seeds' two documents as entries: superseded, current and refused, read as a person would read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import events, machine, make_run, sample

from shotclock.errors import RequestError
from shotclock.record.audit import audit
from shotclock.record.compare import compare, compare_memory
from shotclock.record.ledger import Ledger, write_record
from shotclock.record.reported import add_reported, read_reported
from shotclock.record.show import line_of, show_lines, supersession

REPORTED = Path(__file__).parents[2] / "recipes" / "reported"
EDGE, DIRECT = "20260819T150230Z-1024x576", "20260820T084103Z-768x448"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """All of them, in a ledger of their own."""
    found = Ledger(tmp_path_factory.mktemp("seeds") / "ledger")
    add_reported(found, sorted(REPORTED.glob("*.json")))
    return found


def test_the_chain_of_the_figure_reads_from_162_to_16_43(ledger: Ledger) -> None:
    """The old figure stays readable, says what took its place and why, and its successor stands."""
    record = ledger.find(EDGE)
    lines = show_lines(record, supersession(record, ledger.records()))
    assert record.status == "superseded" and ledger.find(DIRECT).status == "current"
    assert "chain: 162 s (n=7) -> 16.429 s (n=7)" in lines
    assert any("the edge counter never sampled forwards" in line for line in lines)
    assert any("162 s (n=7, spread not available)" in line for line in lines)


def test_the_measured_figure_has_its_raw_values(ledger: Ledger) -> None:
    """Seven forwards: median 16.429 s, spread 3.5 %, as the seeds say; derived, not typed in."""
    samples = ledger.find(DIRECT).facts.timings()["dit forward"]
    assert (samples.n, samples.median, min(samples.values), max(samples.values)) == (7, 16.429, 16.269, 16.848)
    assert samples.spread == pytest.approx(0.035, abs=0.0005)


def test_the_refused_rung_stands_beside_the_finished_one_with_its_arithmetic(ledger: Ledger) -> None:
    """One lease, two rungs: 1024x576 projected over its budget, 768x448 finished and verified."""
    rungs = [one for one in ledger.records() if one.facts.facts["lease_run"].value == "20260819T150230Z"]
    refused, finished = rungs[0], rungs[1]
    assert (refused.facts.end.kind, refused.facts.end.exit_code) == ("stopped", 92)
    assert "first_dit 481.0 s + 60 forwards at 162.0 s 9,720.0 s + tail 600.0 s = 10,803.0 s > budget 7,153.0 s" in (
        line_of(refused)
    )
    assert finished.facts.end.kind == "finished" and finished.facts.facts["wall"].value == 2990.0
    assert finished.facts.facts["env_cv"].value == 0.112 and finished.facts.facts["mad_ratio"].value == 0.215


def test_rungs_that_the_law_rejects_stand_with_the_clip_that_was_rendered(ledger: Ledger) -> None:
    """4.6, 15.1 and 22.6 h of denoising against the 11,400 s that a lease leaves."""
    rejected = ledger.find("20260820T223701Z-768x448-25").facts.rejected
    assert [(rung.video_tokens, round(rung.needs_s or 0)) for rung in rejected] == [
        (4032, 16560),
        (7488, 54360),
        (9216, 81360),
    ]
    assert {rung.leaves_s for rung in rejected} == {11400.0}


def test_the_void_projection_is_superseded_too(ledger: Ledger) -> None:
    """120 forwards were right, 162 s a forward was not."""
    record = ledger.find("20260819T150230Z-guided")
    assert (record.status, record.superseded_by) == ("superseded", DIRECT)
    assert sum(record.facts.planned_forwards.values()) == 120


def test_figures_of_three_forwards_are_provisional(ledger: Ledger) -> None:
    """n=3 is below the least n."""
    assert "provisional" in line_of(ledger.find("20260820T223701Z-1024x576-49"))
    assert "provisional" not in line_of(ledger.find("20260820T223701Z-768x448-25"))


def test_the_old_and_the_new_figure_cannot_be_compared(ledger: Ledger) -> None:
    """Another instrument, other legs, another geometry, another build: each is named."""
    with pytest.raises(RequestError) as refused:
        compare(ledger.find(EDGE).facts, ledger.find(DIRECT).facts)
    for name in ("build", "geometry", "legs", "method"):
        assert f"{name}: " in refused.value.found


def test_a_figure_without_raw_values_claims_nothing(ledger: Ledger) -> None:
    """16.61 s of 119 forwards against 16.43 s of 7: a ratio, and no claim, for one spread is not known."""
    one, other = ledger.find(DIRECT).facts, ledger.find("20260820T223701Z-768x448-25").facts
    (ratio,) = compare(one, other, across={"build"}).ratios
    assert ratio.value == pytest.approx(16.61 / 16.429) and ratio.word == "no claim"


def test_every_seed_entry_is_pending_and_names_its_source(ledger: Ledger) -> None:
    """None of them had an oracle; none passes for a figure of this program."""
    for record in ledger.records():
        assert record.facts.oracle.status == "PENDING"
        assert record.facts.source.startswith("the seeds: ")
        assert record.statement["predicate"]["buildDefinition"]["buildType"] == "urn:shotclock:reported:1"
        assert record.facts.not_shown


def test_the_seeds_ledger_holds(ledger: Ledger) -> None:
    """Chain, digests and references; that nothing can be derived again is said."""
    found = audit(ledger, {})
    assert (found.broken, found.rederived, found.entries) == ((), 0, 9)
    assert len(found.notes) == 7


def test_a_dirtier_start_is_no_regression(ledger: Ledger, tmp_path: Path) -> None:
    """The same own demand on a box with 26 GiB more in use: 105.7 against 79.7 GiB of peak, and no claim of it."""
    clean = ledger.find(EDGE).facts
    (row,) = clean.memory
    more = 26 << 30
    dirty_row = row.model_copy(
        update={
            name: getattr(row, name).model_copy(update={"value": getattr(row, name).value + more})
            for name in ("host_start", "host_peak")
        }
    )
    _, said = compare_memory(clean, clean.model_copy(update={"memory": (dirty_row,)}))
    assert "own demand 74.906 GiB against 74.906 GiB" in said and "no claim" in said
    assert "B began with 30.752 GiB in use, A with 4.752 GiB" in said
    assert "105.6" not in said and "79.6" not in said
    used = [5 << 30, 80 << 30]
    for name, plus in (("clean", 0), ("dirty", more)):
        memory = [sample(float(i), device_used_bytes=value + plus) for i, value in enumerate(used)]
        lines = events(utc=f"2026-12-01T0{len(name) - 4}:00:00+00:00", extra=[{"event": "Notice", "text": name}])
        write_record(make_run(tmp_path / name, lines, memory=memory), tmp_path, machine(), private=False)
    one, other = (record.facts for record in Ledger.of(tmp_path).records())
    assert "own demand 75.000 GiB against 75.000 GiB" in compare(one, other).memory[0]


def test_a_document_that_is_none_is_refused_by_field(tmp_path: Path) -> None:
    """A null without a reason is no fact."""
    text = (REPORTED / f"{DIRECT}.json").read_text().replace('"reason": "not printed"', '"reason": null', 1)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(RequestError, match="a value, or a reason"):
        read_reported(tmp_path / "a.json")
