"""Recipes and conditionings end to end on the tiny model: counts, files, exact resume in every stage, refusals."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.io import wavfile
from test_pipeline import shotclock
from torch import Tensor

from shotclock.errors import CheckpointError, RequestError, RunDirError, ShotclockError
from shotclock.lease import Lease
from shotclock.render import crew, pipeline, sample
from shotclock.render.job import Outcome, Times
from shotclock.render.run import Terms, prove, resume, start
from shotclock.render.settings import Settings, tiny_models

PLAIN = Settings(
    prompt="a red circle", run=Path(), models="tiny", negative_prompt="", size="128x64", frames=9, fps="24", seed=3,
    steps=None, cfg=None, audio_cfg=None, stg=None, stg_blocks=None, modality=None, rescale=None, skip_step=0,
    legs_per_pass=4, device="cpu", dtype="float32", contexts=None, transformer=None, text_encoder=None, video_vae=None,
    audio_vae=None, pinned_config=False,
)  # fmt: skip
TERMS = Terms(
    lease=Lease(sources=()),
    leases=1,
    on_overrun="snapshot",
    rehearse="never",
    accept_seam=False,
    trace_nonfinite=False,
    judge=None,
)


class Killed(BaseException):
    """As sudden as a kill: nothing in the program answers to it."""


@pytest.fixture(scope="module", autouse=True)
def _imports_are_not_searched() -> Iterator[None]:
    """A render collects garbage between its models: a quarter of a second each through all that tests import."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def decoded() -> None:
    """For a test that needs the clip."""


@pytest.fixture(autouse=True)
def _undecoded(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Latents are what these tests compare; decoding is the matter of others."""
    if "decoded" not in request.fixturenames:
        monkeypatch.setattr(pipeline, "decode", lambda *_: None)


def times() -> Times:
    now_s = time.monotonic()
    return Times(clock=time.monotonic, began_s=now_s, imported_s=now_s)


def render(run: Path, home: Path, **changes: Any) -> Outcome:
    return start(replace(PLAIN, run=run, **changes), TERMS, home=home, times=times(), console=None)


def killed(run: Path, home: Path, step: int, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """A render that dies when ``step`` has ended and is on the disk."""
    real = sample.keep

    def keep(job: Any, journal: Any, state: Any, identity: Any) -> None:
        real(job, journal, state, identity)
        if state.step == step and not state.legs:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(sample, "keep", keep)
        render(run, home, **changes)


def latents(run: Path) -> dict[str, Tensor]:
    return load_file(run / "latents.safetensors")


def same(a: Path, b: Path) -> bool:
    return all(torch.equal(value, latents(b)[name]) for name, value in latents(a).items())


def lines(run: Path, event: str) -> list[dict[str, Any]]:
    said = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in said if line["event"] == event]


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture, a sound, and files that are neither."""
    folder = tmp_path_factory.mktemp("media")
    Image.effect_noise((150, 90), 60).convert("RGB").save(folder / "a.png")
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    moments = np.arange(44_100) / 44_100
    stereo = np.stack([np.sin(2 * np.pi * 220 * moments), np.sin(2 * np.pi * 330 * moments)], axis=1) * 0.4
    wavfile.write(folder / "a.wav", 44_100, stereo.astype(np.float32))
    wavfile.write(folder / "short.wav", 44_100, stereo[:5_000].astype(np.float32))
    wavfile.write(folder / "surround.wav", 44_100, np.zeros((44_100, 6), np.float32))
    (folder / "text.png").write_text("a red circle")
    (folder / "broken.wav").write_bytes(b"RIFF\x00\x00" + (folder / "a.wav").read_bytes()[20:])
    save_file({"diffusion_model.transformer_blocks.0.attn1.to_q.lora_A.weight": torch.ones(2, 48).bfloat16(),
               "diffusion_model.transformer_blocks.0.attn1.to_q.lora_B.weight": torch.ones(64, 2).bfloat16()},
              folder / "wide.safetensors")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Uninterrupted renders, without their decode."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "decode", lambda *_: None)
        render(folder / "distilled", home, recipe="distilled")
        render(folder / "hq", home, recipe="hq", steps=2)
    return {name: folder / name for name in ("distilled", "hq")}


def test_distilled_runs_what_its_plan_says(whole: dict[str, Path]) -> None:
    """8 + 3 forwards in two stages, the second at twice the size; plan, events and files agree."""
    run = whole["distilled"]
    plan = json.loads((run / "plan.json").read_text())
    assert [stage["steps"] for stage in plan["stages"]] == [8, 3] and plan["forwards"] == {"cond": 11}
    assert [stage["size"] for stage in plan["stages"]] == ["64x32", "128x64"]
    ticks = lines(run, "PassEnds")
    assert [tick["index"] for tick in ticks] == list(range(1, 12)) and {tick["steps"] for tick in ticks} == {11}
    assert latents(run)["video"].shape == (1, 128, 2, 2, 4)
    assert load_file(run / "stage-1.safetensors")["video"].shape == (1, 128, 2, 1, 2)
    assert [line["phase"] for line in lines(run, "PhaseBegins")].count("upscale") == 1


@pytest.mark.parametrize(
    ("name", "step", "changes"),
    [
        ("distilled", 3, {"recipe": "distilled"}),  # in the first stage, noise drawn
        ("distilled", 8, {"recipe": "distilled"}),  # between the stages
        ("distilled", 9, {"recipe": "distilled"}),  # in the second
        ("hq", 3, {"recipe": "hq", "steps": 2}),  # half a step of res_2s
        ("hq", 8, {"recipe": "hq", "steps": 2}),  # the same in the second stage
    ],
)
def test_a_stage_goes_on_where_it_was_killed(
    name: str,
    step: int,
    changes: dict[str, Any],
    whole: dict[str, Path],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """users.md row 2: the latents are those of the uninterrupted render, bit for bit; nothing runs twice."""
    run = tmp_path / "run"
    killed(run, home, step, monkeypatch, **changes)
    assert resume(run, TERMS, models=None, home=home, times=times(), console=None) is not None
    assert same(run, whole[name])
    indices = [tick["index"] for tick in lines(run, "PassEnds")]
    assert len(indices) == len(set(indices)) == json.loads((run / "plan.json").read_text())["passes"]


def test_a_replay_arrives_at_the_snapshot_of_a_stage(whole: dict[str, Path]) -> None:
    """The proof of a resume holds for later stages and their samplers."""
    for run in whole.values():
        assert "the same bits" in prove(run, models=None)[-1]


def test_a_stage_of_another_request_is_refused(whole: dict[str, Path], home: Path, tmp_path: Path) -> None:
    """users.md row 4: the latents between stages know their request; a stale key is not used."""
    import shutil

    run = tmp_path / "run"
    shutil.copytree(whole["distilled"], run)
    for path in [run / "latents.safetensors", *run.glob("snapshot-*")]:
        path.unlink()
    kept = [line for line in (run / "events.jsonl").read_text().splitlines(keepends=True) if "RunEnds" not in line]
    (run / "events.jsonl").write_text("".join(kept))
    tensors = load_file(run / "stage-1.safetensors")
    save_file(tensors, run / "stage-1.safetensors", metadata={"request_sha256": "0" * 64})
    with pytest.raises(RunDirError, match="was made for another request"):
        resume(run, TERMS, models=None, home=home, times=times(), console=None)


def test_later_stages_weigh_what_their_operations_are(whole: dict[str, Path]) -> None:
    """Without a law the governor takes a pass of twice the size for what it costs, not for one of stage 1."""
    from shotclock.plan.planner import read_plan
    from shotclock.render.gate import weights
    from shotclock.request import read_request

    run = whole["distilled"]
    plan, request = read_plan((run / "plan.json").read_text()), read_request((run / "request.json").read_text())
    found = weights(SimpleNamespace(plan=plan, stages=request.stages))  # type: ignore[arg-type]
    first, second = (stage.step_flops for stage in plan.stages)
    assert found == {"cond": 1.0, "cond in stage 2": second / first} and second > first


def test_hq_has_its_own_count_and_keeps_the_first_stages_sound(whole: dict[str, Path]) -> None:
    """2 N + 1 evaluations of three legs, then 7 of one; sound is that of stage 1."""
    run = whole["hq"]
    plan = json.loads((run / "plan.json").read_text())
    assert plan["forwards"] == {"cond": 12, "uncond": 5, "isolated": 5}
    assert [stage["lora_strength"] for stage in plan["stages"]] == [0.25, 0.5]
    assert torch.equal(latents(run)["audio"], load_file(run / "stage-1.safetensors")["audio"])


def test_pictures_sound_and_slots_condition_a_clip(
    home: Path, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are appended and dropped, the sound is frozen, a kill and the loss of the files change nothing."""
    own = tmp_path / "media"
    own.mkdir()
    for name in ("a.png", "a.wav"):
        (own / name).write_bytes((media / name).read_bytes())
    changes: dict[str, Any] = {
        "recipe": "distilled",
        "image": [f"{own}/a.png", f"{own}/a.png@8:0.7"],
        "keyframe_slot": [4],
        "audio": own / "a.wav",
    }
    render(tmp_path / "whole", home, **changes)
    killed(tmp_path / "run", home, 9, monkeypatch, **changes)
    for path in own.iterdir():
        path.unlink()
    assert resume(tmp_path / "run", TERMS, models=None, home=home, times=times(), console=None) is not None
    assert same(tmp_path / "run", tmp_path / "whole")
    found = latents(tmp_path / "whole")
    assert found["video"].shape == (1, 128, 2, 2, 4) and found["keyframes"].shape == (1, 128, 1, 2, 4)
    stage = load_file(tmp_path / "whole" / "stage-1.safetensors")
    assert torch.equal(found["audio"], stage["audio"]), "the sound is frozen in both stages"
    request = json.loads((tmp_path / "whole" / "request.json").read_text())
    assert [image["frame"] for image in request["images"]] == [0, 8] and request["sound"]["name"] == "a.wav"
    assert str(own) not in (tmp_path / "whole" / "request.json").read_text()
    plan = json.loads((tmp_path / "whole" / "plan.json").read_text())
    assert [stage["video_tokens"] for stage in plan["stages"]] == [4 + 2 * 2, 16 + 2 * 8]


def test_a_picture_at_strength_one_stays_in_the_latent(home: Path, media: Path, tmp_path: Path) -> None:
    """users.md row 41: the first latent frame is the encoded picture; another byte of it is another request."""
    render(tmp_path / "with", home, image=[f"{media}/a.png"], steps=2)
    render(tmp_path / "without", home, steps=2)
    first, other = (latents(tmp_path / name)["video"] for name in ("with", "without"))
    assert (first[:, :, 0] - other[:, :, 0]).abs().max() > 0.1 and (first[:, :, 1] - other[:, :, 1]).abs().max() > 0.1
    render(tmp_path / "again", home, image=[f"{media}/a.png"], steps=2, seed=4)
    assert torch.allclose(latents(tmp_path / "again")["video"][:, :, 0], first[:, :, 0], atol=1e-5)


def test_two_stage_fuses_the_distilled_lora_only_in_the_second(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first stage is one_stage at half the size; a user's LoRA changes both; the second is continued exactly."""
    render(tmp_path / "half", home, size="64x32", steps=2)
    render(tmp_path / "run", home, recipe="two_stage", steps=2)
    first = load_file(tmp_path / "run" / "stage-1.safetensors")
    assert torch.equal(first["video"], latents(tmp_path / "half")["video"])
    lora = next((tiny_models(home) / "loras").iterdir())
    killed(tmp_path / "lora", home, 3, monkeypatch, recipe="two_stage", steps=2, lora=[f"{lora}:0.5"])
    assert resume(tmp_path / "lora", TERMS, models=None, home=home, times=times(), console=None) is not None
    assert not torch.equal(load_file(tmp_path / "lora" / "stage-1.safetensors")["video"], first["video"])
    request = json.loads((tmp_path / "lora" / "request.json").read_text())
    assert request["loras"][0]["strength"] == 0.5 and request["distilled_lora"]["name"] == lora.name
    warned = json.loads((tmp_path / "lora" / "plan.json").read_text())["warnings"]
    assert len(warned) == 1 and "changes every linear layer" in warned[0], "users.md row 78"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"image": ["{}/text.png"]}, "cannot be read as an image"),
        ({"image": ["{}/dot.png"]}, "1x1 pixels"),
        ({"image": ["{}/a.png@0:1.5"]}, "strength"),
        ({"image": ["{}/a.png@9"]}, "frames 0 to 8|frame 9 of a clip of 9"),
        ({"audio": "{}/broken.wav"}, "cannot be read as a sound"),
        ({"audio": "{}/surround.wav"}, "6 channels"),
        ({"audio": "{}/short.wav"}, "lasts 0.113 s"),
        ({"lora": ["{}/wide.safetensors"]}, "for diffusion_model.transformer_blocks.0.attn1.to_q"),
        ({"recipe": "two_stage", "lora": ["{}/wide.safetensors:0.3"], "steps": 40}, "attn1.to_q"),
        ({"recipe": "two_stage", "frames": 650}, "650 frames are off the grid"),
        ({"recipe": "distilled", "size": "96x64"}, "in the recipe distilled"),
        ({"recipe": "best"}, "recipe 'best'"),
        ({"model_class": "pro"}, "class 'pro'"),
        ({"frames": "many"}, "frames 'many'"),
    ],
)
def test_bad_input_is_refused_before_any_weight(
    changes: dict[str, Any], found: str, home: Path, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """users.md row 1: no folder, no tensor read, the words say what was found."""
    from shotclock.weights import load

    def unread(*_a: object, **_k: object) -> None:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(load, "load_tensors", unread)

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [text.format(media) for text in value]
        return Path(value.format(media)) if isinstance(value, str) and "{}" in value else value

    with pytest.raises(ShotclockError, match=found):
        render(tmp_path / "run", home, **{name: placed(value) for name, value in changes.items()})
    assert not (tmp_path / "run").exists()


def test_a_second_render_of_a_prompt_loads_no_encoder(home: Path, tmp_path: Path) -> None:
    """users.md row 20: kept by prompt and encoder; another prompt encodes only what is new; equal latents."""
    for name, prompt in (("first", "a green dot"), ("second", "a green dot"), ("third", "a blue dot")):
        render(tmp_path / name, home, prompt=prompt, steps=2)
    phases = {
        name: [line["phase"] for line in lines(tmp_path / name, "PhaseEnds")] for name in ("first", "second", "third")
    }
    assert "load-text" in phases["first"] and "load-text" in phases["third"]
    assert not {"load-text", "encode"} & set(phases["second"]) and same(tmp_path / "first", tmp_path / "second")
    rows = json.loads((tmp_path / "second" / "plan.json").read_text())["forecast"]["ledger"]["rows"]
    assert next(row for row in rows if row["name"] == "load text")["estimate"]["typical_s"] == 0
    for path in (home / "prompts").iterdir():
        path.write_bytes(b"damaged")
    render(tmp_path / "fourth", home, prompt="a green dot", steps=2)
    assert same(tmp_path / "first", tmp_path / "fourth")


def test_frames_auto_follows_the_prompt(home: Path, tmp_path: Path) -> None:
    """The duration head's frames are in the request, legal, and the command says them."""
    render(tmp_path / "run", home, frames="auto", steps=2, cfg=1.0, stg=0.0, modality=1.0)
    frames = json.loads((tmp_path / "run" / "request.json").read_text())["frames"]
    assert frames % 8 == 1 and 24 <= frames <= 480
    assert f"--frames={frames}" in lines(tmp_path / "run", "RunBegins")[0]["command"]


def test_weights_and_guidance_that_do_not_go_together_are_said(home: Path, tmp_path: Path) -> None:
    """users.md row 59: in plan.json, which verdict and record read."""
    bare = {"cfg": 1.0, "stg": 0.0, "modality": 1.0, "steps": 2, "size": "64x32"}
    render(tmp_path / "run", home, model_class="dev", **bare)
    said = json.loads((tmp_path / "run" / "plan.json").read_text())["warnings"]
    assert len(said) == 1 and "unguided dev" in said[0]


def test_recipes_need_their_files(home: Path, tmp_path: Path) -> None:
    """A folder without the upscaler or with two LoRAs: what is needed, and the option that names it."""
    import shutil

    models = tmp_path / "models"
    shutil.copytree(tiny_models(home), models)
    (lora,) = (models / "loras").iterdir()
    shutil.copy(lora, models / "another.safetensors")
    with pytest.raises(CheckpointError, match="there are 2"):
        render(tmp_path / "run", home, models=str(models), recipe="two_stage", steps=2)
    shutil.rmtree(models / "latent_upscale_models")
    with pytest.raises(CheckpointError, match="a spatial latent upscaler") as refused:
        render(tmp_path / "run", home, models=str(models), recipe="distilled")
    assert "--upscaler" in refused.value.way_out
    with pytest.raises(RequestError, match="--frames auto with --contexts"):
        render(tmp_path / "run", home, frames="auto", contexts=tmp_path / "contexts.safetensors")


@pytest.mark.usefixtures("decoded")
def test_a_conditioned_clip_through_the_command_line(home: Path, media: Path, tmp_path: Path) -> None:
    """An mp4 whose sound is the given samples at their own rate, and a first line that renders it again."""
    run = tmp_path / "run"
    words = ["--models=tiny", "--recipe=distilled", "--size=128x64", "--frames=9", "--device=cpu", "--no-verify"]
    words += ["--class=distilled", "--keyframe-slot=4", "--rehearse=always"]
    words += [f"--image={media}/a.png", f"--audio={media}/a.wav"]
    done = shotclock("render", "a red circle", "--run", str(run), *words, "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["forwards"] == {"cond": 11}
    rate, samples = wavfile.read(run / "clip.wav")
    given = wavfile.read(media / "a.wav")[1]
    assert rate == 44_100 and np.array_equal(samples, given[: len(samples)])
    with av.open(str(run / "clip.mp4")) as clip:
        assert clip.streams.audio[0].rate == 44_100 and sum(1 for _ in clip.decode(video=0)) == 9
    with Image.open(run / "keyframe-4.png") as keyframe:
        assert keyframe.size == (128, 64) and len(set(keyframe.convert("L").tobytes())) > 20
    said = lines(run, "RunBegins")[0]["command"]
    wanted = [f"--image={media}/a.png", "--keyframe-slot=4", "--recipe=distilled", "--class=distilled"]
    assert all(word in said for word in wanted)


@pytest.mark.usefixtures("decoded")
def test_a_draft_of_the_first_stage_has_its_size(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in a stage of half the size, the draft is that size; the transformer is gone before it is decoded."""
    from shotclock.errors import RenderStopped

    real, alive = sample.keep, []

    def keep(job: Any, journal: Any, state: Any, identity: Any) -> None:
        real(job, journal, state, identity)
        if state.step == 2:
            raise RenderStopped("enough", allowed="-", way_out="-", exit_code=75, line={})

    def load(*arguments: Any, **options: Any) -> Any:
        transformer = load_fused(*arguments, **options)
        alive.append(weakref.ref(transformer))
        return transformer

    def draft(*arguments: Any) -> None:
        assert alive[0]() is None
        decode_draft(*arguments)

    load_fused, decode_draft = crew.load_fused, sample.decode_draft
    monkeypatch.setattr(sample, "keep", keep)
    monkeypatch.setattr(crew, "load_fused", load)
    monkeypatch.setattr(sample, "decode_draft", draft)
    with pytest.raises(RenderStopped):
        start(
            replace(PLAIN, run=tmp_path / "run", recipe="distilled"),
            replace(TERMS, on_overrun="draft"),
            home=home,
            times=times(),
            console=None,
        )
    with av.open(str(tmp_path / "run" / "draft-step-2.mp4")) as clip:
        assert (clip.streams.video[0].width, clip.streams.video[0].height) == (64, 32)
