"""The decode stage of a render when memory, disk or numbers fail: latents stay, errors name phase and way out."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fakes import FakeClock, some_job, still_times
from shotclock.errors import RenderFailed
from shotclock.events import State
from shotclock.geometry import unpatchify_video
from shotclock.guidance import LegName
from shotclock.plan.planner import make_plan
from shotclock.render import contexts, decoders, finish, pipeline, sample
from shotclock.render.ahead import decode_counter
from shotclock.render.decode import VideoDecoder
from shotclock.render.decoders import DiffusionPictures, Tiles
from shotclock.render.diffusion_decode import DiffusionVideoDecoder
from shotclock.render.exact_tiles import Cuts
from shotclock.render.failures import first_not_finite
from shotclock.render.job import Job
from shotclock.render.journal import Journal
from shotclock.render.settings import video_kind
from shotclock.render.stages import Left
from shotclock.render.tiling import Stage, Tiling
from shotclock.request import Scales, make_request
from shotclock.rundir import RunDir
from shotclock.weights.checkpoint import read_headers
from shotclock.weights.tiny import write_tiny_checkpoints
from shotclock.weights.tiny_diffusion import write_tiny_diffusion_vae

SCALES = Scales(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(2,), skip_step=0)
OFF = Scales(cfg=1.0, stg=0.0, modality=1.0, rescale=0.0, stg_blocks=(), skip_step=0)


class ShortOfMemory:
    """A video decoder that runs out of memory ``failures`` times before it decodes to grey."""

    dtype = torch.float32
    device = torch.device("cpu")
    stages = (Stage(channels=8, layers=1, time_scale=8, side_scale=8),)

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.tried: list[Tiling | None] = []

    def frames(self, latent: torch.Tensor, tiling: Tiling | None) -> Iterator[torch.Tensor]:
        self.tried.append(tiling)
        _, _, f, h, w = latent.shape
        if len(self.tried) <= self.failures:
            yield torch.zeros(1, 32 * h, 32 * w, 3, dtype=torch.uint8)
            raise torch.OutOfMemoryError("fake")
        yield torch.full((8 * (f - 1) + 1, 32 * h, 32 * w, 3), 128, dtype=torch.uint8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny_checkpoints(folder, 0)
    write_tiny_diffusion_vae(folder, 0)
    return folder


def job(models: Path, run: Path, *, side: int = 64, decoder: str = "conv") -> tuple[Job, State]:
    """A render that has come as far as its latents."""
    from shotclock.weights.checkpoint import find_checkpoints

    request = make_request(
        prompt="x", negative_prompt="", width=side, height=side, frames=9, fps="24", seed=1, steps=2,
        video=SCALES, audio=SCALES, legs_per_pass=4, decoder=decoder,
    )  # fmt: skip
    kind = video_kind(decoder)
    headers = read_headers(find_checkpoints(models, video_kind=kind), video_kind=kind)
    flops = decode_counter(headers.video_vae)(request.geometry)
    plan = make_plan(request, headers, device="cpu", dtype="float32", decode_flops=flops)
    made = some_job(request, plan, headers, RunDir.create(run))
    geometry = request.geometry
    generator = torch.Generator().manual_seed(0)
    video = torch.randn(1, geometry.video_tokens, 128, generator=generator)
    return made, State(step=2, video=video, audio=torch.randn(1, geometry.audio_tokens, 128, generator=generator))


def journal() -> Journal:
    return Journal(io.BytesIO(), clock=FakeClock(), synchronise=lambda: None, start_s=0.0)


def test_out_of_memory_in_decode_tries_smaller_tiles(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """users.md row 32: twice out of memory, then it succeeds; smaller tiles each time, no litter, latents untouched."""
    made, state = job(models, tmp_path / "run", side=1024)
    decoder = ShortOfMemory(2)
    monkeypatch.setattr(decoders, "VideoDecoder", SimpleNamespace(load=lambda *_a, **_k: decoder))
    sample.save_latents(made, Left.of(state, made.request.stages[0], 0))
    before = made.run.latents.read_bytes()
    finish.decode(made, journal(), state)
    assert len(decoder.tried) == 3 and decoder.tried[0] != decoder.tried[1] != decoder.tried[2]
    assert made.run.clip.exists() and made.run.latents.read_bytes() == before
    assert not [path for path in made.run.path.iterdir() if ".part" in path.name]


class Tight:
    """The tiny diffusion decoder, but for running out of memory as long as a tile is larger than one may be."""

    def __init__(self, real: DiffusionVideoDecoder, failures: int) -> None:
        self.real, self.failures = real, failures
        self.tried: list[tuple[Cuts | None, torch.Tensor]] = []

    def frames(self, latent: torch.Tensor, cuts: Cuts | None, noise: torch.Tensor) -> Iterator[torch.Tensor]:
        self.tried.append((cuts, noise))
        for group in self.real.frames(latent, cuts, noise):
            yield group
            if len(self.tried) <= self.failures:
                raise torch.OutOfMemoryError("fake")


def test_a_diffusion_decode_in_smaller_tiles_keeps_its_noise_and_its_pictures(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory twice: smaller exact tiles of the same noise, the frames of one piece, tile edges in the log."""
    made, state = job(models, tmp_path / "run", side=128, decoder="diffusion")
    sample.save_latents(made, Left.of(state, made.request.stages[0], 0))
    finish.decode(made, journal(), state)
    made.run.clip.unlink()
    tight = list[Tight]()
    real = DiffusionPictures.frames

    def frames(self: DiffusionPictures, cuts: Tiles | None) -> Iterator[torch.Tensor]:
        tight[:] = tight or [Tight(self.decoder, 2)]
        return real(replace(self, decoder=tight[0]), cuts)

    monkeypatch.setattr(DiffusionPictures, "frames", frames)
    log = io.BytesIO()
    finish.decode(made, Journal(log, clock=FakeClock(), synchronise=lambda: None, start_s=0.0), state)
    cuts, noises = zip(*tight[0].tried, strict=True)
    assert cuts[0] is None and cuts[1] is not None and cuts[2] is not None and cuts[1].count < cuts[2].count
    assert noises[0] is noises[1] is noises[2]
    (said,) = (line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == "Decoded")
    edges = cuts[2].boundaries(made.request.geometry)
    assert (said["tile_frames"], said["tile_rows"], said["tile_columns"]) == tuple(map(list, astuple(edges)))
    video = tight[0].real
    latent = unpatchify_video(state.video, made.request.geometry)
    tokens = made.request.geometry.video_tokens, made.request.geometry.audio_tokens
    generator = torch.Generator().manual_seed(made.request.seed)
    for count in tokens:
        torch.randn(1, count, 128, generator=generator)
    whole = torch.cat(list(video.frames(latent, None, video.noise(latent, generator)))).int()
    tiled = torch.cat(list(video.frames(latent, cuts[2], noises[0]))).int()
    assert (whole - tiled).abs().max() <= 1, "a level, where a value lies between two"
    assert said["frames"] == 9 and said["distinct_frames"] == 9


def test_the_decodes_noise_follows_that_of_all_stages() -> None:
    """A recipe of two stages draws its noise twice from the seed's stream; appended tokens count."""
    request = make_request(
        recipe="distilled", prompt="x", negative_prompt="", width=128, height=64, frames=9, fps="24", seed=4, steps=8,
        video=OFF, audio=OFF, legs_per_pass=1, slots=(8,),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(4)
    for stage in request.stages:
        own, rows = stage.geometry.video_tokens, stage.geometry.rows * stage.geometry.columns
        torch.randn(1, own + rows, 128, generator=generator)
        torch.randn(1, stage.geometry.audio_tokens, 128, generator=generator)
    assert torch.equal(finish.noise_stream(request, request.stages[-1]).get_state(), generator.get_state())


def test_the_first_that_is_not_finite_is_named() -> None:
    """Step and stream of latents, and the leg of a prediction that would be kept for a resume."""
    good = torch.zeros(1, 4, 8)
    bad = good.clone()
    bad[0, 1, 2] = float("nan")
    assert first_not_finite(State(step=3, video=good, audio=good)) is None
    found = first_not_finite(State(step=3, video=good, audio=bad))
    assert found is not None and found[0] == "audio latents after step 3" and found[1] is bad
    legs = {LegName.COND: good, LegName.UNCOND: bad}
    found = first_not_finite(State(step=3, video=good, audio=good, video_legs=legs))
    assert found is not None and found[0] == "video of leg uncond after step 3"


def test_a_wrong_number_of_forwards_is_no_success(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planned and executed forwards are compared at the end of every render; no latents are saved."""
    made, _ = job(models, tmp_path / "run")
    real = sample.forwards_left
    monkeypatch.setattr(sample, "forwards_left", lambda *of: real(*of) + Counter(cond=1))
    with pytest.raises(RenderFailed, match="forwards ran"):
        pipeline.produce(made, journal(), SimpleNamespace())  # no rehearsal: the gate is not asked
    assert not made.run.latents.exists()


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        (torch.OutOfMemoryError("fake"), "out of memory in phase load-text"),
        (OSError(28, "No space left on device"), "No space left"),
    ],
)
def test_failures_of_the_machine_name_phase_and_way_out(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, named: str
) -> None:
    """Neither a bare CUDA error nor a traceback (users.md row 31)."""
    made, _ = job(models, tmp_path / "run")

    def fail(*_a: object, **_k: object) -> None:
        raise failure

    monkeypatch.setattr(contexts, "TextEncoder", SimpleNamespace(load=fail))
    with pytest.raises(RenderFailed, match=named) as refusal:
        pipeline.render(made, times=still_times(), first_line={"attempt": 1}, listeners=[])
    assert "load-text" in refusal.value.found and refusal.value.way_out


def test_the_real_decoder_has_what_the_stage_asks_of_it() -> None:
    """The fake above stands for this class."""
    assert {"frames", "load"} <= set(dir(VideoDecoder))
