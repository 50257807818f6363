"""First use of a device, with the tiny model: passes and rates are measured, kept, and used by the next plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from test_pipeline import SMALL as SMALL_RENDER
from test_pipeline import shotclock

from fakes import FakeClock, tiny_config
from shotclock.errors import RequestError
from shotclock.plan.law import fit_law, read_timings
from shotclock.plan.memory import Room
from shotclock.plan.rate import read_rates
from shotclock.render import calibrate as module
from shotclock.render.ahead import Machine
from shotclock.render.calibrate import (
    DECODED,
    SMALL,
    WARM_PASSES,
    Bench,
    dtype_for,
    forwards,
    guidance_of,
    key_of,
    random_contexts,
    random_transformer,
)
from shotclock.weights.released import MODEL_VERSION, one_stage

CPU = torch.device("cpu")
MACHINE = Machine(
    device=CPU,
    name="cpu",
    dtype=torch.float32,
    room=Room(device_bytes=None, host_bytes=None, shared=True),
)
ALL_LEGS = "cond+uncond+perturbed+isolated"
CLIP = ["--models=tiny", "--size=64x64", "--frames=9", "--steps=3", "--device=cpu"]
LONG = ["--models=tiny", "--size=2048x2048", "--frames=241", "--device=cpu"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def calibrated(home: Path) -> dict[str, Any]:
    """The command on this CPU, with the tiny files: what it printed as JSON."""
    done = shotclock("calibrate", "--models=tiny", "--device=cpu", "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert "256x160, 25 frames at 24: 160 video tokens" in done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_every_size_has_its_warm_up_and_its_warm_passes(calibrated: dict[str, Any]) -> None:
    """One pass apart, three kept, all of one run; enough for a law."""
    found = read_timings(Path(calibrated["law_path"]).read_text())
    assert [sample.kind for sample in found.samples] == [ALL_LEGS] * len(SMALL)
    assert all((len(one.warm_up_s), len(one.pass_s)) == (1, WARM_PASSES) for one in found.samples)
    assert len({sample.run for sample in found.samples}) == 1
    assert set(fit_law(found).curves) == {ALL_LEGS} == set(calibrated["curves"])


def test_loading_text_and_decode_are_measured_too(calibrated: dict[str, Any]) -> None:
    """Once each load, three decodes, a matrix rate."""
    samples = read_rates(Path(calibrated["rates_path"]).read_text()).samples
    phases = [sample.phase for sample in samples]
    once = {"load-text", "encode", "connect", "load-transformer", "load-decoders", "matrix float32"}
    assert {name for name in phases if phases.count(name) == 1} == once
    assert phases.count("decode-video") == phases.count("decode-audio") == DECODED
    assert all(sample.units > 1e5 for sample in samples if sample.phase.startswith("load-"))


@dataclass
class Slow:
    """A device on which a pass takes ``pass_s`` by the fake clock: every wait for it moves the clock."""

    clock: FakeClock
    pass_s: float

    def __call__(self) -> None:
        self.clock.now_s += self.pass_s


def sizes_on(pass_s: float, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sizes that are measured where every pass takes so long."""
    clock = FakeClock()
    bench = Bench(machine=MACHINE, clock=clock, say=lambda _: None, run="a")
    monkeypatch.setattr(Bench, "wait", lambda _: Slow(clock, pass_s)())
    model = random_transformer(tiny_config(1), CPU, torch.float32)
    guidance = guidance_of(one_stage(MODEL_VERSION, (0,)), 4)
    key = key_of(MACHINE, model.config, guidance)
    with torch.inference_mode():
        found = forwards(bench, model, random_contexts(MACHINE, model), guidance, key)
    return [sample.geometry for sample in found]


def test_larger_sizes_are_left_out_on_a_slow_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast one does all; on a slow one smaller sizes make up for what did not fit; one that is too slow is told."""
    assert len(sizes_on(0.01, monkeypatch)) == len(SMALL)
    monkeypatch.setattr(module, "ladder_of", lambda *_: (ladder(), 2))
    assert sizes_on(8.0, monkeypatch) == [
        "192x128, 25 frames at 24",
        "128x96, 17 frames at 24",
        "64x64, 9 frames at 24",
    ]
    monkeypatch.setattr(module, "ladder_of", lambda *_: (ladder(), 0))
    with pytest.raises(RequestError, match="1 sizes were measured within 90 s"):
        sizes_on(8.0, monkeypatch)


def ladder() -> list[Any]:
    """The small sizes."""
    return module_ladder(tiny_config(), CPU)[0]


module_ladder = module.ladder_of


def test_legs_in_passes_of_their_own_are_kinds_of_their_own() -> None:
    """One leg a pass: four kinds, and a key of its own; the first pass of a size alone warms up."""
    bench = Bench(machine=MACHINE, clock=FakeClock(1e-3), say=lambda _: None, run="a")
    model = random_transformer(tiny_config(1), CPU, torch.float32)
    guidance = guidance_of(one_stage(MODEL_VERSION, (0,)), 1)
    key = key_of(MACHINE, model.config, guidance)
    with torch.inference_mode():
        samples = forwards(bench, model, random_contexts(MACHINE, model), guidance, key)
    assert {sample.kind for sample in samples} == {"cond", "uncond", "perturbed", "isolated"}
    assert [len(sample.warm_up_s) for sample in samples if sample.kind == "cond"] == [1] * len(SMALL)
    assert all(not sample.warm_up_s for sample in samples if sample.kind != "cond")
    assert key.legs_per_pass == 1


def test_random_weights_keep_a_forward_finite() -> None:
    """In bfloat16 too, whose tables stay float32."""
    model = random_transformer(tiny_config(), CPU, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert model.scale_shift_table.dtype == torch.float32
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("name", ["float16", "fp8", ""])
def test_other_dtypes_are_refused(name: str) -> None:
    """As a render refuses them."""
    with pytest.raises(RequestError, match="bfloat16 or float32"):
        dtype_for(CPU, name)


def test_a_plan_without_a_law_says_so_and_gives_a_floor(tmp_path: Path) -> None:
    """And starts nothing: no run folder, no law."""
    done = shotclock("plan", "a red circle", "--lease=4h", *CLIP, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert "no law for this device and build" in done.stderr
    assert "floor at" in done.stderr
    assert not (tmp_path / "home" / "laws").exists()


def test_a_plan_uses_what_was_calibrated_and_a_run_joins_it(
    calibrated: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    """The plan has the law and a picture; a render's passes belong to the same key; a second is too short."""
    plot = tmp_path / "plan.png"
    done = shotclock("plan", "a red circle", "--lease=4h", "--json", f"--plot={plot}", *CLIP, home=home)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["accepted"]
    assert set(document["plan"]["forecast"]["law"]) == {ALL_LEGS}
    assert plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 20_000
    run = tmp_path / "run"
    rendered = shotclock("render", "a red circle", "--run", str(run), *SMALL_RENDER, home=home)
    assert rendered.returncode == 0, rendered.stderr
    fitted = shotclock("fit", str(run), "--check-shapes", home=home)
    assert fitted.returncode == 0, fitted.stderr
    assert f"kept: {calibrated['law_path']}" in fitted.stdout, "the run has the key that was calibrated"
    assert "rate of save-latents" in fitted.stdout
    refused = shotclock("plan", "a red circle", "--lease=2.5s", "--json", "--quiet", *LONG, home=home)
    assert refused.returncode == 3, refused.stderr
    assert not json.loads(refused.stdout.splitlines()[-1])["accepted"]


def test_shapes_are_measured_where_no_run_is_given(tmp_path: Path) -> None:
    """Each twice, there and back; both kinds of tokens are told, and what follows is of these passes alone."""
    home = tmp_path / "home"
    done = shotclock("fit", "--check-shapes", "--models=tiny", "--device=cpu", "--size=128x64x9", "--json", home=home)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    group, said = document["shapes"]
    assert all(part in group for part in ("128x64, 9 frames", "64x128, 9 frames", "16 video tokens", "audio tokens"))
    assert said.startswith("only the token count matters: ")
    (law,) = (home / "laws").glob("*.json")
    samples = json.loads(law.read_text())["samples"]
    half = len(samples) // 2
    order = [sample["geometry"] for sample in samples]
    assert half >= 2 and order[half:] == order[:half][::-1] and all(len(sample["pass_s"]) > 1 for sample in samples)
    refused = shotclock("fit", home=home)
    assert refused.returncode == 2 and "--check-shapes" in refused.stderr
