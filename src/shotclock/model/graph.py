"""A transformer whose passes are replayed as CUDA graphs: a thousand launches become one.

The first pass of a kind runs eagerly (and counts like any other), the second is captured, all later ones replay it. The
same kernels run on the same shapes, so results are those of the eager pass. Knows no sampler; CUDA only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shotclock.guidance import Leg
from shotclock.model.transformer import Kept, Stream, Transformer

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Captured:
    """A graph, the tensors it reads its changing inputs from, and those it leaves its velocities in."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, Tensor]


class GraphedTransformer:
    """Same call as :class:`Transformer`. Passes that share prefixes with other passes run eagerly."""

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.config = transformer.config
        self._seen: set[Key] = set()
        self._captured: dict[Key, Captured] = {}

    def __call__(
        self,
        video: Stream,
        audio: Stream,
        legs: Sequence[Leg],
        *,
        kept: Kept | None = None,
        later: Sequence[Leg] = (),
    ) -> tuple[Tensor, Tensor]:
        """Velocities; new tensors that the next call does not overwrite."""
        key = (tuple(legs), _constants(video), _constants(audio))
        if kept or later:
            return self.transformer(video, audio, legs, kept=kept, later=later)  # type: ignore[no-any-return]
        if key not in self._seen:
            self._seen.add(key)
            return self.transformer(video, audio, legs)  # type: ignore[no-any-return]
        if key not in self._captured:
            self._captured[key] = self._capture(video, audio, legs)
        captured = self._captured[key]
        for static, fresh in zip(captured.inputs, _changing(video, audio), strict=True):
            static.copy_(fresh)
        captured.graph.replay()
        return captured.outputs[0].clone(), captured.outputs[1].clone()

    def _capture(self, video: Stream, audio: Stream, legs: Sequence[Leg]) -> Captured:
        torch.cuda.empty_cache()  # the graph takes memory of its own: let it have what the eager pass left
        inputs = tuple(tensor.clone() for tensor in _changing(video, audio))
        fixed = []
        for stream, (tokens, values, sigma) in ((video, inputs[:3]), (audio, inputs[3:])):
            fixed.append(replace(stream, tokens=tokens, times=replace(stream.times, values=values), sigma=sigma))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self.transformer(fixed[0], fixed[1], legs)
        return Captured(graph, inputs, outputs)


def _changing(video: Stream, audio: Stream) -> tuple[Tensor, ...]:
    """What differs from step to step."""
    return tuple(x for s in (video, audio) for x in (s.tokens, s.times.values, s.sigma))


def _constants(stream: Stream) -> Key:
    """What must be the same tensors for a graph to be replayed: the constants of a render."""
    tensors = (stream.context, stream.marker, stream.self_mask, stream.context_mask, stream.times.index)
    shapes = (stream.tokens.shape, stream.times.values.shape, stream.enabled)
    return (*(0 if x is None else x.data_ptr() for x in tensors), stream.rotary[0].cos.data_ptr(), *shapes)
