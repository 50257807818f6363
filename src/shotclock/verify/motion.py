"""Numbers of frames against their neighbours: freezing, repeats, flicker, shuffling, cuts (verify.md, Video).

Arrays in, numbers out. Knows no file, no threshold and no request but where temporal chunks begin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8

Frame = UInt8[np.ndarray, "h w 3"]
Series = Float[np.ndarray, " t"]  # one number a frame
Steps = Float[np.ndarray, " s"]  # one number a pair of frames

HELD_MAD = 0.35  # levels; below it a picture counts as held (verify.md freeze_run, dup)
CHUNK_FRAMES = 8  # frames a latent frame (ltx25.md section 4)
STEP_FLOOR = 0.1  # levels; keeps the ratio of steps finite on a still


def mean_absolute_difference(one: Frame, other: Frame) -> float:
    """MAD of two frames over all RGB values, in levels."""
    gap = np.maximum(one, other)
    gap -= np.minimum(one, other)
    return float(gap.reshape(len(gap), -1).sum(axis=1, dtype=np.uint32).sum(dtype=np.uint64) / gap.size)


def lagged_differences(frames: Sequence[Frame], lag: int) -> Steps:
    """MAD of frame t and frame t + lag for every t."""
    return np.array([mean_absolute_difference(frames[t], frames[t + lag]) for t in range(len(frames) - lag)])


def frame_hashes(frames: Sequence[Frame]) -> list[str]:
    """SHA-256 of every frame's bytes."""
    return [hashlib.sha256(np.ascontiguousarray(frame).tobytes()).hexdigest() for frame in frames]


def seed_numbers(frames: Sequence[Frame], adjacent: Steps) -> dict[str, float | None]:
    """The numbers the seeds report: distinct hashes, MAD of adjacent and of far frames, and their ratio."""
    total = len(frames)
    far = lagged_differences(frames, total // 2) if total >= 4 else np.zeros(0)
    near_mean = float(adjacent.mean()) if adjacent.size else None
    far_mean = float(far.mean()) if far.size else None
    distinct = len(set(frame_hashes(frames)))
    return {
        "distinct_frames": float(distinct),
        "copied_frames": float(total - distinct),
        "mad_adjacent": near_mean,
        "mad_far": far_mean,
        "mad_ratio": near_mean / far_mean if near_mean is not None and far_mean else None,
    }


def flat_numbers(flat: Bool[np.ndarray, " t"], lumas: Series, adjacent: Steps) -> dict[str, float | None]:
    """Share and count of frames without texture, and the hardest step between such a frame and a textured one."""
    change = np.flatnonzero(flat[1:] != flat[:-1])
    steps = [adjacent[t] + abs(lumas[t + 1] - lumas[t]) for t in change]
    return {
        "flat_frames": float(flat.sum()),
        "flat_share": float(flat.mean()),
        "flat_jump": float(max(steps, default=0.0)),
    }


def freeze_numbers(adjacent: Steps) -> dict[str, float | None]:
    """Median and least MAD, the longest held run, and whether pictures are held in pairs."""
    if not adjacent.size:
        return dict.fromkeys(("mad_median", "mad_least", "held_run", "held_share"))
    held = adjacent < HELD_MAD
    return {
        "mad_median": float(np.median(adjacent)),
        "mad_least": float(adjacent.min()),
        "held_run": float(longest_run(held)),
        "held_share": float(held.mean()),
    }


def longest_run(flags: Bool[np.ndarray, " t"]) -> int:
    """Length of the longest stretch of true."""
    best = current = 0
    for flag in flags:
        current = current + 1 if flag else 0
        best = max(best, current)
    return best


def order_numbers(adjacent: Steps, second: Float[np.ndarray, " r"]) -> dict[str, float | None]:
    """lag2: how much further apart frames two apart are than frames one apart; below 1 time does not flow."""
    near = float(adjacent.mean()) if adjacent.size else 0.0
    return {"lag2": float(second.mean()) / near if second.size and near > 0 else None}


def flicker_numbers(means: Float[np.ndarray, "t c"]) -> dict[str, float | None]:
    """Alternation of brightness: -sum(d_t d_t+1) / sum(d_t^2) and mean |d| of the worst of R, G, B and Y."""
    if len(means) < 4:
        return {"flicker_alternation": None, "flicker_amplitude": None}
    d = np.diff(means, axis=0)
    power = (d * d).sum(axis=0)
    alternation = -(d[1:] * d[:-1]).sum(axis=0) / np.maximum(power, 1e-9)
    amplitude = np.abs(d).mean(axis=0)
    worst = int(np.argmax(np.clip(alternation, 0, 1) * amplitude))
    return {"flicker_alternation": float(alternation[worst]), "flicker_amplitude": float(amplitude[worst])}


def cut_numbers(adjacent: Steps, boundaries: Sequence[int]) -> dict[str, float | None]:
    """The hardest step against the median step, its frame, and the hardest one at a known temporal chunk edge."""
    if adjacent.size < 3:
        return {"cut_ratio": None, "cut_frame": None, "chunk_ratio": None}
    median = max(float(np.median(adjacent)), STEP_FLOOR)
    at_edges = [adjacent[t - 1] / median for t in boundaries if 0 < t <= adjacent.size]
    return {
        "cut_ratio": float(adjacent.max()) / median,
        "cut_frame": float(int(np.argmax(adjacent)) + 1),
        "chunk_ratio": float(max(at_edges)) if at_edges else None,
    }


def chunk_numbers(lumas: Series, boundaries: Sequence[int]) -> dict[str, float | None]:
    """The hardest step of brightness at a known chunk edge, in levels, and against the hardest one elsewhere."""
    light = np.abs(np.diff(lumas))
    edges = [t - 1 for t in boundaries if 0 < t <= light.size]
    if not edges or light.size <= len(edges):
        return {"chunk_light": None, "chunk_light_step": None}
    step = float(light[edges].max())
    elsewhere = float(np.delete(light, edges).max())
    return {"chunk_light": step / max(elsewhere, STEP_FLOOR), "chunk_light_step": step}


def beat_numbers(adjacent: Steps, lumas: Series) -> dict[str, float | None]:
    """Does every latent frame begin with a step? The least step at frames 8k+1 against the median of all others.

    Of picture (MAD) and of brightness; needs two such frames, and at least 17 frames in all.
    """
    at = np.arange(CHUNK_FRAMES, adjacent.size, CHUNK_FRAMES)
    if at.size < 2:
        return {"beat_picture": None, "beat_light": None}
    other = np.ones(adjacent.size, bool)
    other[at] = False
    light = np.abs(np.diff(lumas))
    return {
        "beat_picture": float(adjacent[at].min() / max(np.median(adjacent[other]), STEP_FLOOR)),
        "beat_light": float(light[at].min() / max(light[other].max(), STEP_FLOOR)),
    }
