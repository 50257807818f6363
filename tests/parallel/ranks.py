"""Runs guided forwards on one, two, three and four gloo processes and saves what each rank found; see test_parallel.py.

Imports the model and the loop alone, once, and forks a process a rank: no import and no thread is paid twice. A
collective that waits for more than its time raises, and a rank that raises ends with another code than 0.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, distributed

from shotclock.events import LegsEnd, State, StepEnds
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider, Leg
from shotclock.latents import noise, text_to_video
from shotclock.model.adaln import Times
from shotclock.model.config import StreamShape, TransformerConfig
from shotclock.model.parallel import LegsOverRanks, SequenceParallel, spread
from shotclock.model.split import Share, Split, share_legs
from shotclock.model.transformer import Kept, Model, Stream, Transformer
from shotclock.render.denoise import denoise, prepare
from shotclock.render.ranks import Seat
from shotclock.render.together import hear, joined, tell, wait_for_all
from shotclock.schedule import sigmas

WAIT_S = 60.0  # a collective that waits longer fails the test
WORLDS = (1, 2, 3, 4)
BLOCKS = 3
STG_BLOCK = 2  # the cond and the perturbed leg are one leg before it
STEPS = 2
CONFIG = TransformerConfig(
    blocks=BLOCKS,
    video=StreamShape(heads=4, head_dim=12),
    audio=StreamShape(heads=4, head_dim=6),
    video_in=128,
    video_out=128,
    audio_in=128,
    audio_out=128,
    video_context=48,
    audio_context=24,
    norm_eps=1e-6,
    theta=10000.0,
    max_position=(20, 2048, 2048),
    audio_max_position=20,
    timestep_scale=1000.0,
    cross_timestep_scale=1.0,
    ff_bias=False,
    audio_ff_bias=True,
    keyframe_embedding=True,
)
TOKENS = {"divide": (12, 12), "do not divide": (13, 7), "more sound": (5, 11)}  # of video and audio
CLIP = Geometry(width=96, height=32, frames=17, fps=Fraction(24))  # 9 video tokens: three ranks divide them, two do not


def random_model() -> Transformer:
    """Float32 weights of order one, tables and biases too."""
    model = Transformer(CONFIG)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            parameter.data.normal_(1, 0.1, generator=generator)
        elif parameter.ndim == 1 or "table" in name or "keyframes" in name:
            parameter.data.normal_(0, 0.3, generator=generator)
        else:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def guidance(legs_per_pass: int) -> Guidance:
    """All four legs; the perturbed one forks late."""
    guider = Guider(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(STG_BLOCK,))
    return Guidance(video=guider, audio=guider, legs_per_pass=legs_per_pass)


def passes_of(of: Guidance) -> list[list[Leg]]:
    """Legs of each launch of a step."""
    legs = of.legs(BLOCKS)
    return [[legs[name] for name in launch.legs] for launch in of.passes(0, BLOCKS)]


class Grouped:
    """One process that launches legs in the groups that ranks would: what two ranks are compared with."""

    def __init__(self, model: Transformer, share: Share) -> None:
        self.model, self.share = model, share
        self.config, self.dtype = model.config, model.dtype
        self.video_rotary, self.audio_rotary, self.keep = model.video_rotary, model.audio_rotary, model.keep

    def __call__(
        self, video: Stream, audio: Stream, legs: list[Leg], *, kept: Kept, later: list[Leg]
    ) -> tuple[Tensor, Tensor]:
        assert not later
        found = {}
        for rank in range(self.share.ranks):
            own = [leg for leg in legs if self.share.homes[leg] == rank]
            v, a = self.model(video, audio, own, kept=kept)
            found |= {leg: (v[row], a[row]) for row, leg in enumerate(own)}
        return torch.stack([found[leg][0] for leg in legs]), torch.stack([found[leg][1] for leg in legs])


def loop(model: Model, of: Guidance, boundary: int | None = None) -> list[Tensor]:
    """Both latents after all steps; with ``boundary`` the loop is left after so many and goes on from the state."""
    latents = text_to_video(CLIP, *noise(CLIP, 3)).to(torch.device("cpu"), torch.float32)
    generator = torch.Generator().manual_seed(7)
    texts = [torch.randn(2, 6, width, generator=generator) for width in (CONFIG.video_context, CONFIG.audio_context)]
    prepared = prepare(model, latents, (texts[0], texts[1]))
    start = State(step=0, video=latents.video.tokens, audio=latents.audio.tokens)
    found = [event.state for event in denoise(model, prepared, sigmas(STEPS), of, start) if is_boundary(event)]
    if boundary is not None:
        state = found[boundary]
        found = [event.state for event in denoise(model, prepared, sigmas(STEPS), of, state) if is_boundary(event)]
    return [found[-1].video, found[-1].audio]


def is_boundary(event: object) -> bool:
    return isinstance(event, StepEnds | LegsEnd)


def streams(model: Model, tokens: tuple[int, int]) -> tuple[Stream, Stream]:
    """Both sides of a forward in which nothing is uniform: times, keyframe marks, masks."""
    generator = torch.Generator().manual_seed(sum(tokens))

    def side(count: int, axes: int, text: int, *, is_video: bool) -> Stream:
        start = torch.rand(1, axes, count, 1, generator=generator) * 10
        positions = torch.cat([start, start + 1], dim=-1)
        return Stream(
            tokens=torch.randn(1, count, 128, generator=generator),
            times=Times.of((torch.arange(count)[None] % 3) / 4).scaled(0.7),
            sigma=torch.tensor([0.7]),
            rotary=model.video_rotary(positions) if is_video else model.audio_rotary(positions),
            context=torch.randn(2, 6, text, generator=generator),
            marker=(torch.arange(count)[None, :, None] % 4 == 0).float() if is_video else None,
            self_mask=(torch.rand(1, count, count, generator=generator) > 0.3).float() if is_video else None,
            context_mask=torch.tensor([[1.0] * 6, [1.0] * 4 + [0.0] * 2]),
        )

    return side(tokens[0], 3, CONFIG.video_context, is_video=True), side(
        tokens[1], 1, CONFIG.audio_context, is_video=False
    )


def forwards(model: Model) -> dict[str, list[Tensor]]:
    """Velocities of four legs in one pass without masks, and with them in two passes that share a prefix."""
    found = {}
    for name, tokens in TOKENS.items():
        both = streams(model, tokens)
        free = tuple(replace(one, self_mask=None, context_mask=None) for one in both)
        found[f"{name}, one pass"] = list(model(*free, *passes_of(guidance(4))))
        kept: Kept = {}
        first, second = passes_of(guidance(2))
        found[f"{name}, masks, first pass"] = list(model(*both, first, kept=kept, later=second))
        found[f"{name}, masks, second pass"] = list(model(*both, second, kept=kept))
    return found


def alone(model: Transformer) -> dict[str, list[Tensor]]:
    """What one process finds."""
    return {
        "loop, one leg a pass": loop(model, guidance(1)),
        "loop, groups of two ranks": loop(Grouped(model, share_legs(passes_of(guidance(4)), 2, BLOCKS)), guidance(4)),
        **forwards(model),
    }


def together(model: Transformer, world: int) -> dict[str, list[Tensor]]:
    """What each rank of ``world`` finds, under the names of what it must equal."""
    everyone = distributed.group.WORLD
    found = {}
    for per_pass in sorted({1, world, 4} if world == 2 else {world}):
        of = guidance(per_pass)
        share = share_legs(passes_of(of), world, BLOCKS)
        legs = LegsOverRanks(model, everyone, share.homes)
        found[f"legs, {per_pass} a pass"] = loop(legs, of, boundary=0 if per_pass == world < 4 else None)
    tokens = SequenceParallel(model, everyone)
    if world < 4:  # two divide what three do not, and the other way round
        found |= forwards(tokens)
        found["tokens, loop"] = loop(tokens, guidance(2), boundary=0)
    else:
        share = share_legs(passes_of(guidance(4)), 2, BLOCKS)
        found["legs and tokens"] = loop(spread(model, Split(share=share, sequence=2, step=0.0)), guidance(4))
    return found


def told(rank: int) -> Mapping[str, Tensor]:
    """What rank 0 told, on every rank."""
    word = MappingProxyType({"word": torch.arange(5.0)})
    if rank:
        return hear()
    tell(word)
    return word


def rank_of(rank: int, world: int, folder: Path) -> None:
    """One process: joins its world, runs, saves."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        if world == 1:
            found = alone(random_model())
        else:
            seat = Seat(rank=rank, ranks=world, said=-1, alive=-1, rendezvous=folder / f"world-{world}")
            with joined(seat, torch.device("cpu"), timeout_s=WAIT_S):
                found = together(random_model(), world)
                found["told"] = [told(rank)["word"]]
                wait_for_all()
    torch.save(found, folder / f"{world}-{rank}.pt")


def main(folder: Path) -> int:
    """Fork the ranks of one world after the other; 1 when any of them failed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    failed = 0
    for world in WORLDS:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    rank_of(rank, world, folder)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        failed |= any(os.waitpid(child, 0)[1] for child in children)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
