"""The sections of a report that say where the time went: phases, forwards, and projections against the lease.

From values to values; reads no file. Attempts are laid end to end, without the waits between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import nan

from shotclock.record.attempt import Attempt, PassSeen, ProjectionSeen, Timeline
from shotclock.record.figures import counted, duration_text, figure, percent_text, seconds_text
from shotclock.record.plots import Curve, Dots, draw_passes, draw_projection
from shotclock.record.run_seen import RunSeen
from shotclock.record.seen import Missing
from shotclock.record.split import split_of
from shotclock.record.views import Cell, Fact, Part, Section, Strip, Table

TONES = {  # of phases, as numbers of the style sheet's series; 0 is grey
    "denoise": 1,
    "decode-video": 2,
    "decode-audio": 3,
    "load-text": 4,
    "load-transformer": 4,
    "load-decoders": 4,
    "encode": 5,
    "connect": 5,
    "condition": 5,
    "snapshot": 6,
    "verify": 6,
}
GROUPS = {
    1: "denoise",
    2: "decode video",
    3: "decode audio",
    4: "load weights",
    5: "text, conditions",
    6: "snapshots, verdict",
}
OTHER = "other"


def time_section(run: RunSeen) -> Section:
    """A strip and a table of leaf phases."""
    timeline = run.timeline
    wall_s = sum(attempt.last_s for attempt in timeline.attempts)
    if not any(attempt.spans for attempt in timeline.attempts):
        return Section(name="time", title="Time", missing=Missing(reason="events.jsonl says no phase"))
    totals: dict[str, list[float]] = defaultdict(list)
    for attempt in timeline.attempts:
        for span in attempt.spans:
            totals[span.phase].append(span.seconds)
    covered_s = sum(map(sum, totals.values()))
    rows: list[tuple[Cell, ...]] = [
        (
            f"{phase}, in {len(spans)} parts" if len(spans) > 1 else phase,
            seconds_text(sum(spans)),
            _share(sum(spans) / wall_s) if wall_s else Missing(reason="no time went by"),
        )
        for phase, spans in totals.items()
    ]
    longest = max(totals, key=lambda phase: sum(totals[phase]))
    share = percent_text(sum(totals[longest]) / wall_s) if wall_s else ""
    return Section(
        name="time",
        title="Time",
        lead=f"{duration_text(wall_s)} of work; {share} of it in {longest}.",
        strips=tuple(_strip(attempt, len(timeline.attempts)) for attempt in timeline.attempts if attempt.spans),
        tables=(Table(head=("phase", "seconds", "share"), rows=tuple(rows), numbers=(1, 2)),),
        notes=(
            f"Leaf phases cover {percent_text(covered_s / wall_s if wall_s else None)} of the wall time from the "
            "beginning of the command to its last line; ends are said after the device was waited for.",
        ),
    )


def _share(ratio: float) -> str:
    return percent_text(ratio) if ratio >= 0.0005 or not ratio else "< 0.1 %"


def _strip(attempt: Attempt, attempts: int) -> Strip:
    length_s = max(attempt.last_s, attempt.spans[-1].end_s) or 1.0
    parts: list[Part] = []
    at_s = 0.0
    for span in attempt.spans:
        if span.begin_s - at_s > length_s * 1e-4:
            parts.append(_part("between phases", span.begin_s - at_s, length_s, 0))
        parts.append(_part(span.phase, span.seconds, length_s, TONES.get(span.phase, 0)))
        at_s = span.end_s
    used = sorted({part.tone for part in parts} - {0})
    legend = [(GROUPS[tone], tone) for tone in used] + ([(OTHER, 0)] if any(not part.tone for part in parts) else [])
    label = f"attempt {attempt.number}, " if attempts > 1 else ""
    return Strip(label=f"{label}{duration_text(attempt.last_s)}", parts=tuple(parts), legend=tuple(legend))


def _part(phase: str, seconds: float, length_s: float, tone: int) -> Part:
    return Part(
        label=phase,
        share_percent=round(100 * seconds / length_s, 4),
        tone=tone,
        says=f"{phase}: {seconds_text(seconds)}",
    )


def kind_of(seen: PassSeen) -> str:
    """Passes of the same legs are one kind."""
    return " + ".join(seen.legs)


def passes_section(run: RunSeen) -> Section:
    """Seconds of every pass, and their median and spread by kind, the warm-up apart."""
    timeline = run.timeline
    ended = [seen for seen in timeline.passes if seen.seconds is not None]
    if not ended:
        reason = "no pass of the transformer ended" if timeline.attempts else "there is no events.jsonl"
        return Section(name="forwards", title="Forwards", missing=Missing(reason=reason))
    dots, rows = [], []
    kinds = sorted({kind_of(seen) for seen in ended})
    for kind in kinds:
        mine = [(place, seen) for place, seen in enumerate(ended, start=1) if kind_of(seen) == kind]
        dots.append(
            Dots(
                label=kind if len(kinds) > 1 else "warm",
                x=tuple(float(place) for place, _ in mine),
                y=tuple(seen.seconds or nan for _, seen in mine),
                hollow=tuple(seen.warm_up for _, seen in mine),
            )
        )
        rows.append(_kind_row(kind, [seen for _, seen in mine]))
    warm = figure([seen.seconds for seen in ended if seen.seconds is not None and not seen.warm_up])
    return Section(
        name="forwards",
        title="Forwards",
        lead=_passes_lead(ended, len(rows)),
        plot=draw_passes(dots, warm.median_s if warm and len(dots) == 1 else None, _breaks(timeline)),
        tables=(
            Table(
                head=("legs in one pass", "n", "median", "shortest", "longest", "spread", "warm-up"),
                rows=tuple(rows),
                numbers=(1, 2, 3, 4, 5, 6),
            ),
            *_splits(ended),
        ),
        notes=_passes_notes(timeline),
    )


def _splits(ended: Sequence[PassSeen]) -> tuple[Table, ...]:
    """Launch and device time by kind of warm pass; no table for a log without them."""
    rows: list[tuple[Cell, ...]] = []
    for kind in sorted({kind_of(seen) for seen in ended}):
        mine = [seen for seen in ended if kind_of(seen) == kind and not seen.warm_up]
        split = split_of([(seen.seconds or 0.0, seen.launch_s, seen.device_s) for seen in mine])
        if split is not None:
            device: Cell = Missing(reason="no clock") if split.device_s is None else seconds_text(split.device_s)
            rows.append((kind, seconds_text(split.launch_s), device, split.bound))
    head = ("warm passes, medians", "launch", "device", "which says")
    return (Table(head=head, rows=tuple(rows), numbers=(1, 2)),) if rows else ()


def _kind_row(kind: str, passes: Sequence[PassSeen]) -> tuple[Cell, ...]:
    warm = figure([seen.seconds for seen in passes if seen.seconds is not None and not seen.warm_up])
    warming = [seconds_text(seen.seconds) for seen in passes if seen.warm_up]
    said = ", ".join(warming[:4]) + (" ..." if len(warming) > 4 else "")
    warm_up = said or "none"
    if warm is None:
        none = Missing(reason="only warm-up passes")
        return kind, "0", none, none, none, none, warm_up
    few = ", provisional" if warm.provisional else ""
    spread: Cell = percent_text(warm.spread_ratio) if warm.n > 1 else Missing(reason="one pass has no spread")
    ends = seconds_text(warm.least_s), seconds_text(warm.most_s)
    return kind, f"{warm.n}{few}", seconds_text(warm.median_s), *ends, spread, warm_up


def _passes_lead(ended: Sequence[PassSeen], kinds: int) -> str:
    forwards = sum(len(seen.legs) for seen in ended)
    passes = f"{counted(len(ended), 'pass', 'passes')}, {counted(forwards, 'forward', 'forwards')} of single legs"
    warm = figure([seen.seconds for seen in ended if seen.seconds is not None and not seen.warm_up])
    if kinds > 1 or warm is None:
        return f"{passes}."
    spread = f", spread {percent_text(warm.spread_ratio)}" if warm.spread_ratio is not None else ""
    few = ", provisional" if warm.provisional else ""
    return f"{passes}; a warm pass takes {seconds_text(warm.median_s)} (median of {warm.n}{spread}{few})."


def _passes_notes(timeline: Timeline) -> tuple[str, ...]:
    notes = [
        "A pass is timed from just before its launch until the device is synchronised; the last of a step includes "
        "combining the legs and the Euler step. It is an interval, not a profile. Spread is the range over the median "
        "of the warm passes, without the outer 5 % at either end from 20 passes on."
    ]
    if any(attempt.warm_up_passes is None for attempt in timeline.attempts if attempt.passes):
        notes.append("The log does not say how many passes warm up: the first of each attempt is taken as one.")
    for attempt in timeline.attempts:
        if seen := attempt.in_flight:
            how = "Announced and refused before its launch" if attempt.stop else "Announced and never seen to end"
            notes.append(f"{how}: pass {seen.index}, step {seen.step} of {seen.steps} ({kind_of(seen)}).")
    done = [(seen.step, leg) for seen in timeline.passes if seen.seconds is not None for leg in seen.legs]
    if again := len(done) - len(set(done)):
        said = counted(again, "forward", "forwards")
        notes.append(f"{said} ran again in a later attempt, because no snapshot held the result.")
    return tuple(notes)


def _breaks(timeline: Timeline) -> list[float]:
    """Between the last pass of an attempt and the first of the next."""
    found, count = [], 0
    for attempt in timeline.attempts[:-1]:
        count += sum(seen.seconds is not None for seen in attempt.passes)
        if count > 0:
            found.append(count + 0.5)
    return found


def projection_section(run: RunSeen) -> Section:
    """Where the governor expected the run to end, against the lease and against where it did end."""
    placed = [(start, attempt, seen) for start, attempt in run.timeline.placed for seen in attempt.projections]
    if not placed:
        reason = "no Projected line is in events.jsonl: nobody projected this run's end"
        return Section(name="lease", title="Lease", missing=Missing(reason=reason))
    known = [(start, seen) for start, _, seen in placed if seen.total_s is not None]
    ends = [place for place, (one, two) in enumerate(pairwise(known)) if one[0] != two[0]]
    last_start, last_attempt, last = placed[-1]
    ended = last_attempt.ended is not None
    end_s = last_start + last_attempt.last_s if ended else None
    t_s = tuple(start + seen.t_s for start, seen in known)
    total = Curve(label="total", t_s=t_s, y=tuple(start + (seen.total_s or nan) for start, seen in known))
    high = Curve(label="high", t_s=t_s, y=tuple(start + _high_s(seen) for start, seen in known))
    budgets = [
        (start, start + attempt.last_s, start + budget)
        for start, attempt in run.timeline.placed
        if (budget := next((seen.budget_s for seen in attempt.projections if seen.budget_s is not None), None))
    ]
    return Section(
        name="lease",
        title="Lease",
        lead=_lease_lead(last, last_attempt),
        plot=draw_projection(total.broken(ends), high.broken(ends), budgets, end_s) if known else None,
        facts=_lease_facts(last),
        tables=(_projection_table(placed),),
        notes=(
            "A projection rests on the fitted law until one full step of the run's own forwards has ended, and on "
            "those from then on; a provisional one stops nothing.",
        ),
    )


def _high_s(seen: ProjectionSeen) -> float:
    if seen.tail_s is None or seen.tail_high_s is None:
        return seen.total_s or nan
    return (seen.total_s or nan) - seen.tail_s + seen.tail_high_s


def _lease_lead(last: ProjectionSeen, attempt: Attempt) -> str:
    if last.budget_s is None:
        return "No lease was given: the projection was held against no end."
    if attempt.ended is not None:
        left_s = last.budget_s - attempt.last_s
        word = "before" if left_s >= 0 else "after"
        return f"Ended {duration_text(abs(left_s))} {word} the end of a lease of {duration_text(last.budget_s)}."
    return f"The lease was {duration_text(last.budget_s)}."


def _lease_facts(last: ProjectionSeen) -> tuple[Fact, ...]:
    unsaid = Missing(reason="nobody could say")
    lease: Cell = Missing(reason="no lease was given") if last.budget_s is None else duration_text(last.budget_s)
    return (
        Fact(label="lease", value=lease, note="" if last.budget_s is None else "from the beginning of the attempt"),
        Fact(
            label="last projection",
            value=unsaid if last.total_s is None else duration_text(last.total_s),
            note=f"{last.verdict}, by {last.source}, n = {last.n}{', provisional' if last.provisional else ''}",
        ),
        Fact(
            label="tail",
            value=unsaid if last.tail_s is None else duration_text(last.tail_s),
            note="" if last.tail_high_s is None else f"at most {duration_text(last.tail_high_s)}",
        ),
        Fact(
            label="reserve",
            value=unsaid if last.reserve_s is None else duration_text(last.reserve_s),
            note="kept for what nobody foresaw",
        ),
    )


def _projection_table(placed: Sequence[tuple[float, Attempt, ProjectionSeen]]) -> Table:
    """The first projection by each source, and the last, beside what the attempt took."""
    picked: list[tuple[Attempt, ProjectionSeen, str]] = []
    for attempt in dict.fromkeys(attempt.number for _, attempt, _ in placed):
        mine = [(one, seen) for _, one, seen in placed if one.number == attempt and seen.total_s is not None]
        sources: dict[str, tuple[Attempt, ProjectionSeen]] = {}
        for one, seen in mine:
            sources.setdefault(seen.source, (one, seen))
        picked += [(one, seen, f"first by {source}") for source, (one, seen) in sources.items()]
        if mine and mine[-1][1] not in [seen for _, seen, _ in picked]:
            picked.append((*mine[-1], "last"))
    rows = tuple(
        (
            f"{name}, attempt {attempt.number}" if attempt.number > 1 else name,
            duration_text(seen.t_s),
            str(seen.n),
            seconds_text(seen.per_forward_s) if seen.per_forward_s is not None else Missing(reason="none had ended"),
            duration_text(seen.total_s),
            _error(seen, attempt),
        )
        for attempt, seen, name in picked
    )
    return Table(
        head=("projection", "at", "n", "a forward", "end expected", "off by"), rows=rows, numbers=(1, 2, 3, 4, 5)
    )


def _error(seen: ProjectionSeen, attempt: Attempt) -> str:
    if attempt.ended is None or seen.total_s is None or not attempt.last_s:
        return "-"
    return percent_text(seen.total_s / attempt.last_s - 1, signed=True)
