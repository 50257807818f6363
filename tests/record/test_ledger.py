"""Records of runs that end in every way: one statement each, immutable, without paths, with what is not shown."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_folders import (
    ENDS,
    FAILS,
    NEGATIVE,
    PASS_S,
    PROMPT,
    REQUEST,
    STOPS,
    events,
    machine,
    make_run,
    sample,
    verdict,
    write_lines,
)

from shotclock.errors import DoesNotFit, RequestError, RunDirError
from shotclock.record.audit import audit
from shotclock.record.derive import run_id
from shotclock.record.facts import known
from shotclock.record.ledger import Ledger, Record, places, record_refusal, write_record
from shotclock.record.runfacts import Rung, Term
from shotclock.record.show import line_of, list_lines, show_lines
from shotclock.render.begins import new_id

KILLED = events(PASS_S[:3], end=None)[:-1]  # the third pass was launched and never ended


def only(home: Path) -> Record:
    (record,) = Ledger.of(home).records()
    return record


def recorded(tmp_path: Path, private: bool = False, **how: Any) -> Record:
    write_record(make_run(tmp_path / "run", **how), tmp_path / "home", machine(), private=private)
    return only(tmp_path / "home")


ENDINGS: dict[str, tuple[dict[str, Any], str, int | None]] = {
    "finished": ({"judged": verdict()}, "finished", 0),
    "verdict failed": ({"judged": verdict("FAIL")}, "verdict failed", 4),
    "failed": ({"lines": events(PASS_S[:5], end=FAILS), "clip": None}, "failed", 1),
    "stopped": ({"lines": events(PASS_S[:5], end=STOPS), "clip": None}, "stopped", 92),
    "killed": ({"lines": KILLED, "clip": None}, "killed", None),
    "killed before the first event": ({"lines": [], "clip": None}, "killed", None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_end_leaves_one_record(tmp_path: Path, name: str) -> None:
    """Kind and exit code are those of the end, the ledger has one line, and audit derives every fact again."""
    how, kind, code = ENDINGS[name]
    record = recorded(tmp_path, **how)
    assert (record.facts.end.kind, record.facts.end.exit_code) == (kind, code)
    found = audit(Ledger.of(tmp_path / "home"), places(tmp_path / "home"))
    assert (found.broken, found.entries, found.rederived) == ((), 1, 1)
    assert record.id in line_of(record)


def test_a_statement_is_what_in_toto_and_slsa_say(tmp_path: Path) -> None:
    """Type, subjects with digests, build definition, dependencies, run details; the verdict is a second statement."""
    record = recorded(tmp_path, judged=verdict("WARN"), models=tmp_path / "models")
    said = record.statement
    assert (said["_type"], said["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert [one["name"] for one in said["subject"]] == ["clip.mp4"]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"]["prompt"] == PROMPT
    assert definition["externalParameters"]["seed"] == 10
    weights = next(one for one in definition["resolvedDependencies"] if one["name"] == "ltx-transformer.safetensors")
    assert re.fullmatch("[0-9a-f]{64}", weights["digest"]["sha256"]) and weights["annotations"]["tensors"] == 1
    code = next(one for one in definition["resolvedDependencies"] if one["name"] == "shotclock")
    assert code["digest"] == {"gitCommit": "c" * 40} and code["annotations"] == {"dirty": False}
    assert details["metadata"]["invocationId"] == record.id
    assert details["metadata"]["startedOn"] == "2026-12-01T10:00:00+00:00"
    assert details["metadata"]["finishedOn"] == "2026-12-01T10:00:14+00:00"
    second = json.loads((tmp_path / "home" / "ledger" / f"{record.entry['verdict_sha256']}.json").read_text())
    assert second["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert second["subject"][0]["digest"] == said["subject"][0]["digest"]
    assert second["predicate"]["result"] == "WARNED"
    assert second["predicate"]["warnedTests"] == ["pixels/grad_kurt"]
    assert second["predicate"]["passedTests"] == ["container/frames"]
    assert second["predicate"]["shotclock_verdict"]["numbers"] == {"grad_kurt": 9.5}


def test_record_json_and_its_copy_are_the_same_bytes_named_by_their_digest(tmp_path: Path) -> None:
    """And a second call without a change adds nothing."""
    record = recorded(tmp_path, judged=verdict())
    copy = tmp_path / "home" / "ledger" / f"{record.entry['record_sha256']}.json"
    assert copy.read_bytes() == (tmp_path / "run" / "record.json").read_bytes()
    for seen in (machine(), machine(driver=known("other"))):
        assert write_record(tmp_path / "run", tmp_path / "home", seen, private=False) == record.entry
    assert only(tmp_path / "home").entry == record.entry
    (tmp_path / "run" / "verdict.json").write_text(json.dumps(verdict("FAIL")))
    write_record(tmp_path / "run", tmp_path / "home", machine(), private=False)
    assert [one.facts.end.kind for one in Ledger.of(tmp_path / "home").records()] == ["finished", "verdict failed"]


def test_no_path_is_in_a_record_and_no_prompt_in_a_private_one(tmp_path: Path) -> None:
    """Files are named without their folders, in errors too; a digest stands for private prompts."""
    lines = events(end=FAILS)
    record = recorded(tmp_path, private=True, lines=lines, judged=verdict(), models=tmp_path / "models")
    texts = [path.read_text() for path in (tmp_path / "home" / "ledger").glob("*.json*")]
    texts += [path.read_text() for path in (tmp_path / "run").glob("record*.json")]
    assert len(texts) == 6
    for text in texts:
        assert str(tmp_path) not in text and "/scratch" not in text
        assert PROMPT not in text and NEGATIVE not in text
    assert record.facts.end.found == "clip.mp4: No space left on device in phase decode-video"
    external = record.statement["predicate"]["buildDefinition"]["externalParameters"]
    assert re.fullmatch("[0-9a-f]{64}", external["prompts_sha256"]) and "prompt" not in external


def test_a_refusal_is_recorded_with_its_sum_and_its_rungs(tmp_path: Path) -> None:
    """No run folder: the request, the arithmetic and the rejected rungs are there, and no figure is invented."""
    rung = Rung(
        geometry="1024x576, 49 frames at 24", video_tokens=4032, needs_s=16446, leaves_s=11400, line="4,032 tok"
    )
    error = DoesNotFit("1024x576 needs 16,446 s", allowed="the lease leaves 11,400 s", way_out="896x512")
    terms = (Term(name="denoise", seconds=16446.0), Term(name="tail", seconds=600.0))
    request = REQUEST | {"width": 1024, "height": 576, "frames": 49}
    record_refusal(
        tmp_path,
        machine(),
        request=request,
        request_sha256="a" * 64,
        error=error,
        private=False,
        rejected=(rung,),
        terms=terms,
        budget_s=12000.0,
    )
    record = only(tmp_path)
    assert (record.facts.end.kind, record.facts.end.exit_code, record.status) == ("refused", 3, "refused")
    assert record.facts.end.sum_s == 17046.0 and record.facts.rejected == (rung,)
    assert record.facts.checked["geometry"].value == "1024x576, 49 frames at 24"
    assert record.facts.facts["first_dit"].value is None and record.facts.timings() == {}
    assert record.statement["subject"] == [{"name": "request.json", "digest": {"sha256": "a" * 64}}]
    assert "denoise 16,446.0 s + tail 600.0 s = 17,046.0 s > budget 12,000.0 s" in line_of(record)
    assert audit(Ledger.of(tmp_path), {}).broken == ()


def test_a_missing_fact_has_a_reason_and_is_never_0(tmp_path: Path) -> None:
    """Without memory samples, verdict, key and digests of weights the record says why."""
    record = recorded(tmp_path, lines=events(PASS_S[:2], end=STOPS, key=None), clip=None)
    facts = record.facts
    assert facts.memory == () and facts.memory_reason == "the run left no such file"
    assert facts.checked["attention"].value is None and "law_key" in str(facts.checked["attention"].reason)
    nothing = [fact for fact in (*facts.facts.values(), *facts.checked.values()) if fact.value is None]
    assert nothing and all(fact.reason for fact in nothing)
    assert facts.facts["peak"].value is None
    assert record.statement["predicate"]["shotclock_absent"]["verdict.json"] == "the run left no such file"


def test_what_a_run_does_not_show_follows_from_what_was_off(tmp_path: Path) -> None:
    """Each switched-off term, each thing not measured and not compared has its sentence, and only then."""
    off = REQUEST | {"video": dict(REQUEST["video"]) | {"stg": 0, "cfg": 1}}  # type: ignore[call-overload]
    bare = recorded(tmp_path / "a", request=off, clip=None, lines=events(PASS_S[:3], end=STOPS)).facts.not_shown
    assert "the run was stopped: there is no clip to judge" in bare
    assert any("perturbed leg has no part in video" in one for one in bare)
    assert not any("in audio" in one for one in bare)
    assert any("PENDING" in one for one in bare) and any("interval, not a profile" in one for one in bare)
    assert any("fewer than 5 passes" in one for one in bare)
    memory = [sample(0.0), sample(1.0)]
    full = recorded(tmp_path / "b", judged=verdict(), memory=memory).facts.not_shown
    assert not any("perturbed" in one or "memory" in one or "fewer than" in one for one in full)
    assert "not judged without a reference: a wrong prompt" in full


def test_passes_are_raw_and_statistics_derived(tmp_path: Path) -> None:
    """Every pass with its seconds; the first is kept apart; n, median and spread follow."""
    facts = recorded(tmp_path).facts
    assert [row.seconds for row in facts.passes] == list(PASS_S)
    (samples,) = facts.timings().values()
    assert (samples.n, samples.median, samples.warm_up) == (7, 1.0, (2.0,))
    assert samples.spread == pytest.approx(0.04)
    assert facts.facts["first_dit"].value == 5.0
    assert facts.phase_s() == {"import": 5.0, "denoise": pytest.approx(sum(PASS_S))}


def test_a_resumed_run_has_a_second_record_that_continues_the_first(tmp_path: Path) -> None:
    """Snapshots, seams and repeated forwards are told; the first record still holds in an audit."""
    snapshot = {"event": "Snapshotted", "step": 4, "legs": [], "name": "snapshot-4-0-abc.safetensors", "bytes": 9}
    run = make_run(tmp_path / "run", events(PASS_S[:4], end=STOPS, extra=[snapshot]), clip=None)
    home = tmp_path / "home"
    write_record(run, home, machine(), private=False)
    seam = {"event": "Seam", "differs": {"attention": ["cudnn", "flash"]}}
    later = events(PASS_S[3:], utc="2026-12-01T14:00:00+00:00", first_step=4, extra=[seam])
    write_lines(run / "events.jsonl", later)
    (run / "clip.mp4").write_bytes(b"clip")
    (run / "verdict.json").write_text(json.dumps(verdict()))
    write_record(run, home, machine(), private=False)
    first, second = Ledger.of(home).records()
    assert second.facts.continues == first.id and second.facts.run == first.id
    assert (first.facts.end.kind, second.facts.end.kind) == ("stopped", "finished")
    assert second.facts.repeated_forwards == 4 and second.facts.executed_forwards["cond"] == 9
    assert second.facts.snapshots[0].what == "snapshot-4-0-abc.safetensors"
    assert second.facts.seams[0].detail["differs"] == {"attention": ["cudnn", "flash"]}
    assert any("seam" in one for one in second.facts.not_shown)
    assert second.facts.timings()["cond+uncond+perturbed+isolated"].warm_up == (PASS_S[0], PASS_S[3])
    assert audit(Ledger.of(home), places(home)).broken == ()
    assert Ledger.of(home).find(first.facts.run).id == first.id


def test_memory_is_own_demand_and_throttling_is_an_event(tmp_path: Path) -> None:
    """Peak minus own start, lows, clocks and swap; a reason to throttle is told when it begins."""
    memory = [
        sample(0.0, device_used_bytes=5 << 30),
        sample(1.0, device_used_bytes=70 << 30, throttle="power cap", device_clock_mhz=1200),
        sample(2.0, device_used_bytes=80 << 30, throttle="power cap", host_available_bytes=40 << 30),
        sample(3.0, throttle=None),
    ]
    facts = recorded(tmp_path, memory=memory).facts
    (row,) = facts.memory
    assert row.own("device") == known(75 << 30, "B")
    assert row.own("host") == known(60 << 30, "B")
    assert (row.host_min_available.value, row.clock_min.value, row.samples) == (40 << 30, 1200, 4)
    assert [(spot.what, spot.t_s) for spot in facts.throttles] == [("power cap", 1.0)]


def test_an_unavailable_counter_is_not_0(tmp_path: Path) -> None:
    """Unified memory: null samples give a reason, also for own demand."""
    facts = recorded(tmp_path, memory=[sample(0.0, device_used_bytes=None, device_clock_mhz=None)]).facts
    assert facts.memory[0].own("device").value is None
    assert facts.memory[0].own("device").reason == "the counter was not available"


def test_a_torn_event_line_is_left_out_and_said(tmp_path: Path) -> None:
    """A kill in the middle of a line costs that line only."""
    run = make_run(tmp_path / "run", KILLED, clip=None)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "PassEn')
    write_record(run, tmp_path / "home", machine(), private=False)
    record = only(tmp_path / "home")
    assert record.facts.notes == ("events.jsonl: the last line was cut off and is left out",)
    assert record.facts.end.found is not None and "pass 3 (step 3 of 8) was in flight" in record.facts.end.found
    assert len(record.facts.passes) == 2


def test_superseding_says_why_and_leaves_the_old_readable(tmp_path: Path) -> None:
    """The old record is unchanged, listed as superseded with its successor; a second time is refused."""
    home = tmp_path / "home"
    for hour in (1, 2):
        run = make_run(tmp_path / str(hour), events(utc=f"2026-12-01T0{hour}:00:00+00:00"))
        write_record(run, home, machine(), private=False)
    ledger = Ledger.of(home)
    old, new = ledger.records()
    ledger.supersede(old.id, by=new.id, why="the clock was wrong")
    shown, _ = ledger.records()
    assert shown.statement == old.statement and shown.status == "superseded"
    assert f"superseded by {new.id}: the clock was wrong" in list_lines(ledger.records())[0]
    with pytest.raises(RequestError, match="superseded by"):
        ledger.supersede(old.id, by=new.id, why="again")
    with pytest.raises(RequestError, match="no record"):
        ledger.supersede("20000101", by=None, why="x")
    with pytest.raises(RequestError, match="no reason"):
        ledger.supersede(new.id, by=None, why=" ")


def test_find_names_what_it_found_and_refuses_two(tmp_path: Path) -> None:
    """The beginning of an id does where it names one run."""
    home = tmp_path / "home"
    for hour in (1, 2):
        run = make_run(tmp_path / str(hour), events(utc=f"2026-12-01T0{hour}:00:00+00:00"))
        write_record(run, home, machine(), private=False)
    assert Ledger.of(home).find("20261201T01").id.startswith("20261201T010000Z-")
    with pytest.raises(RequestError, match="2 records begin with"):
        Ledger.of(home).find("2026")
    with pytest.raises(RequestError, match="no record"):
        Ledger.of(home).find("1999")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """Nothing is recorded of nothing."""
    with pytest.raises(RunDirError, match="holds no run"):
        write_record(tmp_path, tmp_path / "home", machine(), private=False)
    assert not (tmp_path / "home" / "ledger").exists()


def test_a_run_slower_than_before_is_told_with_its_factor(tmp_path: Path) -> None:
    """The ledger has 2.3 s for the same checked facts, the run takes 4.6 s: 2.0x (users.md row 18)."""
    home = tmp_path / "home"
    for hour, scale in ((1, 2.3), (2, 2.31), (3, 4.6)):
        lines = events([scale * s for s in PASS_S], utc=f"2026-12-01T0{hour}:00:00+00:00")
        write_record(make_run(tmp_path / str(hour), lines), home, machine(), private=False)
    *earlier, record = Ledger.of(home).records()
    assert any("4.6 s is 2.0x the 2.305 s of 2 earlier runs" in line for line in show_lines(record, [record], earlier))
    assert not any("earlier runs" in line for line in show_lines(earlier[1], [earlier[1]], earlier[:1]))


def test_the_ledger_needs_no_torch() -> None:
    """Listing records is a matter of a moment."""
    modules = ", ".join(
        f"shotclock.record.{name}" for name in ("ledger", "audit", "compare", "index", "show", "machine")
    )
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_end_of_a_run_that_ends_is_what_its_last_line_says(tmp_path: Path) -> None:
    """Peak memory of the allocator is that of RunEnds."""
    assert recorded(tmp_path, lines=events(end=ENDS)).facts.facts["peak"].value == 123


def test_an_id_is_the_attempts_own_or_that_of_its_line() -> None:
    """Two renders that begin in one second with the same words are two; what is no id is not taken for one."""
    begins = {"event": "RunBegins", "utc": "2026-12-01T10:00:00+00:00", "command": "the same"}
    old = run_id(begins)
    assert re.fullmatch(r"20261201T100000Z-[0-9a-f]{6}", old) and run_id(dict(begins)) == old
    first, second = new_id(), new_id()
    assert first != second and [run_id(begins | {"run_id": one}) for one in (first, second)] == [first, second]
    for bad in ("../elsewhere", "", 7, None, "20261201T100000Z-XYZ123"):
        assert re.fullmatch(r"20261201T100000Z-[0-9a-f]{6}", run_id(begins | {"run_id": bad}))
