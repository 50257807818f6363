"""Recipes: a request with what it was rendered on, in one file, from which the same render can be asked for again.

The form on disk and the command that it stands for. Renders nothing; imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue, ValidationError

from shotclock.errors import RequestError
from shotclock.record.facts import Strict, canonical, sha256

FORMAT = "shotclock/recipe/1"
BUILT_IN = ("pocket", "tiny")
SUFFIX = ".json"
GIVEN = {"images", "slots", "sound", "loras", "distilled_lora"}  # what a request names by digest
ADDED = ("prompts_sha256", "private")  # what a record adds to the request


class Recipe(Strict):
    """``request`` is a whole request.json; ``models`` is a built-in set; None: the user names a folder."""

    format: Literal["shotclock/recipe/1"] = "shotclock/recipe/1"
    subject: str
    models: Literal["pocket", "tiny"] | None
    device: Literal["cpu", "cuda"]
    dtype: Literal["bfloat16", "float32"]
    request: dict[str, JsonValue]

    @property
    def request_sha256(self) -> str:
        """The digest that a run of this recipe has."""
        return sha256(canonical(self.request))

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of a render, without its run folder and, where ``models`` is None, without models."""
        request: Mapping[str, Any] = self.request
        video, audio = request["video"], request["audio"]
        if given := sorted(request.keys() & GIVEN):
            raise RequestError(
                f"a recipe cannot carry {', '.join(given)}",
                allowed="renders from text: pictures, sounds and LoRAs are files of their own",
                way_out="give them on the command line, with the values of the recipe's request",
            )
        declared = request.get("model_class")
        return {
            **({"models": self.models} if self.models else {}),
            "recipe": request.get("recipe", "one_stage"),
            **({"model_class": declared} if declared in ("dev", "distilled") else {}),
            **{name: request[name] for name in ("decoder", "quantise") if name in request},
            "prompt": escaped(request["prompt"]),
            "negative_prompt": escaped(request["negative_prompt"]),
            "size": f"{request['width']}x{request['height']}",
            "frames": str(request["frames"]),
            "fps": request["fps"],
            "seed": request["seed"],
            "steps": request["steps"],
            "cfg": float(video["cfg"]),
            "audio_cfg": float(audio["cfg"]),
            "stg": float(video["stg"]),
            "stg_blocks": ",".join(str(block) for block in video["stg_blocks"]),
            "modality": float(video["modality"]),
            "rescale": float(video["rescale"]),
            "skip_step": video["skip_step"],
            "legs_per_pass": request["legs_per_pass"],
            "device": self.device,
            "dtype": self.dtype,
        }

    def arguments(self) -> list[str]:
        """The same as arguments of ``shotclock render``, the prompt last."""
        settings = self.settings()
        prompt = settings.pop("prompt")
        named = {"class" if name == "model_class" else name: value for name, value in settings.items()}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in named.items()]
        return [*options, "--", prompt]


def expanded(arguments: Sequence[str]) -> list[str]:
    """``render --recipe FILE.json OPTIONS`` as the command that the file stands for; what is said beside it counts.

    Anything else, a recipe's name too, comes back as it is. Raises :class:`RequestError` for what is no recipe file.
    """
    said = list(arguments)
    if not said or said[0] != "render":
        return said
    for place, word in enumerate(said):
        option, equals, value = word.partition("=")
        if option == "--recipe" and (equals or place + 1 < len(said)):
            rest = said[place + 1 :] if equals else said[place + 2 :]
            file = value if equals else said[place + 1]
            if not file.endswith(SUFFIX):
                return said
            *options, dashes, prompt = read_recipe(Path(file)).arguments()
            return ["render", *options, *said[1:place], *rest, dashes, prompt]
    return said


def escaped(prompt: str) -> str:
    """A prompt that begins with @ is no name of a file."""
    return f"@{prompt}" if prompt.startswith("@") else prompt


def read_recipe(path: Path) -> Recipe:
    """Raises :class:`RequestError` for what is no recipe."""
    try:
        return Recipe.model_validate_json(path.read_text())
    except OSError as bad:
        raise RequestError(f"{path}: {bad.strerror}", allowed="a file of recipes/", way_out="name the file") from None
    except ValidationError as bad:
        first = bad.errors()[0]
        raise RequestError(
            f"{path.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            allowed=f"a recipe of format {FORMAT}",
            way_out="take one of recipes/",
        ) from None


def recipe_of(statement: Mapping[str, Any], subject: str) -> Recipe:
    """The recipe of a recorded run; raises :class:`RequestError` where the record does not hold its whole request."""
    external = statement["predicate"]["buildDefinition"]["externalParameters"]
    request = {name: value for name, value in external.items() if name not in ADDED}
    facts = statement["predicate"]["shotclock_run"]
    device, transformer = facts["checked"]["device"]["value"], facts["facts"].get("transformer", {}).get("value")
    listed = [*statement["subject"], *statement["predicate"]["runDetails"]["byproducts"]]
    digests = [one["digest"]["sha256"] for one in listed if one["name"] == "request.json"]
    if sha256(canonical(request)) not in digests:
        raise RequestError(
            "the record does not hold the request as it was written",
            allowed="a record of shotclock that is not private",
            way_out="take request.json of the run folder",
        )
    return Recipe.model_validate_json(
        json.dumps(
            {
                "format": FORMAT,
                "subject": subject,
                "models": next((name for name in BUILT_IN if str(transformer).startswith(f"{name}-")), None),
                "device": "cpu" if device == "cpu" else "cuda",
                "dtype": facts["checked"]["dtype"]["value"],
                "request": request,
            }
        )
    )


def find_recipe(folder: Path, request_sha256: str | None, *, device: str, dtype: str) -> Path | None:
    """The recipe of a request on a kind of device, "cpu" or any name of a GPU, in a dtype."""
    kind = "cpu" if device == "cpu" else "cuda"
    for path in sorted(folder.glob("*.json")):
        recipe = read_recipe(path)
        if (recipe.request_sha256, recipe.device, recipe.dtype) == (request_sha256, kind, dtype):
            return path
    return None
