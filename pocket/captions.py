"""Captions of pocket scenes: a small grammar with synonyms, and the split into training and held-out captions.

Must not know pixels, sound or models. Attributes are left out at random; what is left out is not asked of a render.
"""

import random
import re
import zlib
from dataclasses import dataclass

import torch

from pocket.scenes import BACKGROUNDS, COLOURS, MOTIONS, SHAPES, TONES, Said, Scenes

COLOUR_WORDS = {
    "red": ("red", "red", "crimson", "scarlet"),
    "green": ("green", "green", "emerald"),
    "blue": ("blue", "blue", "azure"),
    "yellow": ("yellow", "yellow", "golden"),
    "purple": ("purple", "purple", "violet"),
    "white": ("white", "white", "pale"),
}
SHAPE_WORDS = {
    "circle": ("circle", "circle", "disc", "ball", "dot"),
    "square": ("square", "square", "box", "block"),
    "triangle": ("triangle", "triangle", "pyramid"),
    "diamond": ("diamond", "diamond", "rhombus"),
}
ANY_SHAPE = ("shape", "thing", "object")
VERBS = ("moves", "slides", "goes", "travels", "flies", "drifts")
DIRECTION_WORDS = {
    "right": ("right", "to the right", "rightward", "from left to right"),
    "left": ("left", "to the left", "leftward", "from right to left"),
    "up": ("up", "upward", "to the top"),
    "down": ("down", "downward", "to the bottom"),
}
OTHER_MOTIONS = {
    "bounces": ("bounces", "bounces on the floor", "is bouncing", "hops"),
    "grows": ("grows", "gets bigger", "expands"),
    "shrinks": ("shrinks", "gets smaller", "contracts"),
    "blinks": ("blinks", "flashes", "flickers"),
}
TONE_WORDS = {"low": ("low", "low", "deep"), "middle": ("middle", "medium", "mid"), "high": ("high", "high", "shrill")}
TONE_NOUNS = ("tone", "tone", "sound", "pitch", "hum")
TONE_JOINS = (", {}", ", {}", ", a {}", " with a {}", " and a {}")
BACKGROUND_WORDS = {
    "black": ("black", "dark"),
    "grey": ("grey", "gray"),
    "gradient": ("gradient", "coloured"),
}
GROUNDS = ("background", "backdrop")
SECOND_JOINS = (" next to {}", " beside {}", " and {} stays still", " while {} rests")
LEAVE_OUT_COLOUR, LEAVE_OUT_SHAPE, LEAVE_OUT_MOTION, SAY_BACKGROUND = 0.08, 0.08, 0.04, 0.25
HELD_OUT_MODULUS = 16  # one caption in sixteen is never trained on
WORD = re.compile(r"[a-z]+|,")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A caption and what it states: indices into scenes.COLOURS, SHAPES, MOTIONS, TONES; None is not stated."""

    text: str
    colour: int | None
    shape: int | None
    motion: int | None
    tone: int | None


def is_held_out(text: str) -> bool:
    """Whether a caption belongs to the evaluation: decided by its checksum, so it needs no list."""
    return zlib.crc32(text.encode()) % HELD_OUT_MODULUS == 0


def _article(phrase: str, rng: random.Random) -> str:
    word = rng.choice(("a", "a", "a", "one", "the"))
    return ("an" if word == "a" and phrase[0] in "aeiou" else word) + " " + phrase


def _thing(colour: int, shape: int, say_colour: bool, say_shape: bool, rng: random.Random) -> str:
    noun = rng.choice(SHAPE_WORDS[SHAPES[shape]] if say_shape else ANY_SHAPE)
    return _article(f"{rng.choice(COLOUR_WORDS[COLOURS[colour]])} {noun}" if say_colour else noun, rng)


def _motion(motion: int, rng: random.Random) -> str:
    name = MOTIONS[motion]
    return (
        f" {rng.choice(VERBS)} {rng.choice(DIRECTION_WORDS[name])}"
        if name in DIRECTION_WORDS
        else f" {rng.choice(OTHER_MOTIONS[name])}"
    )


Says = tuple[bool, bool, bool, bool]  # colour, shape, motion, background


def _says(rng: random.Random) -> Says:
    """What one caption states."""
    return (
        rng.random() >= LEAVE_OUT_COLOUR,
        rng.random() >= LEAVE_OUT_SHAPE,
        rng.random() >= LEAVE_OUT_MOTION,
        rng.random() < SAY_BACKGROUND,
    )


def choose_said(count: int, seed: int) -> Said:
    """What each of `count` captions will state."""
    rng = random.Random(seed)
    columns = torch.tensor([_says(rng) for _ in range(count)])
    return Said(colour=columns[:, 0], shape=columns[:, 1], motion=columns[:, 2], background=columns[:, 3])


def _draft(row: dict[str, int], pair: dict[str, list[int]], says: Says, rng: random.Random) -> Caption:
    """One wording of one scene."""
    say_colour, say_shape, say_motion, say_background = says
    text = _thing(pair["colour"][0], pair["shape"][0], say_colour, say_shape, rng)
    if say_motion:
        text += _motion(row["motion"], rng)
    if row["second"]:
        text += rng.choice(SECOND_JOINS).format(_thing(pair["colour"][1], pair["shape"][1], True, True, rng))
    if say_background:
        text += " on " + _article(
            f"{rng.choice(BACKGROUND_WORDS[BACKGROUNDS[row['background']]])} {rng.choice(GROUNDS)}", rng
        )
    if row["tone_stated"]:
        text += rng.choice(TONE_JOINS).format(f"{rng.choice(TONE_WORDS[TONES[row['tone']]])} {rng.choice(TONE_NOUNS)}")
    return Caption(
        text=text,
        colour=pair["colour"][0] if say_colour else None,
        shape=pair["shape"][0] if say_shape else None,
        motion=row["motion"] if say_motion else None,
        tone=row["tone"] if row["tone_stated"] else None,
    )


def describe(scenes: Scenes, seed: int, *, held_out: bool, said: Said | None = None) -> list[Caption]:
    """A caption for every scene, held-out or training wordings; `said` fixes what they state."""
    rng = random.Random(seed)
    rows = {n: getattr(scenes, n).tolist() for n in ("motion", "second", "background", "tone_stated", "tone")}
    pairs = {n: getattr(scenes, n).tolist() for n in ("colour", "shape")}
    fixed = (
        None
        if said is None
        else list(
            zip(said.colour.tolist(), said.shape.tolist(), said.motion.tolist(), said.background.tolist(), strict=True)
        )
    )
    captions = []
    for i in range(len(scenes)):
        row, pair = {n: v[i] for n, v in rows.items()}, {n: v[i] for n, v in pairs.items()}
        caption = None
        while caption is None or is_held_out(caption.text) != held_out:
            caption = _draft(row, pair, _says(rng) if fixed is None else fixed[i], rng)
        captions.append(caption)
    return captions


def words() -> list[str]:
    """Every word the grammar can say, sorted, with the comma: the vocabulary of the tokenizer."""
    tables: list[tuple[str, ...]] = [ANY_SHAPE, VERBS, TONE_NOUNS, GROUNDS, TONE_JOINS, SECOND_JOINS]
    for table in (COLOUR_WORDS, SHAPE_WORDS, DIRECTION_WORDS, OTHER_MOTIONS, TONE_WORDS, BACKGROUND_WORDS):
        tables += list(table.values())
    found = {w for table in tables for phrase in table for w in WORD.findall(phrase)}
    return sorted(found | {"a", "an", "one", "the", "on", ","})
