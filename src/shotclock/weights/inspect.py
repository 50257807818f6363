"""What ``shotclock inspect`` says about one file of weights, from its header alone (and its bytes where asked).

Describes also what cannot be loaded, with the reason. Prints nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shotclock.errors import CheckpointError
from shotclock.weights.digest import content_sha256
from shotclock.weights.header import Header, read_header
from shotclock.weights.identity import Kind, identify, recipe_for
from shotclock.weights.lora import require_format
from shotclock.weights.released import Recipe, known_digest
from shotclock.weights.require import require

FORMAT = "shotclock.inspection.v1"
CHECKED = frozenset(  # kinds whose header alone says whether a render can read them
    {
        Kind.TRANSFORMER,
        Kind.TEXT_ENCODER,
        Kind.VIDEO_VAE_CONV,
        Kind.VIDEO_VAE_DIFFUSION,
        Kind.AUDIO_VAE,
        Kind.SPATIAL_UPSCALER,
        Kind.DURATION_HEAD,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Facts about one file. ``refusal`` says why it cannot be loaded as what it is; None where it can."""

    name: str
    kind: Kind
    file_bytes: int
    header_bytes: int
    tensors: int
    elements: int
    dtypes: Mapping[str, int]
    model_version: str | None
    blocks: int | None
    recipe: Recipe | None
    refusal: str | None
    sha256: str | None

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON document; adds the forwards of the recipe and what is known of the digest."""
        recipe = None if self.recipe is None else {**asdict(self.recipe), "forwards": self.recipe.forwards}
        known = None if self.sha256 is None else known_digest(self.sha256)
        return {**asdict(self), "format": FORMAT, "recipe": recipe, "sha256_known_as": known}

    def lines(self) -> list[str]:
        """Text for a screen, one fact a line."""
        rows = {
            "is": self._what(),
            "bytes": f"{self.file_bytes:,} (header {self.header_bytes:,})",
            "tensors": f"{self.tensors:,}",
            "elements": f"{self.elements:,}",
            "dtypes": ", ".join(f"{dtype} {count:,}" for dtype, count in self.dtypes.items()) or "none",
            "model_version": self.model_version or "not stated",
        }
        if self.recipe is not None:
            rows["recipe"] = self._recipe_text(self.recipe)
        if self.sha256 is not None:
            rows["sha256"] = f"{self.sha256}, {known_digest(self.sha256) or 'no digest known here'}"
        rows["loadable"] = self.refusal or ("yes" if self.kind in CHECKED else "not checked")
        return [self.name, *(f"  {name:<14}{text}" for name, text in rows.items())]

    def _what(self) -> str:
        text = f"{self.kind.words} ({self.kind.value})"
        alike = self.kind is Kind.TRANSFORMER and self.sha256 is None
        return f"{text}; dev and distilled have equal headers, only the digest tells" if alike else text

    def _recipe_text(self, recipe: Recipe) -> str:
        blocks = ", ".join(map(str, recipe.stg_blocks))
        absent = [block for block in recipe.stg_blocks if self.blocks is not None and block >= self.blocks]
        remark = f"; this file has {self.blocks} blocks: name another stg block" if absent else ""
        return (
            f"{recipe.name}: {recipe.steps} steps, cfg {recipe.video_cfg:g} / {recipe.audio_cfg:g}, "
            f"stg {recipe.stg:g} @ block {blocks}, modality {recipe.modality:g}, rescale {recipe.rescale:g}: "
            f"{recipe.forwards} forwards{remark}"
        )


def inspect(path: Path, sha256: bool, progress: Callable[[int], None] | None = None) -> Inspection:
    """Describe the file; ``sha256`` also reads all of it, telling ``progress`` the bytes done.

    Raises :class:`CheckpointError` for what is no complete safetensors file.
    """
    header = read_header(path)
    kind = identify(header)
    return Inspection(
        name=path.name,
        kind=kind,
        file_bytes=header.file_bytes,
        header_bytes=header.header_bytes,
        tensors=len(header.tensors),
        elements=header.elements,
        dtypes=header.dtypes,
        model_version=header.model_version,
        blocks=_blocks(header),
        recipe=_recipe(header) if kind is Kind.TRANSFORMER else None,
        refusal=_refusal(header, kind),
        sha256=content_sha256(path, progress) if sha256 else None,
    )


def _blocks(header: Header) -> int | None:
    transformer = (header.config or {}).get("transformer")
    blocks = transformer.get("num_layers") if isinstance(transformer, Mapping) else None
    return blocks if isinstance(blocks, int) else None


def _recipe(header: Header) -> Recipe | None:
    try:
        return recipe_for(header)
    except CheckpointError:
        return None  # the refusal says why


def _refusal(header: Header, kind: Kind) -> str | None:
    try:
        if kind is Kind.LORA:
            require_format(header)  # whether it fits is a matter of the transformer
        elif kind in CHECKED:
            require(header, kind)
    except CheckpointError as error:
        return str(error)
    return None
