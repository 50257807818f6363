"""Every golden case that this version claims passes, and what it does not claim yet is named here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldens import Folder, run_case

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = list(json.loads((GOLDENS / "cases" / "index.json").read_text())["cases"])
NO_MODEL = {"vae_diffusion_decode", "vae_diffusion_decode_small", "vae_diffusion_decode_tiled", "e2e_t2v"}


@pytest.fixture(scope="module")
def folder() -> Folder:
    return Folder(GOLDENS)


@pytest.mark.parametrize("name", CASES)
def test_case_is_reproduced(folder: Folder, name: str) -> None:
    """Within the tolerance of the index; official outputs that are no model's are n/a, with the reason."""
    result = run_case(folder, name)
    assert result.ok, result.line()
    assert (" n/a " in result.line()) == (name in NO_MODEL)


def test_a_wrong_result_fails(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner can say FAIL: a schedule shifted by 1 % is out of tolerance, a missing output is named."""
    import goldens

    exact = goldens.HANDLERS["schedules*"]
    monkeypatch.setitem(goldens.HANDLERS, "schedules*", lambda f, c: {k: v * 1.01 for k, v in exact(f, c).items()})
    assert "FAIL" in run_case(folder, "schedules").line()
    monkeypatch.setitem(goldens.HANDLERS, "schedules*", lambda _f, _c: {})
    assert "not produced" in run_case(folder, "schedules").line()
