"""What the user asks for: one strict document, from which everything that is rendered follows.

Knows geometry and guidance; no file system, model or device. Two equal hashes mean the same render under the same
checkpoints and numerics.
"""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.latents import appended_tokens
from shotclock.recipes import RECIPES, ModelClass, RecipeName, Stage, require, stages

Scale = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
D = TypeVar("D", bound="Document")
MAX_FPS_CHARACTERS = 24  # "24000/1001" has 10; an exponent could stand for a number with a billion digits
CONDITIONS = frozenset(  # of a request
    {"model_class", "images", "slots", "sound", "loras", "distilled_lora", "decoder", "quantise"}
)
MAX_SHOWN = 120  # characters of a refused value: a prompt may have thousands
WORDS = {  # of what is allowed, by the kind of pydantic's error
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "up to {le}",
    "greater_than": "more than {gt}",
    "less_than": "less than {lt}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
}
MAX_SEED = 2**63 - 1  # torch.Generator.manual_seed takes a signed 64-bit value


class Document(BaseModel):
    """Base of every document on disk: strict, frozen, no unknown field; sorted JSON with a final newline."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def to_json(self) -> str:
        """Canonical text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """sha256 of the canonical text."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


class Scales(Document):
    """Guidance of one stream; 1 (cfg, modality) and 0 (stg, rescale) switch a term off."""

    cfg: Scale
    stg: Scale
    modality: Scale
    rescale: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    stg_blocks: tuple[Annotated[int, Field(ge=0)], ...]
    skip_step: Annotated[int, Field(ge=0)]

    def guider(self) -> Guider:
        """As the sampler takes it."""
        return Guider(
            cfg=self.cfg,
            stg=self.stg,
            modality=self.modality,
            rescale=self.rescale,
            stg_blocks=self.stg_blocks,
            skip_step=self.skip_step,
        )


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1)]


class ImageGiven(Document):
    """A picture that the clip passes through at ``frame``: its file's name and the sha256 of its bytes."""

    name: Name
    sha256: Digest
    frame: Annotated[int, Field(ge=0)]
    strength: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class SoundGiven(Document):
    """A sound that the clip is made for: its file's name and the sha256 of its bytes."""

    name: Name
    sha256: Digest


class LoraGiven(Document):
    """A LoRA fused into the weights: its file's name, sampled sha256 (weights/digest.py) and strength."""

    name: Name
    sha256: Digest
    strength: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]


class Request(Document):
    """A render. ``fps`` is an exact fraction in text, such as "24" or "24000/1001".

    ``video`` and ``audio`` guide the recipe's guided stages; ``slots`` are frames of keyframes that are generated.
    ``loras`` are fused in every stage, ``distilled_lora`` at the recipe's own strengths where it has any. ``decoder``
    says which of the two video VAEs makes the pictures; ``quantise`` in what the transformer multiplies, which is not
    exact and therefore another request.
    """

    format: Literal["shotclock/request/1"] = "shotclock/request/1"
    recipe: Literal["one_stage", "distilled", "distilled_draft", "two_stage", "hq"] = "one_stage"
    model_class: Literal["dev", "distilled", "undeclared"] = "undeclared"
    prompt: str
    negative_prompt: str
    width: int
    height: int
    frames: int
    fps: str
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    steps: Annotated[int, Field(ge=2, le=1000)]
    video: Scales
    audio: Scales
    legs_per_pass: Annotated[int, Field(ge=1, le=4)]
    images: tuple[ImageGiven, ...] = ()
    slots: tuple[Annotated[int, Field(ge=0)], ...] = ()
    sound: SoundGiven | None = None
    loras: tuple[LoraGiven, ...] = ()
    distilled_lora: LoraGiven | None = None
    decoder: Literal["conv", "diffusion"] = "conv"
    quantise: Literal["fp8"] | None = None

    @field_validator("prompt")
    @classmethod
    def _prompt_says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("the prompt is empty: say what the clip shows and how it sounds")
        return value

    @field_validator("prompt", "negative_prompt")
    @classmethod
    def _text_is_unicode(cls, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:  # a lone surrogate: the shell handed over a byte that is not UTF-8
            raise ValueError("text that is UTF-8") from None
        return value

    def to_json(self) -> str:
        """Canonical text; what conditions nothing is left out, so that a plain render is what it was before."""
        said = self.model_dump(mode="json")
        plain = {name: field.get_default() for name, field in type(self).model_fields.items() if name in CONDITIONS}
        kept = {name: value for name, value in said.items() if name not in plain or getattr(self, name) != plain[name]}
        return json.dumps(kept, sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @property
    def geometry(self) -> Geometry:
        """Raises :class:`RequestError` for an illegal clip."""
        return Geometry(width=self.width, height=self.height, frames=self.frames, fps=parse_fps(self.fps))

    @property
    def guidance(self) -> Guidance:
        """Both guiders and the legs per pass."""
        return Guidance(video=self.video.guider(), audio=self.audio.guider(), legs_per_pass=self.legs_per_pass)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The sampling jobs in order; one_stage has one."""
        name = RecipeName(self.recipe)
        return stages(name, self.geometry, self.guidance, steps=self.steps, seed=self.seed)

    @property
    def declared(self) -> ModelClass:
        """Which weights the transformer file holds."""
        return ModelClass(self.model_class)

    def appended_tokens(self, geometry: Geometry) -> int:
        """Video tokens of pictures after frame 0 and of slots, at a stage's size."""
        return appended_tokens(geometry, [image.frame for image in self.images], self.slots)


def parse_fps(text: str) -> Fraction:
    """An exact rate: "24", "23.976" stays 2997/125, "24000/1001" is the NTSC rate."""
    try:
        if len(text) > MAX_FPS_CHARACTERS or "e" in text.lower():
            raise ValueError(text)
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise RequestError(
            f"frame rate {text[:40]!r}", allowed="a number or a fraction", way_out="use 24, 25, 30 or 24000/1001"
        ) from None


def make_document(kind: type[D], **fields: object) -> D:
    """Build a document; a bad field raises :class:`RequestError` with its name, its value and what is allowed."""
    try:
        return kind(**fields)
    except ValidationError as bad:
        first = bad.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        value = repr(first["input"])
        found = f"{name} {value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + '...'}"
        words = WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        raise RequestError(
            found, allowed=words.format(**first.get("ctx", {})), way_out="see `shotclock render --help`"
        ) from None


def make_request(**fields: object) -> Request:
    """Build a request whose geometry and guidance are legal too; raises :class:`RequestError`."""
    request = make_document(Request, **fields)
    require(RecipeName(request.recipe), request.geometry, request.guidance, request.steps)
    if (request.distilled_lora is None) == RECIPES[RecipeName(request.recipe)].needs_lora:
        raise RequestError(
            f"the recipe {request.recipe} with{'out' if request.distilled_lora is None else ''} a distilled LoRA",
            allowed="a distilled LoRA for two_stage and hq, none for the others",
            way_out="name its file with --distilled-lora, or put it beside the models",
        )
    return request


def read_request(text: str) -> Request:
    """Parse a request.json."""
    try:
        return Request.model_validate_json(text)
    except ValidationError as bad:
        raise RequestError(
            f"request.json is not a request: {bad.errors()[0]['msg']}",
            allowed="what `shotclock render` wrote",
            way_out="start the render again in a new folder",
        ) from None
