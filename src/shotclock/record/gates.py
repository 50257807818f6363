"""The staged gates between two implementations, and whether two results are the same up to rounding.

Judges numbers against the limits of one table, or against a band that was measured from runs which differ in nothing
but their kernels. Pure; knows no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from jaxtyping import Float

from shotclock.record.pictures_compared import Pictures, Sounds, cosine, relative_l2

Outcome = Literal["PASS", "FAIL", "not run"]
FORWARD_L2, FORWARD_COSINE = 1e-2, 0.9999  # one forward on identical inputs in bfloat16 (verify.md 3.2)
LATENT_DISTANCE = 1e-2  # cosine distance of the final latents
DECODE_PSNR_DB, DECODE_SSIM = 40.0, 0.99  # decode of the same latents
VOCODER_L2, VOCODER_COSINE = 0.10, 0.99  # vocoder of the same mel
FLOOR_FACTOR = 1.5  # of the other's own bfloat16 against its float32
SAME_MEL_DB, SAME_CONVERGENCE, SAME_LAG_S, SAME_GAIN_DB = 1.0, 0.15, 0.001, 1.0  # the same sound (verify.md 3.5)
SCENE_PSNR_DB = 18.0  # of 32x18 luma: the same scene in other roundings reads 20 to 52, another one 12 to 17
BAND_FACTOR = FLOOR_FACTOR**2  # a cosine distance is half a relative L2 squared; three runs miss the widest pair
BAND_SLACK_DB, BAND_SLACK_SSIM = 1.0, 0.02  # below the worst of the band this still counts as inside
LEAST_RUNS = 3  # runs of a band
ARITHMETIC = 1e-14  # what the float64 sums of a cosine leave of 0
JUMP = 10.0  # a step whose distance grows by this factor is no smooth growth

Array = Float[np.ndarray, "..."]
Stages = Mapping[str, Array]  # a name such as "forward video" to a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One stage: its numbers and whether they are within the limits."""

    stage: str
    outcome: Outcome
    said: str

    def line(self) -> str:
        """For a person."""
        return f"{self.outcome:<7} {self.stage}: {self.said}"


def tensor_gate(stage: str, ours: Array, theirs: Array, *, l2: float, least_cosine: float) -> Gate:
    """Relative L2 and cosine of one tensor that both computed from the same inputs."""
    if ours.shape != theirs.shape:
        return Gate(stage=stage, outcome="FAIL", said=f"shapes {ours.shape} and {theirs.shape}")
    error, same = relative_l2(theirs, ours), cosine(theirs, ours)
    widest = float(np.max(np.abs(ours.astype(np.float64) - theirs)))
    passed = error <= l2 and same >= least_cosine
    said = f"rel L2 {error:.2e} (at most {l2:g}), cosine {same:.6f} (at least {least_cosine}), max {widest:.3g}"
    return Gate(stage=stage, outcome="PASS" if passed else "FAIL", said=said)


def staged_gates(ours: Stages, theirs: Stages) -> tuple[Gate, ...]:
    """Every stage that both have, in the order forward, step, decode is left to :func:`decode_gate`, vocoder.

    Names begin with "forward", "vocoder" or "context"; a stage that one side lacks was not run, and that is said.
    Teacher-forced steps: :func:`forced_gate`.
    """
    gates = []
    for name in sorted(ours.keys() | theirs.keys()):
        limits = (VOCODER_L2, VOCODER_COSINE) if name.startswith("vocoder") else (FORWARD_L2, FORWARD_COSINE)
        if name in ours and name in theirs:
            gates.append(tensor_gate(name, ours[name], theirs[name], l2=limits[0], least_cosine=limits[1]))
        else:
            side = "ours" if name in theirs else "theirs"
            gates.append(Gate(stage=name, outcome="not run", said=f"{side} did not run it"))
    return tuple(gates)


def forced_gate(stage: str, before: Array, ours: Array, theirs: Array, *, rounding: float) -> Gate:
    """One teacher-forced step: how far both moved the other's latents ``before``, which hides nothing in the latents.

    ``rounding`` is the spacing of the dtype at 1 (0 for float64): latents that are stored with it blur a small move.
    """
    moved, blur = theirs - before, rounding * float(np.linalg.norm(before))
    limit = FORWARD_L2 + 2 * blur / max(float(np.linalg.norm(moved)), ARITHMETIC)
    return tensor_gate(stage, ours - before, moved, l2=limit, least_cosine=round(1 - max(limit**2 / 2, 1e-4), 6))


def decode_gate(pictures: Pictures) -> Gate:
    """Pictures decoded from the same latents."""
    passed = pictures.psnr_db >= DECODE_PSNR_DB and pictures.ssim_worst >= DECODE_SSIM
    said = f"PSNR {pictures.psnr_db:.2f} dB (at least {DECODE_PSNR_DB:g}), worst SSIM {pictures.ssim_worst:.4f}"
    return Gate(stage="decode", outcome="PASS" if passed else "FAIL", said=f"{said} (at least {DECODE_SSIM})")


def floor_gate(stage: str, ours: Array, theirs: Array, exact: Array) -> Gate:
    """Ours against float32, measured by how far the other's own bfloat16 is from it: at most 1.5 times as far."""
    mine, floor = relative_l2(exact, ours), relative_l2(exact, theirs)
    passed = mine <= FLOOR_FACTOR * floor
    said = f"{mine:.2e} from float32, theirs {floor:.2e}: ratio {mine / floor if floor else np.inf:.2f}"
    return Gate(stage=stage, outcome="PASS" if passed else "FAIL", said=f"{said} (at most {FLOOR_FACTOR})")


def latent_gate(ours: Array, theirs: Array, stage: str) -> Gate:
    """Final latents, by cosine distance."""
    if ours.shape != theirs.shape:
        return Gate(stage=stage, outcome="FAIL", said=f"shapes {ours.shape} and {theirs.shape}")
    distance = 1 - cosine(ours, theirs)
    passed = distance <= LATENT_DISTANCE
    said = f"cosine distance {distance:.2e} (at most {LATENT_DISTANCE:g})"
    return Gate(stage=stage, outcome="PASS" if passed else "FAIL", said=said)


def sound_gate(sounds: Sounds) -> Gate:
    """Whether two sounds are the same one: mel, convergence, lag, gain and the sign of every channel."""
    passed = (
        sounds.mel_db <= SAME_MEL_DB
        and sounds.convergence <= SAME_CONVERGENCE
        and abs(sounds.lag_s) <= SAME_LAG_S
        and abs(sounds.gain_db) <= SAME_GAIN_DB
        and sounds.channel_cosine > 0
    )
    said = (
        f"mel {sounds.mel_db:.2f} dB, convergence {sounds.convergence:.3f}, lag {1000 * sounds.lag_s:+.2f} ms, "
        f"gain {sounds.gain_db:+.2f} dB, worst channel cosine {sounds.channel_cosine:.3f}"
    )
    return Gate(stage="sound", outcome="PASS" if passed else "FAIL", said=said)


def step_curve(ours: Sequence[Array], theirs: Sequence[Array]) -> tuple[float, ...]:
    """Cosine distance of the latents after each step that both have."""
    return tuple(1 - cosine(a, b) for a, b in zip(ours, theirs, strict=False))


def jump_in(curve: Sequence[float], *, least: float = 1e-6) -> int | None:
    """The first step (from 1) at which the distance jumps instead of growing: a bug, where growth is chaos.

    Distances below ``least`` are rounding and never a jump.
    """
    for step in range(1, len(curve)):
        if curve[step] > least and curve[step] > JUMP * max(curve[step - 1], least / JUMP):
            return step + 1
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What rounding alone does: the worst of all pairs of runs that differ in nothing but their kernels."""

    runs: int
    distance: float
    psnr_db: float | None
    ssim: float | None

    def line(self) -> str:
        """The measured width."""
        pictures = "" if self.psnr_db is None else f", PSNR at least {self.psnr_db:.2f} dB, SSIM {self.ssim or 0:.4f}"
        return f"rounding alone, {self.runs} runs: latent cosine distance at most {self.distance:.3e}{pictures}"


def measure_band(latents: Sequence[Sequence[Array]], pictures: Sequence[Pictures] = ()) -> Band:
    """The band of K >= 3 runs, each with its latents by stream; ``pictures`` are comparisons of all their pairs."""
    assert len(latents) >= LEAST_RUNS, f"{LEAST_RUNS} runs or more, not {len(latents)}"
    return Band(
        runs=len(latents),
        distance=max(1 - cosine(a, b) for one, two in combinations(latents, 2) for a, b in zip(one, two, strict=True)),
        psnr_db=min((one.psnr_db for one in pictures), default=None),
        ssim=min((one.ssim for one in pictures), default=None),
    )


def within_band(band: Band, distance: float | None, pictures: Pictures | None) -> str:
    """ "same up to rounding", or by how much it is not; a measured statement in either case."""
    beyond = []
    if distance is not None and distance > BAND_FACTOR * band.distance + ARITHMETIC:
        beyond.append(f"latent cosine distance {distance:.3e} > {BAND_FACTOR:g} x {band.distance:.3e}")
    if pictures is not None and band.psnr_db is not None and pictures.psnr_db < band.psnr_db - BAND_SLACK_DB:
        beyond.append(f"PSNR {pictures.psnr_db:.2f} < {band.psnr_db:.2f} - {BAND_SLACK_DB:g} dB")
    if pictures is not None and band.ssim is not None and pictures.ssim < band.ssim - BAND_SLACK_SSIM:
        beyond.append(f"SSIM {pictures.ssim:.4f} < {band.ssim:.4f} - {BAND_SLACK_SSIM:g}")
    if beyond:
        return f"beyond rounding: {'; '.join(beyond)}"
    if distance is None and (pictures is None or band.psnr_db is None):
        return "nothing to hold against the band"
    return "same up to rounding"


def same_scene(pictures: Pictures) -> bool:
    """Another sample of the same scene, where the pixels are not the same."""
    return pictures.scene_psnr_db >= SCENE_PSNR_DB
