"""Refuses a file that cannot be loaded as the part of LTX-2.5 it is given for, before any weight is read.

Every refusal says what was found, what is allowed and the way out. Knows headers only, no tensor and no module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from shotclock.errors import CheckpointError
from shotclock.weights import released
from shotclock.weights.gemma import ASSET, TOKENIZER, require_gemma
from shotclock.weights.header import Header
from shotclock.weights.identity import DIT, Kind, identify, old_features, version_of
from shotclock.weights.settings import transformer_settings

FLOATS = frozenset({"BF16", "F16", "F32", "F64"})  # a weight of any other dtype is quantised
VERSION_23 = (2, 3)
NEEDED_BY_23 = (  # ltx25.md sections 1.1 and 2: more than a row in a table, so such files are refused
    "Gemma 3 with its own projection as text encoder, feed-forward layers with biases, no keyframe embedding, "
    "one file for all parts, and images compressed at crf 33"
)
SCALE = re.compile(r"_scale(_2|_inv)?$")  # siblings that fp8 and nvfp4 files carry, ltx25.md section 2


def require(header: Header, kind: Kind, *, pinned_config: bool = False) -> None:
    """Refuse a file that is not a loadable LTX-2.5 file of ``kind``; reads no weight.

    ``pinned_config`` says that a transformer whose metadata is lost is to be run with ``PINNED_25_CONFIG``.
    Raises :class:`CheckpointError`: wrong kind, quantised, older version, missing or differing config, wrong Gemma.
    """
    found = identify(header)
    if found is not kind:
        seen = f", its tensors begin with {sorted(header.tensors)[:3]}" if found is Kind.UNKNOWN else ""
        raise CheckpointError(
            f"{header.path.name} is {found.words}{seen}",
            allowed=kind.words,
            way_out=f"name the right file, such as {kind.official_file}",
        )
    _require_unquantised(header, kind)
    match kind:
        case Kind.TRANSFORMER:
            _require_new(header)
            _require_single_part(header)
            transformer_settings(header, pinned_config=pinned_config)
        case Kind.TEXT_ENCODER:
            require_gemma(header)
        case Kind.VIDEO_VAE_CONV | Kind.VIDEO_VAE_DIFFUSION:
            _require_new(header)
            _require_config(header, ("vae",))
        case Kind.AUDIO_VAE:
            _require_new(header)
            _require_config(header, ("audio_vae", "vocoder"))
            _require_prefixes(header, ("audio_vae.decoder.", "vocoder.vocoder."))


def _require_unquantised(header: Header, kind: Kind) -> None:
    weights = {name: entry for name, entry in header.tensors.items() if not name.startswith((TOKENIZER, ASSET))}
    reasons = sorted({entry.dtype for entry in weights.values()} - FLOATS)
    reasons += [name for name in weights if SCALE.search(name) and SCALE.sub("", name) in weights][:1]
    if reasons:
        raise CheckpointError(
            f"{header.path.name} holds quantised weights ({', '.join(reasons)})",
            allowed="BF16 weights; quantising is done here, on request, from the bf16 file",
            way_out=f"use the bf16 file, {kind.official_file}",
        )


def _require_new(header: Header) -> None:
    version = version_of(header)
    old = old_features(header) if identify(header) is Kind.TRANSFORMER else None
    if version is not None and version < released.MODEL_VERSION:
        lacking = f", which would need {NEEDED_BY_23}" if version >= VERSION_23 else ""
        reason = f"is a file of LTX version {header.model_version}{lacking}"
    elif old is not None:
        reason = f"is no LTX-2.5 transformer: {old}"
    else:
        return
    raise CheckpointError(
        f"{header.path.name} {reason}",
        allowed="model_version 2.5 or newer, with the tensors of LTX-2.5",
        way_out=f"fetch the 2.5 file, {identify(header).official_file}",
    )


def _require_single_part(header: Header) -> None:
    others = sorted({name.split(".")[0] for name in header.tensors if not name.startswith(DIT)})
    if others:
        raise CheckpointError(
            f"{header.path.name} holds more than a transformer: also {', '.join(others[:6])}",
            allowed=f"tensors under {DIT} only",
            way_out=f"use the split files, here {Kind.TRANSFORMER.official_file}",
        )


def _require_config(header: Header, parts: Iterable[str]) -> Mapping[str, Any]:
    config = header.config
    missing = [part for part in parts if config is None or not isinstance(config.get(part), Mapping)]
    if config is None or missing:
        part = "" if config is None else f" for {' and '.join(missing)}"
        raise CheckpointError(
            f"{header.path.name} has no config{part} in its metadata",
            allowed="a file with the metadata it was published with",
            way_out=f"a repack lost it: fetch {identify(header).official_file}",
        )
    return config


def _require_prefixes(header: Header, prefixes: Iterable[str]) -> None:
    missing = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in header.tensors)]
    if missing:
        raise CheckpointError(
            f"{header.path.name} has no tensors under {' and '.join(missing)}",
            allowed=f"{identify(header).words}, complete",
            way_out=f"fetch {identify(header).official_file}",
        )
