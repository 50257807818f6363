"""The index of the ledger: every record once, newest first, corrections beside what they correct, links that lead."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from told_runs import PROMPT, REQUEST, failed, stopped, verdict, write_film, write_json, write_told

from shotclock.errors import RequestError
from shotclock.record.digest import file_sha256
from shotclock.record.facts import known
from shotclock.record.ledger import Ledger, write_record
from shotclock.record.ledger_page import INDEX, write_index
from shotclock.record.machine import Machine
from shotclock.record.report import REPORT, write_report
from shotclock.record.report_command import report

HOSTILE = """"><script>alert(1)</script> ' onmouseover=x"""
MACHINE = Machine(
    facts={"device": known("NVIDIA GB10"), "commit": known("c0ffee"), "dirty": known(False)},
    libraries={},
    modules={},
    operations={},
)


class Rows(HTMLParser):
    """Records of an index: their attributes and their words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[tuple[dict[str, str | None], list[str]]] = []
        self.links: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A record begins, or a link or a script."""
        given = dict(attrs)
        if tag == "li" and "data-status" in given:
            self.rows.append((given, []))
        if tag == "a":
            self.links.append(given["href"] or "")
        self.scripts += tag == "script"

    def handle_data(self, data: str) -> None:
        """Words of the record that is open."""
        if self.rows:
            self.rows[-1][1].append(data.strip())

    def words(self, row: int) -> str:
        """Of one record."""
        return " ".join(word for word in self.rows[row][1] if word)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of a stopped, a judged, a failed and a private run; the stopped one is superseded by the judged."""
    home = tmp_path_factory.mktemp("home")
    told = {
        "stopped": (stopped(), "2026-11-30T10:00:00+00:00", REQUEST, False),
        "judged": (failed("after it was judged"), "2026-11-30T11:00:00+00:00", REQUEST, False),
        "failed": (failed("out of memory"), "2026-11-30T12:00:00+00:00", REQUEST | {"prompt": HOSTILE}, False),
        "private": (failed("disk full"), "2026-11-30T09:00:00+00:00", REQUEST | {"prompt": "my secret"}, True),
    }
    ids = {}
    for name, (log, utc, asked, private) in told.items():
        log.lines[0]["utc"] = utc
        folder = write_told(home / "runs" / name, log, request=asked)
        if name == "judged":
            write_film(folder / "clip.mp4", frames=9, sound=False)
            write_json(folder / "verdict.json", verdict(file_sha256(folder / "clip.mp4"), "WARN"))
            write_report(folder)
        ids[name] = write_record(folder, home, MACHINE, private=private)["id"]
    Ledger.of(home).supersede(ids["stopped"], by=ids["judged"], why="the lease was too short")
    return home


@pytest.fixture(scope="module")
def index(home: Path) -> Rows:
    """The page as it was written."""
    return Rows(write_index(home).read_text())


def test_every_record_is_there_once_newest_first(index: Rows) -> None:
    """Four records by when their runs began; each says how it ended, on what, and how long a pass took."""
    assert [given["data-status"] for given, _ in index.rows] == ["failed", "failed", "superseded", "failed"]
    assert all(given["data-geometry"] == "96x64, 25 frames at 24" for given, _ in index.rows)
    assert "16.57 s (n = 3, spread 1.0 %, provisional)" in index.words(2)
    assert "Stopped: the next forward would cross the end of the lease" in index.words(2)
    assert "WARN" in index.words(1) and "own memory not recorded" in index.words(1)


def test_a_correction_stands_beside_what_it_corrects(index: Rows) -> None:
    """The old record stays readable, with the newer one's id and the reason."""
    assert "Superseded by 20261130T110000Z" in index.words(2) and "the lease was too short" in index.words(2)


def test_links_lead_to_reports_that_exist(home: Path, index: Rows) -> None:
    """Relative, so that home and runs can move together; a run without a report has no link."""
    assert index.links == ["runs/judged/report.html"]
    assert (home / index.links[0]).is_file()


def test_words_of_a_record_are_never_markup_and_private_ones_are_not_there(home: Path, index: Rows) -> None:
    """Attributes and text alike."""
    text = (home / INDEX).read_text()
    assert index.scripts == 1 and "<script>alert" not in text and HOSTILE.split()[0] in index.words(0)
    assert "secret" not in text and "Prompt kept private" in index.words(3)
    assert "http:" not in text and "https:" not in text


def test_an_empty_ledger_has_an_index(tmp_path: Path) -> None:
    """It says that there is no record yet, and can be written elsewhere."""
    path = write_index(tmp_path / "home", tmp_path / "out" / "all.html")
    assert path == tmp_path / "out" / "all.html" and "No record yet" in path.read_text()


def test_the_command_answers_for_a_run_and_for_the_ledger(home: Path, tmp_path: Path) -> None:
    """Where the file is, for a person and for a program; the clip's limit and the index's place are options."""
    folder = home / "runs" / "judged"
    asked = report(run=folder, every=False, out=None, embed_mib=0.0, private=True, as_json=False).ask(home)
    assert asked.document == {"report": str(folder / REPORT)} and asked.exit_code == 0
    assert 'src="clip.mp4"' in (folder / REPORT).read_text() and PROMPT not in (folder / REPORT).read_text()
    all_of = report(run=None, every=True, out=tmp_path / "all.html", embed_mib=24.0, private=False, as_json=True)
    assert all_of.ask(home).lines == [str(tmp_path / "all.html")] and (tmp_path / "all.html").is_file()


@pytest.mark.parametrize(
    ("run", "every", "out"), [(None, False, None), (Path(), True, None), (Path(), False, Path("x"))]
)
def test_the_command_wants_one_of_the_two(home: Path, run: Path | None, every: bool, out: Path | None) -> None:
    """Wrong usage is exit code 2 with the way out."""
    with pytest.raises(RequestError, match="run folder") as refused:
        report(run=run, every=every, out=out, embed_mib=24.0, private=False, as_json=False).ask(home)
    assert refused.value.exit_code == 2


def test_a_missing_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots and templates are optional dependencies: without them the command says what to install."""
    monkeypatch.setattr("shotclock.record.report_command.find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(RequestError, match="jinja2 is not installed") as refused:
        report(run=home, every=False, out=None, embed_mib=24.0, private=False, as_json=False).ask(home)
    assert "shotclock[report]" in refused.value.way_out
