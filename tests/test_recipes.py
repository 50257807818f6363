"""The recipes: published levels and settings, legal schedules at any size, and what does not go with which weights."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as few
from hypothesis import strategies as st

from shotclock import recipes
from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.plan.law import curve_of, kind_of
from shotclock.recipes import RECIPES, ModelClass, RecipeName
from shotclock.request import Request, make_request, read_request
from shotclock.schedule import DISTILLED, DISTILLED_STAGE_2, Sampler
from shotclock.weights.released import one_stage

SCALES = {"cfg": 3.0, "stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (2,), "skip_step": 0}
BARE = SCALES | {"cfg": 1.0, "stg": 0.0, "modality": 1.0, "rescale": 0.0}
DIGEST = hashlib.sha256(b"a").hexdigest()
LORA = {"name": "a.safetensors", "sha256": DIGEST, "strength": 1.0}
CLIP = Geometry(width=128, height=64, frames=17, fps=Fraction(24))


def guidance(*, on: bool, skip: int = 0) -> Guidance:
    guider = Guider(cfg=3.0 if on else 1.0, stg=0.0, modality=1.0, rescale=0.0, stg_blocks=(), skip_step=skip)
    return Guidance(video=guider, audio=guider, legs_per_pass=4)


def request(recipe: str, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "recipe": recipe,
        "prompt": "a red circle",
        "negative_prompt": "",
        "width": 128,
        "height": 64,
        "frames": 9,
        "fps": "24",
        "seed": 1,
        "steps": RECIPES[RecipeName(recipe)].steps or 4,
        "video": BARE if RECIPES[RecipeName(recipe)].bare else SCALES,
        "audio": BARE if RECIPES[RecipeName(recipe)].bare else SCALES,
        "legs_per_pass": 4,
        "distilled_lora": LORA if RECIPES[RecipeName(recipe)].needs_lora else None,
    }
    return make_request(**(fields | changes))


def made(recipe: str, clip: Geometry = CLIP, steps: int = 15) -> tuple[recipes.Stage, ...]:
    return recipes.stages(RecipeName(recipe), clip, guidance(on=True), steps=steps, seed=7)


def test_the_default_is_the_published_recipe() -> None:
    """users.md row 85: 30 steps, 3 / 7, stg 1 at block 28, modality 3, rescale 0.7, named one_stage."""
    found = one_stage((2, 5), None)
    assert (found.name, found.steps, found.video_cfg, found.audio_cfg) == ("one_stage", 30, 3.0, 7.0)
    assert (found.stg, found.stg_blocks, found.modality, found.rescale) == (1.0, (28,), 3.0, 0.7)
    assert recipes.DEFAULT[ModelClass.DEV] is recipes.DEFAULT[ModelClass.UNDECLARED] is RecipeName.ONE_STAGE


def test_distilled_has_eight_and_three_steps() -> None:
    """users.md row 50: the lists as published, never shifted again; the second stage begins from 0.909375."""
    first, second = made("distilled")
    assert first.sigmas == pytest.approx(DISTILLED) and second.sigmas == pytest.approx(DISTILLED_STAGE_2)
    assert (first.evaluations, second.evaluations, second.first) == (8, 3, 8)
    assert (first.sampler, second.sampler) == (Sampler.ANCESTRAL, Sampler.EULER)
    assert (first.geometry.width, second.geometry.width) == (64, 128) and second.begins_at == pytest.approx(0.909375)
    assert first.noise_seed == 10_007
    assert [stage.evaluations for stage in made("distilled_draft")] == [8]
    assert made("distilled_draft")[0].geometry == CLIP


def test_two_stage_and_hq() -> None:
    """Strengths of the distilled LoRA, samplers, whose sound is kept, and HQ's own guidance."""
    one, two = made("two_stage", steps=30)
    assert (one.lora, two.lora, one.evaluations, two.evaluations) == (0.0, 1.0, 30, 3)
    assert two.keeps == ("video",) and len(two.guidance.legs(4)) == 1 and len(one.guidance.legs(4)) == 2
    one, two = made("hq")
    assert (one.lora, two.lora, one.evaluations, two.evaluations) == (0.25, 0.5, 31, 7)
    assert one.sampler is two.sampler is Sampler.RES_2S and one.noise_seed == -1
    assert (RECIPES[RecipeName.HQ].stg, RECIPES[RecipeName.HQ].rescale) == (0.0, (0.45, 1.0))


def test_hq_is_shifted_by_its_own_tokens() -> None:
    """The others by 4,096 whatever the size (ltx25.md section 0, 5)."""
    small, large = (Geometry(width=w, height=h, frames=121, fps=Fraction(24)) for w, h in ((512, 512), (1920, 1088)))
    assert made("hq", small)[0].sigmas != made("hq", large)[0].sigmas
    assert made("two_stage", small)[0].sigmas == made("two_stage", large)[0].sigmas


@few(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(list(RecipeName)),
    width=st.integers(1, 60),
    height=st.integers(1, 34),
    frames=st.integers(1, 16),
    steps=st.integers(2, 50),
)
def test_every_schedule_falls_to_zero(name: RecipeName, width: int, height: int, frames: int, steps: int) -> None:
    """users.md row 49: at any size and number of steps, of every stage."""
    clip = Geometry(width=32 * width, height=32 * height, frames=8 * frames + 1, fps=Fraction(24))
    for stage in recipes.stages(name, clip, guidance(on=True), steps=steps, seed=0):
        assert stage.sigmas[-1] == 0 and all(b < a for a, b in pairwise(stage.sigmas)) and stage.sigmas[0] <= 1
        assert stage.geometry.width % 32 == 0 and stage.geometry.frames == clip.frames


def test_passes_of_all_stages_are_one_list() -> None:
    """Equal legs of two stages are told apart, and priced by the same curve."""
    passes = recipes.all_passes(request("two_stage", video=BARE, audio=BARE).stages, 4)
    kinds = Counter(kind_of(launch) for step in passes for launch in step)
    assert kinds == {"cond": 4, "cond in stage 2": 3}
    assert {curve_of(kind) for kind in kinds} == {"cond"}


def test_clips_that_cannot_be_halved_are_refused() -> None:
    """Multiples of 64 for recipes with an upscaler, with the way out; one stage takes 32."""
    assert request("one_stage", width=96).geometry.width == 96
    with pytest.raises(RequestError, match="96x64") as refused:
        request("distilled", width=96)
    assert "128x64" in refused.value.way_out


def test_what_a_recipe_cannot_do_is_refused() -> None:
    """Other steps than a published list has, skipped steps of res_2s, a LoRA too many or too few."""
    with pytest.raises(RequestError, match="9 steps"):
        request("distilled", steps=9)
    with pytest.raises(RequestError, match="skip_step 1"):
        request("hq", video=SCALES | {"skip_step": 1})
    with pytest.raises(RequestError, match="without a distilled LoRA"):
        request("two_stage", distilled_lora=None)
    with pytest.raises(RequestError, match="with a distilled LoRA"):
        request("one_stage", distilled_lora=LORA)
    with pytest.raises(RequestError, match="recipe 'fast'"):
        make_request(**(request("one_stage").model_dump() | {"recipe": "fast"}))


@pytest.mark.parametrize(
    ("name", "declared", "on", "said"),
    [
        ("one_stage", "dev", True, ()),
        ("one_stage", "dev", False, ("unguided dev",)),
        ("one_stage", "undeclared", False, ()),
        ("one_stage", "distilled", True, ("guided distilled", "made for dev")),
        ("distilled", "distilled", False, ()),
        ("distilled", "distilled", True, ("guided distilled",)),
        ("distilled", "undeclared", True, ("guided distilled",)),
        ("distilled", "dev", False, ("made for distilled",)),
        ("hq", "dev", True, ()),
    ],
)
def test_recipes_that_do_not_go_with_their_weights(name: str, declared: str, on: bool, said: tuple[str, ...]) -> None:
    """users.md row 59."""
    found = recipes.warnings(RecipeName(name), ModelClass(declared), guidance(on=on), 4)
    assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True))


def test_what_conditions_a_render_is_part_of_its_digest() -> None:
    """users.md row 4: one byte of an image, a strength, a LoRA or a class is another request; names are no paths."""
    image = {"name": "a.png", "sha256": DIGEST, "frame": 8, "strength": 0.5}
    other = hashlib.sha256(b"b").hexdigest()
    made_ = [
        request("one_stage", **changes)
        for changes in (
            {},
            {"images": (image,)},
            {"images": (image | {"sha256": other},)},
            {"images": (image | {"strength": 0.6},)},
            {"slots": (8,)},
            {"sound": {"name": "a.wav", "sha256": DIGEST}},
            {"loras": (LORA,)},
            {"model_class": "dev"},
        )
    ]
    assert len({one.digest for one in made_}) == len(made_)
    for one in made_:
        assert read_request(one.to_json()) == one
    assert "images" not in json.loads(made_[0].to_json()), "what says nothing is left out: older digests hold"
    assert made_[1].appended_tokens(CLIP) == 8 and made_[0].appended_tokens(CLIP) == 0
