"""LoRA files: what one would change, told from headers alone, and the fusing of several into loaded weights.

``W += sum(strength * alpha / rank * B A)`` in float32, rounded once (ltx25.md section 2). Knows headers and modules; no
recipe, request or run folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from shotclock.errors import CheckpointError, RequestError
from shotclock.weights.header import Header, read_header
from shotclock.weights.identity import DIT, Kind, identify
from shotclock.weights.load import load_tensors

PREFIXES = ("diffusion_model.", "model.diffusion_model.", "transformer.", "")  # before the path of a layer
DOWN, UP = re.compile(r"(.+)\.lora_(?:A|down)\.weight"), re.compile(r"(.+)\.lora_(?:B|up)\.weight")
ALPHA = ".alpha"
FORMATS = {  # part of a tensor's name -> format that is no plain LoRA
    "lokr_": "LoKr",
    "hada_": "LoHa",
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "oft_": "OFT",
    ".diff": "full-weight differences",
}
REFERENCE = "reference_downscale_factor"  # metadata of an IC-LoRA, ltx25.md section 7
VERSION_KEYS = ("model_version", "base_model_version", "ltx_version")
CONNECTOR = "_embeddings_connector."
MAX_STRENGTH = 10.0
LEAST_SHARE = 0.5  # of a file's pairs that must find their layer: fewer is another model's (users.md row 76)
PAIRS_AT_ONCE = 16  # layers widened to float32 together: about 1 GB at the released widths
MAX_RANK = 450  # of the distilled LoRA, the largest that is published (ltx25.md section 2)
FLOAT_BYTES = 4
NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One layer of a LoRA: keys of its two matrices and of its alpha, and its rank."""

    down: str
    up: str
    alpha: str | None
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """A checked file: ``pairs`` by name of the transformer's weight, how many keys it holds, what to be warned of."""

    header: Header
    strength: float
    pairs: Mapping[str, Pair]
    total: int
    whole: bool
    warnings: tuple[str, ...]

    def line(self) -> str:
        """What is said before the start."""
        name = self.header.path.name
        return f"{name} at strength {self.strength:g}: {len(self.pairs)} of {self.total} layers of it apply"


def parse_lora(text: str) -> tuple[Path, float]:
    """``FILE[:STRENGTH]``; the strength is 1 where none is said. Raises :class:`RequestError`."""
    name, colon, said = text.rpartition(":")
    if not colon or Path(text).is_file():
        return Path(text), 1.0
    try:
        strength = float(said)
    except ValueError:
        strength = math.nan
    if not 0 < abs(strength) <= MAX_STRENGTH:
        raise RequestError(
            f"LoRA strength {said!r}",
            allowed=f"a number up to {MAX_STRENGTH:g}, not 0",
            way_out="write it like style.safetensors:0.8",
        )
    return Path(name), strength


def read_lora(path: Path, strength: float, transformer: Header) -> Lora:
    """Check one file against the transformer's header; reads no weight.

    Raises :class:`CheckpointError` for another kind or format, for a width that differs, and where too few of its
    layers are the transformer's.
    """
    header = read_header(path)
    require_format(header)
    layers = {key.removeprefix(DIT).removesuffix(".weight"): key for key in transformer.tensors if _is_linear(key)}
    found = list(_pairs(header))
    pairs: dict[str, Pair] = {}
    unmatched: list[str] = []
    for name, pair in found:
        target = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p) and name[len(p) :] in layers), None)
        if target is None:
            unmatched.append(name)
            continue
        _require_width(header, pair, name, transformer.tensors[layers[target]].shape)
        pairs[target] = pair
    _require_share(header, pairs, unmatched)
    whole = len(pairs) == sum(CONNECTOR not in key for key in layers.values())
    return Lora(
        header=header,
        strength=strength,
        pairs=pairs,
        total=len(found),
        whole=whole,
        warnings=tuple(_warnings(header, transformer, unmatched)),
    )


def fuse_bytes(transformer: Header) -> int:
    """Most bytes that :func:`fuse` holds beside the weights, if every layer has a pair of rank up to :data:`MAX_RANK`.

    The layers of one part widened to float32, their matrices, and one delta with its scaled copy.
    """
    layers = sorted(key for key in transformer.tensors if _is_linear(key) and CONNECTOR not in key)
    shapes = [transformer.tensors[key].shape for key in layers]
    widest = 0
    for start in range(0, len(shapes), PAIRS_AT_ONCE):
        part = shapes[start : start + PAIRS_AT_ONCE]
        elements = [math.prod(shape) for shape in part]
        matrices = sum(min(MAX_RANK, *shape) * sum(shape) for shape in part)
        widest = max(widest, sum(elements) + matrices + 2 * max(elements))
    return FLOAT_BYTES * widest


def fuse(module: nn.Module, loras: Sequence[Lora], device: torch.device) -> int:
    """Add all ``loras`` to the module's weights in place; how many weights changed. Computed on ``device``.

    Each weight is widened to float32, gets the sum of all files, and is rounded once; so the result depends on the set
    and its strengths, not on what was fused before: always begin from weights as loaded.
    """
    weights = dict(module.named_parameters())
    targets = sorted({target for lora in loras for target in lora.pairs})
    with torch.inference_mode(False), torch.no_grad():
        for start in range(0, len(targets), PAIRS_AT_ONCE):
            part = targets[start : start + PAIRS_AT_ONCE]
            sums = {target: weights[f"{target}.weight"].to(device).float() for target in part}
            for lora in loras:
                for target, delta in _deltas(lora, part, device):
                    sums[target] += delta
            for target, value in sums.items():
                weights[f"{target}.weight"].copy_(value)
    return len(targets)


def _deltas(lora: Lora, part: Iterable[str], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    mine = {target: lora.pairs[target] for target in part if target in lora.pairs}
    keys = [key for pair in mine.values() for key in (pair.down, pair.up, pair.alpha) if key is not None]
    tensors = load_tensors(lora.header, {key: key for key in keys}, device=device, dtype=torch.float32)
    for target, pair in mine.items():
        scale = 1.0 if pair.alpha is None else float(tensors[pair.alpha]) / pair.rank
        yield target, (tensors[pair.up] @ tensors[pair.down]) * (lora.strength * scale)


def _is_linear(key: str) -> bool:
    return key.startswith(DIT) and key.endswith(".weight") and "norm" not in key.rpartition(".weight")[0].split(".")[-1]


def _pairs(header: Header) -> Iterator[tuple[str, Pair]]:
    ups = {match[1]: key for key in header.tensors if (match := UP.fullmatch(key))}
    for key, entry in header.tensors.items():
        if not (match := DOWN.fullmatch(key)):
            continue
        name = match[1]
        if name not in ups or len(entry.shape) != 2 or len(header.tensors[ups[name]].shape) != 2:
            raise _refusal(header, f"has no two matrices for {name}", "a lora_A and a lora_B for every layer")
        alpha = f"{name}{ALPHA}"
        yield (
            name,
            Pair(down=key, up=ups[name], alpha=alpha if alpha in header.tensors else None, rank=entry.shape[0]),
        )


def require_format(header: Header) -> None:
    """Refuse what is no plain LoRA, by name; raises :class:`CheckpointError`."""
    if identify(header) is not Kind.LORA:
        raise _refusal(header, f"is {identify(header).words}", "a LoRA")
    for key in sorted(header.tensors):
        for part, name in FORMATS.items():
            if part in key:
                raise _refusal(header, f"is in the format {name} ({key})", "pairs of lora_A and lora_B")
    if REFERENCE in header.metadata:
        raise _refusal(header, f"is an IC-LoRA ({REFERENCE} in its metadata), which needs a reference video", "a LoRA")


def _require_width(header: Header, pair: Pair, name: str, shape: Sequence[int]) -> None:
    down, up = header.tensors[pair.down].shape, header.tensors[pair.up].shape
    if (up[0], down[1]) != tuple(shape) or up[1] != down[0]:
        raise _refusal(
            header,
            f"has {list(up)} x {list(down)} for {name}",
            f"matrices whose product has the layer's shape {list(shape)}",
        )


def _require_share(header: Header, pairs: Mapping[str, Pair], unmatched: Sequence[str]) -> None:
    total = len(pairs) + len(unmatched)
    if total and len(pairs) >= LEAST_SHARE * total:
        return
    raise _refusal(
        header,
        f"applies {len(pairs)} of {total} layers; without a place are {', '.join(unmatched[:NAMED])}",
        f"at least {LEAST_SHARE:.0%} of its layers in the transformer",
    )


def _warnings(header: Header, transformer: Header, unmatched: Sequence[str]) -> Iterator[str]:
    name = header.path.name
    if unmatched:
        yield f"{name}: {len(unmatched)} of its layers have no place and are left out: {', '.join(unmatched[:NAMED])}"
    said = next((str(header.metadata[key]) for key in VERSION_KEYS if key in header.metadata), None)
    own = transformer.model_version
    if said is not None and own is not None and said.split(".")[:2] != own.split(".")[:2]:
        yield f"{name} was made for version {said}, the transformer is {own}"


def _refusal(header: Header, found: str, allowed: str) -> CheckpointError:
    return CheckpointError(
        f"{header.path.name} {found}", allowed=allowed, way_out="use a LoRA that was trained on LTX-2.5, as published"
    )
