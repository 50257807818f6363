"""A batch file: a JSON object a line with the options of ``shotclock render``; refused whole or accepted whole.

Every line is read and resolved before anything is submitted. Knows no scheduler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from shotclock.cluster.slurm import JOBS
from shotclock.errors import RequestError, ShotclockError
from shotclock.render.resolve import AUTO, resolve
from shotclock.render.settings import DTYPES, Settings, escaped
from shotclock.render.text import read_prompts

RUN = "run"  # the field that names a line's run folder
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")  # whether it is there is for the worker's machine to say
AS_TEXT = ("fps", "stg_blocks", "frames")  # options that are text on the command line and may be numbers here
SHOWN = 20  # refused lines that are named
SETTINGS = TypeAdapter(Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A request of a batch: its line from 1, the name of its run folder, and its options as JSON values."""

    line: int
    name: str
    options: Mapping[str, Any]


def settings_of(options: Mapping[str, Any], run: Path) -> Settings:
    """Options as a render takes them; raises :class:`RequestError` for a value of another type."""
    try:
        return SETTINGS.validate_json(json.dumps({**options, RUN: str(run)}), strict=True)
    except ValidationError as bad:
        first = bad.errors()[0]
        raise RequestError(
            f"{first['loc'][0]} {str(first['input'])[:60]!r}",
            allowed=first["msg"],
            way_out="see `shotclock render --help`",
        ) from None


def read_batch(
    path: Path, defaults: Mapping[str, Any], *, folder: Path, home: Path, say: Callable[[str], None]
) -> list[Entry]:
    """Every request of a batch, checked as `shotclock render` would check it.

    ``defaults`` are the options of a render that says nothing but its prompt; the run folders will lie in ``folder``.
    ``say`` is told what a user should know of a line. Raises :class:`RequestError` that names every refused line.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as bad:
        raise RequestError(
            f"{path} cannot be read: {bad.strerror}", allowed="a file of JSON lines", way_out="name the batch file"
        ) from None
    found: dict[str, Entry] = {}
    refused: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = _entry(number, line, defaults)
            if entry.name in found:
                raise _bad(f"run {entry.name!r} is line {found[entry.name].line}'s", "a name for each run")
            found[entry.name] = _checked(entry, folder, home, say)
        except ShotclockError as error:
            refused.append(f"line {number}: {error.found} (allowed: {error.allowed})")
    if not found and not refused:
        refused.append("no line holds a request")
    if refused:
        more = [f"and {len(refused) - SHOWN} more"] if len(refused) > SHOWN else []
        raise RequestError(
            f"{path}: " + "; ".join([*refused[:SHOWN], *more]),
            allowed="one JSON object a line with the options of `shotclock render`",
            way_out="correct these lines; nothing was submitted",
        )
    return list(found.values())


def _entry(number: int, line: bytes, defaults: Mapping[str, Any]) -> Entry:
    """One line as it was written, with the defaults of what it does not say."""
    said: dict[str, Any] = {}
    for key, value in _pairs(line):
        name = "model_class" if key == "class" else key.replace("-", "_")
        if name in said:
            raise _bad(f"{key} is said twice", "each option once")
        said[name] = value
    known = {field.name for field in fields(Settings)}
    if unknown := [name for name in said if name not in known]:
        raise _bad(f"unknown field {', '.join(unknown)}", ", ".join(sorted(known)))
    if not isinstance(said.get("prompt"), str):
        raise _bad("no prompt", "a prompt in every line")
    name = said.pop(RUN, f"{number:04}")
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == JOBS:
        raise _bad(f"run {str(name)[:60]!r}", f"a folder's name of letters, digits, _ . - and not {JOBS!r}")
    for option in AS_TEXT:
        if isinstance(said.get(option), int | float) and not isinstance(said[option], bool):
            said[option] = str(said[option])
    return Entry(line=number, name=name, options={**defaults, **said})


def _pairs(line: bytes) -> list[tuple[str, Any]]:
    try:
        found = json.loads(line.decode(), object_pairs_hook=_Object)
    except (ValueError, RecursionError) as bad:
        raise _bad(f"no JSON: {bad}", "a JSON object") from None
    if not isinstance(found, _Object):
        raise _bad(f"a JSON {type(found).__name__}", "a JSON object")
    return found


class _Object(list[tuple[str, Any]]):
    """Members of a JSON object in order, so that one said twice is seen."""


def _checked(entry: Entry, folder: Path, home: Path, say: Callable[[str], None]) -> Entry:
    """Resolve the line as its worker will, but for the worker's device; prompts of files become their text."""
    settings = settings_of(entry.options, folder / entry.name)
    if settings.device is not None and not DEVICE.fullmatch(settings.device):
        raise _bad(f"device {settings.device!r}", "cpu, cuda or cuda:NUMBER")
    if settings.gpus != 1:
        raise _bad(f"gpus {settings.gpus}", "1: a worker of a batch renders on one GPU")
    prompt, negative = read_prompts(settings.prompt, settings.negative_prompt)
    frames = None if settings.frames == AUTO else settings.frames  # a worker predicts it: that loads weights
    here = replace(settings, device="cpu", dtype=settings.dtype or next(iter(DTYPES)), frames=frames)
    resolve(here, home, lambda text: say(f"line {entry.line}: {text}"))
    return replace(entry, options={**entry.options, "prompt": escaped(prompt), "negative_prompt": escaped(negative)})


def _bad(found: str, allowed: str) -> RequestError:
    return RequestError(found, allowed=allowed, way_out="correct the line")
