"""The settings a transformer is built from: ``config["transformer"]`` of its file, checked value by value.

Knows which values LTX-2.5 fixes and which differ between files (ltx25.md section 1.1); builds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shotclock.errors import CheckpointError
from shotclock.weights import released
from shotclock.weights.header import Header
from shotclock.weights.identity import KEYFRAMES, Kind


def transformer_settings(header: Header, *, pinned_config: bool) -> Mapping[str, Any]:
    """``config["transformer"]`` of a transformer file after its structural values were checked (ltx25.md section 1.1).

    The keyframe embedding is told by its tensor, not by the config. Raises :class:`CheckpointError` naming the key.
    """
    if header.config is None and pinned_config:
        return released.PINNED_25_CONFIG
    if header.config is None or not isinstance(header.config.get("transformer"), Mapping):
        raise CheckpointError(
            f"{header.path.name} has no config{'' if header.config is None else ' for transformer'} in its metadata",
            allowed="a file with the metadata it was published with, or the pinned config of LTX-2.5 where asked for",
            way_out=f"fetch {Kind.TRANSFORMER.official_file}, or ask for the pinned config if this is a 2.5 repack",
        )
    settings = dict(header.config["transformer"])
    missing = [key for key in (*released.STRUCTURE, *released.NUMBERS) if key not in settings]
    if missing:
        raise CheckpointError(
            f"the config of {header.path.name} lacks {', '.join(missing)}",
            allowed="all of them: the defaults of the format are those of an older model",
            way_out=f"fetch {Kind.TRANSFORMER.official_file}",
        )
    for key in (*released.NUMBERS, "caption_channels"):
        if key in settings and not _is_number(settings[key]):
            raise CheckpointError(
                f"the config of {header.path.name} has {key} = {settings[key]!r}",
                allowed="a positive number, or a list of such",
                way_out=f"fetch {Kind.TRANSFORMER.official_file}",
            )
    for key, allowed in {**released.STRUCTURE, **released.STRUCTURE_IF_GIVEN}.items():
        if settings.get(key, allowed) != allowed:
            raise CheckpointError(
                f"the config of {header.path.name} has {key} = {settings[key]!r}",
                allowed=f"{key} = {allowed!r}",
                way_out=f"this is another architecture: fetch {Kind.TRANSFORMER.official_file}",
            )
    settings["use_keyframes_abs_pos_embedding"] = KEYFRAMES in header.tensors
    return MappingProxyType(settings)


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(not isinstance(item, list) and _is_number(item) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
