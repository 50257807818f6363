"""A finished tiny render held against diffusers, and against oracles that are wrong: gates, curve, record."""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from shotclock.bench.decoded import DECODE, VOCODER, decode_gates
from shotclock.bench.job import read_job, write_job
from shotclock.bench.oracle import RESULT, Asked, ask_oracle, forward_samples
from shotclock.cli import main
from shotclock.errors import RenderFailed, RequestError
from shotclock.plan.planner import read_plan
from shotclock.record.audit import audit
from shotclock.record.ledger import Ledger, places, write_record
from shotclock.record.machine import examine
from shotclock.record.recipes import Recipe
from shotclock.record.show import show_lines
from shotclock.render.decode import VideoDecoder
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import read_header

ROOT = Path(__file__).parents[2]
ADAPTER = ROOT / "adapters" / "oracle_diffusers.py"
SCALES = {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "skip_step": 0, "stg_blocks": [2]}
RECIPE = Recipe(
    subject="a small render",
    models="tiny",
    device="cpu",
    dtype="float32",
    request={
        "format": "shotclock/request/1",
        "recipe": "one_stage",
        "prompt": "@ a red circle",
        "negative_prompt": "smeared",
        "width": 64,
        "height": 96,
        "frames": 17,
        "fps": "24",
        "seed": 7,
        "steps": 3,
        "video": SCALES,
        "audio": {**SCALES, "cfg": 7.0},
        "legs_per_pass": 4,
    },
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the built-in model and the ledger."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def run(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and recorded render of the recipe."""
    folder = tmp_path_factory.mktemp("bench") / "run"
    arguments = ["shotclock", "render", f"--run={folder}", "--no-verify", "--rehearse=never", "--quiet"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
        patch.setenv("SHOTCLOCK_HOME", str(home))
        patch.setattr(sys, "argv", [*arguments, *RECIPE.arguments()])
        try:
            main()
        except SystemExit as end:
            assert not end.code, err.getvalue()
    write_record(folder, home, examine(device_index=None), private=False)
    return folder


@pytest.fixture(scope="module")
def answered(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What diffusers makes of the job, in this process, whose imports are paid for."""
    folder = tmp_path_factory.mktemp("answer")
    work = write_job(RunDir.existing(run), folder, device="cpu", decode=False, compile_blocks=False)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.setattr(sys, "argv", [str(ADAPTER), str(work.job), str(folder / "out")])
        runpy.run_path(str(ADAPTER), run_name="__main__")
    return folder / "out"


def asked(command: str, *, per_step: bool = False) -> Asked:
    return Asked(command=command, limit_s=120, device="cpu", decode=False, compile_blocks=False, per_step=per_step)


def copying(answer: Path) -> str:
    """A command that answers with files that are there already."""
    return shlex.join(
        ["sh", "-c", f"cp {shlex.quote(str(answer))}/*.safetensors {shlex.quote(str(answer))}/*.json $2", "x"]
    )


def test_a_recipe_renders_what_it_says(run: Path) -> None:
    """Its arguments on the command line make its request, byte for byte, and the record finds it by digest."""
    request = json.loads((run / "request.json").read_text())
    assert {name: request[name] for name in RECIPE.request} == RECIPE.request


def test_the_job_is_the_run_in_the_words_of_the_oracles(run: Path, tmp_path: Path) -> None:
    """Exactly the keys that both adapters read, the run's contexts by side, and the noise that the seed stands for."""
    work = write_job(RunDir.existing(run), tmp_path, device="cpu", decode=False, compile_blocks=False)
    job = read_job(work.job)
    for adapter in ("oracle_ltx_core.py", "oracle_diffusers.py"):
        text = (ROOT / "adapters" / adapter).read_text()
        keys = text.partition("\nJOB = {")[2].partition("}")[0]
        assert set(re.findall(r'"(\w+)"', keys)) == set(job), adapter
    contexts, ours = load_file(job["contexts"]), load_file(run / "contexts.safetensors")
    assert torch.equal(contexts["video_neg"][0], ours["video"][1]) and contexts["audio_pos"].shape[0] == 1
    noise = load_file(job["noise"])
    assert noise["video"].shape == (1, 18, 128) and noise["audio"].shape == (1, 18, 128)
    assert (job["audio"]["cfg_scale"], job["video"]["stg_blocks"], job["fps"]) == (7.0, [2], 24.0)
    assert job["prompt"] == "@ a red circle"


def test_diffusers_agrees_forward_by_forward_and_step_by_step(run: Path, home: Path, answered: Path) -> None:
    """All legs of the first forward, the latents after every step, the last ones; the record says what ran."""
    result = ask_oracle(run, asked(copying(answered), per_step=True), home=home, out=answered.parent / "again")
    assert [gate.outcome for gate in (*result.stages, *result.clips.gates)] == ["PASS"] * 15
    assert max(max(curve) for curve in result.curve.values()) < 1e-6 and len(result.curve["video"]) == 3
    assert result.implementation == "diffusers 0.42.1" and result.theirs.n == 11
    assert result.summary.startswith("all 15 gates passed, final latents at cosine distance")
    (record,) = Ledger.of(home).records()
    lines = show_lines(record, [record])
    assert any(line.startswith("oracle: diffusers 0.42.1: all 15 gates passed") for line in lines)
    assert not any("PENDING" in line for line in lines)
    assert json.loads((run / RESULT).read_text())["implementation"] == "diffusers 0.42.1"
    assert audit(Ledger.of(home), places(home)).broken == ()
    assert str(run.parent) not in (run / RESULT).read_text()


def spoiled(answer: Path, folder: Path, change: Any) -> Path:
    """The answer with other latents."""
    folder.mkdir()
    for path in answer.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name in ("latents", "per_step"):
        tensors = load_file(folder / f"{name}.safetensors")
        save_file({k: change(name, k, t).contiguous() for k, t in tensors.items()}, folder / f"{name}.safetensors")
    return folder


def test_a_wrong_oracle_is_told_with_the_step_at_which_it_went_wrong(
    run: Path, home: Path, answered: Path, tmp_path: Path
) -> None:
    """From step 3 on it is another clip: the gate fails, and the curve jumps there."""

    def change(name: str, stream: str, tensor: torch.Tensor) -> torch.Tensor:
        if stream == "audio":
            return tensor
        return torch.cat([tensor[:2], tensor[2:].flip(1)]) if name == "per_step" else tensor.flip(1)

    wrong = spoiled(answered, tmp_path / "wrong", change)
    result = ask_oracle(run, asked(copying(wrong), per_step=True), home=home, out=tmp_path / "o")
    assert "2 of 15 gates failed: step 3 video, from theirs, latents video" in result.summary
    assert any("video distance by step" in line and "jumps at step 3" in line for line in result.lines())


@pytest.mark.parametrize("right", [True, False])
def test_the_same_latents_are_decoded_on_both_sides(run: Path, answered: Path, tmp_path: Path, right: bool) -> None:
    """An oracle with the run's own latents and sound, and frames that are or are not theirs."""
    answer = spoiled(answered, tmp_path / "answer", lambda _name, _key, tensor: tensor)
    (answer / "latents.safetensors").write_bytes((run / "latents.safetensors").read_bytes())
    tokens = load_file(run / "latents.safetensors")["video"]
    header = read_header(Path(read_plan((run / "plan.json").read_text()).files["video_vae"].path))
    frames = VideoDecoder.load(header, device=torch.device("cpu"), dtype=torch.float32).frames(tokens, None)
    pictures = torch.cat(list(frames)).numpy()
    np.save(answer / "frames.npy", pictures if right else pictures[:, ::-1])
    wave = (run / "clip.wav").read_bytes()
    (answer / "audio.wav").write_bytes(wave)
    work = write_job(RunDir.existing(run), tmp_path / "job", device="cpu", decode=True, compile_blocks=False)
    found = {gate.stage: gate.outcome for gate in decode_gates(work, answer, torch.device("cpu"))}
    assert found == {DECODE: "PASS" if right else "FAIL", VOCODER: "PASS"}


def test_an_oracle_that_does_not_decode_has_not_run_these_stages(run: Path, answered: Path, tmp_path: Path) -> None:
    """Said, not left out."""
    work = write_job(RunDir.existing(run), tmp_path / "job", device="cpu", decode=True, compile_blocks=False)
    found = [gate.outcome for gate in decode_gates(work, answered, torch.device("cpu"))]
    assert found == ["not run", "not run"]


def test_an_oracle_that_leaves_nothing_or_refuses_is_no_result(run: Path, home: Path, tmp_path: Path) -> None:
    """The field stays as it was."""
    before = len(Ledger.of(home).chain.read().entries)
    with pytest.raises(RenderFailed, match="left no latents"):
        ask_oracle(run, asked("true"), home=home, out=tmp_path / "a")
    with pytest.raises(RequestError, match="refuses the job"):
        ask_oracle(run, asked("sh -c 'exit 2' x"), home=home, out=tmp_path / "b")
    assert len(Ledger.of(home).chain.read().entries) == before


REFUSED = {
    "decode": lambda _: {"decode": True},
    "skip_step": lambda job: {"video": {**job["video"], "skip_step": 1}},
    "perturbs both streams": lambda job: {"video": {**job["video"], "stg_scale": 0.0}},
    "contexts is null": lambda _: {"contexts": None},
    "unknown": lambda _: {"extra": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_adapter_refuses_what_the_library_cannot_do(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Exit 2 with the reason, before any weight is read."""
    work = write_job(RunDir.existing(run), tmp_path, device="cpu", decode=False, compile_blocks=False)
    job = read_job(work.job)
    work.job.write_text(json.dumps(job | REFUSED[name](job)))
    monkeypatch.setattr(sys, "argv", [str(ADAPTER), str(work.job), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as refused:
        runpy.run_path(str(ADAPTER), run_name="__main__")
    assert refused.value.code == 2 and name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_that_is_not_finished_or_not_from_text_is_refused(run: Path, tmp_path: Path) -> None:
    """What the job has no word for is not left out silently."""
    broken = tmp_path / "run"
    broken.mkdir()
    for name in ("request.json", "plan.json", "contexts.safetensors"):
        (broken / name).write_bytes((run / name).read_bytes())
    with pytest.raises(RequestError, match=r"holds no latents\.safetensors"):
        write_job(RunDir(broken), tmp_path / "job", device="cpu", decode=False, compile_blocks=False)
    request = json.loads((run / "request.json").read_text())
    (broken / "request.json").write_text(json.dumps(request | {"slots": [1]}))
    with pytest.raises(RequestError, match="slots"):
        write_job(RunDir(broken), tmp_path / "job", device="cpu", decode=False, compile_blocks=False)


def test_their_first_forward_is_a_warm_up() -> None:
    """And no forwards are no figure."""
    samples = forward_samples({"forwards": [{"seconds": s} for s in (9.0, 1.0, 2.0)]})
    assert (samples.values, samples.warm_up) == ((1.0, 2.0), (9.0,))
    assert forward_samples({}).reason == "the adapter timed no forward after its first"
