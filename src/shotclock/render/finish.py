"""From latents to clip.wav and clip.mp4, and the same on one latent frame before the first forward: the rehearsal.

Out of memory tries the next smaller tiles. Knows no transformer and no clock.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from shotclock.device import release
from shotclock.errors import RenderFailed
from shotclock.events import Notice, Phase, Progress, State
from shotclock.geometry import Geometry, unpatchify_audio, unpatchify_video
from shotclock.latents import clip_tokens, noise
from shotclock.plan.planner import Plan
from shotclock.recipes import Stage, halved
from shotclock.render.decode import AudioDecoder, fit_wave
from shotclock.render.decoders import Decoders, Frames, Pictures, Tiles, boundaries, load_decoders, words
from shotclock.render.diffusion_decode import decode_generator
from shotclock.render.given import clip_sound, read_media
from shotclock.render.job import Job
from shotclock.render.journal import Journal
from shotclock.render.media import write_clip, write_wav
from shotclock.render.stages import drawn_tokens, stage_at
from shotclock.render.upscale import Upscaler
from shotclock.request import Request
from shotclock.rundir import RunDir, aside, write_aside
from shotclock.weights.checkpoint import CheckpointHeaders

CLIP_BYTES_PER_PIXEL = 0.5  # of an mp4 at crf 19 with its sound: noise takes 0.4, pictures a tenth of that
WAVE_BYTES_PER_S = 48000 * 2 * 4


def decode(job: Job, journal: Journal, state: State) -> None:
    """The clip of the run, from its final latents."""
    geometry = job.request.geometry
    with journal.phase(Phase.LOAD_DECODERS):
        decoders = load_decoders(job.headers, job.device, job.dtype)
    with journal.phase(Phase.DECODE_AUDIO):
        wave, rate = heard(job.run, job.request, decoders.audio, state.audio, geometry)
        write_wav(job.run.wave, wave, rate)
    with journal.phase(Phase.DECODE_VIDEO):
        generator = noise_stream(job.request, job.request.stages[-1])
        pictures = decoders.pictures(unpatchify_video(state.video, geometry), generator)
        tiles = pictures.planned(geometry, job.tile_bytes)
        while not _decode_video(job, journal, pictures, tiles, (wave, rate)):
            release(job.device)  # not inside the handler: its traceback holds the failed decode's tensors
            tiles = pictures.smaller(tiles, geometry)
        write_keyframes(job.run, decoders, job.request.slots, generator)


def noise_stream(request: Request, stage: Stage) -> torch.Generator:
    """Where the seed's one stream of noise stands when ``stage`` has ended; a decode goes on from there."""
    return decode_generator(request.seed, drawn_tokens(request, stage))


def write_keyframes(run: RunDir, decoders: Decoders, slots: Sequence[int], generator: torch.Generator) -> None:
    """Generated keyframes as pictures beside the clip, each decoded alone; nothing where none were asked for."""
    if not slots:
        return
    latents = load_file(run.latents)["keyframes"]
    for number, frame in enumerate(slots):
        pictures = decoders.pictures(latents[:, :, number : number + 1], generator)
        (picture,) = (group for group in pictures.frames(None))
        with aside(run.keyframe(frame)) as path:
            Image.fromarray(picture[0].numpy()).save(path)


def heard(
    run: RunDir, request: Request, audio: AudioDecoder, tokens: Float[Tensor, "1 m d"], geometry: Geometry
) -> tuple[Float[Tensor, "2 n"], int]:
    """What the clip sounds like, and its rate: the samples that were given, else decoded latents."""
    given = clip_sound(read_media(run, request))
    if given is None:
        return sound(audio, tokens, geometry), audio.sample_rate
    wave, rate = given
    return fit_wave(wave, sample_rate=rate, duration_s=geometry.duration_s), rate


def sound(audio: AudioDecoder, tokens: Float[Tensor, "1 m d"], geometry: Geometry) -> Float[Tensor, "2 n"]:
    """Audio latents to a waveform exactly as long as the pictures."""
    wave = audio.decode(unpatchify_audio(tokens).float())
    return fit_wave(wave, sample_rate=audio.sample_rate, duration_s=geometry.duration_s)


def _decode_video(
    job: Job,
    journal: Journal,
    pictures: Pictures,
    tiles: Tiles | None,
    heard: tuple[Float[Tensor, "2 n"], int],
) -> bool:
    """Decode and write the clip; False where the device's memory did not do for these tiles."""
    journal.say(Notice(text=f"decoding {words(tiles)}"))
    geometry, raw = job.request.geometry, RawFrames()
    frames = raw.seen(counted(pictures.frames(tiles), geometry.frames, journal))
    wave, rate = heard
    try:
        write_clip(job.run.clip, frames, fps=geometry.fps, wave=wave, sample_rate=rate, comment="")
    except torch.OutOfMemoryError:
        return False
    edges = {f"tile_{axis}": list(cuts) for axis, cuts in asdict(boundaries(tiles, geometry)).items()}
    journal.write({"event": "Decoded", "t_s": journal.now_s(), "phase": Phase.DECODE_VIDEO} | raw.to_json() | edges)
    return True


class RawFrames:
    """Frames as they leave the decoder, before an encoder changes or repeats them: their digests in order."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []

    def seen(self, groups: Frames) -> Frames:
        """Pass groups of frames on."""
        for group in groups:
            self._digests += [hashlib.sha256(frame.contiguous().numpy()).digest() for frame in group]
            yield group

    def to_json(self) -> dict[str, Any]:
        """How many there were, how many differ, and one digest: sha256 of all frames' sha256 in order."""
        whole = hashlib.sha256(b"".join(self._digests)).hexdigest()
        return {"frames": len(self._digests), "distinct_frames": len(set(self._digests)), "raw_sha256": whole}


def counted(groups: Frames, total: int, journal: Journal) -> Frames:
    """Pass groups of frames on and say how far the decode is."""
    done = 0
    for group in groups:
        yield group
        done += len(group)
        journal.say(Progress(phase=Phase.DECODE_VIDEO, done=done, total=total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Seconds of the tail's parts on one latent frame: loading, sound, pictures with the mp4, verdict."""

    load_s: float
    sound_s: float
    pictures_s: float
    judge_s: float

    def tail(self, geometry: Geometry) -> tuple[float, float]:
        """Bounds of the whole tail: half of what was seen (files are cached by then), and each part in proportion.

        Sound grows with its latents, pictures and verdict with theirs, loading not at all; the upper end has half as
        much again on top.
        """
        parts = self.load_s, self.sound_s, self.pictures_s, self.judge_s
        grown = self.load_s + self.sound_s * geometry.audio_frames
        grown += (self.pictures_s + self.judge_s) * geometry.latent_frames
        return 0.5 * sum(parts), 1.5 * grown


def rehearse(job: Job, now_s: Callable[[], float]) -> Rehearsed:
    """Load every later-stage weight but the transformer's, decode, mux and judge one latent frame, see the disk.

    The pictures are those of noise and the verdict on them does not count: only that there is one. Raises what the
    tail of the render would raise, before the first forward.
    """
    require_disk(job)
    folder = job.run.path / ".rehearsal"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        return _rehearse_in(RunDir(folder), job, now_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        release(job.device)


def _rehearse_in(run: RunDir, job: Job, now_s: Callable[[], float]) -> Rehearsed:
    request = job.request.model_copy(update={"frames": 1})
    geometry = request.geometry
    video_noise, audio_noise = noise(geometry, job.request.seed)
    if job.given.upscaler is not None:
        half = halved(geometry)
        upscaler = Upscaler.load(job.given.upscaler, job.headers.video_vae, device=job.device, dtype=job.dtype)
        upscaler.upscale(unpatchify_video(noise(half, job.request.seed)[0], half))
    begun_s = now_s()
    decoders = load_decoders(job.headers, job.device, job.dtype)
    loaded_s = now_s()
    latent = unpatchify_video(video_noise.to(job.device, job.dtype), geometry)
    pictures = decoders.pictures(latent, noise_stream(job.request, job.request.stages[-1]))
    tiles = pictures.planned(job.request.geometry, job.tile_bytes)
    wave, rate = heard(job.run, job.request, decoders.audio, audio_noise.to(job.device, job.dtype), geometry)
    write_wav(run.wave, wave, rate)
    heard_s = now_s()
    write_clip(run.clip, pictures.frames(tiles), fps=geometry.fps, wave=wave, sample_rate=rate, comment="")
    shown_s = now_s()
    if job.judge is not None:
        write_aside(run.request, request.to_json().encode())
        write_aside(run.plan, job.plan.to_json().encode())
        job.judge(run.path)
    return Rehearsed(
        load_s=loaded_s - begun_s,
        sound_s=heard_s - loaded_s,
        pictures_s=shown_s - heard_s,
        judge_s=now_s() - shown_s,
    )


def require_disk(job: Job) -> None:
    """Refuse a disk that the rest of the run would fill; raises :class:`RenderFailed`."""
    geometry = job.request.geometry
    latents = 4 * (job.plan.video_tokens + job.plan.audio_tokens) * 128
    snapshots = 3 * (2 + len(job.plan.legs)) * latents  # two are kept while a third is written
    clip = CLIP_BYTES_PER_PIXEL * geometry.frames * geometry.width * geometry.height
    wave = WAVE_BYTES_PER_S * float(geometry.duration_s)
    need = int(latents + snapshots + 2 * clip + 2 * wave)
    free = shutil.disk_usage(job.run.path).free
    if free < need:
        raise RenderFailed(
            f"{job.run.path} has {free:,} bytes free",
            allowed=f"{need:,} bytes for snapshots, latents, clip and sound",
            way_out="free space, or name a --run folder on another disk",
        )


def draft_mark(group: UInt8[Tensor, "t height width 3"]) -> UInt8[Tensor, "t height width 3"]:
    """A striped corner, burnt in, so that a draft is never taken for the clip."""
    side = max(16, min(group.shape[1], group.shape[2]) // 6)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    corner = rows + columns < side
    stripe = ((rows - columns) // max(side // 8, 2)) % 2 == 0
    marked = group.clone()
    yellow, black = torch.tensor([255, 208, 0], dtype=torch.uint8), torch.tensor([16, 16, 16], dtype=torch.uint8)
    marked[:, :side, :side][:, corner & stripe] = yellow
    marked[:, :side, :side][:, corner & ~stripe] = black
    return marked


def decode_draft(
    run: RunDir,
    request: Request,
    plan: Plan,
    headers: CheckpointHeaders,
    device: torch.device,
    dtype: torch.dtype,
    state: State,
) -> None:
    """The last denoised estimate beside the run as draft-step-K.mp4, marked in name, metadata and picture."""
    assert state.video_x0 is not None and state.audio_x0 is not None, "a step has ended"
    stage = stage_at(request.stages, state)
    geometry = stage.geometry
    decoders = load_decoders(headers, device, dtype)
    latent = unpatchify_video(clip_tokens(state.video_x0, geometry).to(device, dtype), geometry)
    wave, rate = heard(run, request, decoders.audio, state.audio_x0.to(device), geometry)
    pictures = decoders.pictures(latent, noise_stream(request, stage))
    write_clip(
        run.draft(state.step),
        (draft_mark(group) for group in pictures.frames(pictures.planned(geometry))),
        fps=geometry.fps,
        wave=wave,
        sample_rate=rate,
        comment=json.dumps({"draft_of_step": state.step, "of": plan.steps, "not_the_clip": True}),
    )
    release(device)
