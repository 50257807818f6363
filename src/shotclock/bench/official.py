"""The official packages as sides of a table of guided steps: the very weights and inputs, through the job interface.

An adapter runs a few steps in a process of its own and leaves its seconds (adapters/oracle_ltx_core.py). Where it
cannot run, the row says PENDING with the reason. Knows no package: any command that reads a job will do.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shotclock.bench.child import run_command
from shotclock.bench.job import CONTEXTS, JOB, NOISE
from shotclock.errors import RenderFailed
from shotclock.events import StepEnds
from shotclock.geometry import unpatchify_audio, unpatchify_video
from shotclock.guidance import Guider
from shotclock.latents import Latents, noise
from shotclock.profile.workload import Workload
from shotclock.record.facts import Samples, canonical
from shotclock.render.calibrate import SEED
from shotclock.render.denoise import denoise
from shotclock.render.samplers import begin
from shotclock.rundir import write_aside
from shotclock.schedule import Sampler, sigmas
from shotclock.weights.identity import DIT
from shotclock.weights.released import MODEL_VERSION, PINNED_25_CONFIG
from shotclock.weights.shapes import transformer_shapes
from shotclock.weights.tiny import SCHEDULER, TRANSFORMER
from shotclock.weights.write import write_safetensors

LTX_CORE = "ltx_core"  # package and word of ``--against``
LTX_CORE_NAME = "ltx-core"  # the same among installed distributions
ADAPTER = Path(__file__).parents[3] / "adapters" / "oracle_ltx_core.py"  # of a checkout
WARM_UPS = 2  # first steps that are not counted
STEPS = {
    torch.float32: 1e-3,
    torch.bfloat16: 0.5,
}  # relative L2 of what one guided step moves; beyond: other arithmetic
METHOD = "a step of four legs with guidance and Euler, in a process of its own, as the adapter measured it"
SIDES: Mapping[str, tuple[int, bool]] = {  # legs in a batch, compiled
    "one leg a call": (1, False),
    "four legs in a batch": (4, False),
    "four legs in a batch, compiled": (4, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Official:
    """How the adapter is run: a command, and seconds after which it is killed."""

    command: str
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Steps of one side, how far one step is from ours (video, audio), and versions of the packages that ran."""

    samples: Samples
    error: tuple[float, float]
    packages: Mapping[str, str]

    @property
    def implementation(self) -> str:
        """As the adapter says, never as it was asked for: ``--oracle`` may name any."""
        named = {LTX_CORE_NAME: self.packages[LTX_CORE_NAME]} if self.is_official else self.packages
        return ", ".join(f"{name} {version}" for name, version in sorted(named.items())) or "an adapter without a name"

    @property
    def is_official(self) -> bool:
        """Whether the official packages ran."""
        return LTX_CORE_NAME in self.packages


def find(command: str | None, limit_s: float) -> tuple[Official | None, str]:
    """The adapter to run, or None and why not: what is said instead of a figure."""
    if command is not None:
        return Official(command=command, limit_s=limit_s), ""
    if importlib.util.find_spec(LTX_CORE) is None:
        return None, f"PENDING: {LTX_CORE} is not installed here; --oracle COMMAND runs the adapter where it is"
    if not ADAPTER.is_file():
        return None, "PENDING: adapters/ is not beside this installation; --oracle names the adapter"
    return Official(command=shlex.join([sys.executable, str(ADAPTER)]), limit_s=limit_s), ""


def measure_official(work: Workload, official: Official, rounds: int) -> dict[str, Ran]:
    """Run every side in turn, by implementation and way of running; compiled ones on a CUDA device only.

    Raises :class:`RenderFailed` where an adapter fails or its first step is not ours.
    """
    cuda = work.machine.device.type == "cuda"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_weights(work, folder)
        moved = first_step(work, WARM_UPS + rounds)
        found = {
            side: run_side(work, official, folder, moved, rounds=rounds, legs=legs, compiled=compiled)
            for side, (legs, compiled) in SIDES.items()
            if cuda or not compiled
        }
    return {f"{ran.implementation}, {side}": ran for side, ran in found.items()}


def run_side(
    work: Workload,
    official: Official,
    folder: Path,
    moved: tuple[Tensor, Tensor],
    *,
    rounds: int,
    legs: int,
    compiled: bool,
) -> Ran:
    """One job in a child process; ``moved`` is what our first step adds to both latents."""
    out = folder / f"{legs}{'-compiled' if compiled else ''}"
    write_aside(folder / JOB, canonical(job_of(work, folder, rounds=rounds, legs=legs, compiled=compiled)))
    run_command(official.command, folder / JOB, out, limit_s=official.limit_s)
    if not (out / "timings.json").is_file() or not (out / "per_step.safetensors").is_file():
        raise RenderFailed(
            f"{official.command} left no timings or no steps",
            allowed="timings.json with steps_s, and per_step.safetensors",
            way_out="see adapters/oracle_ltx_core.py for what an adapter leaves",
        )
    timings = json.loads((out / "timings.json").read_text())
    seconds = [float(one) for one in timings.get("steps_s") or ()]
    reason = f"{len(seconds)} steps were timed, {WARM_UPS} of them to warm up"
    return Ran(
        samples=Samples(
            unit="s",
            method=METHOD,
            values=tuple(seconds[WARM_UPS:]),
            warm_up=tuple(seconds[:WARM_UPS]),
            reason=None if len(seconds) > WARM_UPS else reason,
        ),
        error=agreement(work, moved, load_file(out / "per_step.safetensors"), official.command),
        packages={str(name): str(version) for name, version in (timings.get("packages") or {}).items()},
    )


def write_weights(work: Workload, folder: Path) -> None:
    """Transformer, texts and noise of the workload as files that the official code reads.

    Connectors, which no step runs, are there with zeros: the file holds every name that it should.
    """
    tiny = work.transformer.config.blocks == TRANSFORMER["num_layers"]
    settings = dict(TRANSFORMER if tiny else PINNED_25_CONFIG)
    tensors = {f"{DIT}{name}": value for name, value in work.transformer.state_dict().items()}
    for name, shape in transformer_shapes(settings).items():
        if name not in tensors:
            tensors[name] = torch.zeros(shape, dtype=work.transformer.dtype)
    config = json.dumps({"transformer": settings, "scheduler": SCHEDULER})
    write_safetensors(
        folder / "transformer.safetensors",
        tensors,
        {"config": config, "model_version": ".".join(map(str, MODEL_VERSION))},
    )
    contexts = {
        f"{stream}_{side}": one.context[row : row + 1].cpu().contiguous()
        for stream, one in zip(("video", "audio"), work.prepared, strict=True)
        for row, side in enumerate(("pos", "neg"))
    }
    save_file(contexts, folder / CONTEXTS)
    video, audio = noise(work.geometry, SEED)
    save_file({"video": video.contiguous(), "audio": audio.contiguous()}, folder / NOISE)


def job_of(work: Workload, folder: Path, *, rounds: int, legs: int, compiled: bool) -> dict[str, Any]:
    """A job of ``rounds`` counted steps; no text encoder and no decoder takes part."""
    clip = work.geometry
    return {
        "transformer": str(folder / "transformer.safetensors"),
        **dict.fromkeys(("text_encoder", "video_vae", "audio_vae")),
        "prompt": "",
        "negative_prompt": "",
        "contexts": str(folder / CONTEXTS),
        "noise": str(folder / NOISE),
        "width": clip.width,
        "height": clip.height,
        "frames": clip.frames,
        "fps": float(clip.fps),
        "steps": WARM_UPS + rounds,
        "seed": SEED,
        "video": _guider(work.guidance.video),
        "audio": _guider(work.guidance.audio),
        "max_batch_size": legs,
        "dtype": work.machine.dtype_name,
        "device": work.machine.device.type,
        "compile": compiled,
        "decode": False,
    }


def _guider(guider: Guider) -> dict[str, Any]:
    return {
        "cfg_scale": guider.cfg,
        "stg_scale": guider.stg,
        "stg_blocks": list(guider.stg_blocks),
        "modality_scale": guider.modality,
        "rescale_scale": guider.rescale,
        "skip_step": guider.skip_step,
    }


def first_step(work: Workload, steps: int) -> tuple[Tensor, Tensor]:
    """What the first of ``steps`` adds to both latents, as they are without patches."""
    video, audio = work.prepared
    start = begin(Sampler.EULER, Latents(video=video.latents, audio=audio.latents), SEED)
    for event in denoise(work.transformer, work.prepared, sigmas(steps), work.guidance, start):
        if isinstance(event, StepEnds):
            moved = event.state.video.float() - start.video.float(), event.state.audio.float() - start.audio.float()
            return unpatchify_video(moved[0], work.geometry)[0].cpu(), unpatchify_audio(moved[1])[0].cpu()
    raise AssertionError("a schedule has a first step")


def agreement(
    work: Workload, ours: tuple[Tensor, Tensor], theirs: Mapping[str, Tensor], command: str
) -> tuple[float, float]:
    """Relative L2 between the first steps, video and audio; raises :class:`RenderFailed` beyond the dtype's bound."""
    tokens = noise(work.geometry, SEED)
    drawn = unpatchify_video(tokens[0], work.geometry)[0], unpatchify_audio(tokens[1])[0]
    found = tuple(
        float(
            (theirs[stream][0].double() - drawn[side].double() - ours[side].double()).norm()
            / ours[side].double().norm()
        )
        for side, stream in enumerate(("video", "audio"))
    )
    bound = STEPS[work.transformer.dtype]
    if not all(error <= bound for error in found):
        raise RenderFailed(
            f"the first step of {command} is another: relative error {found[0]:.1e} video, {found[1]:.1e} audio",
            allowed=f"up to {bound:g}",
            way_out="compare a finished run leg by leg: shotclock bench RUN --oracle COMMAND --per-step",
        )
    return found[0], found[1]
