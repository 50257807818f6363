"""A render from request to clip: loads, encodes, denoises, saves, decodes, in that order, one model at a time.

The only module that knows both sides: the loop that speaks and the journal that keeps time. Each stage reads what the
stage before left in the run folder or on the device, and writes its own file.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.errors import RenderFailed, RequestError
from shotclock.events import Notice, PassEnds, Phase, PhaseBegins, PhaseEnds, Progress, State, StepEnds
from shotclock.geometry import unpatchify_audio, unpatchify_video
from shotclock.govern.meter import free_bytes, peak_bytes, release, synchronise
from shotclock.latents import noise, text_to_video
from shotclock.model.attention import attention_backends
from shotclock.model.config import connector_configs, transformer_config
from shotclock.model.connector import Connectors
from shotclock.model.transformer import Transformer
from shotclock.plan.planner import TEXT_TOKENS, Plan
from shotclock.render.decode import AudioDecoder, VideoDecoder, fit_wave
from shotclock.render.denoise import denoise, prepare
from shotclock.render.journal import Clock, Journal, Listener
from shotclock.render.media import write_clip, write_wav
from shotclock.render.text import Features, TextEncoder
from shotclock.render.tiling import Tiling, choose_tiling, smaller
from shotclock.request import Request
from shotclock.rundir import RunDir, aside
from shotclock.weights.checkpoint import CheckpointHeaders, Header, read_header, transformer_settings
from shotclock.weights.load import load_module, require_claimed, require_match

PREFIX = "model.diffusion_model."  # ltx25.md section 1.2
CONNECTORS = ("video_embeddings_connector.", "audio_embeddings_connector.")

Contexts = tuple[Float[Tensor, "2 s d"], Float[Tensor, "2 s e"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """All that a render is given. ``contexts`` replaces the text encoder by a file of an earlier run."""

    request: Request
    plan: Plan
    headers: CheckpointHeaders
    run: RunDir
    device: torch.device
    dtype: torch.dtype
    contexts: Path | None = None
    pinned_config: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished render did: forwards by leg, seconds of every pass, peak memory in bytes."""

    clip: Path
    forwards: dict[str, int]
    pass_s: tuple[float, ...]
    peak_bytes: int
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        """As the last event and ``--json`` print it."""
        return {
            "clip": str(self.clip),
            "forwards": self.forwards,
            "passes": len(self.pass_s),
            "median_pass_s": statistics.median(self.pass_s) if self.pass_s else None,
            "denoise_s": sum(self.pass_s),
            "peak_bytes": self.peak_bytes,
            "wall_s": self.wall_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """A clock, and its readings when the command began and when its imports were done."""

    clock: Clock
    began_s: float
    imported_s: float


def render(job: Job, *, times: Times, first_line: dict[str, Any], listeners: Sequence[Listener]) -> Outcome:
    """Render the clip into the run folder; the caller holds the folder and has written request and plan."""
    with job.run.open_events() as log:
        journal = Journal(
            log,
            clock=times.clock,
            synchronise=lambda: synchronise(job.device),
            start_s=times.began_s,
            listeners=listeners,
        )
        journal.write(first_line)
        for phase, start_s, end_s in (
            (Phase.IMPORT, 0.0, times.imported_s - times.began_s),
            (Phase.INSPECT, times.imported_s - times.began_s, journal.now_s()),
        ):
            journal.say(PhaseBegins(phase=phase), at_s=start_s)
            journal.say(PhaseEnds(phase=phase), at_s=end_s)
        try:
            outcome = produce(job, journal)
            journal.write({"event": "RunEnds", "t_s": outcome.wall_s} | outcome.to_json())
        except torch.OutOfMemoryError as error:
            raise out_of_memory(job, journal.current) from error
        except (OSError, SafetensorError) as error:
            raise unwritable(job, journal.current, error) from error
        return outcome


def out_of_memory(job: Job, phase: Phase | None) -> RenderFailed:
    """The device's memory did not do: where, for what, and what needs less (users.md row 31)."""
    return RenderFailed(
        f"out of memory in phase {phase} at {job.request.geometry}, {job.request.legs_per_pass} legs a pass, "
        f"{job.dtype}; at most {peak_bytes(job.device):,} bytes were held",
        allowed=f"what {job.plan.device} has free: {free_bytes(job.device):,} bytes now",
        way_out="--legs-per-pass 1, a smaller --size or fewer --frames; latents that were written are kept",
    )


def unwritable(job: Job, phase: Phase | None, error: OSError | SafetensorError) -> RenderFailed:
    """A file of the run could not be read or written."""
    what = getattr(error, "strerror", None) or error
    return RenderFailed(
        f"{getattr(error, 'filename', None) or job.run.path}: {what} in phase {phase}",
        allowed="a run folder with free space and files that stay in place",
        way_out="free space or name another --run folder; latents that were written are kept",
    )


def produce(job: Job, journal: Journal) -> Outcome:
    """All stages after the plan."""
    with torch.inference_mode(), attention_backends():
        contexts = encode(job, journal) if job.contexts is None else read_contexts(job, job.contexts)
        latents, forwards, pass_s = sample(job, journal, contexts)
        del contexts
        decode(job, journal, latents)
    if forwards != job.plan.forwards:
        raise RenderFailed(
            f"{forwards} forwards ran", allowed=f"the planned {job.plan.forwards}", way_out="report this as a bug"
        )
    return Outcome(
        clip=job.run.clip,
        forwards=forwards,
        pass_s=pass_s,
        peak_bytes=peak_bytes(job.device),
        wall_s=journal.now_s(),
    )


def prompts_digest(request: Request) -> str:
    """sha256 of both prompts: what a contexts file was made from."""
    return hashlib.sha256("\0".join((request.prompt, request.negative_prompt)).encode()).hexdigest()


def require_contexts(path: Path, transformer: Header, request: Request, *, pinned_config: bool) -> None:
    """Refuse a contexts file that does not fit the transformer, or was made from other prompts; reads its header only.

    A file that does not say its prompts (not written by a render) is taken as it is.
    """
    config = transformer_config(transformer_settings(transformer, pinned_config=pinned_config))
    wanted = {"video": (2, TEXT_TOKENS, config.video_context), "audio": (2, TEXT_TOKENS, config.audio_context)}
    header = read_header(path)
    found = {name: entry.shape for name, entry in header.tensors.items()}
    if found != wanted:
        held = dict(list(found.items())[:2])
        raise RequestError(
            f"{path} holds {len(found)} tensors: {held}",
            allowed=f"{wanted}",
            way_out="use the contexts.safetensors of a run of this model",
        )
    if header.metadata.get("prompts_sha256", prompts_digest(request)) != prompts_digest(request):
        raise RequestError(
            f"{path} was made from other prompts",
            allowed="the prompts of that run, word for word",
            way_out="give that run's prompts (its request.json has them), or leave --contexts out",
        )


def read_contexts(job: Job, path: Path) -> Contexts:
    """Both streams' contexts (positive, negative) of an earlier run."""
    tensors = load_file(path)
    return tensors["video"].to(job.device, job.dtype), tensors["audio"].to(job.device, job.dtype)


def encode(job: Job, journal: Journal) -> Contexts:
    """Both prompts through the text encoder and the connectors; the encoder is gone when this returns."""
    assert job.headers.text_encoder is not None, "no contexts and no text encoder"
    with journal.phase(Phase.LOAD_TEXT):
        encoder = TextEncoder.load(job.headers.text_encoder, device=job.device, dtype=job.dtype)

    def progress(done: int, total: int) -> None:
        journal.say(Progress(phase=Phase.ENCODE, done=done, total=total))

    with journal.phase(Phase.ENCODE), encoder:
        features = encoder.encode([job.request.prompt, job.request.negative_prompt], progress)
    with journal.phase(Phase.CONNECT):
        contexts = connect(load_connectors(job), features, job.dtype)
        with aside(job.run.contexts) as path:
            tensors = {"video": contexts[0].cpu(), "audio": contexts[1].cpu()}
            save_file(tensors, path, metadata={"prompts_sha256": prompts_digest(job.request)})
    return contexts


def split_names(header: Header) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of a transformer file to names of the transformer's and of the connectors' parameters.

    Raises :class:`CheckpointError` where the file holds a tensor that belongs to neither.
    """
    inner = {key: key.removeprefix(PREFIX) for key in header.tensors}
    require_claimed(header, [key for key in inner if key.startswith(PREFIX)])
    connectors = {key: name for key, name in inner.items() if name.startswith(CONNECTORS)}
    return {key: name for key, name in inner.items() if key not in connectors}, connectors


def require_fit(headers: CheckpointHeaders, *, pinned_config: bool) -> None:
    """Refuse a transformer file that is not, name by name and shape by shape, what its config says; reads no weight."""
    settings = transformer_settings(headers.transformer, pinned_config=pinned_config)
    with torch.device("meta"):
        modules = Transformer(transformer_config(settings)), Connectors(*connector_configs(settings))
    for module, names in zip(modules, split_names(headers.transformer), strict=True):
        require_match(module, headers.transformer, names)


def load_connectors(job: Job) -> Connectors:
    """Both connectors of the transformer file, strictly."""
    header = job.headers.transformer
    settings = transformer_settings(header, pinned_config=job.pinned_config)
    with torch.device("meta"):
        connectors = Connectors(*connector_configs(settings))
    load_module(connectors, header, split_names(header)[1], device=job.device, dtype=job.dtype)
    return connectors.eval().requires_grad_(False)


def connect(connectors: Connectors, features: Sequence[Features], dtype: torch.dtype) -> Contexts:
    """Features of each prompt to contexts of 1,024 positions, registers in the free ones."""
    device = connectors.video_embeddings_connector.learnable_registers.device
    valid = torch.tensor([prompt.valid for prompt in features], device=device)

    def padded(rows: Sequence[Tensor]) -> Tensor:
        full = [torch.nn.functional.pad(row, (0, 0, 0, TEXT_TOKENS - row.shape[1])) for row in rows]
        return torch.cat(full).to(device, dtype)

    return (
        connectors.video_embeddings_connector(padded([prompt.video for prompt in features]), valid),
        connectors.audio_embeddings_connector(padded([prompt.audio for prompt in features]), valid),
    )


def load_transformer(job: Job) -> Transformer:
    """The transformer of the file, strictly, without its connectors."""
    header = job.headers.transformer
    with torch.device("meta"):
        transformer = Transformer(transformer_config(transformer_settings(header, pinned_config=job.pinned_config)))
    dtype = None if job.dtype == torch.bfloat16 else job.dtype  # as published: bf16 with float32 tables
    load_module(transformer, header, split_names(header)[0], device=job.device, dtype=dtype)
    return transformer.eval().requires_grad_(False)


def sample(job: Job, journal: Journal, contexts: Contexts) -> tuple[State, dict[str, int], tuple[float, ...]]:
    """Load the transformer, run the guided loop and save the latents; the transformer is gone when this returns."""
    with journal.phase(Phase.LOAD_TRANSFORMER):
        transformer = load_transformer(job)
    with journal.phase(Phase.PREPARE):
        geometry = job.request.geometry
        latents = text_to_video(geometry, *noise(geometry, job.request.seed)).to(job.device, transformer.dtype)
        prepared = prepare(transformer, latents, contexts)
        state = State(step=0, video=latents.video.tokens, audio=latents.audio.tokens)
        sigmas = torch.tensor(job.plan.sigmas)
    forwards: Counter[str] = Counter()
    pass_s: list[float] = []
    with journal.phase(Phase.DENOISE):
        for event in denoise(transformer, prepared, sigmas, job.request.guidance, state):
            tick = journal.say(event)
            if isinstance(event, PassEnds):
                forwards.update(str(leg) for leg in event.legs)
                pass_s.append(tick.last_s or 0.0)
            elif isinstance(event, StepEnds):
                state = event.state
                require_finite(state)
    with journal.phase(Phase.SAVE_LATENTS):
        save_latents(job, state)
        del transformer, prepared, latents
        gc.collect()
        release(job.device)
    return state, dict(forwards), tuple(pass_s)


def require_finite(state: State) -> None:
    """Stop at the first latent that is not finite, naming step and stream."""
    for name, tokens in (("video", state.video), ("audio", state.audio)):
        if not bool(tokens.isfinite().all()):
            raise RenderFailed(
                f"{name} latents are not finite after step {state.step}",
                allowed="finite latents",
                way_out="check the weights with `shotclock inspect --sha256`; try --dtype float32",
            )


def save_latents(job: Job, state: State) -> None:
    """Both final latents, durable before anything is decoded."""
    tensors = {
        "video": unpatchify_video(state.video, job.request.geometry).contiguous().cpu(),
        "audio": unpatchify_audio(state.audio).contiguous().cpu(),
    }
    with aside(job.run.latents) as path:
        save_file(tensors, path, metadata={"request_sha256": job.plan.request_sha256})


def decode(job: Job, journal: Journal, state: State) -> None:
    """Latents to clip.wav and clip.mp4; out of memory tries the next smaller tiles."""
    geometry = job.request.geometry
    with journal.phase(Phase.LOAD_DECODERS):
        audio = AudioDecoder.load(job.headers.audio_vae, device=job.device)
        video = VideoDecoder.load(job.headers.video_vae, device=job.device, dtype=job.dtype)
    with journal.phase(Phase.DECODE_AUDIO):
        wave = audio.decode(unpatchify_audio(state.audio).float())
        wave = fit_wave(wave, sample_rate=audio.sample_rate, duration_s=geometry.duration_s)
        write_wav(job.run.wave, wave, audio.sample_rate)
    sample_rate = audio.sample_rate
    del audio
    with journal.phase(Phase.DECODE_VIDEO):
        latent = unpatchify_video(state.video, geometry)
        tiling = choose_tiling(
            geometry, free_bytes=free_bytes(job.device), stages=video.stages, element_bytes=video.dtype.itemsize
        )
        while not _decode_video(job, journal, video, latent, tiling, wave, sample_rate):
            release(job.device)  # not inside the handler: its traceback holds the failed decode's tensors
            tiling = smaller(tiling, geometry)


def _decode_video(
    job: Job,
    journal: Journal,
    video: VideoDecoder,
    latent: Float[Tensor, "1 c f h w"],
    tiling: Tiling | None,
    wave: Float[Tensor, "2 n"],
    sample_rate: int,
) -> bool:
    """Decode and write the clip; False where the device's memory did not do for these tiles."""
    journal.say(Notice(text=f"decoding {'untiled' if tiling is None else f'in tiles of {tiling}'}"))
    geometry = job.request.geometry
    frames = counted(video.frames(latent, tiling), geometry.frames, journal)
    try:
        write_clip(job.run.clip, frames, fps=geometry.fps, wave=wave, sample_rate=sample_rate, comment="")
    except torch.OutOfMemoryError:
        return False
    return True


def counted(
    groups: Iterator[UInt8[Tensor, "t height width 3"]], total: int, journal: Journal
) -> Iterator[UInt8[Tensor, "t height width 3"]]:
    """Pass groups of frames on and say how far the decode is."""
    done = 0
    for group in groups:
        yield group
        done += len(group)
        journal.say(Progress(phase=Phase.DECODE_VIDEO, done=done, total=total))
