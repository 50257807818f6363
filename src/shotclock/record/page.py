"""Puts a report together from what was read of a run: how it stands, what to read first, the clip, the sections.

From values to values, but for the clip, which is read to be embedded. Says nothing that was not recorded.
"""

from __future__ import annotations

from pathlib import Path

from shotclock.record.attempt import Attempt
from shotclock.record.derive import without_paths
from shotclock.record.figures import bytes_text, demand, duration_text, figure, percent_text, seconds_text
from shotclock.record.page_facts import (
    PRIVATE,
    memory_section,
    planned_section,
    provenance_section,
    reproduce_command,
    request_section,
)
from shotclock.record.page_record import is_private, not_shown, record_alerts
from shotclock.record.page_time import passes_section, projection_section, time_section
from shotclock.record.page_verdict import TONE, judged
from shotclock.record.pictures import Film, data_uri
from shotclock.record.plots import Plot, draw_sound
from shotclock.record.run_seen import SHEET, RunSeen
from shotclock.record.seen import Missing
from shotclock.record.status import Standing
from shotclock.record.views import Alert, Fact, Page, Player, Table

TITLE_LETTERS = 90  # of a prompt in the head of the page; all of it stands below
RESUMABLE = 75  # design.md, exit codes
STOP_WORDS = {75: "the lease ended", 90: "memory floor", 92: "projected overrun"}


def make_page(run: RunSeen, *, embed_limit_bytes: int, private: bool, version: str) -> Page:
    """The report of ``run``; a clip larger than ``embed_limit_bytes`` is linked as a file beside the page."""
    film, private = run.film, private or is_private(run.record)
    return Page(
        title=_title(run, private=private),
        line=_line(run),
        **_stand(run),
        alerts=tuple(_alerts(run)),
        tiles=_tiles(run),
        player=_player(run, embed_limit_bytes),
        film=film,
        sheet=_sheet(run.folder / SHEET, embed_limit_bytes),
        sound=_sound(run),
        sound_line=_sound_line(run),
        sections=(
            time_section(run),
            passes_section(run),
            projection_section(run),
            memory_section(run),
            planned_section(run),
            request_section(run, private=private),
        ),
        judged=judged(run),
        command=_command(run, private=private),
        not_shown=not_shown(run.record),
        provenance=provenance_section(run),
        version=version,
    )


def _title(run: RunSeen, *, private: bool) -> str:
    if isinstance(run.request, Missing):
        return f"Run {run.folder.resolve().name}"
    if private:
        return f"A run with a prompt {PRIVATE}"
    words = " ".join(run.request.prompt.split())
    if len(words) <= TITLE_LETTERS:
        return words
    return words[:TITLE_LETTERS].rpartition(" ")[0] + " ..." if " " in words[:TITLE_LETTERS] else words[:TITLE_LETTERS]


def _line(run: RunSeen) -> str:
    """One line below the title: what, where and when."""
    parts = []
    if not isinstance(run.request, Missing):
        asked = run.request
        parts += [f"{asked.width} x {asked.height}", f"{asked.frames} frames at {asked.fps} fps", f"seed {asked.seed}"]
        parts.append(f"{asked.steps} steps")
    if run.timeline.attempts:
        begins = run.timeline.attempts[0].begins
        parts += [str(begins[name]) for name in ("device", "dtype") if begins.get(name)]
        if begins.get("utc"):
            parts.append(str(begins["utc"]).replace("T", " ").replace("+00:00", " UTC"))
    return "  \u00b7  ".join(parts)


def _stand(run: RunSeen) -> dict[str, str]:
    """The word, its colour, and the sentence beside it."""
    last, took = run.timeline.last, duration_text(sum(attempt.last_s for attempt in run.timeline.attempts))
    attempts = len(run.timeline.attempts)
    over = f"{took} of work in {attempts} attempts" if attempts > 1 else took
    if run.standing is Standing.FINISHED and not isinstance(run.verdict, Missing):
        outcome = run.verdict.outcome
        return {"word": outcome, "tone": TONE[outcome], "lead": f"Rendered in {over}, then judged by numbers."}
    match run.standing:
        case Standing.FINISHED:
            return {"word": "RENDERED", "tone": "none", "lead": f"Rendered in {over}; not judged."}
        case Standing.STOPPED if last and last.stop:
            why = STOP_WORDS.get(last.stop.exit_code, "stopped")
            return {
                "word": "STOPPED",
                "tone": "warn",
                "lead": f"{why.capitalize()} after {over}. There is no clip yet.",
            }
        case Standing.FAILED:
            return {"word": "FAILED", "tone": "bad", "lead": f"Failed after {over}."}
        case Standing.RUNNING:
            return {"word": "RUNNING", "tone": "none", "lead": f"Still being written; {over} so far."}
        case _:
            return {"word": "NO LAST LINE", "tone": "warn", "lead": f"The log breaks off after {over}."}


def _alerts(run: RunSeen) -> list[Alert]:
    last = run.timeline.last
    alerts = []
    if last is None:
        return [Alert(tone="warn", title="No event was logged", lines=("The run never began, or its log is gone.",))]
    if run.standing is Standing.FAILED and last.failure:
        failure = last.failure
        words = (("Found", failure.found), ("Allowed", failure.allowed), ("Way out", failure.way_out))
        lines = tuple(f"{name}: {without_paths(text)}" for name, text in words)
        alerts.append(Alert(tone="bad", title=f"Failed, exit code {failure.exit_code}", lines=lines))
    if run.standing is Standing.STOPPED and last.stop:
        alerts.append(_stop_alert(last))
    if run.standing is Standing.SILENT:
        alerts.append(_silent_alert(last))
    seams = sum(len(attempt.seams) for attempt in run.timeline.attempts)
    if seams:
        line = "An attempt went on under other numerics, because it was told to: see Attempts below. Its forwards may "
        alerts.append(Alert(tone="warn", title="A seam", lines=(line + "differ from an uninterrupted run's.",)))
    return [*alerts, *record_alerts(run.record)]


def _stop_alert(last: Attempt) -> Alert:
    assert last.stop is not None, "a stop says why"
    stop = last.stop
    lines = [f"{stop.reason[:1].upper()}{stop.reason[1:]}."]
    if stop.way_out:
        lines.append(f"Way out: {without_paths(stop.way_out)}")
    elif stop.exit_code == RESUMABLE:
        lines.append("Way out: `shotclock resume RUN` goes on from the newest snapshot.")
    rows = [(name, seconds_text(seconds)) for name, seconds in stop.terms]
    rows += [("sum", seconds_text(stop.sum_s))] if stop.sum_s is not None else []
    rows += [("the lease", seconds_text(stop.budget_s))] if stop.budget_s is not None else []
    table = Table(head=("term", "seconds"), rows=tuple(rows), numbers=(1,)) if rows else None
    return Alert(tone="warn", title=f"Stopped, exit code {stop.exit_code}", lines=tuple(lines), table=table)


def _silent_alert(last: Attempt) -> Alert:
    lines = ["The process was killed, or it runs on a machine that cannot be seen from here."]
    if seen := last.in_flight:
        legs = " + ".join(seen.legs)
        lines.append(
            f"In flight was pass {seen.index}, step {seen.step} of {seen.steps} ({legs}), announced and not ended."
        )
    elif last.phase:
        lines.append(f"The phase {last.phase} had begun and not ended.")
    if last.snapshots:
        lines.append(
            f"A snapshot after step {last.snapshots[-1].step} was left: `shotclock resume RUN` goes on from it."
        )
    return Alert(tone="warn", title="The log has no last line", lines=tuple(lines))


def _tiles(run: RunSeen) -> tuple[Fact, ...]:
    """The few figures most people look for."""
    attempts = run.timeline.attempts
    no_log = Missing(reason="there is no events.jsonl")
    wall = duration_text(sum(attempt.last_s for attempt in attempts)) if attempts else no_log
    warm = figure([one.seconds for one in run.timeline.passes if one.seconds is not None and not one.warm_up])
    wide = None if warm is None else warm.spread_ratio
    note = "" if warm is None else f"median of {warm.n}"
    a_pass = Fact(
        label="a pass",
        value=seconds_text(warm.median_s) if warm else Missing(reason="no warm pass ended"),
        note=note if wide is None else f"{note}, spread {percent_text(wide)}",
    )
    ran = sum(len(seen.legs) for seen in run.timeline.passes if seen.seconds is not None)
    planned = "" if isinstance(run.plan, Missing) else f"of {sum(run.plan.forwards.values()):,} planned"
    return (
        Fact(label="wall time", value=wall, note=f"{len(attempts)} attempts" if len(attempts) > 1 else ""),
        Fact(label="forwards", value=f"{ran:,}" if attempts else no_log, note=planned),
        a_pass,
        _memory_tile(run),
    )


def _memory_tile(run: RunSeen) -> Fact:
    device = demand([sample.device_used_bytes for sample in run.memory])
    host = demand([sample.host_used_bytes for sample in run.memory])
    own, where = (device, "device") if device is not None else (host, "host")
    if own is not None:
        return Fact(label="own memory", value=bytes_text(own), note=f"{where}, peak less start")
    last = run.timeline.last
    peak = (last.ended or {}).get("peak_bytes") if last else None
    if isinstance(peak, int) and peak:
        return Fact(label="peak memory", value=bytes_text(peak), note="held by the program, as its last line says")
    return Fact(label="own memory", value=Missing(reason="memory was not sampled"))


def _player(run: RunSeen, embed_limit_bytes: int) -> Player | Missing:
    if run.shown is None:
        return Missing(reason="there is no clip.mp4 and no draft")
    size = run.shown.stat().st_size
    film = run.film if isinstance(run.film, Film) else None
    embedded = size <= embed_limit_bytes
    source = data_uri(run.shown.read_bytes(), "video/mp4") if embedded else run.shown.name
    note = f"{bytes_text(size)}, inside this page." if embedded else f"{bytes_text(size)}: too large to embed. "
    if not embedded:
        note += f"It plays from {run.shown.name}, which must lie beside this page."
    if isinstance(run.film, Missing):
        note += f" {run.film.reason}."
    return Player(
        source=source,
        poster=film.poster.uri if film else None,
        width=film.poster.width if film else 16,
        height=film.poster.height if film else 9,
        note=note,
        draft=not run.has_clip,
    )


def _sheet(path: Path, limit_bytes: int) -> str | None:
    """The verifier's contact sheet as a data URI, or its name where it is large, or None."""
    if not path.is_file():
        return None
    return data_uri(path.read_bytes(), "image/png") if path.stat().st_size <= limit_bytes else path.name


def _sound(run: RunSeen) -> Plot | Missing:
    return run.wave if isinstance(run.wave, Missing) else draw_sound(run.wave.samples, run.wave.rate_hz)


def _sound_line(run: RunSeen) -> str:
    if isinstance(run.wave, Missing):
        return ""
    wave = run.wave
    before = ", as it was before AAC" if wave.source.endswith(".wav") else ", decoded from the clip"
    return f"{wave.seconds:.3f} s at {wave.rate_hz:,} Hz from {wave.source}{before}."


def _command(run: RunSeen, *, private: bool) -> str | Missing:
    if not run.timeline.attempts:
        return Missing(reason="there is no events.jsonl")
    command = run.timeline.attempts[0].begins.get("command")
    if not isinstance(command, str):
        return Missing(reason="the log's first line holds no command")
    return reproduce_command(command, private=private)
