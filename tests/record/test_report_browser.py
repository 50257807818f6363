"""Report and index in a headless Chromium: they load, play, filter, fold for a phone, print, complain of nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_browser
from told_runs import finished, memory, stopped, verdict, write_film, write_json, write_told

from shotclock.record.digest import file_sha256
from shotclock.record.facts import known
from shotclock.record.ledger import write_record
from shotclock.record.ledger_page import write_index
from shotclock.record.machine import Machine
from shotclock.record.report import write_report

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine: apt-get install chromium")

PLAYS = """new Promise((done) => {
  const video = document.querySelector("video");
  const tell = () => done([video.readyState, video.videoWidth, video.videoHeight, video.duration]);
  video.addEventListener("error", () => done(["error", video.error.message]));
  video.readyState >= 4 ? tell() : video.addEventListener("canplaythrough", tell);
})"""
MOVES = """new Promise((done) => {
  const video = document.querySelector("video");
  video.muted = true;
  video.addEventListener("timeupdate", () => video.currentTime > 0.05 && done(true));
  video.play().catch((error) => done(String(error)));
})"""
TOO_WIDE = """[...document.querySelectorAll("body *")]
  .filter((part) => !part.closest("svg, nav, .sheet") && part.getBoundingClientRect().right > innerWidth + 1)
  .map((part) => part.tagName + "." + part.className)"""
SHOWN = (
    """[...document.querySelectorAll("#records > li")].filter((row) => !row.hidden).map((row) => row.dataset.status)"""
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One process for all of these tests."""
    assert PROGRAM is not None, "skipped without one"
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with everything and a stopped one whose clip is linked, recorded and reported."""
    home = tmp_path_factory.mktemp("home")
    machine = Machine(facts={"device": known("NVIDIA GB10")}, libraries={}, modules={}, operations={})
    for name, log, utc in (
        ("done", finished(), "2026-11-30T10:00:00+00:00"),
        ("cut", stopped(), "2026-11-30T09:00:00+00:00"),
    ):
        log.lines[0]["utc"] = utc
        folder = write_told(home / name, log)
        write_film(folder / ("clip.mp4" if name == "done" else "draft-step-4.mp4"), sound=name == "done")
        (folder / "memory.jsonl").write_text(memory([60.0]))
        if name == "done":
            write_json(folder / "verdict.json", verdict(file_sha256(folder / "clip.mp4")))
        write_record(folder, home, machine, private=False)
        write_report(folder, embed_limit_bytes=10**8 if name == "done" else 0)
    write_index(home)
    return home


def test_a_report_loads_and_its_clip_plays(browser: Browser, home: Path) -> None:
    """From a file, without a request to anything but itself and without a word on the console."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(home / "done" / "report.html", width=1100)
    state, width, height, duration_s = browser.run(PLAYS)
    assert (state, width, height) == (4, 96, 64) and duration_s == pytest.approx(25 / 24, abs=0.05)
    assert browser.run(MOVES) is True
    assert browser.run("[...document.images].every((image) => image.decode && image.complete)")
    assert browser.complaints == []
    asked = {re.sub(r"^(data:[\w/]*).*", r"\1", url, flags=re.DOTALL) for url in browser.requests}
    assert {url for url in asked if not url.startswith("data:")} == {(home / "done" / "report.html").as_uri()}


def test_a_linked_clip_plays_from_beside_the_page(browser: Browser, home: Path) -> None:
    """The policy lets the page load the file that it names."""
    browser.complaints.clear()
    browser.open(home / "cut" / "report.html", width=1100)
    assert browser.run("document.querySelector('video').getAttribute('src')") == "draft-step-4.mp4"
    assert browser.run(PLAYS)[0] == 4
    assert browser.complaints == []


def test_injected_script_does_not_run(browser: Browser, home: Path) -> None:
    """Even if markup got in, the policy would refuse it: neither inline script nor a handler runs."""
    page = home / "done" / "spoilt.html"
    page.write_text(
        (home / "done" / "report.html")
        .read_text()
        .replace("<main>", "<main><script>window.bad = 1</script><img src='data:,' onerror='window.bad = 2'>")
    )
    browser.open(page, width=800)
    assert browser.run("window.bad === undefined")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints)


@pytest.mark.parametrize("page", ["done/report.html", "cut/report.html", "records.html"])
def test_a_phone_needs_no_sideways_scrolling(browser: Browser, home: Path, page: str) -> None:
    """At 360 pixels, with everything unfolded; letters of the plots are at least 10 pixels high."""
    browser.open(home / page, width=360, height=740, phone=True)
    browser.run("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]
    assert browser.run(TOO_WIDE) == []
    heights = browser.run(
        "[...document.querySelectorAll('.plot text')].map((one) => one.getBoundingClientRect().height).filter(Boolean)"
    )
    assert page == "records.html" or min(heights) >= 10


def test_dark_and_light_have_their_own_colours(browser: Browser, home: Path) -> None:
    """Page and plots follow the reader's choice, and words stand out from the ground in both."""
    looks = []
    for dark in (False, True):
        browser.open(home / "done" / "report.html", width=1100, dark=dark)
        looks.append(
            browser.run(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
                " getComputedStyle(document.querySelector('.plot .wide text')).fill]"
            )
        )
    light, night = looks
    assert all(one != other for one, other in zip(light, night, strict=True))
    assert all(abs(_brightness(look[0]) - _brightness(look[1])) > 150 for look in looks)


def _brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_it_prints_with_everything_unfolded(browser: Browser, home: Path) -> None:
    """A PDF of a few pages; the poster stands in for the player, folded tables are open, navigation is gone."""
    browser.open(home / "done" / "report.html", width=1100)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    assert browser.run("[...document.querySelectorAll('details')].every((part) => part.open)")
    browser.call("Emulation.setEmulatedMedia", media="print")
    shown = "(name) => getComputedStyle(document.querySelector(name)).display"
    assert browser.run(f"['video', 'nav', '.poster'].map({shown})") == ["none", "none", "block"]
    browser.call("Emulation.setEmulatedMedia", media="")


def test_filters_of_the_index(browser: Browser, home: Path) -> None:
    """By status, by words, by both; the count follows, and a record without a match says so."""
    browser.complaints.clear()
    browser.open(home / "records.html", width=900)
    assert browser.run(SHOWN) == ["current", "stopped"]

    def choose(name: str, value: str) -> list[str]:
        browser.run(
            f"(() => {{ const field = document.forms[0].elements['{name}']; field.value = '{value}';"
            " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        return list(browser.run(SHOWN))

    assert choose("status", "stopped") == ["stopped"]
    assert choose("words", "LANTERN cross the end") == ["stopped"]
    assert choose("words", "nowhere") == []
    assert browser.run("[document.getElementById('shown').textContent, document.getElementById('none').hidden]") == [
        "0",
        False,
    ]
    assert choose("words", "") == ["stopped"] and choose("status", "") == ["current", "stopped"]
    browser.run("document.querySelector('#records a').click()")
    assert browser.complaints == []
