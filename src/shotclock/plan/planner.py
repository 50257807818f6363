"""The plan of a render: tokens, legs, passes and sigmas that follow from a request and the headers of its files.

Everything is arithmetic on headers: no weight is read and no device touched. Written as plan.json before the render.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import ValidationError

from shotclock.errors import RequestError
from shotclock.guidance import Guidance, LegName
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.plan.cost import TEXT_TOKENS as CONTEXT_TOKENS
from shotclock.plan.cost import step_flops
from shotclock.plan.foreseen import Foreseen
from shotclock.plan.key import UNQUANTISED, quantisation_of
from shotclock.plan.spread import WISHES, PlannedSplit, choose, names_of
from shotclock.recipes import RecipeName, Stage, all_passes, warnings
from shotclock.request import Document, Request
from shotclock.weights.checkpoint import CheckpointHeaders, Header, transformer_settings

TEXT_TOKENS = CONTEXT_TOKENS


class PlannedFile(Document):
    """A checkpoint file that the render will read."""

    path: str
    bytes: int
    tensors: int
    model_version: str | None


class PlannedStage(Document):
    """One sampling job of the render."""

    size: str
    video_tokens: int
    sampler: str
    sigmas: tuple[float, ...]
    steps: int
    legs: tuple[str, ...]
    lora_strength: float
    step_flops: int

    def line(self, number: int) -> str:
        """What a person reads of it."""
        lora = f", distilled LoRA at {self.lora_strength:g}" if self.lora_strength else ""
        return (
            f"stage {number}: {self.size}, {self.video_tokens} video tokens, {self.sampler}, {self.steps} steps x "
            f"{len(self.legs)} legs, sigmas {self.sigmas[0]:g} to {self.sigmas[-2]:g} and 0{lora}"
        )


class Plan(Document):
    """What will run and what it is expected to take. ``forwards`` counts legs over all steps, ``passes`` launches.

    ``steps`` are evaluations of the model over all stages; ``video_tokens`` and ``step_flops`` are the last stage's,
    ``sigmas`` the first one's. ``warnings`` are for verdict and record too. ``splits`` are of the stages, on several
    GPUs only.
    """

    format: Literal["shotclock/plan/1"] = "shotclock/plan/1"
    request_sha256: str
    device: str
    dtype: str
    video_tokens: int
    audio_tokens: int
    text_tokens: int
    latent_frames: int
    audio_latents: int
    blocks: int
    legs: tuple[str, ...]
    forwards: dict[str, int]
    passes: int
    steps: int
    sigmas: tuple[float, ...]
    sigmas_sha256: str
    switches: tuple[str, ...]
    step_flops: int
    decode_flops: int
    pinned_config: bool
    quantisation: str = UNQUANTISED
    files: dict[str, PlannedFile]
    stages: tuple[PlannedStage, ...] = ()
    warnings: tuple[str, ...] = ()
    gpus: int = 1
    splits: tuple[PlannedSplit, ...] = ()
    forecast: Foreseen | None = None

    @property
    def _labelled(self) -> str:
        return "" if self.quantisation == UNQUANTISED else f", linear layers of the blocks in {self.quantisation}"

    @property
    def split(self) -> str:
        """How the GPUs share the forwards, as fingerprint and cost law have it."""
        return names_of(self.splits)

    def on(self, gpus: int, splits: tuple[PlannedSplit, ...]) -> Plan:
        """The same render on another number of GPUs or with another split."""
        return self.model_copy(update={"gpus": gpus, "splits": splits})

    @property
    def total_forwards(self) -> int:
        """Forwards of all legs and steps together."""
        return sum(self.forwards.values())

    def lines(self) -> list[str]:
        """What a person reads before the render starts."""
        size_gb = sum(file.bytes for file in self.files.values()) / 1e9
        return [
            f"{self.video_tokens} video + {self.audio_tokens} audio tokens, {self.passes} passes on {self.device} "
            f"in {self.dtype}{self._labelled}",
            *(split.line(number) for number, split in enumerate(self.splits, start=1)),
            *self.switches,
            *([f"{self.total_forwards} forwards in {len(self.stages)} stages"] if len(self.stages) > 1 else []),
            *(stage.line(number) for number, stage in enumerate(self.stages, start=1) if len(self.stages) > 1),
            f"sigmas {self.sigmas[0]:g} to {self.sigmas[-2]:g} and 0, sha256 {self.sigmas_sha256[:12]}",
            f"{self.step_flops / 1e12:.4g} TFLOP a step, {self.decode_flops / 1e12:.4g} TFLOP to decode, "
            f"{size_gb:.3g} GB of weights",
            *(f"WARNING: {warning}" for warning in self.warnings),
        ]


def make_plan(
    request: Request,
    headers: CheckpointHeaders,
    *,
    device: str,
    dtype: str,
    decode_flops: int,
    pinned_config: bool = False,
    others: Mapping[str, Header] | None = None,
    said: tuple[str, ...] = (),
) -> Plan:
    """Count everything that can be counted; raises :class:`RequestError` for what the model cannot do.

    ``decode_flops`` are operations of an untiled decode; ``others`` are files of weights beside the four, by role;
    ``said`` is what to warn of besides the recipe.
    """
    geometry, guidance = request.geometry, request.guidance
    config = transformer_config(transformer_settings(headers.transformer, pinned_config=pinned_config))
    stages = request.stages
    passes = all_passes(stages, config.blocks)
    counted = Counter(leg for step in passes for launch in step for leg in launch.legs)
    parts = {
        "transformer": headers.transformer,
        "text_encoder": headers.text_encoder,
        "video_vae": headers.video_vae,
        "audio_vae": headers.audio_vae,
        **(others or {}),
    }
    return Plan(
        request_sha256=request.digest,
        device=device,
        dtype=dtype,
        video_tokens=geometry.video_tokens + request.appended_tokens(geometry),
        audio_tokens=geometry.audio_tokens,
        text_tokens=TEXT_TOKENS,
        latent_frames=geometry.latent_frames,
        audio_latents=geometry.audio_frames,
        blocks=config.blocks,
        legs=tuple(guidance.legs(config.blocks)),
        forwards={str(leg): counted[leg] for leg in LegName if counted[leg]},
        passes=sum(len(step) for step in passes),
        steps=len(passes),
        sigmas=stages[0].sigmas,
        sigmas_sha256=levels_digest(stages),
        switches=(*switches(guidance, stages[0].evaluations, config), *conditions(request)),
        step_flops=step_flops(config, geometry, guidance, TEXT_TOKENS),
        decode_flops=decode_flops,
        pinned_config=pinned_config,
        quantisation=quantisation_of(request.quantise),
        files={name: _planned(header) for name, header in parts.items() if header is not None},
        stages=tuple(_stage(stage, request, config) for stage in stages),
        warnings=(
            *warnings(RecipeName(request.recipe), request.declared, guidance, config.blocks),
            *_inexact(request),
            *said,
        ),
    )


def _inexact(request: Request) -> tuple[str, ...]:
    """What is not exact and was asked for."""
    if request.quantise is None:
        return ()
    return (f"not exact: linear layers of the blocks run in {quantisation_of(request.quantise)} (--quantise fp8)",)


def splits_for(
    request: Request, config: TransformerConfig, *, gpus: int, device_type: str, wish: str
) -> tuple[PlannedSplit, ...]:
    """The split of each stage over ``gpus``; none on one. Raises :class:`RequestError` where there is none."""
    if wish not in WISHES:
        raise RequestError(f"--split {wish}", allowed=", ".join(WISHES), way_out="leave --split out for auto")
    if gpus == 1:
        return ()
    clips = [(stage, stage.geometry) for stage in request.stages]
    return tuple(
        choose(
            stage.guidance,
            (clip.video_tokens + request.appended_tokens(clip), clip.audio_tokens),
            config,
            gpus=gpus,
            device_type=device_type,
            wish=wish,
        )
        for stage, clip in clips
    )


def levels_digest(stages: Sequence[Stage]) -> str:
    """sha256 of the levels of all stages, in order, as little-endian float32."""
    levels = torch.cat([stage.schedule() for stage in stages])
    return hashlib.sha256(levels.numpy().astype("<f4").tobytes()).hexdigest()


def _stage(stage: Stage, request: Request, config: TransformerConfig) -> PlannedStage:
    clip = stage.geometry
    return PlannedStage(
        size=f"{clip.width}x{clip.height}",
        video_tokens=clip.video_tokens + request.appended_tokens(clip),
        sampler=str(stage.sampler),
        sigmas=stage.sigmas,
        steps=stage.evaluations,
        legs=tuple(stage.guidance.legs(config.blocks)),
        lora_strength=stage.lora,
        step_flops=step_flops(config, clip, stage.guidance, TEXT_TOKENS),
    )


def conditions(request: Request) -> tuple[str, ...]:
    """One sentence for what a condition changes in the forwards."""
    said = []
    if appended := request.appended_tokens(request.geometry):
        said.append(f"pictures after frame 0 and keyframe slots add {appended} video tokens and no forward")
    if any(image.frame == 0 for image in request.images):
        said.append("a picture at frame 0 adds no token and no forward")
    if request.sound is not None:
        said.append("the sound is given: its stream is frozen, which saves no forward, and no vocoder runs")
    return tuple(said)


def count_forwards(guidance: Guidance, steps: int, blocks: int) -> dict[str, int]:
    """Forwards by leg over a whole render, from the very list that the sampler runs."""
    counted = Counter(leg for step in range(steps) for launch in guidance.passes(step, blocks) for leg in launch.legs)
    return {str(leg): counted[leg] for leg in LegName if counted[leg]}


def switches(guidance: Guidance, steps: int, config: TransformerConfig) -> tuple[str, ...]:
    """One sentence a guidance term: how many forwards the render would have without it."""
    total = sum(count_forwards(guidance, steps, config.blocks).values())
    legs = len(guidance.legs(config.blocks))
    said = [f"{total} forwards = {steps} steps x {legs} legs"]
    for flag, off in (("--stg 0", {"stg": 0.0}), ("--modality 1", {"modality": 1.0}), ("--cfg 1", {"cfg": 1.0})):
        count = sum(count_forwards(without(guidance, off), steps, config.blocks).values())
        if count != total:
            said.append(f"{flag} would make it {count} forwards ({count / total:.2f} of them)")
    bare = sum(
        count_forwards(without(guidance, {"stg": 0.0, "modality": 1.0, "cfg": 1.0}), steps, config.blocks).values()
    )
    if bare != total:
        said.append(f"all three off: {bare} forwards, an unguided render")
    return tuple(said)


def without(guidance: Guidance, off: Mapping[str, float]) -> Guidance:
    """The same with these scales in both streams."""
    return replace(
        guidance,
        video=replace(guidance.video, **off),  # type: ignore[arg-type]
        audio=replace(guidance.audio, **off),  # type: ignore[arg-type]
    )


def _planned(header: Header) -> PlannedFile:
    return PlannedFile(
        path=str(header.path),
        bytes=header.file_bytes,
        tensors=len(header.tensors),
        model_version=header.model_version,
    )


def read_plan(text: str) -> Plan:
    """Parse a plan.json; raises :class:`RequestError`."""
    try:
        return Plan.model_validate_json(text)
    except ValidationError as bad:
        first = bad.errors()[0]
        raise RequestError(
            f"plan.json is not a plan: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}",
            allowed="what this version of shotclock wrote",
            way_out="resume with the version that began the run (events.jsonl names it), or render into a new folder",
        ) from None
