"""Every golden case that this version claims passes, and what it does not claim yet is named here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from goldens import Folder, run_case

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = list(json.loads((GOLDENS / "cases" / "index.json").read_text())["cases"])
LATER = {
    "vae_diffusion_decode",
    "vae_diffusion_decode_small",
    "vae_diffusion_decode_tiled",
}


@pytest.fixture(scope="module")
def folder() -> Folder:
    return Folder(GOLDENS)


@pytest.mark.parametrize("name", CASES)
def test_case_is_reproduced(folder: Folder, name: str) -> None:
    """Within the tolerance of the index; a case of a later version is reported as todo, not as passed."""
    result = run_case(folder, name)
    if name in LATER:
        assert result.error is None and result.line().endswith("todo")
    else:
        assert result.ok, result.line()


def test_a_wrong_result_fails(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner can say FAIL: a schedule shifted by 1 % is out of tolerance, a missing output is named."""
    import goldens

    exact = goldens.HANDLERS["schedules*"]
    monkeypatch.setitem(goldens.HANDLERS, "schedules*", lambda f, c: {k: v * 1.01 for k, v in exact(f, c).items()})
    assert "FAIL" in run_case(folder, "schedules").line()
    monkeypatch.setitem(goldens.HANDLERS, "schedules*", lambda _f, _c: {})
    assert "not produced" in run_case(folder, "schedules").line()
