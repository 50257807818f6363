"""One render on several ranks: what answers like a transformer and runs its part of each forward.

All ranks hold the same latents, call with the same arguments and get the same answer, so that whoever drives them, the
denoise loop above all, needs to know nothing of ranks. A rank is a process of torch.distributed; how processes come to
be, end or time out is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from shotclock.guidance import Leg
from shotclock.model.adaln import Times
from shotclock.model.config import TransformerConfig
from shotclock.model.exchange import Shards, even, gather
from shotclock.model.rope import Rotary
from shotclock.model.split import Split
from shotclock.model.transformer import Kept, Model, Stream


class _Several:
    """What several ranks have of the model that each of them holds."""

    def __init__(self, model: Model, group: ProcessGroup) -> None:
        self.model = model
        self.group = group
        self.rank = distributed.get_rank(group)
        self.ranks = distributed.get_world_size(group)

    @property
    def config(self) -> TransformerConfig:
        """Of the model."""
        return self.model.config

    @property
    def dtype(self) -> torch.dtype:
        """Of states and latents."""
        return self.model.dtype

    def video_rotary(self, positions: Float[Tensor, "b 3 n 2"]) -> tuple[Rotary, Rotary]:
        """Tables of all tokens."""
        return self.model.video_rotary(positions)

    def audio_rotary(self, positions: Float[Tensor, "b 1 m 2"]) -> tuple[Rotary, Rotary]:
        """Tables of all tokens."""
        return self.model.audio_rotary(positions)


class LegsOverRanks(_Several):
    """Each rank runs the legs whose home it is, in one launch a pass; one gather a pass tells all of them the rest.

    Bit for bit one process that launches the same groups of legs: as many legs a pass as ranks is one leg a launch.
    ``homes`` names every leg of a step (:func:`shotclock.model.split.share_legs`).
    """

    def __init__(self, model: Model, group: ProcessGroup, homes: Mapping[Leg, int]) -> None:
        super().__init__(model, group)
        self.homes = dict(homes)

    def __call__(
        self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept | None = None, later: Sequence[Leg] = ()
    ) -> tuple[Float[Tensor, "r n c"], Float[Tensor, "r m c"]]:
        """Velocities as :meth:`Transformer.forward` gives them; ``kept`` holds what this rank's legs share."""
        assert len(video.tokens) == 1, "samples are not spread over ranks, legs are"
        n, m = video.tokens.shape[1], audio.tokens.shape[1]
        v, a = self.config.video_out, self.config.audio_out
        mine = video.tokens.new_empty(0, n * v + m * a)
        if own := self._own(legs):
            found = self.model(video, audio, own, kept=kept, later=self._own(later))
            mine = torch.cat([velocity.flatten(1) for velocity in found], dim=1)
        order = [leg for rank in range(self.ranks) for leg in legs if self.homes[leg] == rank]
        counts = [sum(self.homes[leg] == rank for leg in legs) * mine.shape[1] for rank in range(self.ranks)]
        rows = gather(mine.flatten(), counts, self.group).view(len(legs), -1)
        rows = torch.stack([rows[order.index(leg)] for leg in legs])
        return rows[:, : n * v].unflatten(1, (n, v)), rows[:, n * v :].unflatten(1, (m, a))

    def keep(self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept, later: Sequence[Leg]) -> None:
        """What this rank's ``later`` legs share with those of ``legs`` that are its own; nothing is exchanged."""
        own, own_later = self._own(legs), self._own(later)
        if own and own_later:
            self.model.keep(video, audio, own, kept=kept, later=own_later)

    def _own(self, legs: Sequence[Leg]) -> list[Leg]:
        return [leg for leg in legs if self.homes[leg] == self.rank]


class SequenceParallel(_Several):
    """Each rank runs all rows on its share of the tokens of both streams; attention is exchanged within blocks.

    Shares differ by a token where tokens do not divide; heads may be uneven too. ``kept`` holds states of own tokens.
    """

    def __call__(
        self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept | None = None, later: Sequence[Leg] = ()
    ) -> tuple[Float[Tensor, "r n c"], Float[Tensor, "r m c"]]:
        """Velocities of all tokens, as :meth:`Transformer.forward` gives them."""
        videos, audios = self._shards(video), self._shards(audio)
        v, a = self.model(piece_of(video, videos), piece_of(audio, audios), legs, kept=kept, later=later)
        return videos.whole(v), audios.whole(a)

    def keep(self, video: Stream, audio: Stream, legs: Sequence[Leg], *, kept: Kept, later: Sequence[Leg]) -> None:
        """As :meth:`Transformer.keep`, of this rank's tokens."""
        videos, audios = self._shards(video), self._shards(audio)
        self.model.keep(piece_of(video, videos), piece_of(audio, audios), legs, kept=kept, later=later)

    def _shards(self, stream: Stream) -> Shards:
        counts = even(stream.tokens.shape[1], self.ranks)
        assert min(counts) > 0, f"{sum(counts)} tokens for {self.ranks} ranks"
        return Shards(group=self.group, rank=self.rank, counts=counts)


def piece_of(stream: Stream, shards: Shards) -> Stream:
    """This rank's tokens of a stream; texts and masks of attention are whole everywhere."""
    index = stream.times.index
    return replace(
        stream,
        tokens=shards.mine(stream.tokens, 1),
        times=Times(stream.times.values, None if index is None else shards.mine(index, 1)),
        rotary=(shards.tables(stream.rotary[0]), shards.tables(stream.rotary[1])),
        marker=None if stream.marker is None else shards.mine(stream.marker, 1),
        shards=shards,
    )


def spread(model: Model, split: Split) -> Model:
    """This rank's part of ``split``; every process of the default group calls it at the same point.

    Neighbouring ranks share tokens, where most is exchanged; ranks at the same place of their groups share legs.
    """
    world, rank = distributed.get_world_size(), distributed.get_rank()
    assert split.ranks == world, f"a split for {split.ranks} ranks among {world}"
    tokens = [list(range(start, start + split.sequence)) for start in range(0, world, split.sequence)]
    legs = [list(range(place, world, split.sequence)) for place in range(split.sequence)]
    if split.sequence > 1:
        model = SequenceParallel(model, _group_of(rank, tokens))
    if split.share.ranks > 1:
        model = LegsOverRanks(model, _group_of(rank, legs), split.share.homes)
    return model


def _group_of(rank: int, members: Sequence[Sequence[int]]) -> ProcessGroup:
    """The group that ``rank`` is in; all are made everywhere, in the same order, as torch asks for."""
    groups: list[ProcessGroup] = [distributed.new_group(list(ranks)) for ranks in members]
    return next(group for group, ranks in zip(groups, members, strict=True) if rank in ranks)
