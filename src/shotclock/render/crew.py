"""One render on several ranks: rank 0 renders as one process does and leads the others through every forward.

The others hold no run folder, clock or text: they load the model that rank 0 names, begin where it says, and launch
each pass after it has said so. Where rank 0 is stopped, so are they, at the same boundary.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor

from shotclock.device import limit, release
from shotclock.errors import RenderStopped
from shotclock.events import PassBegins, PassEnds, State
from shotclock.guidance import LegName
from shotclock.latents import Latents
from shotclock.model.attention import attention_backends
from shotclock.model.parallel import spread
from shotclock.model.split import Split
from shotclock.model.transformer import Model, Transformer
from shotclock.plan.estimate import Estimate
from shotclock.plan.placement import Placement
from shotclock.recipes import Stage
from shotclock.render.denoise import denoise, prepare
from shotclock.render.given import Given
from shotclock.render.journal import Tick
from shotclock.render.ranks import FORWARDED, Seat
from shotclock.render.snapshot import placed
from shotclock.render.stages import load_fused, to_render
from shotclock.render.together import hear, joined, lost, tell, wait_for_all
from shotclock.weights.checkpoint import CheckpointHeaders
from shotclock.weights.load import Progress

FIRST_PASS_S = 1800.0  # of its kind, without a law: kernels are chosen, NCCL finds its links, nothing was timed yet
FIRST_RATIO = 10.0  # with one: a first pass over a warm one (users.md, row 15)
MEETING_S = 600.0  # until all ranks are there: they import the same from the same disk
LATE_RATIO, LATE_S = 1.5, 40.0  # a pass is late after so many times the longest one before it and these seconds
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Read the transformer anew, with the LoRAs of a stage at ``lora``; ``placement`` is that of every rank."""

    headers: CheckpointHeaders
    given: Given
    lora: float
    dtype: torch.dtype
    pinned_config: bool
    quantise: str | None
    placement: Placement | None

    def transformer(self, device: torch.device, progress: Progress | None = None) -> Transformer:
        """On this rank's device, within what the placement allows."""
        return load_fused(
            self.headers,
            self.given,
            self.lora,
            device=device,
            dtype=self.dtype,
            pinned_config=self.pinned_config,
            placement=self.placement,
            progress=progress,
            quantise=self.quantise,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Begin a stage where rank 0 does: tensors on the CPU. ``passes_before`` and ``steps`` are the render's."""

    stage: Stage
    split: Split
    latents: Latents
    contexts: tuple[Tensor, Tensor]
    state: State
    passes_before: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Launch the pass that was announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Nothing is left to do; ``together`` says whether rank 0 waits for the others to take it in."""

    together: bool


class Crew:
    """Of rank 0: the other ranks of its render. Entering waits until all have joined.

    ``law`` is what the plan expects of warm passes by kind.
    """

    def __init__(self, seat: Seat, device: torch.device, law: Mapping[str, Estimate]) -> None:
        self.seat = seat
        self._first_s = first_pass_s(law)
        self._joined = joined(seat, device_of(seat, device.type))
        self._here = False
        self._begun = 0
        self._longest_s: dict[tuple[LegName, ...], float] = {}

    def __enter__(self) -> Crew:
        self.seat.end_with_starter()
        self.seat.beat()
        self.seat.say("meeting the others", number=0, within_s=MEETING_S)
        self._joined.__enter__()
        self._here = True
        self.seat.say("work before the first pass", number=0, within_s=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.part()
        elif isinstance(error, RenderStopped) and self._here:  # a lease may end while the others still load
            self.seat.part()
            tell(End(together=False))

    def part(self) -> None:
        """The others have done their part and end; between passes only, where they listen."""
        if self._here:
            self._here = False
            self.seat.say("parting from the others", number=self._begun, within_s=LATE_S)
            tell(End(together=True))
            wait_for_all()
            self.seat.part()
            self._joined.__exit__(None, None, None)

    def load(self, load: Load) -> None:
        """The others begin to read their model."""
        tell(replace(load, given=replace(load.given, images=(), sound=None)))

    def begin(self, model: Model, begin: Begin) -> Model:
        """The others begin ``begin`` too; this rank's part of the model."""
        self._longest_s = {}  # another stage may have other tokens
        latents = begin.latents.to(CPU, begin.latents.video.tokens.dtype)
        state = placed(begin.state, latents.video.tokens)
        state = replace(state, carried={name: value.cpu() for name, value in state.carried.items()})
        contexts = begin.contexts[0].cpu(), begin.contexts[1].cpu()
        tell(replace(begin, latents=latents, state=state, contexts=contexts))
        return spread(model, begin.split)

    def heed(self, tick: Tick) -> None:
        """A pass that was announced, and that nobody stopped, is launched by all; how long one took bounds the next."""
        match tick.event:
            case PassBegins(index=index, legs=legs):
                self._begun, longest_s = index, self._longest_s.get(legs)
                late_s = self._first_s if longest_s is None else LATE_RATIO * longest_s + LATE_S
                self.seat.say(f"pass {index}", number=index, within_s=late_s)
                tell(Go())
            case PassEnds(index=index, legs=legs):
                self._longest_s[legs] = max(tick.last_s or 0.0, self._longest_s.get(legs, 0.0))
                self.seat.say(f"the boundary after pass {index}", number=index, within_s=None)


def first_pass_s(law: Mapping[str, Estimate]) -> float:
    """After how many seconds the first pass of a kind is late."""
    longest_s = max((one.high_s for one in law.values()), default=None)
    return FIRST_PASS_S if longest_s is None else FIRST_RATIO * longest_s + LATE_S


def device_of(seat: Seat, kind: str) -> torch.device:
    """Each rank has the CUDA device of its number; all share the CPU."""
    return torch.device(kind, seat.rank) if kind == "cuda" else torch.device(kind)


def follow(seat: Seat, kind: str) -> None:
    """Of every other rank: do as rank 0 says until it says that nothing is left.

    ``kind`` is cuda or cpu. Raises :class:`RenderFailed` where rank 0 or another rank is gone.
    """
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)  # rank 0 hears them, and ends all at a boundary
    seat.end_with_starter()
    seat.beat()
    seat.say("meeting the others", number=0, within_s=None)
    device = device_of(seat, kind)
    try:
        with joined(seat, device), torch.inference_mode(), attention_backends():
            if _follow(seat, device).together:
                wait_for_all()
    except RuntimeError as error:
        if (ours := lost(seat, error)) is None:
            raise
        raise ours from error


def _follow(seat: Seat, device: torch.device) -> End:
    transformer: Transformer | None = None
    seat.say("work before the first pass", number=0, within_s=None)
    while not isinstance(word := hear(), End):
        if isinstance(word, Load):
            seat.say("load-transformer", number=0, within_s=None)
            del transformer
            gc.collect()
            release(device)
            limit(device, None if word.placement is None else word.placement.cap_bytes)
            transformer = word.transformer(device)
        else:
            assert isinstance(word, Begin) and transformer is not None, f"told {type(word).__name__}"
            if (end := _stage(seat, device, transformer, word)) is not None:
                return end
    return word


def _stage(seat: Seat, device: torch.device, transformer: Transformer, begin: Begin) -> End | None:
    """Run what is left of a stage; the word that ended it before."""
    seat.say("the beginning of a stage", number=begin.passes_before, within_s=None)
    latents = begin.latents.to(device, transformer.dtype)
    contexts = begin.contexts[0].to(device), begin.contexts[1].to(device)
    state, stage = placed(begin.state, latents.video.tokens), begin.stage
    model = spread(transformer, begin.split)
    prepared = prepare(model, latents, contexts)
    for one in denoise(model, prepared, stage.schedule(), stage.guidance, state, stage.sampler):
        event = to_render(one, stage, begin.passes_before, begin.steps)
        if isinstance(event, PassBegins):
            seat.say(f"the boundary before pass {event.index}", number=event.index - 1, within_s=None)
            if isinstance(word := hear(), End):
                return word
            seat.say(f"pass {event.index}", number=event.index, within_s=None)
    return None
