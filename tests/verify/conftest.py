"""Small good clips for the tests of the verifier, made once a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shotclock.verify import child, verifier
from shotclock.verify.bases import Screen
from shotclock.verify.cases import PLAIN_TAPE, Base
from shotclock.verify.reader import Limits
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


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of the child process are answered in this one: the same JSON both ways, but no process to start."""

    def ask(job: Mapping[str, object], _: float) -> dict[str, Any]:
        sent = json.loads(json.dumps(job))
        answered: dict[str, Any] = json.loads(json.dumps(child.answer(sent, Limits(**sent["limits"]))))
        return answered

    monkeypatch.setattr(verifier, "_ask_child", ask)
