"""The guided loop: a generator that evaluates the model at level after level and says what it does.

It knows no clock, budget, file or callback (design.md, "the denoise loop speaks, the governor listens"). A pass is
announced before it is launched. What an evaluation makes of the latents is the matter of samplers.py. Equations of
ltx25.md section 5.2; roundings of section 1.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from shotclock.events import LegsEnd, PassBegins, PassEnds, State, StepEnds
from shotclock.guidance import Guidance, Guider, LegName, Pass, combine
from shotclock.latents import Latents, StreamLatents
from shotclock.model.adaln import Times
from shotclock.model.rope import Rotary
from shotclock.model.transformer import Kept, Model, Stream
from shotclock.render.samplers import kept_clean, move
from shotclock.schedule import Sampler, evaluations


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
    transformer: Model, latents: Latents, contexts: tuple[Float[Tensor, "k s d"], Float[Tensor, "k s e"]]
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
    transformer: Model,
    prepared: tuple[Prepared, Prepared],
    sigmas: Float[Tensor, " n"],
    guidance: Guidance,
    start: State,
    sampler: Sampler = Sampler.EULER,
) -> Iterator[PassBegins | PassEnds | LegsEnd | StepEnds]:
    """Run from ``start.step`` to the end of ``sigmas``; the last :class:`StepEnds` holds the clean latents.

    A step here is an evaluation of the model, of which a step of res_2s has two. ``start`` is the state of an earlier
    run, or what :func:`~shotclock.render.samplers.begin` makes. Legs that ``start`` holds are not run again, bit for
    bit as if the render had never stopped: what later passes share with them is computed once more, in the same
    launches.
    """
    ends = [float(sigma) for sigma in sigmas]
    levels = (*evaluations(sampler, ends), 0.0)
    steps = len(levels) - 1
    blocks = transformer.config.blocks
    state, index = start, sum(len(guidance.passes(step, blocks)) for step in range(start.step))
    for step in range(start.step, steps):
        passes = guidance.passes(step, blocks)
        kept: Kept = {}
        for number, launch in enumerate(passes):
            index += 1
            later = [name for p in passes[number + 1 :] for name in p.legs]
            step_pass = _Launch(launch=launch, later=later, sigma=levels[step], kept=kept)
            if set(launch.legs) <= set(state.legs):
                _keep_again(transformer, prepared, state, guidance, step_pass)
                continue
            said = {"index": index, "step": step + 1, "steps": steps, "legs": launch.legs}
            yield PassBegins(**said)  # type: ignore[arg-type]
            state = _predict(transformer, prepared, state, guidance, step_pass)
            if later:
                yield PassEnds(**said)  # type: ignore[arg-type]
                yield LegsEnd(state=state)
            else:
                state = advance(prepared, state, guidance, sampler, ends)
                yield PassEnds(**said)  # type: ignore[arg-type]
        if not passes:
            state = advance(prepared, state, guidance, sampler, ends)
        yield StepEnds(steps=steps, sigma=levels[step + 1], state=state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """One pass at ``sigma``, the legs of the step's later passes, and the states they share."""

    launch: Pass
    later: Sequence[LegName]
    sigma: float
    kept: Kept

    def streams(self, prepared: tuple[Prepared, Prepared], state: State) -> tuple[Stream, Stream]:
        """Both streams' sides of the forward."""
        return (
            prepared[0].stream(state.video, self.sigma, enabled=self.launch.video),
            prepared[1].stream(state.audio, self.sigma, enabled=self.launch.audio),
        )


def _predict(
    transformer: Model,
    prepared: tuple[Prepared, Prepared],
    state: State,
    guidance: Guidance,
    step_pass: _Launch,
) -> State:
    """Launch one pass and add the denoised state of its legs, ``x0 = x - v t`` per token."""
    legs = guidance.legs(transformer.config.blocks)
    names = step_pass.launch.legs
    streams = step_pass.streams(prepared, state)
    later = [legs[name] for name in step_pass.later]
    velocities = transformer(*streams, [legs[name] for name in names], kept=step_pass.kept, later=later)

    def denoised(side: int) -> dict[LegName, Tensor]:
        x, velocity = streams[side].tokens, velocities[side]
        times = prepared[side].latents.mask * (0.0 if prepared[side].latents.frozen else step_pass.sigma)
        work = torch.promote_types(x.dtype, torch.float32)
        return {
            name: (x.to(work) - velocity[row : row + 1].to(work) * times.to(work)).to(x.dtype)
            for row, name in enumerate(names)
        }

    return replace(
        state,
        video_legs={**state.video_legs, **denoised(0)},
        audio_legs={**state.audio_legs, **denoised(1)},
    )


def _keep_again(
    transformer: Model,
    prepared: tuple[Prepared, Prepared],
    state: State,
    guidance: Guidance,
    step_pass: _Launch,
) -> None:
    """Recompute what later passes share with a pass that ended before the render was interrupted."""
    legs = guidance.legs(transformer.config.blocks)
    later = [legs[name] for name in step_pass.later]
    done = [legs[name] for name in step_pass.launch.legs]
    transformer.keep(*step_pass.streams(prepared, state), done, kept=step_pass.kept, later=later)


def advance(
    prepared: tuple[Prepared, Prepared],
    state: State,
    guidance: Guidance,
    sampler: Sampler,
    sigmas: Sequence[float],
) -> State:
    """Combine the legs of both streams and let the sampler move the latents."""

    def denoised(side: int, guider: Guider, legs: Mapping[LegName, Tensor], last: Tensor | None) -> Tensor:
        if not guider.runs(state.step):
            assert last is not None, "the first step always runs"
            return last
        latents = prepared[side].latents
        work = torch.promote_types(latents.clean.dtype, torch.float32)
        return kept_clean(combine(legs, guider, work).to(latents.clean.dtype), latents)

    found = (
        denoised(0, guidance.video, state.video_legs, state.video_x0),
        denoised(1, guidance.audio, state.audio_legs, state.audio_x0),
    )
    return move(sampler, sigmas, state, found, (prepared[0].latents, prepared[1].latents))
