"""What one evaluation of the model makes of the latents: Euler, ancestral Euler, and res_2s with midpoints and noise.

Equations of ltx25.md sections 5.2 and 5.3. Tensors in, a state out; knows no model, legs, clock or file. Noise comes
from a generator of the sampler's own, whose state is part of the state: a render that goes on draws what it would have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.events import State
from shotclock.latents import Latents, StreamLatents
from shotclock.schedule import RES_2S_LAST, Sampler

ETA = 1.0  # share of fresh noise of the ancestral sampler (ltx25.md 5.3, distilled)
RES_2S_ETA = 0.5  # share of fresh noise of res_2s (ltx25.md 5.3, HQ)
REFINED_BELOW_H, REFINED_ABOVE = 0.5, 0.03  # where the anchor follows the noise (ltx25.md 5.3, HQ)
NOISE = "noise"  # of State.carried: the generator's state
ANCHORS = ("video_anchor", "audio_anchor")  # of State.carried: where a half-done res_2s step began, float64

Pair = tuple[Tensor, Tensor]  # video, audio


def begin(sampler: Sampler, latents: Latents, seed: int) -> State:
    """The state before the first evaluation; ``seed`` is that of the sampler's own noise, which Euler has none of."""
    carried = {} if sampler is Sampler.EULER else {NOISE: torch.Generator().manual_seed(seed).get_state()}
    return State(step=0, video=latents.video.tokens, audio=latents.audio.tokens, carried=carried)


def move(
    sampler: Sampler, sigmas: Sequence[float], state: State, denoised: Pair, sides: tuple[StreamLatents, StreamLatents]
) -> State:
    """The state after evaluation ``state.step``, which found the ``denoised`` states, conditioning in place."""
    tokens, carried = _MOVES[sampler](sigmas, state, denoised, sides)
    return State(
        step=state.step + 1,
        video=tokens[0],
        audio=tokens[1],
        video_x0=denoised[0],
        audio_x0=denoised[1],
        carried=carried,
    )


def _euler_move(
    sigmas: Sequence[float], state: State, denoised: Pair, _sides: tuple[StreamLatents, StreamLatents]
) -> tuple[Pair, Mapping[str, Tensor]]:
    sigma, sigma_next = sigmas[state.step], sigmas[state.step + 1]
    video, audio = (euler(x, x0, sigma, sigma_next) for x, x0 in zip((state.video, state.audio), denoised, strict=True))
    return (video, audio), {}


def _ancestral_move(
    sigmas: Sequence[float], state: State, denoised: Pair, sides: tuple[StreamLatents, StreamLatents]
) -> tuple[Pair, Mapping[str, Tensor]]:
    sigma, sigma_next = sigmas[state.step], sigmas[state.step + 1]
    if sigma_next == 0:
        return _own(denoised), state.carried
    noises, after = _draw(state, torch.float32)
    video, audio = (
        kept_clean(ancestral(x, x0, n, sigma, sigma_next), side)
        for x, x0, n, side in zip((state.video, state.audio), denoised, noises, sides, strict=True)
    )
    return (video, audio), {NOISE: after}


def _res_2s_move(
    sigmas: Sequence[float], state: State, denoised: Pair, sides: tuple[StreamLatents, StreamLatents]
) -> tuple[Pair, Mapping[str, Tensor]]:
    """Evaluation 2k is at the level where step k begins, 2k+1 at its midpoint, the last one ends the render."""
    step, half = divmod(state.step, 2)
    if step == len(sigmas) - 1:
        return _own(denoised), {NOISE: state.carried[NOISE]}
    sigma, end = sigmas[step], sigmas[step + 1] or RES_2S_LAST
    noises, after = _draw(state, torch.float64)
    noises = (normalised(noises[0]), normalised(noises[1]))
    dtypes = [x.dtype for x in (state.video, state.audio)]
    found = (denoised[0].double(), denoised[1].double())
    if not half:
        middles, anchors = [], []
        for x, x0, n, side in zip((state.video.double(), state.audio.double()), found, noises, sides, strict=True):
            middle, anchor = res_2s_middle(x, x0, sigma, end, n, side)
            middles.append(middle)
            anchors.append(anchor)
        video, audio = (middle.to(dtype) for middle, dtype in zip(middles, dtypes, strict=True))
        return (video, audio), {NOISE: after, **dict(zip(ANCHORS, anchors, strict=True))}
    assert state.video_x0 is not None and state.audio_x0 is not None, "a midpoint follows a denoised state"
    firsts = (state.video_x0.double(), state.audio_x0.double())
    ends = [
        kept_clean(sde(anchor, res_2s_end(anchor, first, x0, sigma, end), sigma, end, n), side)
        for anchor, first, x0, n, side in zip(
            (state.carried[name].to(found[0].device) for name in ANCHORS), firsts, found, noises, sides, strict=True
        )
    ]
    return (ends[0].to(dtypes[0]), ends[1].to(dtypes[1])), {NOISE: after}


_MOVES = {Sampler.EULER: _euler_move, Sampler.ANCESTRAL: _ancestral_move, Sampler.RES_2S: _res_2s_move}


def euler(
    x: Float[Tensor, "b n c"], x0: Float[Tensor, "b n c"], sigma: float, sigma_next: float
) -> Float[Tensor, "b n c"]:
    """``x + (x - x0) / sigma * (sigma_next - sigma)``; the velocity is rounded to the latents' dtype first."""
    work = torch.promote_types(x.dtype, torch.float32)
    velocity = ((x.to(work) - x0.to(work)) / sigma).to(x.dtype)
    return (x.to(work) + velocity.to(work) * (sigma_next - sigma)).to(x.dtype)


def ancestral(
    x: Float[Tensor, "b n c"],
    x0: Float[Tensor, "b n c"],
    noise: Float[Tensor, "b n c"],
    sigma: float,
    sigma_next: float,
) -> Float[Tensor, "b n c"]:
    """An Euler step to below ``sigma_next``, scaled, and noise up to it (ltx25.md 5.3); work in float32."""
    work = torch.promote_types(x.dtype, torch.float32)
    down = sigma_next * (1 + (sigma_next / sigma - 1) * ETA)
    ratio = (1 - sigma_next) / (1 - down)
    spread = math.sqrt(sigma_next**2 - (down * ratio) ** 2)
    stepped = x0.to(work) + (x.to(work) - x0.to(work)) * (down / sigma)
    return (stepped * ratio + noise.to(work) * spread).to(x.dtype)


def res_2s_middle(
    x: Float[Tensor, "b n c"],
    x0: Float[Tensor, "b n c"],
    sigma: float,
    end: float,
    noise: Float[Tensor, "b n c"],
    side: StreamLatents,
) -> tuple[Float[Tensor, "b n c"], Float[Tensor, "b n c"]]:
    """The noisy midpoint of a step, and the anchor from which its end is reached; all in float64.

    ``x + h a21 (x0 - x)`` with ``h a21 = 1 - middle / sigma``. Where steps are short and not last, the anchor is moved
    so that this equation holds for the noisy midpoint too: the fixed point that 100 iterations come to.
    """
    middle = math.sqrt(sigma * end)
    ratio = middle / sigma
    noisy = kept_clean(sde(x, x * ratio + x0 * (1 - ratio), sigma, middle, noise), side)
    refined = math.log(sigma / end) < REFINED_BELOW_H and sigma > REFINED_ABOVE
    return noisy, (noisy - x0 * (1 - ratio)) / ratio if refined else x


def res_2s_end(
    anchor: Float[Tensor, "b n c"],
    first: Float[Tensor, "b n c"],
    second: Float[Tensor, "b n c"],
    sigma: float,
    end: float,
) -> Float[Tensor, "b n c"]:
    """The end of a step without its noise, from the denoised states at its beginning and at its midpoint."""
    h = math.log(sigma / end)
    phi_1 = -math.expm1(-h) / h
    b_2 = 2 * (math.expm1(-h) + h) / h**2
    return anchor + h * ((phi_1 - b_2) * (first - anchor) + b_2 * (second - anchor))


def sde(
    x: Float[Tensor, "b n c"], target: Float[Tensor, "b n c"], sigma: float, sigma_next: float, noise: Tensor
) -> Float[Tensor, "b n c"]:
    """Replace part of the noise of ``target``, which lies on a straight line from ``x``, by fresh ``noise``."""
    velocity = (x - target) / (sigma - sigma_next)
    x0 = x - sigma * velocity
    up = min(RES_2S_ETA * sigma_next, 0.9999 * sigma_next)
    rest = math.sqrt(sigma_next**2 - up**2)
    ratio = 1 - sigma_next + rest
    return ratio * (x0 + rest / ratio * velocity) + up * noise


def normalised(noise: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
    """Mean 0 and deviation 1 over all, then over the tokens of each channel; a single token stays as it is."""
    noise = (noise - noise.mean()) / noise.std()
    if noise.shape[1] < 2:
        return noise
    return (noise - noise.mean(dim=1, keepdim=True)) / noise.std(dim=1, keepdim=True)


def kept_clean(tokens: Float[Tensor, "b n c"], side: StreamLatents) -> Float[Tensor, "b n c"]:
    """``tokens`` where the mask is 1, the clean latent where it is 0."""
    work = torch.promote_types(tokens.dtype, torch.float32)
    mask = side.mask.to(work)
    return (tokens.to(work) * mask + side.clean.to(work) * (1 - mask)).to(tokens.dtype)


def _own(denoised: Pair) -> Pair:
    """Tensors that share no memory with the denoised states: a state is written to disk as it is."""
    return denoised[0].clone(), denoised[1].clone()


def _draw(state: State, dtype: torch.dtype) -> tuple[Pair, Tensor]:
    """Noise for video, then audio, on the CPU whatever the device; the generator's state after it."""
    generator = torch.Generator()
    generator.set_state(state.carried[NOISE].cpu())
    video, audio = (
        torch.randn(x.shape, generator=generator, dtype=dtype).to(x.device) for x in (state.video, state.audio)
    )
    return (video, audio), generator.get_state()
