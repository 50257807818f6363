"""Judges a run folder: what was asked comes from its request and events; the verdict goes beside them.

Reads the documents in its own way, so that a mistake of their writer cannot hide here; imports neither torch nor the
render. A folder may come from elsewhere: what is read of it is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shotclock.errors import RequestError
from shotclock.rundir import RunDir, write_aside
from shotclock.verify.expectation import POCKET_DRAWS, Expectation
from shotclock.verify.finite import NonFinite, first_non_finite, stored_tensors
from shotclock.verify.reader import Limits
from shotclock.verify.verdict import QUANTISED, Verdict, non_finite_verdict
from shotclock.verify.verifier import Known, verify_clip

MOST_DOCUMENT_BYTES = 1 << 20  # of request.json; it has a few thousand
MOST_LINE_BYTES = 1 << 20  # of one event
MOST_WORD = 40  # characters of a choice
MOST_LATENTS_BYTES = 1 << 32  # far over a minute of 1080p
RATE = re.compile(r"\d{1,9}(?:[./]\d{1,9})?")  # "24", "23.976", "24000/1001"; nothing that takes long to parse
STEREO = 2
POCKET = "pocket-"  # names of the files of the pocket model begin like this
DECODES = "decode-video"  # the phase that makes a clip, and ends with an event of its own


class _Read(BaseModel):
    """Of a document, the part that is needed here; what else it holds is its writer's matter."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class _Scales(_Read):
    cfg: float
    stg: float
    modality: float

    @property
    def is_off(self) -> bool:
        return self.cfg == 1 and self.stg == 0 and self.modality == 1


class _Request(_Read):
    format: Literal["shotclock/request/1"]
    recipe: str
    model_class: str = "undeclared"
    sound: dict[str, Any] | None = None
    quantise: str | None = Field(default=None, max_length=MOST_WORD)
    width: int
    height: int
    frames: int
    fps: str
    video: _Scales
    audio: _Scales

    @property
    def lacks_guidance(self) -> bool:
        """Nothing guides it, and nothing says that its model is made for that."""
        return self.video.is_off and self.audio.is_off and not self.is_distilled

    @property
    def is_distilled(self) -> bool:
        """Recipe or weights are distilled ones, as far as was said."""
        return self.recipe.startswith("distilled") or self.model_class == "distilled"

    @property
    def guides_distilled(self) -> bool:
        """Guidance on a model that was trained to do without."""
        return self.is_distilled and not (self.video.is_off and self.audio.is_off)


class _File(_Read):
    path: str


class _Files(_Read):
    transformer: _File


class _Begun(_Read):
    """The event that begins an attempt."""

    event: Literal["RunBegins"]
    files: _Files | None = None

    @property
    def expect(self) -> frozenset[str]:
        """What the model draws whatever it is asked for."""
        name = "" if self.files is None else self.files.transformer.path.replace("\\", "/").rsplit("/", 1)[-1]
        return POCKET_DRAWS if name.startswith(POCKET) else frozenset()


class _Decoded(_Read):
    """The event that ends a decode: what the encoder hides, and where tiles begin and end inside the clip."""

    event: Literal["Decoded"]
    distinct_frames: int
    tile_frames: tuple[int, ...]
    tile_rows: tuple[int, ...]
    tile_columns: tuple[int, ...]

    @property
    def asked(self) -> dict[str, Any]:
        """As fields of :class:`Expectation`."""
        return {"raw_distinct_frames": self.distinct_frames} | self.model_dump(exclude={"event", "distinct_frames"})


class _Stopped(_Read):
    """The event of a render that met NaN or Inf; see :class:`NonFinite`."""

    event: Literal["NonFinite"]
    stage: str
    nans: int
    infinities: int
    values: int
    first_index: tuple[int, ...]


D = TypeVar("D", bound=_Read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder as far as a verdict needs it; ``stopped``: NaN or Inf met in its last attempt."""

    folder: RunDir
    expectation: Expectation
    lacks_guidance: bool
    guides_distilled: bool
    quantised: str | None
    stopped: NonFinite | None


def judge_path(
    path: Path,
    *,
    wav: Path | None = None,
    expect: frozenset[str] = frozenset(),
    sheet: Path | None = None,
    limits: Limits | None = None,
) -> Verdict:
    """Judge a clip or a run folder, whichever ``path`` is, in a bounded child process.

    Raises :class:`RequestError` when there is nothing to judge or the sheet cannot be written.
    """
    if not path.is_dir():
        return verify_clip(path, wav=wav, expectation=Expectation(expect=expect), sheet=sheet, limits=limits)
    if wav is not None:
        raise RequestError(
            f"--wav {wav} for a run folder", allowed="--wav beside a clip", way_out="a run's own clip.wav is judged"
        )
    return judge_run(path, expect=expect, sheet=sheet, limits=limits)


def judge_run(
    path: Path, *, sheet: Path | None, expect: frozenset[str] = frozenset(), limits: Limits | None = None
) -> Verdict:
    """Judge a run's clip against its request and write ``verdict.json`` into the folder, aside first.

    Decoding happens in a child process with the time and memory of ``limits``. A run that stopped at NaN or Inf gets a
    FAIL that names the stage. Raises :class:`RequestError` when the folder holds no run, or neither clip nor such a
    stop, or cannot be written.
    """
    run = read_run(path)
    expectation = replace(run.expectation, expect=run.expectation.expect | expect)
    if run.stopped is not None:
        verdict = non_finite_verdict(run.stopped, expectation, clip=run.folder.clip.name)
    elif run.folder.clip.is_file():
        verdict = verify_clip(
            run.folder.clip,
            wav=run.folder.wave if run.folder.wave.is_file() else None,
            expectation=expectation,
            limits=limits,
            sheet=sheet,
            known=_known(run),
        )
    else:
        raise RequestError(
            f"{path} holds no {run.folder.clip.name}",
            allowed="a finished run",
            way_out="let the render end, or resume it",
        )
    try:
        write_aside(run.folder.verdict, verdict.to_document().to_json().encode())
    except OSError as error:
        raise RequestError(
            f"{run.folder.verdict} cannot be written: {error.strerror}",
            allowed="a folder with write permission and free space",
            way_out="copy the run to where it can be written, or judge its clip.mp4 alone",
        ) from error
    return verdict


def read_run(path: Path) -> Run:
    """Request and events of a run folder; raises :class:`RequestError` where they are not what a render wrote."""
    folder = RunDir(path)
    request = _parse(_Request, _content(folder.request), folder.request)
    if not RATE.fullmatch(request.fps) or not (fps := _fraction(request.fps)):
        raise _refusal(folder.request, f"has the rate {request.fps[:40]!r}")
    decoded, stopped, drawn = _last_attempt(folder.events)
    return Run(
        folder=folder,
        expectation=Expectation(
            frames=request.frames,
            fps=fps,
            width=request.width,
            height=request.height,
            has_audio=True,
            channels=STEREO,
            expect=drawn if request.sound is None else drawn | {"given"},
            **({} if decoded is None else decoded.asked),
        ),
        lacks_guidance=request.lacks_guidance,
        guides_distilled=request.guides_distilled,
        quantised=request.quantise,
        stopped=None if stopped is None else NonFinite(**stopped.model_dump(exclude={"event"})),
    )


def _fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise _refusal(path, "is not there")
        with path.open("rb") as file:
            content = file.read(MOST_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    if len(content) > MOST_DOCUMENT_BYTES:
        raise _refusal(path, f"is larger than {MOST_DOCUMENT_BYTES:,} bytes")
    return content


def _parse(kind: type[D], content: bytes, path: Path) -> D:
    try:
        return kind.model_validate_json(content)
    except ValidationError as bad:
        first = bad.errors()[0]
        raise _refusal(
            path, f"is not what a render writes: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from bad


def _refusal(path: Path, what: str) -> RequestError:
    return RequestError(
        f"{path} {what}",
        allowed="a run folder that `shotclock render` wrote, or a clip",
        way_out="give the clip itself: shotclock verify clip.mp4",
    )


def _last_attempt(path: Path) -> tuple[_Decoded | None, _Stopped | None, frozenset[str]]:
    """What the last decode said, the non-finite stop of the last attempt, and what its model draws by design.

    Without an event log nothing is known. An attempt that only judges decodes nothing: what the decode of the clip
    said still holds.
    """
    decoded: _Decoded | None = None
    stopped: _Stopped | None = None
    drawn: frozenset[str] = frozenset()
    for line in _events(path):
        match line.get("event"):
            case "RunBegins":
                stopped, drawn = None, _parse(_Begun, json.dumps(line).encode(), path).expect
            case "PhaseBegins" if line.get("phase") == DECODES:
                decoded = None
            case "Decoded":
                decoded = _parse(_Decoded, json.dumps(line).encode(), path)
            case "NonFinite":
                stopped = _parse(_Stopped, json.dumps(line).encode(), path)
    return decoded, stopped, drawn


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of the event log; one that a kill cut short says nothing."""
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE_BYTES):
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(said, dict):
                    yield said
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error


def _known(run: Run) -> Known:
    """What the folder says beside its clip: finite latents or not, what guided the render, whether it was exact."""
    numbers = {"unguided": float(run.lacks_guidance), "guided_distilled": float(run.guides_distilled)}
    facts = {} if run.quantised is None else {QUANTISED: f"the transformer multiplied in {run.quantised}: not exact"}
    if not run.folder.latents.is_file():
        return Known(numbers=numbers, facts=facts)
    found = first_non_finite(stored_tensors(run.folder.latents, most_bytes=MOST_LATENTS_BYTES))
    numbers["nonfinite_values"] = 0.0 if found is None else float(found.nans + found.infinities)
    return Known(numbers=numbers, facts=facts if found is None else facts | {"error stage": str(found)})
