"""Renders with the diffusion video decoder, whole processes: noise, files, kill in the decode, draft, plan."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from shotclock.plan.rate import PhaseSample, Rates
from shotclock.render.diffusion_decode import DiffusionVideoDecoder
from shotclock.weights.header import read_header

if TYPE_CHECKING:
    from conftest import Zygote

SMALL = ("--models=tiny", "--size=64x64", "--frames=9", "--steps=2", "--seed=7", "--device=cpu")
SMALL += ("--no-verify", "--quiet")
DIFFUSION = (*SMALL, "--decoder=diffusion")


def render(zygote: Zygote, run: Path, *more: str, die: dict[str, Any] | None = None) -> int:
    return zygote.run("render", "a boat", "--run", str(run), *more, log=run.with_suffix(".log"), die=die)


def lines(run: Path, event: str) -> list[dict[str, Any]]:
    said = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line for line in said if line["event"] == event]


def said(run: Path) -> str:
    return " ".join(run.with_suffix(".log").read_text().split())


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A picture at the last frame: its tokens are appended, so that more noise is drawn before the decode's."""
    path = tmp_path_factory.mktemp("media") / "a.png"
    Image.effect_noise((64, 64), 60).convert("RGB").save(path)
    return f"--image={path}@8"


@pytest.fixture(scope="module")
def whole(zygote: Zygote, picture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A render with a rehearsal and the diffusion file's encoder."""
    run = tmp_path_factory.mktemp("diffusion") / "run"
    assert render(zygote, run, *DIFFUSION, picture, "--rehearse=always") == 0, said(run)
    return run


def test_the_clip_is_what_the_decoder_makes_of_latents_and_seed(whole: Path) -> None:
    """Frames before encoding, hashed: latents and the noise that follows the initial one in the seed's stream."""
    with av.open(whole / "clip.mp4") as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 9
    plan = json.loads((whole / "plan.json").read_text())
    assert plan["video_tokens"] == 8 + 4, "the picture's tokens are appended"
    generator = torch.Generator().manual_seed(7)
    for tokens in (plan["video_tokens"], plan["audio_tokens"]):
        torch.randn(1, tokens, 128, generator=generator)
    header = read_header(Path(plan["files"]["video_vae"]["path"]))
    video = DiffusionVideoDecoder.load(header, device=torch.device("cpu"), dtype=torch.float32)
    latent = load_file(whole / "latents.safetensors")["video"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the render had: threads split sums
    frames = torch.cat(list(video.frames(latent, None, video.noise(latent, generator))))
    torch.set_num_threads(threads)
    digests = [hashlib.sha256(frame.contiguous().numpy()).digest() for frame in frames]
    (decoded,) = lines(whole, "Decoded")
    assert decoded["raw_sha256"] == hashlib.sha256(b"".join(digests)).hexdigest()
    assert (decoded["frames"], decoded["distinct_frames"]) == (9, len(set(digests)))
    assert [decoded[f"tile_{axis}"] for axis in ("frames", "rows", "columns")] == [[], [], []]


def test_the_log_says_which_decoder_and_how_it_attends(whole: Path, zygote: Zygote) -> None:
    """In the first line and in the printed command; the request of a conv render is what it was before."""
    (begins,) = lines(whole, "RunBegins")
    assert (begins["decoder"], begins["decoder_attention"]) == ("diffusion", "torch")
    assert "--decoder=diffusion" in begins["command"]
    assert json.loads((whole / "request.json").read_text())["decoder"] == "diffusion"
    conv = whole.parent / "conv"
    assert render(zygote, conv, *SMALL) == 0, said(conv)
    (begins,) = lines(conv, "RunBegins")
    assert (begins["decoder"], begins["decoder_attention"]) == ("conv", None)
    assert "decoder" not in begins["command"] and "decoder" not in (conv / "request.json").read_text()
    assert "conv" in json.loads((conv / "plan.json").read_text())["files"]["video_vae"]["path"]
    assert lines(conv, "Decoded")[0]["frames"] == 9


def test_killed_in_the_decode_it_ends_in_the_same_frames(
    zygote: Zygote, whole: Path, picture: str, tmp_path: Path
) -> None:
    """No state of the noise is kept: it follows from seed and counts. Latents and sound bit for bit too."""
    run = tmp_path / "run"
    die = {"line": {"event": "Progress", "phase": "decode-video"}}
    assert render(zygote, run, *DIFFUSION, picture, die=die) == -signal.SIGKILL
    assert not (run / "clip.mp4").exists() and not lines(run, "Decoded")
    assert zygote.run("resume", str(run), "--no-verify", "--quiet", log=run.with_suffix(".log")) == 0, said(run)
    assert lines(run, "Decoded")[0]["raw_sha256"] == lines(whole, "Decoded")[0]["raw_sha256"]
    for name in ("latents.safetensors", "clip.wav"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_a_draft_is_decoded_with_the_decoder_of_the_run(zygote: Zygote, tmp_path: Path) -> None:
    """After the first step of a killed render."""
    run = tmp_path / "run"
    assert render(zygote, run, *DIFFUSION, die={"line": {"event": "Snapshotted", "step": 1}}) == -signal.SIGKILL
    assert zygote.run("draft", str(run), log=run.with_suffix(".log")) == 0, said(run)
    with av.open(run / "draft-step-1.mp4") as clip:
        assert sum(1 for _ in clip.decode(video=0)) == 9


def test_a_resume_finds_the_moved_file_of_its_decoder(zygote: Zygote, tmp_path: Path) -> None:
    """``--models`` says where the files are now; the conv file beside it is not taken."""
    run = tmp_path / "run"
    assert render(zygote, run, *DIFFUSION, die={"line": {"event": "Snapshotted", "step": 1}}) == -signal.SIGKILL
    plan = json.loads((run / "plan.json").read_text())
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in Path(plan["files"]["video_vae"]["path"]).parents[1].rglob("*.safetensors"):
        (moved / path.name).symlink_to(path)
    log = run.with_suffix(".log")
    assert zygote.run("resume", str(run), "--models", str(moved), "--no-verify", "--quiet", log=log) == 0, said(run)
    assert lines(run, "Decoded")[0]["frames"] == 9


def test_the_other_decoders_rates_price_nothing() -> None:
    """Seconds of a conv decode say nothing of a diffusion decode, nor the other way round; a load is a load."""
    samples = [
        PhaseSample(phase=phase, units=1.0, seconds=seconds, run="r")
        for phase, seconds in (("decode-video", 1.0), ("decode-video diffusion", 9.0), ("load-decoders", 3.0))
    ]
    rates = Rates(device="cpu", build="b", samples=tuple(samples))
    for decoder, seconds in (("conv", 1.0), ("diffusion", 9.0)):
        found = {sample.phase: sample.seconds for sample in rates.of_decoder(decoder).samples}
        assert (found["decode-video"], found["load-decoders"]) == (seconds, 3.0)
