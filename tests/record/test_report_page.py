"""Report pages as text: every state of a run, what was not recorded, hostile words, no network, nothing private."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from told_runs import (
    PROMPT,
    REQUEST,
    failed,
    finished,
    memory,
    plan,
    resumed,
    stopped,
    verdict,
    write_film,
    write_json,
    write_told,
)

from shotclock.errors import RunDirError
from shotclock.record.digest import file_sha256
from shotclock.record.page_facts import ROW_PHASES, reproduce_command
from shotclock.record.report import REPORT, write_report

HOSTILE = (
    """<script>alert(1)</script>"><img src=x onerror=alert(2)> {{ 7*7 }} `</code>` ' & javascript:alert(3) $x^2$"""
)
HOSTILE += "\ud800 \x00\x1b]0; \u202e \U0001f9ca"
LOADING = {"src", "href", "poster", "data", "action", "srcset", "background", "formaction", "xlink:href"}
VOID = {"meta", "link", "img", "input", "br", "hr"}


class Page(HTMLParser):
    """A parsed page: text, tags with attributes, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Of SVG."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close what is open."""
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        """Words outside of style and script."""
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def section(self, name: str) -> str:
        """Source of the section with this id."""
        found = re.search(rf'<section id="{name}">.*?</section>', self.source, re.DOTALL)
        assert found, name
        return found[0]


def page(folder: Path, **options: object) -> Page:
    """Write the report and read it."""
    return Page(write_report(folder, **options).read_text())  # type: ignore[arg-type]  # as the test gives them


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything: clip, verdict, memory, plan with a forecast, record."""
    folder = write_told(tmp_path_factory.mktemp("whole") / "run", finished())
    write_film(folder / "clip.mp4")
    write_json(folder / "verdict.json", verdict(file_sha256(folder / "clip.mp4")))
    (folder / "memory.jsonl").write_text(memory([900.0]))
    run = {
        "id": "20261130T235629Z-248dca",
        "not_shown": ["no other implementation ran this workload (PENDING)"],
        "oracle": {"status": "PENDING", "reason": "none has run"},
        "rejected": [{"geometry": "1024x576", "line": "16,446 s of 11,400 s"}],
        "warnings": ["2.0x slower than 3 earlier runs"],
    }
    weights = {"name": "t", "annotations": {"part": "transformer"}, "digest": {"sha256": "c0ffee" * 10 + "abcd"}}
    predicate = {
        "buildDefinition": {"externalParameters": {}, "resolvedDependencies": [weights]},
        "runDetails": {"metadata": {"invocationId": run["id"], "startedOn": "2026-11-30T23:56:29+00:00"}},
        "shotclock_run": run,
        "shotclock_machine": {"facts": {"driver": {"value": None, "unit": "", "reason": "no NVML"}}, "libraries": {}},
        "shotclock_context": {"private": False},
    }
    write_json(folder / "record.json", {"_type": "statement", "subject": [], "predicate": predicate})
    return folder


@pytest.fixture(scope="module")
def whole_page(whole: Path) -> Page:
    """Its report."""
    return page(whole)


def test_a_whole_run_shows_everything(whole_page: Page) -> None:
    """Outcome, figures with n and spread, plan against measured, thresholds, provenance, command, what is not shown."""
    for words in (
        PROMPT,
        "PASS Rendered in 15 min 45 s, then judged by numbers.",
        "24 passes, 24 forwards of single legs.",
        "Ended 3 h 44 min before the end of a lease of 4 h.",
        "own demand, host 70.4 GiB",
        "limit \u2265 60, margin -8.3 %. Threshold from: 1,408 measured clips.",
        "denoise, with warm-up 412.0 s 329.6 to 659.2 s 412.4 s +0.1 %",
        "42,018,190,584",
        "c0ffeec0ffee",
        "no other implementation ran this workload (PENDING)",
        "2.0x slower than 3 earlier runs",
        "1024x576 16,446 s of 11,400 s",
        "driver not recorded (no NVML)",
        "Throttled in",
    ):
        assert words in whole_page.text, words
    assert whole_page.open == []


def test_the_page_refers_to_nothing_outside(whole_page: Page) -> None:
    """No name of another place in it: everything that loads is a data URI or an anchor of the page."""
    assert not re.search(r"https?:|//[\w-]+\.\w|@import", whole_page.source)
    loads = [value for _, given in whole_page.tags for name, value in given.items() if name in LOADING]
    assert loads and all(value and value.startswith(("data:", "#")) for value in loads)
    assert "url(" not in re.sub(r"url\(#[\w-]+\)", "", whole_page.source)


def test_names_inside_the_page_are_unique(whole_page: Page) -> None:
    """Two drawings of each plot, and no id twice, so that no drawing borrows from a hidden one."""
    names = [given["id"] for _, given in whole_page.tags if "id" in given]
    assert len(names) == len(set(names))
    assert whole_page.source.count("<svg ") == 2 * 4


def test_colours_of_plots_are_those_of_the_page(whole_page: Page) -> None:
    """No colour that only one theme can show is left in a drawing."""
    drawings = "".join(re.findall(r"<svg .*?</svg>", whole_page.source, re.DOTALL))
    colours = set(re.findall(r"#[0-9a-f]{6}\b", drawings))
    assert colours <= {"#000000"}  # clip paths and the like, which paint nothing
    assert "var(--series-1)" in drawings and "var(--faint)" in drawings


def test_the_same_folder_gives_the_same_bytes(whole: Path, whole_page: Page) -> None:
    """Nothing of the moment or the machine is in a report, and reading leaves the folder as it is."""
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir() if path.name != REPORT}
    assert write_report(whole).read_text() == whole_page.source
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir() if path.name != REPORT} == before


def test_a_large_clip_is_linked_beside_the_page(tmp_path: Path) -> None:
    """Above the limit the page names the file, says so, and keeps its poster."""
    folder = write_told(tmp_path, failed("after the clip was written"))
    write_film(folder / "clip.mp4", sound=False)
    small = page(folder, embed_limit_bytes=1000)
    video = next(given for tag, given in small.tags if tag == "video")
    assert video["src"] == "clip.mp4"
    assert "too large to embed" in small.text and "must lie beside this page" in small.text
    assert (video["poster"] or "").startswith("data:image/jpeg")


def test_a_run_without_anything_says_what_is_missing_and_never_0(tmp_path: Path) -> None:
    """Only a request: every section gives its reason."""
    write_json(tmp_path / "request.json", REQUEST)
    bare = page(tmp_path)
    for reason in (
        "there is no clip.mp4 and no draft",
        "there is no verdict.json",
        "events.jsonl says no phase",
        "there is no events.jsonl",
        "memory was not sampled: no memory.jsonl",
        "there is no plan.json",
        "there is no record.json",
    ):
        assert f"not recorded ({reason}" in bare.text, reason
    assert not re.search(r"(?<![\d.,])0 s\b|\b0 GiB|\b0\.0 GiB", bare.text)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("verdict.json", "{", "verdict.json is no JSON"),
        ("verdict.json", "[]", "verdict.json is no JSON object"),
        ("verdict.json", '{"outcome": "GREAT"}', "verdict.json is not what this version reads: clip"),
        ("plan.json", '{"passes": "many"}', "plan.json is not what this version reads: forwards"),
        ("clip.mp4", "no film", "clip.mp4 does not decode"),
        ("memory.jsonl", "\n\n", "memory was not sampled"),
    ],
)
def test_a_broken_file_is_a_reason_and_no_crash(tmp_path: Path, name: str, content: str, reason: str) -> None:
    """The rest of the page is there."""
    log = failed("out of memory")
    write_told(tmp_path, log)
    (tmp_path / name).write_text(content)
    assert reason in page(tmp_path).text


def test_words_of_a_run_are_never_markup(tmp_path: Path) -> None:
    """Prompt, notes, legs, reasons, names and verdict sentences may hold anything: they stay text."""
    log = stopped(75, HOSTILE)
    log.lines[0] |= {"command": f"shotclock render --models=tiny -- {json.dumps(HOSTILE)}", "device": HOSTILE}
    log.lines[0]["files"] = {HOSTILE: {"path": f"/srv/{HOSTILE}", "bytes": 1}}
    log.lines[0][HOSTILE] = HOSTILE
    for line in log.lines:
        if "legs" in line:
            line["legs"] = [HOSTILE]
        if line.get("phase") == "snapshot":
            line["phase"] = HOSTILE
    folder = write_told(tmp_path, log, request=REQUEST | {"prompt": HOSTILE, "negative_prompt": HOSTILE})
    judged = verdict("0" * 64, "WARN")
    judged["arms"] = {HOSTILE: "WARN"}
    judged["not_judged"] = [HOSTILE]
    for finding in judged["findings"]:
        finding |= dict.fromkeys(("rule", "arm", "metric", "meaning", "source", "way_out", "comparison"), HOSTILE)
    write_json(folder / "verdict.json", judged)
    write_json(folder / "record.json", {"predicate": {"shotclock_run": {"not_shown": [HOSTILE], "id": HOSTILE}}})
    hostile = page(folder)
    scripts = [given for tag, given in hostile.tags if tag == "script"]
    assert len(scripts) == 1 and hostile.source.count("alert(1)") == hostile.source.count("&lt;script&gt;alert(1)")
    assert all(given.get("src") != "x" for tag, given in hostile.tags if tag == "img")
    assert not [name for _, given in hostile.tags for name in given if name.startswith("on")]
    assert "{{ 7*7 }}" in hostile.text and "49" not in hostile.section("request")
    assert hostile.open == []


def test_only_the_pages_own_script_may_run(whole_page: Page) -> None:
    """The policy names the digest of the script and allows no other source."""
    policy = next(given["content"] for _, given in whole_page.tags if given.get("http-equiv"))
    script = re.search(r"<script>(.*?)</script>", whole_page.source, re.DOTALL)
    assert script is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def test_a_private_report_holds_no_word_of_the_prompts(tmp_path: Path) -> None:
    """By the flag, and without it where the record says that the run is private."""
    log = failed("out of memory")
    log.lines[0]["command"] = "shotclock render '--negative-prompt=secret two' --models=tiny --run=DIR -- 'secret one'"
    asked = REQUEST | {"prompt": "secret one", "negative_prompt": "secret two"}
    folder = write_told(tmp_path, log, request=asked)
    assert "secret one" in page(folder).text
    assert "secret" not in page(folder, private=True).source
    write_json(folder / "record.json", {"predicate": {"shotclock_context": {"private": True}}})
    private = page(folder)
    assert "secret" not in private.source and "(kept private)" in private.text


def test_folders_of_the_machine_are_left_out(tmp_path: Path) -> None:
    """A report is shown around: names of files stay, the way to them does not."""
    log = failed("/srv/alice/runs/7/clip.mp4: no space left", way_out="free space below /srv/alice/runs")
    text = page(write_told(tmp_path, log)).source
    assert "alice" not in text and "/srv" not in text
    assert "clip.mp4: no space left" in text and "transformer.safetensors" in text


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            "shotclock render --models=/srv/w --seed=1 --run=DIR -- hi",
            "render \\\n  --models=DIR \\\n  --seed=1 \\\n  --run=DIR -- hi",
        ),
        ("shotclock render --models=tiny -- '--run=/x'", "render \\\n  --models=tiny -- --run=/x"),
        ('shotclock render --contexts=/a/b.safetensors -- "it\'s"', "render \\\n  --contexts=FILE -- 'it'\"'\"'s'"),
        ("shotclock render 'torn", "shotclock render 'torn"),
    ],
)
def test_the_command_can_be_pasted(command: str, shown: str) -> None:
    """One option a line, stand-ins for paths, quoted as a shell wants it."""
    assert reproduce_command(command, private=False).removeprefix("shotclock ") == shown.removeprefix("shotclock ")


def test_a_resumed_run_shows_every_attempt(tmp_path: Path) -> None:
    """Three strips, forwards that ran again, the seam, and errors of projections only for what ended by itself."""
    log = resumed()
    folder = write_told(tmp_path, log)
    (folder / "memory.jsonl").write_text(memory([700.0, 200.0, 380.0]))
    text = page(folder).text
    assert "22 min 56 s of work in 3 attempts; not judged" in text
    assert "attempt 3, 6 min 30 s" in text
    assert "2 forwards ran again in a later attempt" in text
    assert "torch 2.12.0 -> 2.13.0" in text
    assert "Announced and never seen to end: pass 19, step 5 of 6 (perturbed)." in text
    assert "stopped, exit code 75" in text and "no last line" in text


def test_a_stop_shows_its_sum(tmp_path: Path) -> None:
    """Terms, sum and lease, and that nothing is the clip yet; a draft is called a draft."""
    folder = write_told(tmp_path, stopped())
    write_film(folder / "draft-step-4.mp4", sound=False, frames=9)
    text = page(folder).text
    for words in ("STOPPED The lease ended", "reserve 120.0 s sum 896.2 s the lease 900.0 s", "shotclock resume RUN"):
        assert words in text, words
    assert "Draft, not the clip" in text and "was not judged" in text
    assert "draft-step-4.mp4 holds no sound" in text
    assert "8 did not run" in text


def test_a_killed_run_is_told_from_a_failed_one(tmp_path: Path) -> None:
    """Without a last line nobody knows why; with one the page gives found, allowed and way out."""
    log = failed("out of memory at 96x64", allowed="what is free", way_out="--legs-per-pass 1")
    said = page(write_told(tmp_path / "failed", log)).text
    assert "FAILED" in said
    assert "Found: out of memory at 96x64 Allowed: what is free Way out: --legs-per-pass 1" in said
    log.lines.pop()
    said = page(write_told(tmp_path / "killed", log)).text
    assert "NO LAST LINE" in said and "In flight was pass 2, step 1 of 6 (uncond)" in said


def test_a_verdict_on_another_file_is_called_so(tmp_path: Path) -> None:
    """The clip was replaced after it was judged: the page does not pass the old verdict off as its own."""
    folder = write_told(tmp_path, failed("after the clip was written"))
    write_film(folder / "clip.mp4", frames=9, sound=False)
    write_json(folder / "verdict.json", verdict("0" * 64))
    assert "This verdict judged another file" in page(folder).text
    write_json(folder / "verdict.json", verdict(file_sha256(folder / "clip.mp4")))
    assert "judged another file" not in page(folder).text


def test_few_passes_are_provisional_and_one_has_no_spread(tmp_path: Path) -> None:
    """Every figure carries n; nothing is claimed from two."""
    log = finished()
    kept = [line for line in log.lines if line["event"] not in ("PassBegins", "PassEnds") or line["index"] <= 3]
    log.lines = kept
    text = page(write_told(tmp_path, log)).section("forwards")
    assert text.count("provisional") >= 2
    assert "one pass has no spread" in text and "only warm-up passes" in text


def test_one_odd_pass_of_many_does_not_make_the_spread_of_the_tile(tmp_path: Path) -> None:
    """The spread of records everywhere: without the outer 5 % from 20 passes on."""
    log = finished()
    begins, ends = (
        next(line for line in log.lines if (line["event"], line.get("index")) == (name, 12))
        for name in ("PassBegins", "PassEnds")
    )
    begins["t_s"] = ends["t_s"] - 0.5 * ends["last_s"]
    ends["last_s"] *= 0.5
    found = re.search(r"median of 23, spread ([\d.]+)", page(write_told(tmp_path, log)).text)
    assert found is not None and float(found[1]) < 10


def test_a_plan_without_a_forecast_compares_counts_only(tmp_path: Path) -> None:
    """Seconds that nobody planned are not compared with anything."""
    folder = write_told(tmp_path, failed("out of memory"))
    write_json(folder / "plan.json", plan(6, forecast=False))
    section = page(folder).section("plan")
    assert "holds no forecast of seconds" in section and "measured</th>" not in section


def test_a_phase_that_nobody_planned_is_listed(tmp_path: Path) -> None:
    """Its seconds are not left out of the comparison."""
    log = failed("out of memory")
    log.lines.insert(5, {"event": "PhaseBegins", "phase": "upscale", "t_s": 4.5})
    log.lines.insert(6, {"event": "PhaseEnds", "phase": "upscale", "t_s": 11.5, "last_s": 7.0})
    text = page(write_told(tmp_path, log)).text
    assert "upscale not recorded (the plan has no row for it) - 7.000 s" in text


def test_the_plans_rows_and_phases_are_known() -> None:
    """Every row that the ledger of a plan can have is compared with a phase that exists, or is known to have none."""
    from shotclock.events import Phase
    from shotclock.plan import pricing

    rows = {
        pricing.START, pricing.LOAD_TEXT, pricing.TEXT, pricing.CONDITIONS, pricing.LOAD_MODEL, pricing.REHEARSAL,
        pricing.WARM_UP, pricing.DENOISE, pricing.SNAPSHOTS, *pricing.TAIL,
    }  # fmt: skip
    assert rows - {pricing.WARM_UP, pricing.DENOISE, pricing.MUX} == ROW_PHASES.keys()
    assert {phase for phases in ROW_PHASES.values() for phase in phases} <= {str(phase) for phase in Phase}


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """And no file is left in it."""
    with pytest.raises(RunDirError, match="holds no run"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
