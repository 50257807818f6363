"""What was asked for on the command line, resolved: models, device, request, and the command that says it all again.

Everything that can be refused from text alone is refused here. Reads headers of files, no weights.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import torch

from shotclock import __version__
from shotclock.device import default_device
from shotclock.errors import RequestError, RunDirError
from shotclock.guidance import LegName
from shotclock.recipes import DEFAULT, RECIPES, ModelClass, RecipeName
from shotclock.render.capacity import parse_bytes
from shotclock.render.given import Given, Options
from shotclock.render.text import read_prompts
from shotclock.request import Request, Scales, make_document, make_request
from shotclock.weights.checkpoint import CheckpointHeaders, Header, Kind, Recipe, find_checkpoints, read_headers
from shotclock.weights.remembered import class_of
from shotclock.weights.tiny import write_tiny_checkpoints
from shotclock.weights.tiny_diffusion import write_tiny_diffusion_vae

POCKET, TINY = "pocket", "tiny"
POCKET_FOLDER = Path(__file__).parents[1] / "pocket"
TINY_SEED = 0
TINY_SET = 3  # raised when another set is written
SMALL_SIZE, SMALL_FRAMES = "256x160", 25  # of the built-in sets; the pocket model was trained on it
SMALL_HALVED = "256x128"  # where a recipe begins at half the size
FULL_SIZE, FULL_FRAMES = "768x512", 121  # one_stage (ltx25.md section 5.2)
MAX_SIZE_CHARACTERS = 16  # far beyond 8192x8192
FILES = ("contexts", "transformer", "text_encoder", "video_vae", "audio_vae")  # options that name a file of weights
E = TypeVar("E", bound=StrEnum)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
DECODERS = {"conv": Kind.VIDEO_VAE_CONV, "diffusion": Kind.VIDEO_VAE_DIFFUSION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A render as it was asked for; None means the recipe's or the machine's value."""

    prompt: str
    run: Path
    models: str
    negative_prompt: str | None
    size: str | None
    frames: int | str | None
    fps: str
    seed: int
    steps: int | None
    cfg: float | None
    audio_cfg: float | None
    stg: float | None
    stg_blocks: str | None
    modality: float | None
    rescale: float | None
    skip_step: int
    legs_per_pass: int | None
    device: str | None
    dtype: str | None
    contexts: Path | None
    transformer: Path | None
    text_encoder: Path | None
    video_vae: Path | None
    audio_vae: Path | None
    pinned_config: bool
    recipe: str | None = None
    model_class: str | None = None
    image: Sequence[str] | None = None
    keyframe_slot: Sequence[int] | None = None
    audio: Path | None = None
    lora: Sequence[str] | None = None
    distilled_lora: Path | None = None
    upscaler: Path | None = None
    duration_head: Path | None = None
    decoder: str = "conv"
    quantise: str | None = None
    gpus: int = 1
    split: str = "auto"
    memory: str | None = None

    @property
    def cap_bytes(self) -> int | None:
        """What of the device's memory may be used; None is all that is free. Raises :class:`RequestError`."""
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def options(self) -> Options:
        """What conditions the render."""
        return Options(
            images=tuple(self.image or ()),
            slots=tuple(self.keyframe_slot or ()),
            audio=self.audio,
            loras=tuple(self.lora or ()),
            distilled_lora=self.distilled_lora,
            upscaler=self.upscaler,
        )


def models_folder(settings: Settings, home: Path) -> Path:
    """Where the files are looked for."""
    return folder_of(settings.models, home)


def folder_of(models: str, home: Path) -> Path:
    """The folder that ``--models`` names: pocket lies in the package, tiny is written on first use."""
    if models == POCKET:
        return POCKET_FOLDER
    return tiny_models(home) if models == TINY else Path(models)


def read_models(settings: Settings, home: Path) -> CheckpointHeaders:
    """Headers of the files that ``--models`` names."""
    found = find_checkpoints(
        models_folder(settings, home),
        transformer=settings.transformer,
        text_encoder=settings.text_encoder,
        video_vae=settings.video_vae,
        audio_vae=settings.audio_vae,
        text_encoder_wanted=settings.contexts is None,
        pinned_config=settings.pinned_config,
        video_kind=video_kind(settings.decoder),
    )
    return read_headers(found, pinned_config=settings.pinned_config, video_kind=video_kind(settings.decoder))


def video_kind(decoder: str) -> Kind:
    """The video VAE file of a decoder; raises :class:`RequestError` for another word."""
    if decoder not in DECODERS:
        raise RequestError(
            f"decoder {decoder[:40]!r}", allowed=" or ".join(DECODERS), way_out="leave --decoder out for conv"
        )
    return DECODERS[decoder]


def tiny_models(home: Path) -> Path:
    """The folder of the built-in random set, written whole or not at all; another version has another folder."""
    folder = home / f"tiny-{__version__}-{TINY_SEED}-{TINY_SET}"
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".tiny-") as scratch:
            write_tiny_checkpoints(Path(scratch) / "set", TINY_SEED)
            write_tiny_diffusion_vae(Path(scratch) / "set", TINY_SEED)
            if not folder.is_dir():  # another process may have been first: same seed, same bytes
                (Path(scratch) / "set").rename(folder)
    except OSError as error:
        raise RunDirError(
            f"the built-in model cannot be written below {home}: {error.strerror or error}",
            allowed="a folder with 18 MB free",
            way_out="set SHOTCLOCK_HOME to a folder that can be written",
        ) from error
    return folder


def pick_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one; raises :class:`RequestError` for one that is not there."""
    if name is None:
        return torch.device(default_device())
    count = torch.cuda.device_count()
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{number}" for number in range(count))]
    if name not in known:
        raise RequestError(
            f"device {name!r}", allowed=", ".join(known), way_out="`shotclock doctor` shows what is there"
        )
    return torch.device(name)


def pick_dtype(settings: Settings) -> torch.dtype:
    """The named dtype, or bfloat16 on a GPU and float32 on the CPU."""
    if settings.dtype is None:
        return torch.bfloat16 if pick_device(settings.device).type == "cuda" else torch.float32
    if settings.dtype not in DTYPES:
        raise RequestError(f"dtype {settings.dtype!r}", allowed=" or ".join(DTYPES), way_out="leave it to the device")
    return DTYPES[settings.dtype]


def device_name(device: torch.device) -> str:
    """What plan and record call the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def class_from(settings: Settings, transformer: Header, home: Path) -> ModelClass:
    """Declared, else told by a digest that was read before, else undeclared; the headers are equal."""
    if settings.model_class is not None:
        return _one_of(ModelClass, settings.model_class, "class")
    return ModelClass(class_of(home, transformer.path) or ModelClass.UNDECLARED)


def recipe_from(settings: Settings, model_class: ModelClass) -> RecipeName:
    """As asked for, else the one of the weights."""
    return DEFAULT[model_class] if settings.recipe is None else _one_of(RecipeName, settings.recipe, "recipe")


def _one_of(kind: type[E], value: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise RequestError(
            f"{what} {value[:40]!r}", allowed=", ".join(kind), way_out=f"leave --{what} out or name one"
        ) from None


def request_from(settings: Settings, recipe: Recipe, model_class: ModelClass, given: Given) -> Request:
    """Fill what was not said from the recipe and the model version; raises :class:`RequestError`."""
    name = recipe_from(settings, model_class)
    row = RECIPES[name]
    builtin = settings.models in (POCKET, TINY)
    small_size = SMALL_HALVED if row.upscales else SMALL_SIZE
    width, height = parse_size(settings.size or (small_size if builtin else row.size or FULL_SIZE))
    prompt, negative_prompt = read_prompts(settings.prompt, settings.negative_prompt)
    blocks = recipe.stg_blocks if settings.stg_blocks is None else parse_blocks(settings.stg_blocks)
    audio_cfg = settings.audio_cfg if settings.audio_cfg is not None or settings.cfg != 1 else 1.0
    stg, modality = (0.0, 1.0) if row.bare else (recipe.stg if row.stg is None else row.stg, recipe.modality)
    rescales = (0.0, 0.0) if row.bare else (row.rescale or (recipe.rescale, recipe.rescale))

    def scales(cfg: float, rescale: float) -> Scales:
        return make_document(
            Scales,
            cfg=cfg,
            stg=stg if settings.stg is None else settings.stg,
            modality=modality if settings.modality is None else settings.modality,
            rescale=rescale if settings.rescale is None else settings.rescale,
            stg_blocks=blocks,
            skip_step=settings.skip_step,
        )

    def or_else(value: float | None, default: float) -> float:
        return (1.0 if row.bare else default) if value is None else value

    return make_request(
        recipe=str(name),
        model_class=str(model_class),
        prompt=prompt,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        frames=parse_frames(settings.frames, SMALL_FRAMES if builtin else FULL_FRAMES),
        fps=settings.fps,
        seed=settings.seed,
        steps=(row.steps or recipe.steps) if settings.steps is None else settings.steps,
        video=scales(or_else(settings.cfg, recipe.video_cfg), rescales[0]),
        audio=scales(or_else(audio_cfg, recipe.audio_cfg), rescales[1]),
        legs_per_pass=len(LegName) if settings.legs_per_pass is None else settings.legs_per_pass,
        **given.fields(),
        decoder=settings.decoder,
        quantise=settings.quantise,
    )


def parse_frames(frames: int | str | None, default: int) -> int:
    """A number of frames as it was said; ``auto`` has become one by now."""
    if frames is None or isinstance(frames, int):
        return default if frames is None else frames
    if not (frames.isascii() and frames.isdigit() and len(frames) <= 9):
        raise RequestError(f"frames {frames[:20]!r}", allowed="8k + 1 frames, or auto", way_out="write --frames 121")
    return int(frames)


def parse_size(text: str) -> tuple[int, int]:
    """ "768x448" to width and height."""
    width, cross, height = text.lower().partition("x")
    if len(text) > MAX_SIZE_CHARACTERS or not (
        cross and width.isascii() and width.isdigit() and height.isascii() and height.isdigit()
    ):
        raise RequestError(f"size {text[:40]!r}", allowed="WIDTHxHEIGHT in pixels", way_out="write it like 768x448")
    return int(width), int(height)


def parse_blocks(text: str) -> tuple[int, ...]:
    """ "28" or "3,5" to block numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise RequestError(
            f"stg blocks {text!r}", allowed="block numbers with commas between", way_out="write it like 28"
        )
    return tuple(sorted({int(part) for part in parts}))


def command(request: Request, settings: Settings) -> str:
    """The command that renders the same clip: every value spelled out, nothing left to a default."""
    video, audio = request.video, request.audio
    options: dict[str, object] = {
        "models": settings.models,
        "negative-prompt": escaped(request.negative_prompt),
        "size": f"{request.width}x{request.height}",
        "frames": request.frames,
        "fps": request.fps,
        "seed": request.seed,
        "steps": request.steps,
        "cfg": repr(video.cfg),
        "audio-cfg": repr(audio.cfg),
        "stg": repr(video.stg),
        "stg-blocks": ",".join(str(block) for block in video.stg_blocks),
        "modality": repr(video.modality),
        "rescale": repr(video.rescale),
        "skip-step": video.skip_step,
        "legs-per-pass": request.legs_per_pass,
        "device": str(pick_device(settings.device)),
        "dtype": str(pick_dtype(settings)).removeprefix("torch."),
    }
    if RecipeName(request.recipe) is not RecipeName.ONE_STAGE:
        options["recipe"] = request.recipe
    if request.declared is not ModelClass.UNDECLARED:
        options["class"] = request.model_class
    if request.decoder != "conv":
        options["decoder"] = request.decoder
    if request.quantise is not None:
        options["quantise"] = request.quantise
    if settings.gpus > 1:
        options |= {"gpus": settings.gpus, "split": settings.split}
    for name in (*FILES, "audio", "distilled_lora", "upscaler", "memory"):
        if (path := getattr(settings, name)) is not None:
            options[name.replace("_", "-")] = path
    words = ["shotclock", "render", *(f"--{name}={value}" for name, value in options.items())]
    words += [f"--image={text}" for text in settings.image or ()]
    words += [f"--keyframe-slot={frame}" for frame in settings.keyframe_slot or ()]
    words += [f"--lora={text}" for text in settings.lora or ()]
    words += ["--pinned-config"] if settings.pinned_config else []
    return shlex.join([*words, "--run=DIR", "--", escaped(request.prompt)])


def escaped(prompt: str) -> str:
    """A prompt as an argument: one that begins with @ is not the name of a file."""
    return f"@{prompt}" if prompt.startswith("@") else prompt
