"""The sampler: a generator that runs the guided Euler loop and says what it does.

It knows no clock, budget, file or callback (design.md, "the denoise loop speaks, the governor listens"). A pass is
announced before it is launched. Equations of ltx25.md section 5.2; roundings of section 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.events import PassBegins, PassEnds, State, StepEnds
from shotclock.guidance import Guidance, Guider, LegName, Pass, combine
from shotclock.latents import Latents, StreamLatents
from shotclock.model.adaln import Times
from shotclock.model.rope import Rotary
from shotclock.model.transformer import Kept, Stream, Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Constants of one stream's render: latents, distinct mask values, position tables, texts (positive, negative)."""

    latents: StreamLatents
    mask: Times
    rotary: tuple[Rotary, Rotary]
    context: Float[Tensor, "k s d"]

    def stream(self, tokens: Tensor, sigma: float, *, enabled: bool) -> Stream:
        """The stream's side of a forward at ``sigma``: per-token times are mask * sigma; a frozen stream is at 0."""
        own = 0.0 if self.latents.frozen else sigma
        return Stream(
            tokens=tokens,
            times=self.mask.scaled(own),
            sigma=torch.full((1,), own, device=tokens.device),
            rotary=self.rotary,
            context=self.context,
            marker=self.latents.marker,
            enabled=enabled,
        )


def prepare(
    transformer: Transformer, latents: Latents, contexts: tuple[Float[Tensor, "k s d"], Float[Tensor, "k s e"]]
) -> tuple[Prepared, Prepared]:
    """Position tables and mask values of both streams, once a render."""
    video, audio = latents.video, latents.audio
    return (
        Prepared(
            latents=video,
            mask=Times.of(video.mask[..., 0]),
            rotary=transformer.video_rotary(video.positions),
            context=contexts[0],
        ),
        Prepared(
            latents=audio,
            mask=Times.of(audio.mask[..., 0]),
            rotary=transformer.audio_rotary(audio.positions),
            context=contexts[1],
        ),
    )


def denoise(
    transformer: Transformer,
    prepared: tuple[Prepared, Prepared],
    sigmas: Float[Tensor, " n"],
    guidance: Guidance,
    start: State,
) -> Iterator[PassBegins | PassEnds | StepEnds]:
    """Run steps ``start.step`` to the end of ``sigmas``; the last :class:`StepEnds` holds the clean latents."""
    levels = [float(sigma) for sigma in sigmas]
    steps = len(levels) - 1
    blocks = transformer.config.blocks
    state, index = start, sum(len(guidance.passes(step, blocks)) for step in range(start.step))
    for step in range(start.step, steps):
        passes = guidance.passes(step, blocks)
        predictions: tuple[dict[LegName, Tensor], dict[LegName, Tensor]] = ({}, {})
        kept: Kept = {}
        for number, launch in enumerate(passes):
            index += 1
            said = {"index": index, "step": step + 1, "steps": steps, "legs": launch.legs}
            yield PassBegins(**said)  # type: ignore[arg-type]
            later = [name for p in passes[number + 1 :] for name in p.legs]
            _predict(transformer, prepared, state, levels[step], guidance, launch, later, kept, predictions)
            if number == len(passes) - 1:
                state = advance(prepared, state, predictions, guidance, levels[step], levels[step + 1])
            yield PassEnds(**said)  # type: ignore[arg-type]
        if not passes:
            state = advance(prepared, state, predictions, guidance, levels[step], levels[step + 1])
        yield StepEnds(steps=steps, sigma=levels[step + 1], state=state)


def _predict(
    transformer: Transformer,
    prepared: tuple[Prepared, Prepared],
    state: State,
    sigma: float,
    guidance: Guidance,
    launch: Pass,
    later: list[LegName],
    kept: Kept,
    predictions: tuple[dict[LegName, Tensor], dict[LegName, Tensor]],
) -> None:
    """Launch one pass and add the denoised state of its legs, ``x0 = x - v t`` per token, to ``predictions``."""
    legs = guidance.legs(transformer.config.blocks)
    streams = (
        prepared[0].stream(state.video, sigma, enabled=launch.video),
        prepared[1].stream(state.audio, sigma, enabled=launch.audio),
    )
    velocities = transformer(
        *streams, [legs[name] for name in launch.legs], kept=kept, later=[legs[name] for name in later]
    )
    for side, velocity in enumerate(velocities):
        x = streams[side].tokens
        times = prepared[side].latents.mask * (0.0 if prepared[side].latents.frozen else sigma)
        for row, name in enumerate(launch.legs):
            v = velocity[row : row + 1]
            work = torch.promote_types(x.dtype, torch.float32)
            predictions[side][name] = (x.to(work) - v.to(work) * times.to(work)).to(x.dtype)


def advance(
    prepared: tuple[Prepared, Prepared],
    state: State,
    predictions: tuple[Mapping[LegName, Tensor], Mapping[LegName, Tensor]],
    guidance: Guidance,
    sigma: float,
    sigma_next: float,
) -> State:
    """Combine the legs of both streams and take the Euler step from ``sigma`` to ``sigma_next``."""

    def denoised(side: int, guider: Guider, last: Tensor | None) -> Tensor:
        if not guider.runs(state.step):
            assert last is not None, "the first step always runs"
            return last
        latents = prepared[side].latents
        work = torch.promote_types(latents.clean.dtype, torch.float32)
        guided = combine(predictions[side], guider, work).to(work)
        mask = latents.mask.to(work)
        return (guided * mask + latents.clean.to(work) * (1 - mask)).to(latents.clean.dtype)

    video_x0 = denoised(0, guidance.video, state.video_x0)
    audio_x0 = denoised(1, guidance.audio, state.audio_x0)
    return State(
        step=state.step + 1,
        video=euler(state.video, video_x0, sigma, sigma_next),
        audio=euler(state.audio, audio_x0, sigma, sigma_next),
        video_x0=video_x0 if guidance.video.skip_step else None,
        audio_x0=audio_x0 if guidance.audio.skip_step else None,
    )


def euler(
    x: Float[Tensor, "b n c"], x0: Float[Tensor, "b n c"], sigma: float, sigma_next: float
) -> Float[Tensor, "b n c"]:
    """``x + (x - x0) / sigma * (sigma_next - sigma)``; the velocity is rounded to the latents' dtype first."""
    work = torch.promote_types(x.dtype, torch.float32)
    velocity = ((x.to(work) - x0.to(work)) / sigma).to(x.dtype)
    return (x.to(work) + velocity.to(work) * (sigma_next - sigma)).to(x.dtype)
