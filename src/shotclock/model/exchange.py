"""Tokens of one stream spread over the ranks of a group, and attention among tokens that lie on different ranks.

Ulysses: a rank holds some tokens of every head; for attention it trades them for every token of some heads, and back.
One collective does all of it, with uneven parts: nothing is padded, so nothing has to be masked, neither in
self-attention nor from one stream to the other, and attention keeps its unmasked kernels. Knows no block or leg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed import ProcessGroup, _functional_collectives

from shotclock.model.attention import attend
from shotclock.model.rope import Rotary


def even(total: int, parts: int) -> tuple[int, ...]:
    """``total`` things in ``parts`` consecutive shares that differ by one at most, larger ones first."""
    return tuple(total // parts + (part < total % parts) for part in range(parts))


def bounds(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of consecutive shares."""
    return tuple(pairwise(accumulate(counts, initial=0)))


def trade(sent: Tensor, sending: Sequence[int], receiving: Sequence[int], group: ProcessGroup) -> Tensor:
    """Flat elements: share j of ``sent`` goes to rank j, and share j of the result came from rank j."""
    traded = _functional_collectives.all_to_all_single(sent, list(receiving), list(sending), group)
    return _functional_collectives.wait_tensor(traded)  # type: ignore[no-any-return]


def gather(mine: Tensor, counts: Sequence[int], group: ProcessGroup) -> Tensor:
    """Flat elements of all ranks one after the other; rank j brings ``counts[j]`` of them, possibly none."""
    return trade(mine.repeat(len(counts)), [mine.numel()] * len(counts), counts, group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Consecutive tokens of a stream on each rank: ``counts[rank]`` of them here."""

    group: ProcessGroup
    rank: int
    counts: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of the whole stream."""
        return sum(self.counts)

    def mine(self, x: Tensor, dim: int) -> Tensor:
        """This rank's tokens of a whole tensor, as a view."""
        return x.narrow(dim, sum(self.counts[: self.rank]), self.counts[self.rank])

    def tables(self, table: Rotary) -> Rotary:
        """This rank's rows of position tables."""
        return Rotary(self.mine(table.cos, 2), self.mine(table.sin, 2))

    def whole(self, x: Float[Tensor, "r n c"]) -> Float[Tensor, "r all c"]:
        """The tokens of all ranks, on each."""
        rows, _, width = x.shape
        sizes = [count * rows * width for count in self.counts]
        return gather(x.transpose(0, 1).reshape(-1), sizes, self.group).view(-1, rows, width).transpose(0, 1)

    def whole_heads(self, parts: Sequence[Float[Tensor, "r h n d"]]) -> list[Float[Tensor, "r h all d"]]:
        """Every token of every head, for tensors of one shape, in one exchange."""
        joined = torch.stack([part.flatten(0, 1) for part in parts])  # t, r * h, n, d
        whole = self.whole(joined.flatten(0, 1))
        return list(whole.unflatten(0, (len(parts), *parts[0].shape[:2])))

    def to_heads(self, parts: Sequence[Float[Tensor, "r h n d"]]) -> list[Float[Tensor, "r own all d"]]:
        """Every token of this rank's heads, for tensors of one shape, in one exchange."""
        rows, heads, tokens, width = parts[0].shape
        shares = even(heads, len(self.counts))
        sizes = [share * tokens * len(parts) * rows * width for share in shares]
        sent = parts[0].new_empty(sum(sizes))
        for (start, stop), (first, last) in zip(bounds(sizes), bounds(shares), strict=True):
            slot = sent[start:stop].view(tokens, len(parts), rows, last - first, width)
            for number, part in enumerate(parts):
                slot[:, number].copy_(part[:, first:last].permute(2, 0, 1, 3))
        own = shares[self.rank]
        coming = [count * len(parts) * rows * own * width for count in self.counts]
        traded = trade(sent, sizes, coming, self.group).view(self.tokens, len(parts), rows, own, width)
        return [part.permute(1, 2, 0, 3) for part in traded.unbind(1)]

    def to_tokens(self, x: Float[Tensor, "r own all d"], heads: int) -> Float[Tensor, "r h n d"]:
        """Undo :meth:`to_heads` of one tensor that has ``heads`` heads in all."""
        rows, own, _, width = x.shape
        tokens = self.counts[self.rank]
        shares = even(heads, len(self.counts))
        coming = [share * tokens * rows * width for share in shares]
        sizes = [count * rows * own * width for count in self.counts]
        traded = trade(x.permute(2, 0, 1, 3).reshape(-1), sizes, coming, self.group)
        found = [
            piece.view(tokens, rows, share, width) for piece, share in zip(traded.split(coming), shares, strict=True)
        ]
        return torch.cat(found, dim=2).permute(1, 2, 0, 3)


def attend_spread(
    q: Float[Tensor, "r h n d"],
    k: Float[Tensor, "r h m d"],
    v: Float[Tensor, "r h m d"],
    bias: Float[Tensor, "#r 1 _ _"] | None,
    spread: tuple[Shards, Shards],
) -> Float[Tensor, "r h n d"]:
    """Softmax attention of this rank's queries to the keys of all ranks; ``bias`` is that of all tokens.

    ``spread`` is how queries and keys lie. Fewer keys than queries in all (picture reads sound) are gathered; otherwise
    heads are traded, which moves a rank's share of the keys and no more.
    """
    queries, keys = spread
    if keys.tokens < queries.tokens and bias is None:
        return attend(q, *keys.whole_heads([k, v]))
    heads = q.shape[1]
    if q.shape == k.shape and queries.counts == keys.counts:
        q, k, v = queries.to_heads([q, k, v])
    else:
        (q,), (k, v) = queries.to_heads([q]), keys.to_heads([k, v])
    return queries.to_tokens(attend(q, k, v, bias), heads)
