"""The sections of a report that are facts: request, memory, plan against measured, provenance, the command.

From values to values; reads no file. Folders of the machine that rendered are left out: a report is shown around.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import nan
from pathlib import PurePosixPath
from typing import Any

from shotclock.record.derive import without_paths
from shotclock.record.figures import GIB, bytes_text, demand, duration_text, percent_text, seconds_text, significant
from shotclock.record.memory_log import MemorySample
from shotclock.record.page_record import record_tables, weight_digests
from shotclock.record.plots import Curve, draw_memory
from shotclock.record.run_seen import RunSeen
from shotclock.record.seen import ForecastSeen, Missing, RequestSeen, RowSeen, ScalesSeen
from shotclock.record.views import Cell, Fact, Section, Table
from shotclock.utilisation import utilisation_of

ROW_PHASES = {  # rows of the planned ledger, and the phases that they foresee; a test holds them to plan/pricing.py
    "start": ("import", "inspect"),
    "load text": ("load-text",),
    "text": ("encode", "connect"),
    "conditions": ("condition",),
    "rehearsal": ("rehearse",),
    "load model": ("load-transformer", "prepare"),
    "snapshots": ("snapshot",),
    "save latents": ("save-latents",),
    "load decoders": ("load-decoders",),
    "audio": ("decode-audio",),
    "decode": ("decode-video",),
    "verify": ("verify",),
}
DENOISE_ROWS, DENOISE = ("warm-up", "denoise"), "denoise"
PATH_OPTIONS = {"transformer": "FILE", "text-encoder": "FILE", "video-vae": "FILE", "audio-vae": "FILE"}
PATH_OPTIONS |= {"models": "DIR", "run": "DIR", "contexts": "FILE"}
BUILT_IN = ("tiny", "pocket")
WORDS_OPTIONS = ("negative-prompt",)  # what --private hides beside the prompt
NOTHING, TOGETHER, NEVER_RAN = "0 s", "together", "did not run"
NOT_PROVENANCE = {"event", "command", "files", "law_key", "t_s", "attempt", "resumed_from"}
PRIVATE = "(kept private)"


def request_section(run: RunSeen, *, private: bool) -> Section:
    """What was asked for."""
    asked = run.request
    if isinstance(asked, Missing):
        return Section(name="request", title="Request", missing=asked)
    facts = [
        Fact(label="size", value=f"{asked.width} x {asked.height}"),
        Fact(label="frames", value=f"{asked.frames}", note=_length(asked)),
        Fact(label="rate", value=f"{asked.fps} fps"),
        Fact(label="seed", value=f"{asked.seed}"),
        Fact(label="steps", value=f"{asked.steps}"),
        Fact(
            label="legs a pass",
            value=Missing(reason="not in request.json") if asked.legs_per_pass is None else f"{asked.legs_per_pass}",
        ),
    ]
    rows: list[tuple[Cell, ...]] = [("prompt", PRIVATE if private else asked.prompt)]
    if asked.negative_prompt:
        rows.append(("negative prompt", PRIVATE if private else asked.negative_prompt))
    for name, scales in (("guidance, picture", asked.video), ("guidance, sound", asked.audio)):
        rows.append((name, Missing(reason="not in request.json") if scales is None else _scales(scales)))
    return Section(
        name="request", title="Request", facts=tuple(facts), tables=(Table(head=("what", "value"), rows=tuple(rows)),)
    )


def _length(asked: RequestSeen) -> str:
    try:
        return duration_text(float(asked.frames / Fraction(asked.fps)))
    except (ValueError, ZeroDivisionError, OverflowError):
        return ""


def _scales(scales: ScalesSeen) -> str:
    said = []
    for name in ("cfg", "stg", "modality", "rescale"):
        value = getattr(scales, name)
        if value is not None:
            said.append(f"{name} {significant(value)}")
    if scales.stg_blocks:
        said.append(f"stg blocks {', '.join(map(str, scales.stg_blocks))}")
    if scales.skip_step:
        said.append(f"skip step {scales.skip_step}")
    return ", ".join(said)


def memory_section(run: RunSeen) -> Section:
    """Memory of host and device: own demand, which is what can be compared between runs."""
    samples = run.memory
    if not samples:
        peak = (run.timeline.last.ended or {}).get("peak_bytes") if run.timeline.last else None
        said = f"; the log's last line says a peak of {bytes_text(peak)}" if isinstance(peak, int) and peak else ""
        return Section(
            name="memory", title="Memory", missing=Missing(reason=f"memory was not sampled: no memory.jsonl{said}")
        )
    starts = dict(zip((one.number for one in run.timeline.attempts), run.timeline.starts_s, strict=True))
    t_s = tuple(starts.get(sample.attempt, 0.0) + sample.t_s for sample in samples)
    series = {
        "host": [sample.host_used_bytes for sample in samples],
        "device": [sample.device_used_bytes for sample in samples],
    }
    ends = [place for place, (one, two) in enumerate(pairwise(samples)) if one.attempt != two.attempt]
    curves = [
        Curve(label=name, t_s=t_s, y=tuple(nan if used is None else used / GIB for used in values)).broken(ends)
        for name, values in series.items()
        if any(used is not None for used in values)
    ]
    return Section(
        name="memory",
        title="Memory",
        lead="Own demand is the peak less what was in use when the attempt began, so that a dirtier start is not "
        "taken for a larger need.",
        facts=tuple(_memory_facts(samples)),
        plot=draw_memory(curves, "GiB") if curves else None,
        notes=_memory_notes(samples, len(run.timeline.attempts)),
    )


def _memory_facts(samples: Sequence[MemorySample]) -> list[Fact]:
    facts = []
    for name, field, why in (
        ("host", "host_used_bytes", "the host's memory could not be read"),
        ("device", "device_used_bytes", "the device does not say"),
    ):
        attempts = dict.fromkeys(sample.attempt for sample in samples)
        own = [demand([getattr(s, field) for s in samples if s.attempt == attempt]) for attempt in attempts]
        known = [value for value in own if value is not None]
        peaks = [getattr(sample, field) for sample in samples if getattr(sample, field) is not None]
        note = f"peak {bytes_text(max(peaks))}" if peaks else ""
        value: Cell = bytes_text(max(known)) if known else Missing(reason=why)
        facts.append(Fact(label=f"own demand, {name}", value=value, note=note))
    least = [s.host_available_bytes for s in samples if s.host_available_bytes is not None]
    least_text: Cell = bytes_text(min(least)) if least else Missing(reason="the host's memory could not be read")
    facts.append(Fact(label="least available, host", value=least_text))
    swap = demand([sample.swap_used_bytes for sample in samples])
    swap_text: Cell = (
        Missing(reason="swap could not be read") if swap is None else (bytes_text(swap) if swap else "none")
    )
    facts.append(Fact(label="swap growth", value=swap_text))
    return facts


def _memory_notes(samples: Sequence[MemorySample], attempts: int) -> tuple[str, ...]:
    notes = [f"{len(samples):,} samples, one a second; a peak between two samples is not seen."]
    if attempts > 1:
        notes.append("Own demand is that of the most demanding attempt.")
    if busy := [sample.device_utilisation for sample in samples if sample.device_utilisation is not None]:
        unit = 100 if max(busy) <= 1 else 1
        seen = utilisation_of([one * unit / 100 for one in busy])
        notes.append(f"Device utilisation: mean {significant(unit * sum(busy) / len(busy), 3)} %, {seen}.")
    if clocks := [sample.device_clock_mhz for sample in samples if sample.device_clock_mhz is not None]:
        notes.append(f"Device clock: {significant(min(clocks))} to {significant(max(clocks))} MHz.")
    if throttled := Counter(sample.throttle for sample in samples if sample.throttle):
        said = ", ".join(f"{reason} ({count:,})" for reason, count in throttled.most_common(4))
        notes.append(f"Throttled in {sum(throttled.values()):,} samples: {said}.")
    return (" ".join(notes),)


def planned_section(run: RunSeen) -> Section:
    """What the plan said beside what was measured."""
    plan = run.plan
    if isinstance(plan, Missing):
        return Section(name="plan", title="Plan against measured", missing=plan)
    ended = [seen for seen in run.timeline.passes if seen.seconds is not None]
    ran = Counter(leg for seen in ended for leg in seen.legs)
    counts: list[tuple[Cell, ...]] = [
        ("passes", f"{plan.passes:,}", f"{len(ended):,}", _differ(plan.passes, len(ended)))
    ]
    for leg in dict.fromkeys([*plan.forwards, *ran]):
        planned = plan.forwards.get(leg, 0)
        counts.append((f"forwards, {leg}", f"{planned:,}", f"{ran[leg]:,}", _differ(planned, ran[leg])))
    tables = [Table(head=("counted", "planned", "ran", ""), rows=tuple(counts), numbers=(1, 2))]
    notes = []
    if plan.forecast is None:
        notes.append("plan.json holds no forecast of seconds: only counts can be compared.")
    else:
        tables.append(_time_table(plan.forecast, run))
        tables += _demand_tables(plan.forecast, run)
        if len(run.timeline.attempts) > 1:
            notes.append("Seconds are those of all attempts together; the forecast is that of the first.")
    return Section(name="plan", title="Plan against measured", tables=tuple(tables), notes=tuple(notes))


def _differ(planned: int, ran: int) -> str:
    if planned == ran:
        return "equal"
    return f"{planned - ran:,} did not run" if ran < planned else f"{ran - planned:,} more: attempts that ran again"


def _time_table(forecast: ForecastSeen, run: RunSeen) -> Table:
    took: Counter[str] = Counter()
    for attempt in run.timeline.attempts:
        for span in attempt.spans:
            took[span.phase] += span.seconds  # type: ignore[assignment]  # a Counter adds floats as well
    rows = [_time_row(row.name, [row], ROW_PHASES[row.name], took) for row in _before(forecast)]
    if denoise := [row for row in forecast.ledger.rows if row.name in DENOISE_ROWS]:
        rows.append(_time_row("denoise, with warm-up", denoise, (DENOISE,), took))
    rows += [_time_row(row.name, [row], ROW_PHASES[row.name], took) for row in _after(forecast)]
    foreseen = {phase for row in forecast.ledger.rows for phase in ROW_PHASES.get(row.name, ())} | {DENOISE}
    unplanned = Missing(reason="the plan has no row for it")
    rows += [(phase, unplanned, "-", seconds_text(took[phase]), "-", "-") for phase in took if phase not in foreseen]
    total = [row for row in forecast.ledger.rows if row.name in ROW_PHASES or row.name in DENOISE_ROWS]
    rows.append(_time_row(TOGETHER, total, tuple(took), took))
    return Table(
        head=("part", "planned", "between", "measured", "off by", "planned by"),
        rows=tuple(row for row in rows if (row[1], row[3]) != (NOTHING, NEVER_RAN)),
        numbers=(1, 2, 3, 4),
    )


def _before(forecast: ForecastSeen) -> list[RowSeen]:
    names = [row.name for row in forecast.ledger.rows]
    first = min((names.index(name) for name in DENOISE_ROWS if name in names), default=len(names))
    return [row for row in forecast.ledger.rows[:first] if row.name in ROW_PHASES]


def _after(forecast: ForecastSeen) -> list[RowSeen]:
    before = {row.name for row in _before(forecast)}
    return [row for row in forecast.ledger.rows if row.name in ROW_PHASES and row.name not in before]


def _time_row(name: str, rows: Sequence[RowSeen], phases: Sequence[str], took: Mapping[str, float]) -> tuple[Cell, ...]:
    planned, low, high = (sum(getattr(row.estimate, end) for row in rows) for end in ("typical_s", "low_s", "high_s"))
    ran = [took[phase] for phase in phases if phase in took]
    measured = seconds_text(sum(ran)) if ran else NEVER_RAN
    off = percent_text(sum(ran) / planned - 1, signed=True) if ran and planned else "-"
    basis = "sum" if name == TOGETHER else ", ".join(dict.fromkeys(row.basis or row.estimate.source for row in rows))
    between = f"{seconds_text(low).removesuffix(' s')} to {seconds_text(high)}"
    return name, seconds_text(planned), between, measured, off, basis


def _demand_tables(forecast: ForecastSeen, run: RunSeen) -> list[Table]:
    """Widest need foreseen on host and device beside the run's own demand."""
    rows: list[tuple[Cell, ...]] = []
    for where, field in (("device", "device_used_bytes"), ("host", "host_used_bytes")):
        needs = [need for need in forecast.memory if need.where == where]
        if needs:
            widest = max(needs, key=lambda need: need.need_bytes)
            own = demand([getattr(sample, field) for sample in run.memory])
            measured: Cell = Missing(reason="not sampled") if own is None else bytes_text(own)
            rows.append((f"{where} memory, widest in {widest.phase}", bytes_text(widest.need_bytes), measured))
    return [Table(head=("memory", "planned", "own demand"), rows=tuple(rows), numbers=(1, 2))] if rows else []


def provenance_section(run: RunSeen) -> Section:
    """Everything the log's first lines and the clip itself say of where it comes from."""
    first = run.timeline.attempts[0].begins if run.timeline.attempts else None
    if first is None:
        return Section(name="provenance", title="Provenance", missing=Missing(reason="there is no events.jsonl"))
    rows: list[tuple[Cell, ...]] = [
        (_name(key), _moment(value) if key == "utc" else _value(value))
        for key, value in first.items()
        if key not in NOT_PROVENANCE
    ]
    clip: Cell = run.clip_sha256 or Missing(reason="there is no clip.mp4")
    rows.append(("clip sha256", clip))
    tables = [Table(head=("fact", "value"), rows=tuple(rows))]
    if isinstance(key := first.get("law_key"), Mapping):
        rows = [(_name(name), _value(value)) for name, value in key.items()]
        tables.append(Table(title="Cost law key", head=("field", "value"), rows=tuple(rows)))
    if isinstance(files := first.get("files"), Mapping) and files:
        tables.append(_files_table(files, weight_digests(run.record)))
    if len(run.timeline.attempts) > 1:
        tables.append(_attempts_table(run))
    tables += record_tables(run.record)
    notes = [f"Lines of events.jsonl that could not be read: {', '.join(map(str, run.timeline.unread))}."]
    return Section(
        name="provenance",
        title="Provenance",
        tables=tuple(tables),
        notes=tuple(notes) if run.timeline.unread else (),
    )


def _files_table(files: Mapping[str, Any], digests: Mapping[str, Cell]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for role, entry in files.items():
        said = entry if isinstance(entry, Mapping) else {}
        size, tensors = said.get("bytes"), said.get("tensors")
        rows.append(
            (
                _name(role),
                PurePosixPath(str(said.get("path") or "")).name or Missing(reason="no name"),
                f"{size:,}" if isinstance(size, int) else Missing(reason="not in the log"),
                f"{tensors:,}" if isinstance(tensors, int) else Missing(reason="not in the log"),
                _value(said.get("model_version")),
                digests.get(role, Missing(reason="no record hashed it")),
            )
        )
    head = ("role", "file", "bytes", "tensors", "version", "sha256")
    shown = [place for place in range(len(head)) if any(not isinstance(row[place], Missing) for row in rows)]
    absent = {head[place]: rows[0][place] for place in range(len(head)) if place not in shown}
    notes = [f"{name}: not recorded ({cell.reason})." for name, cell in absent.items() if isinstance(cell, Missing)]
    return Table(
        title="Weights",
        head=tuple(head[place] for place in shown),
        rows=tuple(tuple(row[place] for place in shown) for row in rows),
        numbers=tuple(shown.index(place) for place in (2, 3) if place in shown),
        note=" ".join(notes),
    )


def _attempts_table(run: RunSeen) -> Table:
    rows = tuple(
        (
            f"attempt {attempt.number}",
            _moment(attempt.begins.get("utc")),
            without_paths(str(attempt.begins.get("resumed_from") or "the beginning")),
            duration_text(attempt.last_s),
            _end_words(attempt.ended, attempt.stop, attempt.failure),
            "; ".join(_seam(seam) for seam in attempt.seams) or "none",
        )
        for attempt in run.timeline.attempts
    )
    return Table(title="Attempts", head=("", "began", "went on from", "took", "ended", "seam"), rows=rows, numbers=(3,))


def _moment(utc: Any) -> Cell:
    return str(utc).replace("T", " ").replace("+00:00", " UTC") if utc else Missing(reason="not in the log")


def _seam(differs: Mapping[str, Any]) -> str:
    said = []
    for field, values in differs.items():
        pair = isinstance(values, list) and len(values) == 2
        said.append(f"{_name(field)} {values[0]} -> {values[1]}" if pair else f"{_name(field)} {values}")
    return str(without_paths(", ".join(said)))


def _end_words(ended: object, stop: object, failure: object) -> str:
    if ended is not None:
        return "by itself"
    if stop is not None:
        return f"stopped, exit code {getattr(stop, 'exit_code', '?')}"
    return f"failed, exit code {getattr(failure, 'exit_code', '?')}" if failure is not None else "no last line"


def _name(key: str) -> str:
    return key.replace("_", " ")


def _value(value: Any) -> Cell:
    """A fact as text; what holds nothing says so."""
    if value is None or value == "" or value == [] or value == {}:
        return Missing(reason="the log holds no value")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return significant(value, 6)
    if isinstance(value, Mapping):
        parts = ((_name(str(key)), _value(inner)) for key, inner in value.items())
        return ", ".join(f"{key} {inner if isinstance(inner, str) else 'not recorded'}" for key, inner in parts)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(part) for part in value)
    return str(without_paths(str(value)))


def reproduce_command(command: str, *, private: bool) -> str:
    """The run's command, one option a line, with stand-ins for folders and files of the machine that rendered."""
    try:
        words = shlex.split(command)
    except ValueError:
        return str(without_paths(command))
    lines, shown = [], []
    asked = False
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "--":
            asked = True
        elif asked:
            shown.append(PRIVATE if private else word)
            continue
        elif word.startswith("--") and equals:
            word = f"--{name}={_stand_in(name, value, private=private)}"
        if word.startswith("--") and word != "--":
            lines.append(shown)
            shown = []
        shown.append(word)
    lines.append(shown)
    return " \\\n  ".join(shlex.join(line) for line in lines if line)


def _stand_in(name: str, value: str, *, private: bool) -> str:
    if name in PATH_OPTIONS and value not in BUILT_IN:
        return PATH_OPTIONS[name]
    return PRIVATE if private and name in WORDS_OPTIONS else value
