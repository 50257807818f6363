"""Small good clips for the tests of the verifier, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from shotclock.verify.bases import Screen
from shotclock.verify.cases import PLAIN_TAPE, Base
from shotclock.verify.selftest import synthetic_base
from shotclock.verify.tape import write_clip

SMALL = Screen(width=192, height=128, frames=25)


@pytest.fixture(scope="session")
def base() -> Base:
    """A good moving picture with its sound."""
    return synthetic_base("tunnel", SMALL)


@pytest.fixture(scope="session")
def clip(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The good clip as an mp4; tests read it and damage copies."""
    return write_clip(tmp_path_factory.mktemp("clip") / "good.mp4", base.frames, base.sound, PLAIN_TAPE)
