"""The resumable state on disk: written whole or not at all, named after its own digest, the newest two kept.

A file that does not match the digest in its name (a flipped bit, a cut) is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from shotclock.errors import RunDirError
from shotclock.events import State
from shotclock.guidance import LegName
from shotclock.render.identity import Identity
from shotclock.rundir import RunDir, write_aside

KEPT = 2  # the newest, and the one before it for when the newest cannot be read
NAME = re.compile(r"snapshot-(\d{5})-(\d)-([0-9a-f]{16})\.safetensors")  # step, legs of the next step, sha256
FORMAT = "shotclock/snapshot/1"
CARRIED = "carried."


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A state with the identity under which it was computed; ``passed_over`` are newer files that cannot be read."""

    name: str
    state: State
    identity: Identity
    passed_over: tuple[str, ...]


def save_snapshot(run: RunDir, state: State, identity: Identity) -> tuple[str, int]:
    """Write ``state``; its file name and bytes. On a full disk the older snapshot makes room, once."""
    content = save(tensors_of(state), metadata={"format": FORMAT, "identity": identity.model_dump_json()})
    name = f"snapshot-{state.step:05}-{len(state.legs)}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    before = snapshots(run)
    try:
        write_aside(run.path / name, content)
    except OSError:
        if len(before) < KEPT:
            raise
        for path in before[1:]:
            path.unlink()
        write_aside(run.path / name, content)
    for path in [path for path in before if path.name != name][KEPT - 1 :]:
        path.unlink(missing_ok=True)
    return name, len(content)


def snapshots(run: RunDir) -> list[Path]:
    """Files that are named as snapshots, the most advanced first."""
    found = [(match, path) for path in run.path.iterdir() if (match := NAME.fullmatch(path.name))]
    ordered = sorted(found, key=lambda one: (int(one[0][1]), int(one[0][2]), one[1].stat().st_mtime_ns), reverse=True)
    return [path for _, path in ordered]


def newest_snapshot(run: RunDir) -> Snapshot | None:
    """The most advanced snapshot that can be read; None where there is none at all.

    Raises :class:`RunDirError` where there are snapshots and none can be read: going on from the start would hide it.
    """
    bad: list[str] = []
    for path in snapshots(run):
        try:
            return _read(path, tuple(bad))
        except (OSError, ValueError, SafetensorError) as error:
            bad.append(f"{path.name}: {error}")
    if not bad:
        return None
    raise RunDirError(
        f"no snapshot of {run.path} can be read: {'; '.join(bad)}",
        allowed=f"a file whose sha256 begins with the last part of its name, of the {KEPT} that are kept",
        way_out="restore one from a copy, or remove them to begin again at step 1 with `shotclock resume`",
    )


def legs_in_force(run: RunDir) -> int | None:
    """Legs a pass of the newest snapshot, fewer than were asked for where memory did not hold those; None of none."""
    found = newest_snapshot(run)
    return None if found is None else found.identity.numerics.legs_per_pass


def read_snapshot(path: Path) -> Snapshot:
    """One file; raises ``ValueError``, ``OSError`` or ``SafetensorError`` for a damaged one."""
    return _read(path, ())


def _read(path: Path, passed_over: tuple[str, ...]) -> Snapshot:
    match = NAME.fullmatch(path.name)
    assert match, "a snapshot's name"
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()[:16]
    if found != match[3]:
        raise ValueError(f"{len(content):,} bytes with sha256 {found}..., damaged or cut short")
    tensors = load(content)
    try:
        identity = Identity.model_validate_json(_metadata(content)["identity"])
    except ValidationError as error:
        raise ValueError(f"written by another version: {error.errors()[0]['msg']}") from None
    state = _state(tensors)
    if (state.step, len(state.legs)) != (int(match[1]), int(match[2])):
        raise ValueError(f"holds step {state.step} with {len(state.legs)} legs: renamed")
    return Snapshot(name=path.name, state=state, identity=identity, passed_over=passed_over)


def _metadata(content: bytes) -> Mapping[str, str]:
    length = int.from_bytes(content[:8], "little")
    metadata: Mapping[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    if metadata.get("format") != FORMAT:
        raise ValueError(f"format {metadata.get('format')!r}, not {FORMAT!r}")
    return metadata


def tensors_of(state: State) -> dict[str, Tensor]:
    """Everything a state holds, on the CPU, by name."""
    named: dict[str, Tensor | None] = {
        "step": torch.tensor(state.step),
        "video": state.video,
        "audio": state.audio,
        "video_x0": state.video_x0,
        "audio_x0": state.audio_x0,
        **{f"video_legs.{name}": value for name, value in state.video_legs.items()},
        **{f"audio_legs.{name}": value for name, value in state.audio_legs.items()},
        **{f"{CARRIED}{name}": value for name, value in state.carried.items()},
    }
    return {name: value.contiguous().cpu() for name, value in named.items() if value is not None}


def _state(tensors: Mapping[str, Tensor]) -> State:
    def legs(stream: str) -> dict[LegName, Tensor]:
        return {name: tensors[key] for name in LegName if (key := f"{stream}_legs.{name}") in tensors}

    return State(
        step=int(tensors["step"]),
        video=tensors["video"],
        audio=tensors["audio"],
        video_x0=tensors.get("video_x0"),
        audio_x0=tensors.get("audio_x0"),
        video_legs=legs("video"),
        audio_legs=legs("audio"),
        carried={key.removeprefix(CARRIED): value for key, value in tensors.items() if key.startswith(CARRIED)},
    )


def placed(state: State, like: Tensor) -> State:
    """Every tensor of latents on the device and in the dtype of ``like``; what the sampler carries stays as it is."""

    def put(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(like.device, like.dtype)
        return {name: put(one) for name, one in value.items()} if isinstance(value, dict) else value

    moved = {field.name: put(getattr(state, field.name)) for field in fields(state) if field.name != "carried"}
    return replace(state, **moved)
