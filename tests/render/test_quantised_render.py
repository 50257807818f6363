"""``--quantise fp8``: refused before anything is read, named wherever the render is, and resumed to the same bits."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from test_pipeline import shotclock
from test_recipe_runs import PLAIN, TERMS, Killed, times

from shotclock.closing import finish
from shotclock.errors import RequestError
from shotclock.plan.key import quantisation_of
from shotclock.record.derive import Context, derive
from shotclock.record.essence import read_tag
from shotclock.record.folder import read_folder
from shotclock.record.machine import examine
from shotclock.record.recipes import Recipe
from shotclock.render import pipeline, sample
from shotclock.render.job import Outcome
from shotclock.render.run import prove, resume, start
from shotclock.render.settings import Settings
from shotclock.render.snapshot import newest_snapshot
from shotclock.request import read_request
from shotclock.rundir import RunDir
from shotclock.verify.runs import _known, read_run
from shotclock.verify.verdict import Subject, decide
from shotclock.weights import fp8

NAME = "fp8 e4m3 rowwise"
TAGGED = replace(TERMS, judge=partial(finish, verify=False, embed=True))
ASKED = replace(PLAIN, size="64x64", steps=3, dtype="bfloat16", quantise="fp8")


def render(settings: Settings, run: Path, home: Path) -> Outcome:
    return start(replace(settings, run=run), TAGGED, home=home, times=times(), console=None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def runs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same clip in bfloat16, in float8, and in float8 by two attempts; torch multiplies float8 on the CPU too."""
    folder = tmp_path_factory.mktemp("runs")
    found = {name: folder / name for name in ("exact", "fp8", "resumed")}
    real = sample.keep

    def keep(job: Any, journal: Any, state: Any, identity: Any) -> None:
        real(job, journal, state, identity)
        if state.step == 2 and not state.legs:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "require_fp8", lambda _: None)
        render(ASKED, found["fp8"], home)
        patch.setattr(pipeline, "decode", lambda *_: None)  # of the others the latents are enough
        render(replace(ASKED, quantise=None), found["exact"], home)
        with pytest.MonkeyPatch.context() as kill, pytest.raises(Killed):
            kill.setattr(sample, "keep", keep)
            render(ASKED, found["resumed"], home)
        assert prove(found["resumed"], models=None)
        resume(found["resumed"], TAGGED, models=None, home=home, times=times(), console=None)
    return found


def begins(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "events.jsonl").read_text().splitlines()[0]))


@pytest.mark.parametrize("command", ["render", "plan"])
def test_a_device_without_float8_is_named_before_anything_is_read(command: str, home: Path, tmp_path: Path) -> None:
    """Even the folder of weights is not looked at; no run folder is left."""
    said = ["a red circle", f"--models={tmp_path / 'nothing'}", "--quantise=fp8", "--device=cpu"]
    run = ["--run", str(tmp_path / "run")] if command == "render" else []
    done = shotclock(command, *said, *run, home=home)
    assert done.returncode == 2, done.stderr
    assert "--quantise fp8 on a device without float8 products (cpu)" in done.stderr
    assert "compute capability 8.9 or more" in done.stderr and not (tmp_path / "run").exists()


def test_a_gpu_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and its capability; the first that has the product passes."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(RequestError, match=r"\(NVIDIA A100, compute capability 8.0\)"):
        fp8.require_asked("fp8", torch.device("cuda"), torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    fp8.require_asked("fp8", torch.device("cuda"), torch.bfloat16)
    with pytest.raises(RequestError, match="--dtype float32"):
        fp8.require_asked("fp8", torch.device("cuda"), torch.float32)
    with pytest.raises(RequestError, match="int4"):
        fp8.require_asked("int4", torch.device("cuda"), torch.bfloat16)
    fp8.require_asked(None, torch.device("cpu"), torch.float32)


def test_a_resume_elsewhere_is_refused_too(runs: dict[str, Path], home: Path, tmp_path: Path) -> None:
    """The run says what it was asked for; this machine's CPU does not have it."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("request.json", "plan.json"):
        (run / name).write_bytes((runs["fp8"] / name).read_bytes())
    with pytest.raises(RequestError, match="without float8 products"):
        resume(run, TERMS, models=None, home=home, times=times(), console=None)
    with pytest.raises(RequestError, match="without float8 products"):
        prove(run, models=None)


def test_float8_is_another_request_and_other_numerics(runs: dict[str, Path]) -> None:
    """In request, plan, law key, snapshot and command; a request without it is written as it always was."""
    exact, quantised = (read_request((runs[name] / "request.json").read_text()) for name in ("exact", "fp8"))
    assert (exact.quantise, quantised.quantise) == (None, "fp8") and exact.digest != quantised.digest
    assert "quantise" not in json.loads(exact.to_json())
    plan = json.loads((runs["fp8"] / "plan.json").read_text())
    assert plan["quantisation"] == NAME == quantisation_of("fp8")
    assert any("not exact" in warning and NAME in warning for warning in plan["warnings"])
    for name, wanted in (("exact", "none"), ("fp8", NAME)):
        assert begins(runs[name])["law_key"]["quantisation"] == wanted
        found = newest_snapshot(RunDir(runs[name]))
        assert found is not None and found.identity.numerics.quantisation == wanted
    assert "--quantise=fp8" in begins(runs["fp8"])["command"]
    assert "--quantise" not in begins(runs["exact"])["command"]
    recipe = Recipe(subject="x", models="tiny", device="cpu", dtype="bfloat16", request=json.loads(quantised.to_json()))
    assert "--quantise=fp8" in recipe.arguments()


def test_float8_renders_almost_the_same_clip_and_resumes_to_its_bits(runs: dict[str, Path]) -> None:
    """Latents differ from bfloat16's by roundings of a few per cent, and not at all from those of two attempts."""
    exact, quantised, resumed = (load_file(runs[name] / "latents.safetensors") for name in ("exact", "fp8", "resumed"))
    for stream, reference in exact.items():
        assert torch.equal(quantised[stream], resumed[stream])
        error = (quantised[stream].double() - reference.double()).norm() / reference.double().norm()
        assert 1e-4 < float(error) < 0.2, (stream, float(error))


def test_verdict_record_and_clip_say_so(runs: dict[str, Path]) -> None:
    """A line of the verdict, a checked fact and a sentence of what is not shown, and the clip's comment."""
    tag = read_tag(runs["fp8"] / "clip.mp4")
    assert tag is not None and tag.quantised == "fp8" and '"quantised":"fp8"' in tag.to_json()
    assert "quantised" not in tag.model_copy(update={"quantised": None}).to_json()
    for name, wanted in (("exact", None), ("fp8", "fp8")):
        run = runs[name]
        seen = read_run(run)
        lines = decide({}, seen.expectation, subject=Subject(clip="clip.mp4"), facts=_known(seen).facts).lines()
        assert ("  quantised: the transformer multiplied in fp8: not exact" in lines) is (wanted is not None)
        facts = derive(read_folder(run), examine(device_index=None), Context(private=False))
        assert facts.checked["quantisation"].value == (NAME if wanted else "none")
        assert any(f"they were quantised ({NAME})" in said for said in facts.not_shown) is (wanted is not None)
        assert any("not exact" in warning for warning in facts.warnings) is (wanted is not None)
