"""Laws and rates that outlive a run: one file a key below a home folder, merged and written aside.

Knows files and keys; measures nothing. The home folder is an argument.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shotclock.errors import RequestError, RunDirError, ShotclockError
from shotclock.plan.law import LawKey, Timings, read_timings
from shotclock.plan.rate import Rates, read_rates
from shotclock.rundir import write_aside

logger = logging.getLogger(__name__)

LAWS, RATES, LOCK = "laws", "rates", ".lock"
DIGEST_CHARACTERS = 16
D = TypeVar("D", Timings, Rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was measured before: timings of the key, rates of its device and build, and laws of other keys."""

    timings: Timings | None
    rates: Rates
    others: tuple[Timings, ...] = ()

    def stale_lines(self, key: LawKey) -> list[str]:
        """The law of another key that is nearest to ``key``, and in what it differs; empty where there is none."""
        found = sorted((key.differences(other.key) for other in self.others), key=len)
        return [f"STALE: a law was measured with {'; '.join(found[0])}"] if found and self.timings is None else []


def law_path(home: Path, key: LawKey) -> Path:
    """Where the law of ``key`` lies."""
    return home / LAWS / f"{key.digest[:DIGEST_CHARACTERS]}.json"


def rates_path(home: Path, device: str, build: str) -> Path:
    """Where the rates of a device and build lie."""
    digest = hashlib.sha256("\0".join((device, build)).encode()).hexdigest()
    return home / RATES / f"{digest[:DIGEST_CHARACTERS]}.json"


def read_known(home: Path, key: LawKey) -> Known:
    """Everything below ``home`` that says something about ``key``; raises :class:`RequestError` naming a bad file."""
    own = law_path(home, key)
    timings = _law(own) if own.exists() else None
    if timings is not None and timings.key != key:
        raise RequestError(
            f"{own} holds the law of another key: {'; '.join(key.differences(timings.key))}",
            allowed="files that `shotclock calibrate` or `shotclock fit` wrote",
            way_out="remove it and measure again",
        )
    return Known(
        timings=timings, rates=read_stored_rates(home, key.device, key.build), others=tuple(_others(home, own))
    )


def _others(home: Path, own: Path) -> Iterator[Timings]:
    """Laws of other keys; a broken one is no matter of this render, but is said."""
    for path in sorted((home / LAWS).glob("*.json")):
        try:
            if path != own:
                yield _law(path)
        except ShotclockError as bad:
            logger.warning("a law of another key is left out: %s", bad)


def read_stored_rates(home: Path, device: str, build: str) -> Rates:
    """The rates of a device and build; without samples where none were kept."""
    path = rates_path(home, device, build)
    text = _text(path)
    return Rates(device=device, build=build, samples=()) if text is None else _named(path, read_rates, text)


def keep_timings(home: Path, newer: Timings) -> tuple[Path, Timings]:
    """Merge into the law file of the key; returns its path and what it holds now."""
    path = law_path(home, newer.key)
    with _alone(path):
        merged = _law(path).merged(newer) if path.exists() else newer
        write_aside(path, merged.to_json().encode())
    return path, merged


def keep_rates(home: Path, newer: Rates) -> tuple[Path, Rates]:
    """Merge into the rates file of the device and build; returns its path and what it holds now."""
    path = rates_path(home, newer.device, newer.build)
    with _alone(path):
        merged = read_stored_rates(home, newer.device, newer.build).merged(newer)
        write_aside(path, merged.to_json().encode())
    return path, merged


def _law(path: Path) -> Timings:
    text = _text(path)
    assert text is not None, "the file was listed"
    return _named(path, read_timings, text)


def _named(path: Path, parse: Callable[[str], D], text: str) -> D:
    try:
        return parse(text)
    except RequestError as bad:
        raise RequestError(f"{path}: {bad.found}", allowed=bad.allowed, way_out=bad.way_out) from None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as bad:
        raise RunDirError(
            f"{path} cannot be read: {getattr(bad, 'strerror', None) or bad}",
            allowed="a readable file",
            way_out="set SHOTCLOCK_HOME to another folder, or remove the file",
        ) from None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Make the folder and keep other processes from merging meanwhile: neither loses what the other measured."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as bad:
        raise RunDirError(
            f"{path} cannot be written: {bad.strerror or bad}",
            allowed="a folder that can be written",
            way_out="set SHOTCLOCK_HOME to a folder that can be written",
        ) from None
