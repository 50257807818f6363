"""What was asked for on the command line, resolved: models, device, request, and the command that says it all again.

Everything that can be refused from text alone is refused here. Reads headers of files, no weights.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from shotclock import __version__
from shotclock.errors import RequestError, RunDirError
from shotclock.render.text import read_prompts
from shotclock.request import Request, Scales, make_document, make_request
from shotclock.weights.checkpoint import CheckpointHeaders, Recipe, find_checkpoints, read_headers
from shotclock.weights.tiny import write_tiny_checkpoints

TINY = "tiny"
TINY_SEED = 0
TINY_SIZE, TINY_FRAMES = "256x160", 25
FULL_SIZE, FULL_FRAMES = "768x512", 121  # one_stage (ltx25.md section 5.2)
MAX_SIZE_CHARACTERS = 16  # far beyond 8192x8192
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A render as it was asked for; None means the recipe's or the machine's value."""

    prompt: str
    run: Path
    models: str
    negative_prompt: str | None
    size: str | None
    frames: int | None
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
    legs_per_pass: int
    device: str | None
    dtype: str | None
    contexts: Path | None
    transformer: Path | None
    text_encoder: Path | None
    video_vae: Path | None
    audio_vae: Path | None
    pinned_config: bool


def read_models(settings: Settings, home: Path) -> CheckpointHeaders:
    """Headers of the files that ``--models`` names; the tiny set is written on first use."""
    found = find_checkpoints(
        tiny_models(home) if settings.models == TINY else Path(settings.models),
        transformer=settings.transformer,
        text_encoder=settings.text_encoder,
        video_vae=settings.video_vae,
        audio_vae=settings.audio_vae,
        text_encoder_wanted=settings.contexts is None,
        pinned_config=settings.pinned_config,
    )
    return read_headers(found, pinned_config=settings.pinned_config)


def tiny_models(home: Path) -> Path:
    """The folder of the built-in random set, written whole or not at all; another version has another folder."""
    folder = home / f"tiny-{__version__}-{TINY_SEED}"
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix=".tiny-") as scratch:
            write_tiny_checkpoints(Path(scratch) / "set", TINY_SEED)
            if not folder.is_dir():  # another process may have been first: same seed, same bytes
                (Path(scratch) / "set").rename(folder)
    except OSError as error:
        raise RunDirError(
            f"the built-in model cannot be written below {home}: {error.strerror or error}",
            allowed="a folder with 12 MB free",
            way_out="set SHOTCLOCK_HOME to a folder that can be written",
        ) from error
    return folder


def pick_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one; raises :class:`RequestError` for one that is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
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


def request_from(settings: Settings, recipe: Recipe) -> Request:
    """Fill what was not said from the recipe of the model version; raises :class:`RequestError`."""
    builtin = settings.models == TINY
    width, height = parse_size(settings.size or (TINY_SIZE if builtin else FULL_SIZE))
    prompt, negative_prompt = read_prompts(settings.prompt, settings.negative_prompt)
    blocks = recipe.stg_blocks if settings.stg_blocks is None else parse_blocks(settings.stg_blocks)
    audio_cfg = settings.audio_cfg if settings.audio_cfg is not None or settings.cfg != 1 else 1.0

    def scales(cfg: float) -> Scales:
        return make_document(
            Scales,
            cfg=cfg,
            stg=recipe.stg if settings.stg is None else settings.stg,
            modality=recipe.modality if settings.modality is None else settings.modality,
            rescale=recipe.rescale if settings.rescale is None else settings.rescale,
            stg_blocks=blocks,
            skip_step=settings.skip_step,
        )

    return make_request(
        prompt=prompt,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        frames=settings.frames if settings.frames is not None else (TINY_FRAMES if builtin else FULL_FRAMES),
        fps=settings.fps,
        seed=settings.seed,
        steps=recipe.steps if settings.steps is None else settings.steps,
        video=scales(recipe.video_cfg if settings.cfg is None else settings.cfg),
        audio=scales(recipe.audio_cfg if audio_cfg is None else audio_cfg),
        legs_per_pass=settings.legs_per_pass,
    )


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
    for name in ("contexts", "transformer", "text_encoder", "video_vae", "audio_vae"):
        if (path := getattr(settings, name)) is not None:
            options[name.replace("_", "-")] = path
    words = ["shotclock", "render", *(f"--{name}={value}" for name, value in options.items())]
    words += ["--pinned-config"] if settings.pinned_config else []
    return shlex.join([*words, "--run=DIR", "--", escaped(request.prompt)])


def escaped(prompt: str) -> str:
    """A prompt as an argument: one that begins with @ is not the name of a file."""
    return f"@{prompt}" if prompt.startswith("@") else prompt
