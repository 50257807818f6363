"""Sigma schedules of LTX-2.5 (ltx25.md section 5.1): which noise levels a render visits.

Pure arithmetic in float32, rounding for rounding what the official schedule does: a last digit of a sigma is a
different clip. Of samplers it knows where they evaluate the model, not what they do with the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.errors import RequestError

SHIFT_TOKENS = 4096  # one_stage and two_stage shift by this constant, whatever the resolution (ltx25.md section 0, 5)
BASE_SHIFT, MAX_SHIFT = 0.95, 2.05  # mu at 1,024 and at 4,096 tokens
BASE_TOKENS, MAX_TOKENS = 1024, 4096
TERMINAL = 0.1  # last sigma before 0
DISTILLED = (1.0, 0.99375, 0.9875, 0.98125, 0.975, 0.909375, 0.725, 0.421875, 0.0)  # ltx25.md 5.1, 8 steps
DISTILLED_STAGE_2 = (0.909375, 0.725, 0.421875, 0.0)  # ltx25.md 5.1, 3 steps
RES_2S_LAST = 0.0011  # res_2s walks to this level instead of 0 and evaluates once more there (ltx25.md 5.3, HQ)


class Sampler(StrEnum):
    """How a denoised state moves the latents to the next level."""

    EULER = "euler"
    ANCESTRAL = "ancestral"  # Euler with fresh noise after each step
    RES_2S = "res_2s"  # second order: a midpoint between two levels, noise after both


def evaluations(sampler: Sampler, sigmas: Sequence[float]) -> tuple[float, ...]:
    """The noise level of each evaluation of the model; the one list that planner and sampler count by.

    Euler and ancestral evaluate once a step. res_2s evaluates ``2 N + 1`` times: at each level, at the geometric mean
    of it and the next (of which the last is :data:`RES_2S_LAST`), and at that last level.
    """
    levels = [float(sigma) for sigma in sigmas]
    if sampler is not Sampler.RES_2S:
        return tuple(levels[:-1])
    ends = [*levels[1:-1], RES_2S_LAST]
    pairs = [(sigma, math.sqrt(sigma * end)) for sigma, end in zip(levels[:-1], ends, strict=True)]
    return (*(level for pair in pairs for level in pair), RES_2S_LAST)


def sigmas(steps: int, tokens: int = SHIFT_TOKENS) -> Float[Tensor, " steps_and_one"]:
    """``steps + 1`` sigmas from 1 to 0, shifted for ``tokens`` and stretched so that the last nonzero one is 0.1.

    Raises :class:`RequestError` for fewer than 2 steps (1 step has no last nonzero sigma to stretch to).
    """
    if steps < 2:
        raise RequestError(f"{steps} steps", allowed="2 or more steps", way_out="LTX-2.5 is made for 30")
    mu = BASE_SHIFT + (MAX_SHIFT - BASE_SHIFT) * (tokens - BASE_TOKENS) / (MAX_TOKENS - BASE_TOKENS)
    u = torch.linspace(1, 0, steps + 1)[:-1]
    shifted = math.exp(mu) / (math.exp(mu) + (1 / u - 1))
    stretched = 1 - (1 - shifted) * (1 - TERMINAL) / (1 - shifted[-1])
    return torch.cat([stretched, torch.zeros(1)])


def check(values: Float[Tensor, " n"]) -> None:
    """Refuse a schedule that does not fall strictly from at most 1 to exactly 0 (a render would end as speckle)."""
    falls = bool((values[1:] < values[:-1]).all())
    if len(values) < 2 or not falls or values[-1] != 0 or not 0 < values[0] <= 1 or not bool(values.isfinite().all()):
        raise RequestError(
            f"sigmas {[round(float(v), 5) for v in values]}",
            allowed="strictly falling values from at most 1 to exactly 0",
            way_out="leave the schedule to the recipe, or end the list with 0",
        )
