"""BENCHMARKS.md is what the records say, recipes ask for what was recorded, and nothing claims what did not run."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from run_folders import REQUEST, events, machine, make_run, verdict

from shotclock.errors import RequestError
from shotclock.record.audit import audit, same_facts
from shotclock.record.benchmarks import RECORDS, benchmarks
from shotclock.record.claims import parity_claims
from shotclock.record.facts import canonical
from shotclock.record.ledger import Ledger, write_record
from shotclock.record.recipes import Recipe, expanded, find_recipe, read_recipe
from shotclock.record.reported import add_reported, read_reported, reported_statement

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.json"))
CLAIMS = (
    "shotclock is on par with the official code.",
    "It is 1.4 times faster than diffusers at every size.",
    "A pass is faster than the official implementation.",
    "Its clips match the official pipeline in quality.",
    "We reached parity in March.",
    "It outperforms everything.",
)
NO_CLAIMS = (
    "Parity is measured, not claimed.",
    "Without one, 162 s is a fact about this port, not a parity gap.",
    "`make goldens` compares this machine with the official code's outputs.",
    "Nothing here says that it is faster than the official code.",
    "No sentence of parity with the official packages stands here.",
)


def test_the_page_is_what_the_records_say() -> None:
    """Written again from the committed records it is the committed page, byte for byte."""
    assert (ROOT / "BENCHMARKS.md").read_text() == benchmarks(ROOT)


def test_an_edited_page_or_record_is_found(tmp_path: Path) -> None:
    """The test above can fail: one more record, and the page is another."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    before = benchmarks(tmp_path)
    assert before == (ROOT / "BENCHMARKS.md").read_text()
    run = make_run(tmp_path / "run", judged=verdict())
    write_record(run, tmp_path / "home", machine(), private=False)
    (record,) = Ledger.of(tmp_path / "home").records()
    Ledger(tmp_path / RECORDS).add("run", record.statement)
    assert "| 768x448, 25 frames at 24, 8 steps x 4 legs, bfloat16 | pass of 4 legs | 7 | 1 s | 4.0% |" in benchmarks(
        tmp_path
    )


def test_the_committed_ledger_holds() -> None:
    """Chain, digests and references of recipes/records."""
    found = audit(Ledger(ROOT / RECORDS), {})
    assert found.broken == () and found.entries >= 9


def test_every_seed_document_is_in_the_committed_ledger_as_it_is(tmp_path: Path) -> None:
    """What is typed in below recipes/reported is what the page shows."""
    committed = {record.id: record for record in Ledger(ROOT / RECORDS).records()}
    paths = sorted((ROOT / "recipes" / "reported").glob("*.json"))
    for path in paths:
        reported = read_reported(path)
        record, again = committed[reported.id], reported_statement(reported, path.name)
        typed = again["predicate"].pop("shotclock_run")
        assert same_facts(record.facts.model_dump(mode="json"), typed), path.name
        assert again["predicate"].items() <= record.statement["predicate"].items(), path.name
        assert record.statement["subject"] == again["subject"], path.name
    add_reported(Ledger(tmp_path / RECORDS), paths)
    assert len(Ledger(tmp_path / RECORDS).records()) == len(paths) == 7


def test_a_page_without_own_records_says_so(tmp_path: Path) -> None:
    """Nothing measured is nothing shown."""
    assert "No record yet." in benchmarks(tmp_path)


def test_refused_rungs_stand_beside_the_finished_ones() -> None:
    """In one table, one after the other, with their sums."""
    lines = (ROOT / "BENCHMARKS.md").read_text().splitlines()
    refused = next(i for i, line in enumerate(lines) if "| 162 s |" in line)
    assert "2,990 s" in lines[refused + 1] and "| finished |" in lines[refused + 1]
    assert sum("refused by arithmetic" in line for line in lines) >= 3


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_asks_for_a_recorded_render(path: Path) -> None:
    """Its digest is that of the request of a committed record: the row that links it."""
    recipe = read_recipe(path)
    texts = [one.read_text() for one in (ROOT / RECORDS).glob("*.json")]
    assert sum(f'"{recipe.request_sha256}"' in text for text in texts) >= 1
    assert f"](recipes/{path.name})" in (ROOT / "BENCHMARKS.md").read_text()


def test_a_recipe_is_found_by_what_it_renders_and_says_its_command(tmp_path: Path) -> None:
    """Digest to file, and every value of the request as an argument."""
    recipe = Recipe(subject="s", models="tiny", device="cpu", dtype="float32", request=json.loads(json.dumps(REQUEST)))
    (tmp_path / "a.json").write_bytes(canonical(recipe.model_dump(mode="json")))
    assert find_recipe(tmp_path, recipe.request_sha256, device="cpu", dtype="float32") == tmp_path / "a.json"
    assert find_recipe(tmp_path, recipe.request_sha256, device="cpu", dtype="bfloat16") is None
    assert find_recipe(tmp_path, recipe.request_sha256, device="NVIDIA H200", dtype="float32") is None
    assert find_recipe(tmp_path, "0" * 64, device="cpu", dtype="float32") is None
    arguments = recipe.arguments()
    assert arguments[-2:] == ["--", REQUEST["prompt"]]
    assert {"--size=768x448", "--cfg=3.0", "--audio-cfg=7.0", "--stg-blocks=2", "--models=tiny"} <= set(arguments)
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(RequestError, match=r"b\.json"):
        read_recipe(tmp_path / "b.json")


def test_a_recipe_file_stands_for_its_command(tmp_path: Path) -> None:
    """``render --recipe FILE --run DIR`` is spelled out; options beside it come later and win; names stay names."""
    recipe = Recipe(subject="s", models=None, device="cuda", dtype="bfloat16", request=json.loads(json.dumps(REQUEST)))
    path = tmp_path / "a.json"
    path.write_bytes(canonical(recipe.model_dump(mode="json")))
    *options, dashes, prompt = recipe.arguments()
    for said in (["--recipe", str(path)], [f"--recipe={path}"]):
        found = expanded(["render", "--seed=3", *said, "--run", "DIR"])
        assert found == ["render", *options, "--seed=3", "--run", "DIR", dashes, prompt]
        assert "--recipe=one_stage" in found and not any(word.startswith("--models") for word in found)
    for other in (["render", "--recipe", "hq", "a cat"], ["plan", "--recipe", str(path)], [], ["render", "--recipe"]):
        assert expanded(other) == other
    given = recipe.model_copy(update={"request": {**recipe.request, "loras": [{}], "model_class": "dev"}})
    with pytest.raises(RequestError, match="cannot carry loras"):
        given.arguments()
    dev = recipe.model_copy(update={"request": {**recipe.request, "model_class": "dev"}})
    assert "--class=dev" in dev.arguments()


def test_no_text_claims_parity_while_it_is_pending() -> None:
    """README, docs and BENCHMARKS; every committed record of ours is PENDING or names what ran."""
    pages = [ROOT / "README.md", ROOT / "BENCHMARKS.md", *sorted((ROOT / "docs").glob("*.md"))]
    pending = [record for record in Ledger(ROOT / RECORDS).records() if record.oracle is None]
    assert pending, "the rule holds while something is PENDING"
    assert [(page.name, found) for page in pages if (found := parity_claims(page.read_text()))] == []


@pytest.mark.parametrize("text", CLAIMS)
def test_a_claim_is_found(text: str) -> None:
    """The rule above is not vacuous."""
    assert parity_claims(f"A first sentence. {text} A last one.") == [text]


@pytest.mark.parametrize("text", NO_CLAIMS)
def test_what_claims_nothing_is_let_through(text: str) -> None:
    """Denials and descriptions are no claims."""
    assert parity_claims(text) == []


def test_the_committed_records_hold_no_path() -> None:
    """Of no machine and no home."""
    for path in (ROOT / RECORDS).iterdir():
        assert not re.search(r'"/(?:home|root|work|tmp|opt|mnt|scratch)/', path.read_text()), path.name


def test_events_of_a_run_reach_the_page(tmp_path: Path) -> None:
    """A stopped run shows its sum against its budget."""
    end = {"event": "RunStops", "exit_code": 92, "reason": "overrun", "sum_s": 9.0, "budget_s": 5.0}
    lines = events(end=end | {"terms": [{"name": "all", "seconds": 9.0}]})
    write_record(make_run(tmp_path / "run", lines), tmp_path / "home", machine(), private=False)
    (record,) = Ledger.of(tmp_path / "home").records()
    Ledger(tmp_path / RECORDS).add("run", record.statement)
    assert "stopped, exit 92: 9 s > 5 s" in benchmarks(tmp_path)
