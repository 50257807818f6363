"""Compares the clips of two runs of one workload: latents step by step, pictures, sound, against a band of rounding.

Reads run folders and what another implementation left; judges with record/gates.py. Says which pictures were compared:
raw frames where they are there, else those of the mp4, in which the encoder has had its say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import av
import numpy as np
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from scipy.io import wavfile

from shotclock.errors import RequestError
from shotclock.record.gates import (
    LEAST_RUNS,
    Band,
    Gate,
    jump_in,
    latent_gate,
    measure_band,
    same_scene,
    sound_gate,
    step_curve,
    within_band,
)
from shotclock.record.pictures_compared import Pictures, compare_pictures, compare_sounds, cosine

SNAPSHOT = re.compile(r"snapshot-(\d+)-")
KERNEL_FIELDS = ("attention", "launch", "legs_per_pass", "build")  # what may differ among the runs of a band
REQUEST_FREE = ("legs_per_pass",)  # fields of a request that choose kernels, not clips


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What a folder holds of a clip; ``steps`` are latents after each step by its number."""

    name: str
    workload: Mapping[str, Any] | None
    latents: Mapping[str, Float[np.ndarray, "..."]]
    steps: Mapping[int, Float[np.ndarray, "..."]]
    frames: UInt8[np.ndarray, "t h w 3"] | None
    raw_frames: bool
    sound: Float[np.ndarray, "c n"] | None
    rate_hz: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipComparison:
    """Gates and figures of two clips, and what they amount to."""

    gates: tuple[Gate, ...]
    curve: tuple[float, ...]
    pictures: Pictures | None
    distance: float | None
    band: Band | None
    conclusion: str
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """For a person."""
        said = [gate.line() for gate in self.gates]
        if self.pictures is not None:
            p = self.pictures
            said.append(
                f"pictures: PSNR {p.psnr_db:.2f} dB (worst {p.psnr_worst_db:.2f}), SSIM {p.ssim:.4f} "
                f"(worst {p.ssim_worst:.4f}), 32x18 luma {p.scene_psnr_db:.2f} dB"
            )
        if self.curve:
            said.append("latent cosine distance by step: " + " ".join(f"{one:.1e}" for one in self.curve))
            jump = jump_in(self.curve)
            said.append(f"it jumps at step {jump}: look for a bug there" if jump else "it grows smoothly")
        said += [self.band.line()] if self.band else []
        return [*said, *self.notes, f"conclusion: {self.conclusion}"]

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "format": "shotclock/clips/1",
            "gates": [{"stage": g.stage, "outcome": g.outcome, "said": g.said} for g in self.gates],
            "curve": list(self.curve),
            "distance": self.distance,
            "pictures": None if self.pictures is None else _finite(self.pictures),
            "band": None if self.band is None else self.band.line(),
            "conclusion": self.conclusion,
            "notes": list(self.notes),
        }


def _finite(pictures: Pictures) -> dict[str, float | None]:
    values = {name: getattr(pictures, name) for name in Pictures.__dataclass_fields__}
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def read_media(folder: Path) -> Media:
    """Everything of a run folder, or of an oracle's, that can be compared; raises :class:`RequestError` for nothing."""
    latents = _tensors(folder / "latents.safetensors")
    frames, raw = _frames(folder)
    sound, rate_hz = _sound(folder)
    if not latents and frames is None and sound is None:
        raise RequestError(
            f"{folder} holds nothing to compare",
            allowed="latents.safetensors, frames.npy or clip.mp4, clip.wav or audio.wav",
            way_out="name the folder of a finished run",
        )
    return Media(
        name=folder.name,
        workload=_workload(folder),
        latents=latents,
        steps=_steps(folder),
        frames=frames,
        raw_frames=raw,
        sound=sound,
        rate_hz=rate_hz,
    )


def compare_clips(a: Media, b: Media, band: Band | None = None) -> ClipComparison:
    """Raises :class:`RequestError` where the two are not of one workload."""
    _require_one_workload([a, b])
    gates = [latent_gate(a.latents[s], b.latents[s], f"latents {s}") for s in sorted(a.latents) if s in b.latents]
    distance = None
    if a.latents.keys() & b.latents.keys() and all(g.outcome != "FAIL" or "shapes" not in g.said for g in gates):
        distance = max(1 - cosine(a.latents[s], b.latents[s]) for s in a.latents if s in b.latents)
    shared = [k for k in sorted(a.steps.keys() & b.steps.keys()) if a.steps[k].shape == b.steps[k].shape]
    equal = bool(distance is not None and all(np.array_equal(a.latents[s], b.latents[s]) for s in a.latents))
    pictures, notes = None, []
    if a.frames is not None and b.frames is not None and a.frames.shape == b.frames.shape:
        pictures = compare_pictures(a.frames, b.frames)
        if not (a.raw_frames and b.raw_frames):
            notes.append("pictures are those of an mp4: the encoder's loss is in their figures")
    if a.sound is not None and b.sound is not None and a.rate_hz == b.rate_hz:
        gates.append(sound_gate(compare_sounds(a.sound, b.sound, a.rate_hz)))
    return ClipComparison(
        gates=tuple(gates),
        curve=step_curve([a.steps[k] for k in shared], [b.steps[k] for k in shared]),
        pictures=pictures,
        distance=distance,
        band=band,
        conclusion="the same latents, bit for bit" if equal else _conclusion(gates, distance, pictures, band),
        notes=tuple(notes),
    )


def _conclusion(gates: Sequence[Gate], distance: float | None, pictures: Pictures | None, band: Band | None) -> str:
    if band is not None:
        return within_band(band, distance, pictures)
    if gates and all(gate.outcome == "PASS" for gate in gates):
        return "within every gate; whether that is rounding is not known without a band (--band RUN RUN RUN)"
    if pictures is not None and same_scene(pictures):
        return "a different sample of the same scene"
    return "different"


def read_band(folders: Sequence[Path]) -> Band:
    """The band of runs of one workload that differ in nothing but their kernels.

    Raises :class:`RequestError` for fewer than three, another workload, or another dtype, device or model.
    """
    media = [read_media(folder) for folder in folders]
    if len(media) < LEAST_RUNS:
        raise RequestError(
            f"{len(media)} runs for a band",
            allowed=f"{LEAST_RUNS} or more",
            way_out="render the same with another --legs-per-pass, attention or way of launching",
        )
    _require_one_workload(media)
    _require_one_key(folders)
    latents = [[one.latents[stream] for stream in sorted(one.latents)] for one in media]
    pairs = [
        compare_pictures(a.frames, b.frames)
        for a, b in combinations(media, 2)
        if a.frames is not None and b.frames is not None
    ]
    return measure_band(latents, pairs)


def _require_one_workload(media: Sequence[Media]) -> None:
    first = media[0].workload
    for other in media[1:]:
        if first is None or other.workload is None:
            continue  # an oracle's folder has no request: its job was made from ours
        if differs := sorted(
            name for name in first.keys() | other.workload.keys() if first.get(name) != other.workload.get(name)
        ):
            raise RequestError(
                f"{other.name} and {media[0].name} are of another workload: {', '.join(differs)} differ",
                allowed="runs of one request, but for the legs per pass",
                way_out="compare clips of the same prompt, seed, geometry, steps and guidance",
            )


def _require_one_key(folders: Sequence[Path]) -> None:
    keys = [_first_line(folder).get("law_key") or {} for folder in folders]
    fixed = [{name: value for name, value in key.items() if name not in KERNEL_FIELDS} for key in keys]
    for folder, key in zip(folders[1:], fixed[1:], strict=True):
        if differs := sorted(name for name in key.keys() | fixed[0].keys() if key.get(name) != fixed[0].get(name)):
            raise RequestError(
                f"{folder.name} differs from {folders[0].name} in {', '.join(differs)}",
                allowed=f"runs that differ in {', '.join(KERNEL_FIELDS)} only",
                way_out="leave it out of the band",
            )


def _first_line(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "events.jsonl").read_text().partition("\n")[0])
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _workload(folder: Path) -> Mapping[str, Any] | None:
    try:
        request = json.loads((folder / "request.json").read_text())
    except (OSError, ValueError):
        return None
    return {name: value for name, value in request.items() if name not in REQUEST_FREE}


def _tensors(path: Path) -> dict[str, Float[np.ndarray, "..."]]:
    """All tensors as float32; {} where there is no such file. bfloat16 needs torch to be read."""
    if not path.is_file():
        return {}
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118 no mapping
    except SafetensorError as bad:
        raise RequestError(f"{path.name}: {bad}", allowed="safetensors", way_out="render again") from None


def _steps(folder: Path) -> dict[int, Float[np.ndarray, "..."]]:
    """Video latents after steps: an oracle's per_step.safetensors, or the snapshots that a run has kept."""
    per_step = _tensors(folder / "per_step.safetensors")
    if per_step:
        return dict(enumerate(per_step["video"], start=1))
    found: dict[int, Float[np.ndarray, "..."]] = {}
    for path in sorted(folder.glob("snapshot-*.safetensors")):
        if (match := SNAPSHOT.match(path.name)) and "video" in (tensors := _tensors(path)):
            found[int(match[1])] = tensors["video"]
    return found


def _frames(folder: Path) -> tuple[UInt8[np.ndarray, "t h w 3"] | None, bool]:
    if (folder / "frames.npy").is_file():
        return np.load(folder / "frames.npy", allow_pickle=False), True
    clip = folder / "clip.mp4"
    if not clip.is_file():
        return None, False
    try:
        with av.open(str(clip)) as file:
            return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]), False
    except (av.FFmpegError, ValueError) as bad:
        raise RequestError(f"{clip}: {bad}", allowed="an mp4 that decodes", way_out="see `shotclock verify`") from None


def _sound(folder: Path) -> tuple[Float[np.ndarray, "c n"] | None, int]:
    for name in ("clip.wav", "audio.wav"):
        if (folder / name).is_file():
            rate_hz, wave = wavfile.read(folder / name)
            return np.atleast_2d(wave.T).astype(np.float32), int(rate_hz)
    return None, 0
