"""``shotclock record ...``: every command from arguments to lines, a document and an exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_folders import PASS_S, REQUEST, events, machine, make_run, verdict

from shotclock.cli import main
from shotclock.record.facts import canonical, sha256
from shotclock.record.ledger import write_record
from shotclock.record.recipes import read_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two finished runs, the second 1.3 times as slow, and one that was killed and not recorded."""
    found = tmp_path / "home"
    for number, scale in ((1, 1.0), (2, 1.3)):
        lines = events([scale * s for s in PASS_S], utc=f"2026-12-01T0{number}:00:00+00:00")
        run = make_run(tmp_path / f"run{number}", lines, judged=verdict())
        write_record(run, found, machine(), private=False)
    make_run(tmp_path / "killed", events(PASS_S[:2], end=None, utc="2026-12-01T03:00:00+00:00"), clip=None)
    return found


@pytest.fixture
def ask(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process; returns exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SHOTCLOCK_HOME", str(home))
        monkeypatch.setattr(sys, "argv", ["shotclock", "record", *arguments])
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return int(code or 0), said.out, said.err

    return run


def test_list_and_show_read_well_and_as_json(ask: Any) -> None:
    """A line a record; one in full with what it does not show; one document with --json."""
    code, out, _ = ask("list")
    first, second = out.splitlines()
    assert code == 0 and "current" in first and "1 s (n=7, spread 4.0%)" in first and "1.3 s" in second
    records = json.loads(ask("list", "--json")[1])
    assert [record["status"] for record in records] == ["current", "current"]
    shown = ask("show", records[0]["id"])[1]
    assert "this run does not show:" in shown and "oracle: PENDING" in shown
    document = json.loads(ask("show", records[1]["id"], "--json")[1].splitlines()[-1])
    assert document["statement"]["_type"].endswith("/v1") and document["id"] == records[1]["id"]


def test_query_answers_rows(ask: Any) -> None:
    """Names first, then a row a line; a wrong question is refused with the columns."""
    assert ask("query", "select ended, count(*) as n from records group by ended")[1] == "ended\tn\nfinished\t2\n"
    assert json.loads(ask("query", "select 1 as one", "--json")[1]) == [{"one": 1}]
    assert ask("query", "select id from records where 0")[1] == "no row\n"
    code, _, err = ask("query", "select nonsense from records")
    assert code == 2 and "geometry" in err


def test_audit_ends_with_1_where_something_was_changed(ask: Any, tmp_path: Path) -> None:
    """Exit code 0, then 1 with the reason; another ledger by its folder."""
    assert ask("audit")[0] == 0
    log = tmp_path / "run1" / "events.jsonl"
    log.write_text(log.read_text().replace("0.98", "0.48"))
    code, out, _ = ask("audit")
    assert code == 1 and "passes derived again is another" in out
    assert json.loads(ask("audit", "--json")[1])["broken"]
    assert ask("audit", "--ledger", str(ROOT / "recipes" / "records"))[0] == 0


def test_compare_by_id_and_by_folder(ask: Any, tmp_path: Path) -> None:
    """1.3 times is slower beyond the noise; a run that is not recorded says how to."""
    out = ask("compare", "20261201T01", str(tmp_path / "run2"))[1]
    assert "B/A 1.300 (noise 4.0%)" in out and ": slower" in out
    code, _, err = ask("compare", "20261201T01", str(tmp_path / "killed"))
    assert code == 2 and "shotclock record add" in err


def test_a_killed_run_is_recorded_later_and_knows_that_nobody_looked(ask: Any, tmp_path: Path) -> None:
    """Its log is there, the machine's facts are missing with the reason, and it is not compared as if they agreed."""
    assert "killed" in ask("add", str(tmp_path / "killed"))[1]
    document = json.loads(ask("show", "20261201T03", "--json")[1])
    assert document["status"] == "killed"
    assert document["facts"]["checked"]["driver"]["reason"].startswith("recorded after the run had ended")
    assert any("which code ran" in one for one in document["facts"]["not_shown"])
    code, _, err = ask("compare", "20261201T01", "20261201T03")
    assert code == 2 and "driver" in err
    assert ask("audit")[0] == 0


def test_supersede_needs_a_reason_and_shows_in_the_list(ask: Any) -> None:
    """The older one stays, marked."""
    old, new = (record["id"] for record in json.loads(ask("list", "--json")[1]))
    code, out, _ = ask("supersede", old, "--by", new, "--why", "measured while another job ran")
    assert code == 0 and "measured while another job ran" in out
    assert "superseded" in ask("list")[1].splitlines()[0]
    assert ask("supersede", old, "--by", new, "--why", "twice")[0] == 2


def test_benchmarks_are_printed_or_written(ask: Any, tmp_path: Path) -> None:
    """The page of a checkout."""
    assert ask("benchmarks", "--root", str(ROOT))[1] == (ROOT / "BENCHMARKS.md").read_text()
    assert ask("benchmarks", "--root", str(tmp_path), "--write")[0] == 0
    assert "No record yet." in (tmp_path / "BENCHMARKS.md").read_text()


def test_the_recipe_of_a_record_asks_for_its_request(ask: Any, tmp_path: Path) -> None:
    """The digest of its request is that of the run; a private record has none to give."""
    out = ask("recipe", "20261201T01")[1]
    (tmp_path / "recipe.json").write_text(out)
    recipe = read_recipe(tmp_path / "recipe.json")
    assert recipe.request == REQUEST and recipe.request_sha256 == sha256(canonical(REQUEST))
    assert (recipe.models, recipe.device, recipe.dtype) == (None, "cuda", "bfloat16")
    ask("add", str(tmp_path / "killed"), "--private")
    code, _, err = ask("recipe", "20261201T03")
    assert code == 2 and "not private" in err


def test_clips_without_media_are_refused(ask: Any, tmp_path: Path) -> None:
    """The folder is named, and what would do."""
    code, _, err = ask("clips", str(tmp_path / "killed"), str(tmp_path / "killed"))
    assert code == 2 and "holds nothing to compare" in err


def test_arguments_cost_nothing_before_they_are_asked() -> None:
    """The sub-application itself brings neither torch nor PyAV nor numpy."""

    code = "import shotclock.record.command, sys; sys.exit(bool({'torch', 'av', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
