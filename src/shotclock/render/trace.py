"""Finds the block and the leg in which the first number of a forward stops being finite (``--trace-nonfinite``).

Hooks on the transformer's modules while a context is open, and none outside of it: what is not traced costs nothing.
A traced forward reads back one flag a module and stream. Knows no sampler, file or clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shotclock.guidance import Leg, LegName
from shotclock.model.transformer import Transformer

STREAMS = ("video", "audio")


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFiniteAt:
    """The first output with NaN or Inf: its module, stream and legs, the counts, and weights that are not finite.

    ``legs`` are all whose states those rows are: legs share a row up to the first block that tells them apart. Empty
    where the legs have not parted from each other yet.
    """

    where: str
    stream: str
    legs: tuple[LegName, ...]
    nans: int
    infinities: int
    values: int
    weights: tuple[str, ...]

    def __str__(self) -> str:
        legs = f", legs {', '.join(self.legs)}" if self.legs else ""
        counts = f"{self.nans} NaN and {self.infinities} Inf of {self.values} values"
        cause = f"weights that are not finite: {', '.join(self.weights)}" if self.weights else "its weights are finite"
        return f"{self.where}, {self.stream} stream{legs}: {counts}; {cause}"


class Trace:
    """What a traced stretch has found so far; only the first finding is kept."""

    def __init__(self, legs: Mapping[LegName, Leg]) -> None:
        self.found: NonFiniteAt | None = None
        self._legs = dict(legs)

    def see(
        self, where: str, module: nn.Module | None, outputs: Sequence[Tensor], rows: Sequence[Leg] = (), block: int = 0
    ) -> None:
        """Check the streams' outputs of one module; ``rows`` are the legs of their rows as they are before ``block``.

        What attention swallows is not seen: PyTorch 2.13's CPU kernel gives zeros for a query of NaN.
        """
        for stream, output in zip(STREAMS, outputs, strict=False):
            if self.found is None and not bool(output.isfinite().all()):
                self.found = NonFiniteAt(
                    where=where,
                    stream=stream,
                    legs=self._names(output, rows, block),
                    nans=int(output.isnan().sum()),
                    infinities=int(output.isinf().sum()),
                    values=output.numel(),
                    weights=() if module is None else _broken_weights(module),
                )

    def _names(self, output: Tensor, rows: Sequence[Leg], block: int) -> tuple[LegName, ...]:
        """Legs of the rows that are not finite."""
        if len(output) == len(rows):
            wrong = (~output.isfinite()).flatten(1).any(dim=1).tolist()
            rows = [row for row, is_wrong in zip(rows, wrong, strict=True) if is_wrong]
        histories = [row.history(block) for row in rows]
        return tuple(name for name, leg in self._legs.items() if leg.history(block) in histories)


def _broken_weights(module: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, weight in module.named_parameters() if not bool(weight.float().isfinite().all()))


@contextmanager
def tracing(transformer: Transformer, legs: Mapping[LegName, Leg]) -> Iterator[Trace]:
    """Trace every forward inside the block; ``legs`` are the guidance's, by name.

    Looks, in the order of a forward, at latents and contexts, the conditions, each block, and the velocities.
    """
    trace = Trace(legs)
    with ExitStack() as stack:

        def watch(handle: torch.utils.hooks.RemovableHandle) -> None:
            stack.callback(handle.remove)

        watch(transformer.register_forward_pre_hook(_inputs(trace)))
        for name, module in transformer.named_children():
            if name not in ("transformer_blocks", "proj_out", "audio_proj_out"):  # blocks and the end: by themselves
                watch(module.register_forward_hook(_part(trace, name)))
        for number, block in enumerate(transformer.transformer_blocks):
            watch(block.register_forward_hook(_block(trace, number)))
        watch(transformer.register_forward_hook(_end(trace, transformer)))
        yield trace


def _inputs(trace: Trace) -> Any:
    def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        video, audio = arguments[:2]
        trace.see("latents", None, (video.tokens, audio.tokens))
        trace.see("contexts", None, (video.context, audio.context))

    return hook


def _part(trace: Trace, name: str) -> Any:
    """Before the legs part: a module of one stream, told by its name."""

    def hook(module: nn.Module, _: tuple[Any, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        joined = torch.cat([part.flatten() for part in ([output] if isinstance(output, Tensor) else output)])
        unseen = joined.new_zeros(0)
        is_audio = name.startswith("audio_") or "_audio_" in name or "v2a" in name
        trace.see(name, module, (unseen, joined) if is_audio else (joined, unseen))

    return hook


def _block(trace: Trace, number: int) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        trace.see(f"block {number}", module, outputs, rows=arguments[4], block=number + 1)

    return hook


def _end(trace: Trace, transformer: Transformer) -> Any:
    def hook(_: nn.Module, arguments: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
        head = nn.ModuleDict({"proj_out": transformer.proj_out, "audio_proj_out": transformer.audio_proj_out})
        trace.see("velocity", head, outputs, rows=arguments[2], block=transformer.config.blocks)

    return hook
