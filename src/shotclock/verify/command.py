"""What ``shotclock verify`` answers: the verdict on a clip or run, or the table of the self-test.

Turns arguments into calls and results into lines, a document and exit codes; prints nothing.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shotclock.errors import RequestError
from shotclock.verify.expectation import parse_expect
from shotclock.verify.reader import Limits
from shotclock.verify.runs import judge_path
from shotclock.verify.selftest import free_media, self_test
from shotclock.verify.verdict import EXIT_FAIL, EXIT_PASS

MOST_SECONDS = 86_400.0  # a day


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Lines for a person, the ``--json`` document, and the exit codes without and with ``--strict``."""

    lines: list[str]
    document: dict[str, Any]
    exit_code: int
    strict_exit_code: int


def answer(
    target: Path | None,
    *,
    expect: str,
    wav: Path | None,
    sheet: Path | None,
    max_seconds: float,
    run_self_test: bool,
    say: Callable[[str], None],
) -> Answer:
    """Judge ``target``, or run the self-test and let ``say`` hear how far it is; one of the two.

    Raises :class:`RequestError` for arguments that make no sense together, and for what cannot be judged.
    """
    if run_self_test:
        if (target, wav, sheet, expect) != (None, None, None, ""):
            raise _refusal("--self-test makes its own clips", "--self-test with --json only")
        return _self_test(say)
    if target is None:
        raise _refusal("there is nothing to judge", "a clip or a run folder, or --self-test")
    if not 0 < max_seconds <= MOST_SECONDS or math.isnan(max_seconds):
        raise _refusal(f"--max-seconds {max_seconds:g}", f"more than 0 and at most {MOST_SECONDS:g}")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise _refusal(f"--sheet {sheet}", "a name that ends in .png")
    limits = replace(Limits(), wall_s=max_seconds)
    try:
        verdict = judge_path(target, wav=wav, expect=parse_expect(expect), sheet=sheet, limits=limits)
    except OSError as error:
        raise _refusal(
            f"{error.filename or target}: {error.strerror or error}", "paths that this user may use"
        ) from error
    return Answer(
        lines=verdict.lines(),
        document=verdict.to_document().model_dump(mode="json"),
        exit_code=verdict.exit_code(strict=False),
        strict_exit_code=verdict.exit_code(strict=True),
    )


def _self_test(say: Callable[[str], None]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        result = self_test(Path(folder), media=free_media(), say=say)
    code = EXIT_PASS if result.is_right else EXIT_FAIL
    return Answer(lines=result.lines(), document=result.to_json(), exit_code=code, strict_exit_code=code)


def _refusal(found: str, allowed: str) -> RequestError:
    return RequestError(found, allowed=allowed, way_out="see `shotclock verify --help`")
