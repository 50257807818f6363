"""Names the parts of a forward from outside: while a context is open, and at no cost and without a trace otherwise.

The functions and methods of the model that a part consists of are replaced by themselves inside a marker, and put back.
What a marker does is the caller's matter: a range of the profiler (:func:`named`) or a count (count.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from shotclock.model import attention, block, quantise
from shotclock.model.adaln import AdaLayerNormSingle
from shotclock.model.linear import Linear
from shotclock.model.transformer import Transformer
from shotclock.render import denoise

STEP, PASS, AT, DO = "shotclock step ", "shotclock pass ", "shotclock at ", "shotclock do "  # how ranges begin


class At(StrEnum):
    """Places: what a stretch of the forward is for."""

    SELF = "self"
    TEXT = "text"
    CROSS = "cross-modal"
    FEED = "feed-forward"
    CONDITIONS = "conditions"
    ENDS = "embedding and head"
    GUIDANCE = "guidance"


class Do(StrEnum):
    """Work: what an operation is."""

    ATTEND = "attend"
    PROJECT = "project"
    NORM = "norm"


class Part(StrEnum):
    """The parts of a step, each kernel in exactly one."""

    SELF = "self-attention"
    TEXT = "text attention"
    CROSS = "cross-modal attention"
    FEED = "feed-forward"
    PROJECT = "projections"
    NORM = "norms and modulation"
    GUIDANCE = "guidance"
    OTHER = "other"


ATTENTIONS = {At.SELF: Part.SELF, At.TEXT: Part.TEXT, At.CROSS: Part.CROSS}


def part_of(at: str | None, do: str | None) -> Part:
    """The part of the innermost place and the innermost work; element-wise work between named operations is a norm."""
    if at == At.FEED:
        return Part.FEED
    if at == At.GUIDANCE:
        return Part.GUIDANCE
    if do == Do.ATTEND:
        return ATTENTIONS.get(At(at), Part.OTHER) if at else Part.OTHER
    if do == Do.PROJECT:
        return Part.PROJECT
    return Part.NORM if do == Do.NORM or at is not None else Part.OTHER


@dataclass(frozen=True, slots=True)
class Marked:
    """``owner.name`` is part of ``label``."""

    owner: Any
    name: str
    label: At | Do


MARKED = (
    Marked(block.Block, "_self", At.SELF),
    Marked(block.Block, "_text", At.TEXT),
    Marked(block, "across", At.CROSS),
    Marked(block.FeedForward, "forward", At.FEED),
    Marked(Transformer, "_conditions", At.CONDITIONS),
    Marked(Transformer, "_head", At.ENDS),
    Marked(Transformer, "embed", At.ENDS),
    Marked(AdaLayerNormSingle, "forward", At.CONDITIONS),
    Marked(denoise, "advance", At.GUIDANCE),
    Marked(block, "attend", Do.ATTEND),
    Marked(block, "modulate", Do.NORM),
    Marked(block, "add_gated", Do.NORM),
    Marked(block, "add_modulate", Do.NORM),
    Marked(attention, "norm_rotate", Do.NORM),
    Marked(attention, "gate_merge", Do.NORM),
    Marked(Linear, "forward", Do.PROJECT),
    Marked(block, "linear_gelu", Do.PROJECT),
    Marked(quantise.RowScaledLinear, "forward", Do.PROJECT),
)

# Told the label, the arguments, and a function that runs the part; returns what the part returns.
Marker = Callable[[At | Do, tuple[Any, ...], Callable[[], Any]], Any]


@contextmanager
def marked(marker: Marker) -> Iterator[None]:
    """Within it every part of :data:`MARKED` runs inside ``marker``, on this and every other transformer."""
    before = [(one, one.name in vars(one.owner), getattr(one.owner, one.name)) for one in MARKED]
    try:
        for one, _, original in before:
            setattr(one.owner, one.name, _inside(marker, one.label, original))
        yield
    finally:
        for one, own, original in before:
            if own:
                setattr(one.owner, one.name, original)
            else:
                delattr(one.owner, one.name)  # inherited


def _inside(marker: Marker, label: At | Do, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*arguments: Any, **named_arguments: Any) -> Any:
        return marker(label, arguments, lambda: original(*arguments, **named_arguments))

    return run


def named() -> AbstractContextManager[None]:
    """Within it every part is a range of torch's profiler."""

    def range_of(label: At | Do, _: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        with torch.profiler.record_function((AT if isinstance(label, At) else DO) + label):
            return run()

    return marked(range_of)


def pass_range(legs: str) -> AbstractContextManager[object]:
    """The range of one pass."""
    return torch.profiler.record_function(PASS + legs)
