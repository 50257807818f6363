"""The harness of guided steps, on tiny widths: other sides agree with ours before they are timed."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from shotclock.bench import official, steps
from shotclock.bench.command import bench
from shotclock.bench.official import Official
from shotclock.bench.steps import DIFFUSERS, FP8, OURS, UNGUIDED, timed
from shotclock.errors import RenderFailed, RequestError
from shotclock.geometry import unpatchify_audio, unpatchify_video
from shotclock.latents import noise
from shotclock.model.attention import attention_backends
from shotclock.profile.workload import RANDOM_TINY, Workload, clip, machine_of, model_for, workload
from shotclock.render.calibrate import SEED
from shotclock.weights.header import read_header
from shotclock.weights.identity import Kind
from shotclock.weights.require import require
from shotclock.weights.shapes import transformer_shapes
from shotclock.weights.tiny import TRANSFORMER
from shotclock.weights.transformer import load_transformer


def test_the_table_comes_with_errors_multipliers_and_a_document(tmp_path: Path) -> None:
    """Every side n times; float32 velocities of diffusers within 1e-4, float8 not; the last line is the document."""
    out = tmp_path / "steps.json"
    answer = bench(device="cpu", tiny=True, rounds=2, quantise="fp8", out=out).ask(tmp_path)
    document = json.loads(answer.lines[-1])
    assert document == json.loads(out.read_text())
    (row,) = document["rows"]
    assert {OURS, UNGUIDED, DIFFUSERS, FP8} <= set(row["sides"])
    assert all(len(side["values"]) == 2 for side in row["sides"].values())
    assert set(row["multipliers"]) == {"guided", "uncond", "perturbed", "isolated"}
    assert set(row["errors"][DIFFUSERS]) == {"cond", "uncond", "perturbed", "isolated"}
    assert all(error < 1e-4 for pair in row["errors"][DIFFUSERS].values() for error in pair)
    assert all(1e-3 < error < 0.1 for pair in row["errors"][FP8].values() for error in pair)
    assert row["official"].startswith("PENDING") and row["clocks_mhz"] == [] and row["clocks_reason"]
    assert row["ratios_to_ours"][OURS] == 1


def test_rounds_alternate() -> None:
    """Every second round runs the sides backwards."""
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in "abc"}  # type: ignore[misc]
    seconds, _, _ = timed(calls, torch.device("cpu"), 3)
    assert "".join(seen) == "abccbaabc"
    assert all(len(found) == 3 for found in seconds.values())


@pytest.mark.parametrize(
    "said",
    [
        {"against": ["other"]},
        {"quantise": "int4"},
        {"geometry": ["big"]},
        {"run": Path("somewhere")},
        {"oracle": "adapter"},
    ],
)
def test_what_cannot_be_measured_is_refused(said: dict[str, object], tmp_path: Path) -> None:
    """Before weights are made; a run needs an oracle."""
    with pytest.raises(RequestError):
        bench(**({"tiny": True} | said)).ask(tmp_path)  # type: ignore[arg-type]


def test_float8_on_a_cpu_is_for_tiny_only(tmp_path: Path) -> None:
    """At released widths it is refused before 38 GB are drawn."""
    with pytest.raises(RequestError, match="without float8"):
        bench(device="cpu", quantise="fp8").ask(tmp_path)


ADAPTER = """
import json, shutil, sys
from pathlib import Path
job, out, here = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), Path(__file__).parent
assert all(Path(job[name]).is_file() for name in ("transformer", "contexts", "noise")) and not job["decode"]
shutil.copy(here / "per_step.safetensors", out)
steps = [9.0, 9.0, 0.25 * job["max_batch_size"], 0.5]
said = {"steps_s": steps[: job["steps"]], "packages": json.loads((here / "packages.json").read_text())}
(out / "timings.json").write_text(json.dumps(said))
"""


def step_in(dtype: str) -> Workload:
    """A tiny step."""
    machine = machine_of("cpu", dtype)
    transformer, recipe = model_for(RANDOM_TINY, machine, Path(), pinned_config=False)
    return workload(transformer, recipe, clip("64x64", 9), machine, 4)


@pytest.fixture(scope="module")
def work() -> Iterator[Workload]:
    """In float32."""
    with torch.inference_mode(), attention_backends():
        yield step_in("float32")


@pytest.fixture(scope="module")
def row(work: Workload) -> steps.Row:
    """Ours alone."""
    return steps.measure(work, rounds=1, against=(), fp8=False)


def adapter(folder: Path, work: Workload, packages: dict[str, str], factor: float = 1.0) -> Official:
    """An adapter that answers at once: its first step moves ``factor`` times what ours does."""
    moved = official.first_step(work, official.WARM_UPS + 2)
    tokens = noise(work.geometry, SEED)
    drawn = unpatchify_video(tokens[0], work.geometry), unpatchify_audio(tokens[1])
    steps = {stream: (drawn[side] + factor * moved[side][None]) for side, stream in enumerate(("video", "audio"))}
    save_file({name: value.contiguous() for name, value in steps.items()}, folder / "per_step.safetensors")
    (folder / "packages.json").write_text(json.dumps(packages))
    (folder / "adapter.py").write_text(ADAPTER)
    return Official(command=shlex.join([sys.executable, "-S", str(folder / "adapter.py")]), limit_s=60)


def test_the_official_packages_are_sides_of_the_table(work: Workload, row: steps.Row, tmp_path: Path) -> None:
    """Their warm-ups apart, their first step held against ours, named as the adapter says; ours once more behind."""
    theirs = adapter(tmp_path, work, {"ltx-core": "1.2.0", "triton": "3"})
    found = steps.with_official(row, work, theirs, 2)
    one, four = (found.sides[f"ltx-core 1.2.0, {side}"] for side in ("one leg a call", "four legs in a batch"))
    assert (one.warm_up, one.values, four.values) == ((9.0, 9.0), (0.25, 0.5), (1.0, 0.5))
    assert found.official == "RAN: ltx-core 1.2.0" and len(found.sides[steps.AGAIN].values) == 2
    assert all(error < 1e-6 for legs in found.errors.values() for pair in legs.values() for error in pair)
    assert any(line.startswith("  ltx-core 1.2.0, one leg a call: 0.375 s") for line in found.lines())


def test_what_is_not_official_stays_pending_and_another_step_is_refused(
    work: Workload, row: steps.Row, tmp_path: Path
) -> None:
    """No figure of another implementation is called theirs; a step that differs is not timed."""
    other = steps.with_official(row, work, adapter(tmp_path, work, {"diffusers": "0.42.1"}), 2)
    assert other.official == "PENDING: the adapter ran diffusers 0.42.1"
    assert "diffusers 0.42.1, one leg a call" in other.sides
    with pytest.raises(RenderFailed, match=r"relative error 1\.0e-02 video"):
        steps.with_official(row, work, adapter(tmp_path, work, {}, factor=1.01), 2)


def test_the_file_of_weights_is_ours(tmp_path: Path) -> None:
    """Read as any transformer file is, it gives the same bits; it has every name that the format has."""
    work = step_in("bfloat16")
    official.write_weights(work, tmp_path)
    header = read_header(tmp_path / "transformer.safetensors")
    require(header, Kind.TRANSFORMER)
    again = load_transformer(header, device=torch.device("cpu"), dtype=torch.bfloat16, pinned_config=False)
    ours = work.transformer.state_dict()
    assert all(torch.equal(value, ours[name]) for name, value in again.state_dict().items())
    assert set(header.tensors) == set(transformer_shapes(TRANSFORMER))


def test_official_packages_that_are_not_here_are_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said in the row, and nothing is run; where they are, the checkout's adapter is what runs."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    answer = bench(device="cpu", tiny=True, rounds=1, against=["ltx_core"]).ask(tmp_path)
    (row,) = answer.document["rows"]
    assert row["official"].startswith("PENDING: ltx_core is not installed here")
    assert any("official packages: PENDING: ltx_core is not installed" in line for line in answer.lines)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    found, reason = official.find(None, 60)
    assert found is not None and found.command.endswith("adapters/oracle_ltx_core.py") and not reason
