"""The recipes as one table of data: stages, samplers, levels, guidance, the files each needs and the weights it is for.

Settings of ltx25.md sections 5.1 to 5.3. What a stage is for a given clip follows by arithmetic; knows no file, model
or device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import RequestError
from shotclock.geometry import SPACE_SCALE, Geometry
from shotclock.guidance import Guidance, Guider, Pass
from shotclock.schedule import DISTILLED, DISTILLED_STAGE_2, SHIFT_TOKENS, Sampler, check, evaluations, sigmas

ANCESTRAL_SEED = 10_000  # added to the seed for the noise of ancestral steps (ltx25.md 5.3, distilled)
RES_2S_SEED = -1  # of the noise of res_2s, whatever the seed is (ltx25.md 5.3, HQ)
HALF = 2  # a stage before the upscaler has half the rows and columns


class RecipeName(StrEnum):
    """What ``--recipe`` takes."""

    ONE_STAGE = "one_stage"
    DISTILLED = "distilled"
    DISTILLED_DRAFT = "distilled_draft"
    TWO_STAGE = "two_stage"
    HQ = "hq"


class ModelClass(StrEnum):
    """Which weights a transformer file holds: their headers are equal, so this is said or known by a digest."""

    DEV = "dev"
    DISTILLED = "distilled"
    UNDECLARED = "undeclared"


class Levels(StrEnum):
    """Schedules that depend on the number of steps."""

    SHIFTED = "shifted"  # by the constant of 4,096 tokens
    SHIFTED_BY_TOKENS = "shifted by tokens"  # of the stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One stage of a recipe. ``lora`` is the strength of the distilled LoRA; ``keeps`` the streams it gives on.

    A stage of half size comes before the upscaler; a stage that begins below 1 mixes what came before with noise.
    """

    levels: Levels | tuple[float, ...]
    sampler: Sampler
    guided: bool
    half: bool = False
    lora: float = 0.0
    keeps: tuple[str, ...] = ("video", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Stages and what differs from the guided settings of the model version; None keeps those."""

    model_class: ModelClass
    rows: tuple[Row, ...]
    steps: int | None = None
    bare: bool = False
    stg: float | None = None
    rescale: tuple[float, float] | None = None
    size: str | None = None

    @property
    def upscales(self) -> bool:
        """Whether it needs the spatial upscaler."""
        return any(row.half for row in self.rows)

    @property
    def needs_lora(self) -> bool:
        """Whether it needs the distilled LoRA."""
        return any(row.lora for row in self.rows)

    @property
    def fixed_steps(self) -> bool:
        """Whether the steps are those of a published list."""
        return isinstance(self.rows[0].levels, tuple)


# Of ltx25.md 5.3; where HQ's sound comes from is not said there: as in two_stage, from stage 1.
RECIPES: Mapping[RecipeName, Recipe] = MappingProxyType(
    {
        RecipeName.ONE_STAGE: Recipe(
            model_class=ModelClass.DEV,
            rows=(Row(levels=Levels.SHIFTED, sampler=Sampler.EULER, guided=True),),
        ),
        RecipeName.DISTILLED: Recipe(
            model_class=ModelClass.DISTILLED,
            rows=(
                Row(levels=DISTILLED, sampler=Sampler.ANCESTRAL, guided=True, half=True),
                Row(levels=DISTILLED_STAGE_2, sampler=Sampler.EULER, guided=False),
            ),
            steps=len(DISTILLED) - 1,
            bare=True,
        ),
        RecipeName.DISTILLED_DRAFT: Recipe(
            model_class=ModelClass.DISTILLED,
            rows=(Row(levels=DISTILLED, sampler=Sampler.ANCESTRAL, guided=True),),
            steps=len(DISTILLED) - 1,
            bare=True,
        ),
        RecipeName.TWO_STAGE: Recipe(
            model_class=ModelClass.DEV,
            rows=(
                Row(levels=Levels.SHIFTED, sampler=Sampler.EULER, guided=True, half=True),
                Row(levels=DISTILLED_STAGE_2, sampler=Sampler.EULER, guided=False, lora=1.0, keeps=("video",)),
            ),
        ),
        RecipeName.HQ: Recipe(
            model_class=ModelClass.DEV,
            rows=(
                Row(levels=Levels.SHIFTED_BY_TOKENS, sampler=Sampler.RES_2S, guided=True, half=True, lora=0.25),
                Row(levels=DISTILLED_STAGE_2, sampler=Sampler.RES_2S, guided=False, lora=0.5, keeps=("video",)),
            ),
            steps=15,
            size="1920x1088",
            stg=0.0,
            rescale=(0.45, 1.0),
        ),
    }
)
DEFAULT: Mapping[ModelClass, RecipeName] = MappingProxyType(
    {
        ModelClass.DEV: RecipeName.ONE_STAGE,
        ModelClass.DISTILLED: RecipeName.DISTILLED,
        ModelClass.UNDECLARED: RecipeName.ONE_STAGE,
    }
)
BARE = Guider(cfg=1.0, stg=0.0, modality=1.0, rescale=0.0, stg_blocks=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One sampling job: a clip's size, its levels, and where it stands among the stages. ``number`` is from 1.

    ``first`` counts the evaluations of the stages before. The schedule is that of float32, rounding for rounding.
    """

    number: int
    of: int
    first: int
    geometry: Geometry
    sampler: Sampler
    sigmas: tuple[float, ...]
    guidance: Guidance
    noise_seed: int
    lora: float
    keeps: tuple[str, ...]

    @property
    def evaluations(self) -> int:
        """Evaluations of the model: the steps that events and snapshots count."""
        return len(evaluations(self.sampler, self.sigmas))

    @property
    def begins_at(self) -> float:
        """The first level: 1 begins from noise alone."""
        return self.sigmas[0]

    @property
    def last(self) -> bool:
        """Whether the clip is decoded from it."""
        return self.number == self.of

    def passes(self, step: int, blocks: int) -> tuple[Pass, ...]:
        """The launches of 0-based ``step`` of this stage; equal legs of two stages are not the same work."""
        return tuple(replace(launch, stage=self.number) for launch in self.guidance.passes(step, blocks))

    def schedule(self) -> Float[Tensor, " n"]:
        """As the sampler takes it."""
        return torch.tensor(self.sigmas)


def stages(name: RecipeName, geometry: Geometry, guidance: Guidance, *, steps: int, seed: int) -> tuple[Stage, ...]:
    """The sampling jobs of a recipe, in order. A clip that cannot be halved is halved to the next legal size."""
    made: list[Stage] = []
    rows = RECIPES[name].rows
    for number, row in enumerate(rows, start=1):
        clip = halved(geometry) if row.half else geometry
        levels = _levels(row.levels, steps, clip)
        check(levels)
        made.append(
            Stage(
                number=number,
                of=len(rows),
                first=sum(stage.evaluations for stage in made),
                geometry=clip,
                sampler=row.sampler,
                sigmas=tuple(float(level) for level in levels),
                guidance=guidance if row.guided else replace(guidance, video=BARE, audio=BARE),
                noise_seed=RES_2S_SEED if row.sampler is Sampler.RES_2S else seed + ANCESTRAL_SEED,
                lora=row.lora,
                keeps=row.keeps,
            )
        )
    return tuple(made)


def halved(geometry: Geometry) -> Geometry:
    """Half the rows and columns, rounded up to a legal size."""

    def half(side: int) -> int:
        return math.ceil(side / HALF / SPACE_SCALE) * SPACE_SCALE

    return replace(geometry, width=half(geometry.width), height=half(geometry.height))


def _levels(levels: Levels | tuple[float, ...], steps: int, clip: Geometry) -> Float[Tensor, " n"]:
    if isinstance(levels, tuple):
        return torch.tensor(levels)
    return sigmas(steps, SHIFT_TOKENS if levels is Levels.SHIFTED else clip.video_tokens)


def require(name: RecipeName, geometry: Geometry, guidance: Guidance, steps: int) -> None:
    """Refuse what the recipe cannot do with this clip; raises :class:`RequestError`."""
    recipe = RECIPES[name]
    grid = HALF * SPACE_SCALE
    if recipe.upscales and (geometry.width % grid or geometry.height % grid):
        sides = [max(grid, round(side / grid) * grid) for side in (geometry.width, geometry.height)]
        raise RequestError(
            f"{geometry.width}x{geometry.height} in the recipe {name}",
            allowed=f"multiples of {grid}, since its first stage has half the size",
            way_out=f"use {sides[0]}x{sides[1]}",
        )
    if recipe.fixed_steps and steps != recipe.steps:
        raise RequestError(
            f"{steps} steps in the recipe {name}",
            allowed=f"{recipe.steps}: its levels are a published list",
            way_out="leave --steps out",
        )
    skips = guidance.video.skip_step or guidance.audio.skip_step
    if skips and any(row.sampler is Sampler.RES_2S for row in recipe.rows):
        raise RequestError(
            f"skip_step {skips} in the recipe {name}",
            allowed="0: its sampler needs both evaluations of a step",
            way_out="leave --skip-step out",
        )


def warnings(name: RecipeName, model_class: ModelClass, guidance: Guidance, blocks: int) -> tuple[str, ...]:
    """What plan, verdict and record say of a recipe that does not go with its weights (users.md row 59)."""
    guided = len(guidance.legs(blocks)) > 1
    meant = RECIPES[name].model_class
    said: list[str] = []
    if model_class is ModelClass.DEV and not guided and name is not RecipeName.DISTILLED:
        said.append("unguided dev: dev weights without guidance render very poor clips; leave --cfg and the rest out")
    if guided and (model_class is ModelClass.DISTILLED or meant is ModelClass.DISTILLED):
        said.append("guided distilled: guidance on distilled weights costs time and makes the clip worse; use --cfg 1")
    if model_class is not ModelClass.UNDECLARED and model_class is not meant:
        said.append(f"the recipe {name} is made for {meant} weights, these are declared {model_class}")
    return tuple(said)


def all_passes(made: Sequence[Stage], blocks: int) -> tuple[tuple[Pass, ...], ...]:
    """The launches of every evaluation of every stage: the one list that planner, governor and pipeline count by."""
    return tuple(stage.passes(step, blocks) for stage in made for step in range(stage.evaluations))
