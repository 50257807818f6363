"""What a render is given besides its prompt: pictures, sound, keyframe slots, LoRAs and the upscaler, all checked.

Pictures and sound are kept in the run folder as they will be encoded, so that a resume needs neither their files nor
the recipe's options again. Reads headers and media; no weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxtyping import Float, UInt8
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.errors import RunDirError
from shotclock.recipes import RECIPES, RecipeName
from shotclock.render.conditioning import (
    ReadImage,
    ReadSound,
    cut,
    for_clip,
    parse_image,
    read_image,
    read_sound,
    recompressed,
    require_frames,
    require_length,
)
from shotclock.render.encode import require_audio_encoder
from shotclock.render.upscale import require_upscaler
from shotclock.request import ImageGiven, LoraGiven, Request, SoundGiven
from shotclock.rundir import RunDir, aside
from shotclock.weights.checkpoint import CheckpointHeaders, Header, Kind, find_part, read_header
from shotclock.weights.digest import sampled_sha256
from shotclock.weights.lora import Lora, parse_lora, read_lora

UPSCALER, DISTILLED_LORA, LORA = "upscaler", "distilled_lora", "lora"  # roles of files in plan.json
RATE = "rate_hz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """As they were said on the command line."""

    images: tuple[str, ...] = ()
    slots: tuple[int, ...] = ()
    audio: Path | None = None
    loras: tuple[str, ...] = ()
    distilled_lora: Path | None = None
    upscaler: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """All of it, read and checked as far as the clip's length allows; see :func:`require_clip`."""

    images: tuple[ReadImage, ...] = ()
    sound: ReadSound | None = None
    slots: tuple[int, ...] = ()
    loras: tuple[Lora, ...] = ()
    distilled_lora: Lora | None = None
    upscaler: Header | None = None

    @property
    def files(self) -> dict[str, Header]:
        """Weights besides the four, by role."""
        files = {f"{LORA}_{number}": lora.header for number, lora in enumerate(self.loras, start=1)}
        if self.distilled_lora is not None:
            files[DISTILLED_LORA] = self.distilled_lora.header
        return files | ({} if self.upscaler is None else {UPSCALER: self.upscaler})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What plan, verdict and record say of it."""
        every = (*self.loras, *([] if self.distilled_lora is None else [self.distilled_lora]))
        whole = (
            f"{lora.header.path.name} changes every linear layer: if it is a distilled LoRA, guidance with it makes "
            "a dull picture; two_stage and hq take it with --distilled-lora"
            for lora in self.loras
            if lora.whole
        )
        return (*(line for lora in every for line in lora.warnings), *whole)

    def lines(self) -> Iterator[str]:
        """What is said before the start."""
        for image in self.images:
            yield from image.notices
        for lora in (*self.loras, *([] if self.distilled_lora is None else [self.distilled_lora])):
            yield lora.line()

    def fields(self) -> dict[str, object]:
        """Of the request: names and digests, no paths."""
        return {
            "images": tuple(
                ImageGiven(name=one.name, sha256=one.sha256, frame=one.frame, strength=one.strength)
                for one in self.images
            ),
            "slots": self.slots,
            "sound": None if self.sound is None else SoundGiven(name=self.sound.name, sha256=self.sound.sha256),
            "loras": tuple(_lora_given(lora) for lora in self.loras),
            "distilled_lora": None if self.distilled_lora is None else _lora_given(self.distilled_lora),
        }


NOTHING = Given()


def _lora_given(lora: Lora) -> LoraGiven:
    path = lora.header.path
    return LoraGiven(name=path.name, sha256=sampled_sha256(path), strength=lora.strength)


def gather(options: Options, recipe: RecipeName, headers: CheckpointHeaders, models: Path) -> Given:
    """Read the media and the headers of the other weights; raises :class:`ShotclockError` for what cannot be used."""
    row = RECIPES[recipe]
    images = tuple(read_image(parse_image(text)) for text in options.images)
    sound = None if options.audio is None else read_sound(options.audio)
    if sound is not None:
        require_audio_encoder(headers.audio_vae)
    loras = tuple(read_lora(*parse_lora(text), headers.transformer) for text in options.loras)
    distilled = upscaler = None
    if row.needs_lora:
        found = find_part(models, Kind.LORA, options.distilled_lora, option="--distilled-lora")
        distilled = read_lora(found.path, 1.0, headers.transformer)
    if row.upscales:
        upscaler = find_part(models, Kind.SPATIAL_UPSCALER, options.upscaler, option="--upscaler")
        require_upscaler(upscaler)
    return Given(
        images=images,
        sound=sound,
        slots=options.slots,
        loras=loras,
        distilled_lora=distilled,
        upscaler=upscaler,
    )


def gather_again(request: Request, paths: Mapping[str, Path], headers: CheckpointHeaders) -> Given:
    """The weights of a run that began, from where its plan says they are; its media lie in the run folder."""

    def lora(role: str, given: LoraGiven) -> Lora:
        if (found := sampled_sha256(paths[role])) != given.sha256:
            raise RunDirError(
                f"{paths[role]} has the sampled sha256 {found[:16]}",
                allowed=f"{given.sha256[:16]}, which the render began with",
                way_out="give the file of the first attempt",
            )
        return read_lora(paths[role], given.strength, headers.transformer)

    return Given(
        slots=request.slots,
        loras=tuple(lora(f"{LORA}_{number}", given) for number, given in enumerate(request.loras, start=1)),
        distilled_lora=None if request.distilled_lora is None else lora(DISTILLED_LORA, request.distilled_lora),
        upscaler=read_header(paths[UPSCALER]) if UPSCALER in paths else None,
    )


def require_clip(given: Given, request: Request) -> None:
    """Refuse pictures and slots beyond the clip, and a sound that ends before it."""
    require_frames(given.images, given.slots, request.frames)
    if given.sound is not None:
        require_length(given.sound, request.geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Pictures and sound of a run folder, in the order of the request; the sound has the clip's length."""

    images: tuple[UInt8[Tensor, "height width 3"], ...]
    sound: Float[Tensor, "2 n"] | None
    rate_hz: int


def keep_media(given: Given, request: Request, run: RunDir, crf: int) -> None:
    """Write what will be encoded into the run folder: pictures after H.264 at ``crf``, the sound cut to the clip."""
    tensors: dict[str, Tensor] = {
        f"image.{number}": recompressed(image.pixels, crf).contiguous() for number, image in enumerate(given.images)
    }
    rate_hz = 0
    if given.sound is not None:
        rate_hz = given.sound.rate_hz
        tensors["sound"] = cut(given.sound, request.geometry).contiguous()
    if tensors:
        with aside(run.conditions) as path:
            save_file(tensors, path, metadata={RATE: str(rate_hz), "request_sha256": request.digest})


def read_media(run: RunDir, request: Request) -> Kept:
    """What :func:`keep_media` wrote; nothing where the request has neither."""
    if not request.images and request.sound is None:
        return Kept(images=(), sound=None, rate_hz=0)
    if not run.conditions.is_file():
        raise RunDirError(
            f"{run.conditions} is missing",
            allowed="the pictures and the sound that the render began with",
            way_out="restore it, or render into a new folder",
        )
    header = read_header(run.conditions)
    if header.metadata.get("request_sha256") != request.digest:
        raise RunDirError(
            f"{run.conditions} was made for another request",
            allowed=f"the request of this folder, {request.digest[:16]}",
            way_out="restore it, or render into a new folder",
        )
    tensors = load_file(run.conditions)
    return Kept(
        images=tuple(tensors[f"image.{number}"] for number in range(len(request.images))),
        sound=tensors.get("sound"),
        rate_hz=int(header.metadata[RATE]),
    )


def clip_sound(kept: Kept) -> tuple[Float[Tensor, "2 n"], int] | None:
    """The given sound as the clip holds it; None where the sound is generated."""
    return None if kept.sound is None else for_clip(kept.sound, kept.rate_hz)


def loras_of(given: Given, strength: float) -> Sequence[Lora]:
    """All that a stage fuses: the user's, and the distilled one at the stage's ``strength``."""
    if not strength:
        return given.loras
    assert given.distilled_lora is not None, "a recipe with a distilled LoRA has found it"
    return (*given.loras, replace(given.distilled_lora, strength=strength))
