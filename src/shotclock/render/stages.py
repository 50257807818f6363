"""The sampling jobs of a render, one after the other: where each begins, and what it leaves for the next.

A stage begins from noise drawn in the order of the stages, from its pictures and sound, and from the latents of the
stage before, upscaled. Knows models and the run folder; no governor and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.errors import RunDirError
from shotclock.events import LegsEnd, PassBegins, PassEnds, State, StepEnds
from shotclock.geometry import unpatchify_audio, unpatchify_video
from shotclock.latents import Conditioning, Latents, Picture, clip_tokens, conditioned, slot_latents, stage_noise
from shotclock.model.transformer import Transformer
from shotclock.plan.placement import Placement
from shotclock.recipes import Stage
from shotclock.render.conditioning import fill, resampled
from shotclock.render.encode import MEL_RATE_HZ, AudioEncoder, VideoEncoder
from shotclock.render.given import Given, Kept, loras_of
from shotclock.request import Request
from shotclock.rundir import RunDir, aside
from shotclock.weights.checkpoint import CheckpointHeaders, read_header
from shotclock.weights.fp8 import to_fp8
from shotclock.weights.load import Progress
from shotclock.weights.lora import fuse
from shotclock.weights.stream import copies_to, stream, streamed_blocks
from shotclock.weights.transformer import load_apart

Said = PassBegins | PassEnds | LegsEnd | StepEnds


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Latents of pictures by stage number, and of the sound, which is the same for all stages; on the CPU."""

    pictures: Mapping[int, tuple[Float[Tensor, "1 c 1 h w"], ...]]
    sound: Float[Tensor, "1 c m bins"] | None


def encode_media(
    request: Request, kept: Kept, headers: CheckpointHeaders, *, device: torch.device, dtype: torch.dtype
) -> Encoded:
    """Pictures at every stage's size, and the sound; the encoders are gone when this returns."""
    pictures: dict[int, tuple[Tensor, ...]] = {}
    if kept.images:
        video = VideoEncoder.load(headers.video_vae, device=device, dtype=dtype)
        for stage in request.stages:
            size = {"height": stage.geometry.height, "width": stage.geometry.width}
            pictures[stage.number] = tuple(video.encode(fill(image, **size)).cpu() for image in kept.images)
    sound = None
    if kept.sound is not None:
        wave = resampled(kept.sound, kept.rate_hz, MEL_RATE_HZ)
        sound = AudioEncoder.load(headers.audio_vae, device=device).encode(wave, request.geometry.audio_frames).cpu()
    return Encoded(pictures=pictures, sound=sound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Latents of a stage that has ended: the clip's own, without appended tokens; keyframes where slots were asked."""

    video: Float[Tensor, "1 c f h w"]
    audio: Float[Tensor, "1 c m bins"]
    keyframes: Float[Tensor, "1 c s h w"] | None

    @classmethod
    def of(cls, state: State, stage: Stage, slots: int) -> Left:
        """What the stage's last state holds."""
        return cls(
            video=unpatchify_video(clip_tokens(state.video, stage.geometry), stage.geometry),
            audio=unpatchify_audio(state.audio),
            keyframes=slot_latents(state.video, stage.geometry, slots) if slots else None,
        )

    def save(self, run: RunDir, number: int, request: Request) -> None:
        """Durable before the next stage begins."""
        tensors = {"video": self.video, "audio": self.audio}
        with aside(run.stage(number)) as path:
            save_file(
                {name: value.contiguous().cpu() for name, value in tensors.items()},
                path,
                metadata={"request_sha256": request.digest},
            )

    @classmethod
    def read(cls, run: RunDir, number: int, request: Request) -> Left | None:
        """Of an earlier attempt; None where the stage has not ended. Refuses latents of another request."""
        path = run.stage(number)
        if not path.is_file():
            return None
        if read_header(path).metadata.get("request_sha256") != request.digest:
            raise RunDirError(
                f"{path} was made for another request",
                allowed=f"the request of this folder, {request.digest[:16]}",
                way_out="render into a new folder",
            )
        tensors = load_file(path)
        return cls(video=tensors["video"], audio=tensors["audio"], keyframes=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a stage begins from: media, the stage before, and that stage's video latent ``upscaled`` to this size.

    Without ``upscaled``, a later stage's tokens are noise alone: enough to go on from a snapshot, not to begin.
    """

    encoded: Encoded
    left: Left | None
    upscaled: Float[Tensor, "1 c f h w"] | None

    def latents(self, request: Request, stage: Stage) -> Latents:
        """Both streams before the stage's first step, in float32 on the CPU."""
        given = Conditioning(
            pictures=tuple(
                Picture(latent=latent, frame=image.frame, strength=image.strength)
                for latent, image in zip(self.encoded.pictures.get(stage.number, ()), request.images, strict=True)
            ),
            slots=request.slots,
            sound=self.encoded.sound,
            video=None if self.upscaled is None else self.upscaled.float().cpu(),
            audio=None if self.left is None else self.left.audio.float().cpu(),
        )
        return conditioned(
            stage.geometry, *stage_noise(drawn_tokens(request, stage), request.seed), given, sigma=stage.begins_at
        )


def drawn_tokens(request: Request, stage: Stage) -> list[tuple[int, int]]:
    """Video and audio tokens for which initial noise has been drawn when ``stage`` begins, stage by stage."""
    return [
        (one.geometry.video_tokens + request.appended_tokens(one.geometry), one.geometry.audio_tokens)
        for one in request.stages[: stage.number]
    ]


def load_fused(
    headers: CheckpointHeaders,
    given: Given,
    strength: float,
    *,
    device: torch.device,
    dtype: torch.dtype,
    pinned_config: bool,
    quantise: str | None,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> Transformer:
    """The transformer from its file, with the LoRAs of a stage; always from the file, where each fuse begins.

    ``placement`` says how many of its blocks stay on the device; None is all. The bits are the same. ``quantise`` is
    the request's: float8 is made of fused weights, so that each is rounded once, and all of it stays on the device.
    """
    loras = loras_of(given, strength)
    streams = placement is not None and placement.streams
    transformer = load_apart(
        headers.transformer,
        device=device,
        dtype=dtype,
        pinned_config=pinned_config,
        on_host=streamed_blocks(placement.blocks, placement.resident) if placement is not None and streams else (),
        as_stored=not loras,
        progress=progress,
    )
    if loras:
        fuse(transformer, loras, device)
    if quantise is not None:
        assert not streams, "float8 is made on the device, where all blocks are"
        to_fp8(transformer, headers.transformer, device)
    if placement is not None and streams:
        stream(
            transformer,
            device,
            copies_to(device),
            resident=placement.resident,
            from_file=placement.source == "file",
            dtype=None if dtype == torch.bfloat16 else dtype,
            progress=progress,
        )
    return transformer


def stage_at(stages: Sequence[Stage], state: State | None) -> Stage:
    """The stage that goes on from ``state``, whose step counts all stages; the end of a stage still belongs to it."""
    if state is None:
        return stages[0]
    begun = [stage for stage in stages if (state.step, len(state.legs)) > (stage.first, 0)]
    return begun[-1] if begun else stages[0]


def to_stage(state: State, stage: Stage) -> State:
    """A state of the render as the stage's sampler counts."""
    return replace(state, step=state.step - stage.first)


def to_render(event: Said, stage: Stage, passes_before: int, steps: int) -> Said:
    """An event of a stage as the render counts: passes, steps and states of all stages together."""
    match event:
        case PassBegins() | PassEnds():
            return replace(event, index=event.index + passes_before, step=event.step + stage.first, steps=steps)
        case LegsEnd():
            return LegsEnd(state=replace(event.state, step=event.state.step + stage.first))
        case StepEnds():
            state = replace(event.state, step=event.state.step + stage.first)
            return StepEnds(steps=steps, sigma=event.sigma, state=state)
