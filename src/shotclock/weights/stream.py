"""Blocks that do not fit on the device: their weights arrive there while earlier blocks compute, bit for bit the same.

Some blocks stay on the device; the others pass through two slots that are filled in turn by copies on a stream of their
own, from page-locked host memory or from wherever they lie, mapped file pages among them. All legs of a pass ride on
one passage of the weights. Knows modules and tensors: no header, plan or request.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from shotclock.errors import RequestError
from shotclock.model.block import Block
from shotclock.model.transformer import Transformer
from shotclock.weights.load import Progress

SLOTS = 2  # one computes while the other is filled
ALIGNMENT = 512  # bytes, as torch's allocators align on a device: kernels are chosen by it, and with them the bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one parameter lies in the bytes of its block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Without padding."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, flat: Tensor) -> Tensor:
        """The parameter within the bytes of a block."""
        return flat[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the weights of a block are packed: all but its tables, which a forward reads of all blocks at once."""

    places: tuple[Place, ...]

    @property
    def nbytes(self) -> int:
        """Of one block, and so of one slot."""
        return _aligned(self.places[-1].offset + self.places[-1].nbytes)

    @staticmethod
    def of(block: nn.Module, dtype: torch.dtype | None = None) -> Layout:
        """In the order of the module; in ``dtype`` where weights are cast on their way."""
        places: list[Place] = []
        offset = 0
        for name, tensor in _weights(block).items():
            place = Place(name=name, dtype=dtype or tensor.dtype, shape=tuple(tensor.shape), offset=offset)
            places.append(place)
            offset = _aligned(offset + place.nbytes)
        return Layout(places=tuple(places))

    def pack(self, weights: Mapping[str, Tensor], flat: Tensor) -> None:
        """Copy a block's weights into ``flat``, cast where the layout has another dtype."""
        for place in self.places:
            place.view(flat).copy_(weights[place.name])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _weights(block: nn.Module) -> dict[str, Tensor]:
    """Parameters of a block's layers; those of the block itself are its tables."""
    return {name: parameter.data for name, parameter in block.named_parameters() if "." in name}


def streamed_blocks(blocks: int, resident: int) -> tuple[int, ...]:
    """Which blocks pass through slots when ``resident`` fit on the device, slots among them; none when all fit.

    Spread evenly, so that between two copies there is as much to compute as possible. Raises :class:`RequestError`
    below two, where nothing could be copied while something computes.
    """
    if resident < min(SLOTS, blocks):
        raise RequestError(
            f"{resident} resident blocks", allowed=f"{SLOTS} to {blocks}", way_out="2 needs least memory on the device"
        )
    if resident >= blocks:
        return ()
    count = blocks - (resident - SLOTS)
    return tuple(number * blocks // count for number in range(count))


def page_locked(nbytes: int, device: torch.device) -> Tensor:
    """Host bytes that ``device`` copies from by itself; plain ones where that is no CUDA device.

    Registered, not taken from torch's pinned allocator, which would round 0.8 GB up to 1.
    """
    flat = torch.empty(nbytes, dtype=torch.uint8)
    if device.type == "cuda":
        runtime: Any = torch.cuda.cudart()
        torch.cuda.check_error(int(runtime.cudaHostRegister(flat.data_ptr(), nbytes, 0)))
        weakref.finalize(flat, runtime.cudaHostUnregister, flat.data_ptr())
    return flat


class Source(Protocol):
    """Where a streamed block's bytes come from; called by one thread, ``slot`` after its last copy was ``sent``."""

    def bytes_of(self, block: int, slot: int) -> Tensor: ...


class HostSource:
    """Every streamed block packed in page-locked memory, once; the host holds them all."""

    def __init__(
        self,
        blocks: Mapping[int, Mapping[str, Tensor]],
        layout: Layout,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        self.flats: dict[int, Tensor] = {}
        for number, weights in blocks.items():
            self.flats[number] = page_locked(layout.nbytes, device)
            layout.pack(weights, self.flats[number])
            if progress is not None:
                progress(len(self.flats) * layout.nbytes, len(blocks) * layout.nbytes)

    def bytes_of(self, block: int, slot: int) -> Tensor:  # noqa: ARG002  (protocol)
        """The packed block."""
        return self.flats[block]


class FileSource:
    """Blocks stay where they lie, as a rule in pages of the mapped file; each is packed when it is wanted."""

    def __init__(
        self,
        blocks: Mapping[int, Mapping[str, Tensor]],
        layout: Layout,
        device: torch.device,
        progress: Progress | None = None,  # noqa: ARG002  (as HostSource; nothing is read before the first pass)
    ) -> None:
        self._blocks, self._layout = blocks, layout
        self._staging = [page_locked(layout.nbytes, device) for _ in range(SLOTS)]

    def bytes_of(self, block: int, slot: int) -> Tensor:
        """The block, packed into the slot's staging buffer; reads the file where its pages are not in memory."""
        self._layout.pack(self._blocks[block], self._staging[slot])
        return self._staging[slot]


class Copies(Protocol):
    """Copies into numbered slots and their order with computing; a thread of its own calls ``sent`` and ``send``."""

    def sent(self, slot: int) -> None: ...
    def send(self, slot: int, target: Tensor, source: Tensor) -> None: ...
    def arrived(self, slot: int) -> None: ...
    def used(self, slot: int) -> None: ...


class HostCopies:
    """To host memory, at once: what was sent has arrived, what was computed is over."""

    def sent(self, slot: int) -> None:
        """Nothing is ever in flight."""

    def send(self, slot: int, target: Tensor, source: Tensor) -> None:  # noqa: ARG002  (protocol)
        """Copy now."""
        target.copy_(source)

    def arrived(self, slot: int) -> None:
        """Nothing is ever in flight."""

    def used(self, slot: int) -> None:
        """Nothing is ever in flight."""


class CudaCopies:
    """On a stream of their own; the host waits for none of them, events order the two streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._free = [torch.cuda.Event() for _ in range(SLOTS)]
        self._here = [torch.cuda.Event() for _ in range(SLOTS)]
        for slot in range(SLOTS):
            self.used(slot)  # memory just allocated may still be read by queued kernels

    def sent(self, slot: int) -> None:
        """Wait until the slot's last copy has left its source."""
        self._here[slot].synchronize()

    def send(self, slot: int, target: Tensor, source: Tensor) -> None:
        """Copy once the slot's last block was computed."""
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._free[slot])
            target.copy_(source, non_blocking=True)
            self._here[slot].record(self._stream)

    def arrived(self, slot: int) -> None:
        """What is launched from here on finds the weights."""
        torch.cuda.current_stream(self._device).wait_event(self._here[slot])

    def used(self, slot: int) -> None:
        """What was launched up to here still needs them."""
        self._free[slot].record(torch.cuda.current_stream(self._device))


class Passage:
    """The slots and what is in them. ``copied`` counts blocks that were sent, for the record and for tests."""

    def __init__(
        self, order: Sequence[int], shells: Sequence[tuple[Tensor, nn.Module]], source: Source, copies: Copies
    ) -> None:
        assert len(shells) == SLOTS < len(order), f"{len(shells)} slots for {len(order)} blocks"
        self.copied = 0
        self._order = tuple(order)
        self._shells, self._source, self._copies = shells, source, copies
        self._holds: list[int | None] = [None] * SLOTS
        self._coming: list[Future[None]] = [Future() for _ in range(SLOTS)]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")  # ends when nothing refers to it any more

    def run(self, block: int, *arguments: Any) -> Any:
        """What the block makes of ``arguments``; then its slot takes the next block that no slot holds."""
        if block not in self._holds:  # the first pass, or one that begins elsewhere than the last one ended
            self._fill(self._ahead(block, SLOTS))
        slot = self._holds.index(block)
        self._coming[slot].result()
        self._copies.arrived(slot)
        found = self._shells[slot][1](*arguments)
        self._copies.used(slot)
        self._fill(self._ahead(block, SLOTS + 1)[1:])
        return found

    def _fill(self, ahead: Sequence[int]) -> None:
        """Fetch what is missing of the blocks that pass next, into slots that hold none of them."""
        missing = [block for block in ahead if block not in self._holds]
        spare = [slot for slot, block in enumerate(self._holds) if block not in ahead]
        for slot, block in zip(spare, missing, strict=True):
            self._fetch(slot, block)

    def _ahead(self, block: int, count: int) -> list[int]:
        """``block`` and those that pass after it, the first ones again after the last."""
        at = self._order.index(block)
        return [self._order[(at + step) % len(self._order)] for step in range(count)]

    def _fetch(self, slot: int, block: int) -> None:
        self._holds[slot] = block
        self._coming[slot] = self._thread.submit(self._move, slot, block)
        self.copied += 1

    def _move(self, slot: int, block: int) -> None:
        self._copies.sent(slot)
        self._copies.send(slot, self._shells[slot][0], self._source.bytes_of(block, slot))


class StreamedBlock(nn.Module):
    """Stands where a block was: its tables, and its place in the passage of weights."""

    def __init__(self, block: nn.Module, number: int, passage: Passage) -> None:
        super().__init__()
        for name, table in block.named_parameters(recurse=False):
            self.register_parameter(name, nn.Parameter(table.data, requires_grad=False))
        self.number = number
        self.passage = passage

    def forward(self, *arguments: Any) -> Any:
        """As the block that it stands for."""
        return self.passage.run(self.number, *arguments)


def copies_to(device: torch.device) -> Copies:
    """Those that suit the device."""
    return CudaCopies(device) if device.type == "cuda" else HostCopies()


def stream(
    transformer: Transformer,
    device: torch.device,
    copies: Copies,
    *,
    resident: int,
    from_file: bool,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Passage | None:
    """Make ``transformer`` compute on ``device`` with at most ``resident`` blocks there; in place.

    The blocks of :func:`streamed_blocks` lie on the host, with LoRAs fused. ``from_file`` leaves them where they are;
    otherwise all are packed into page-locked memory. ``dtype`` is what they are cast to on their way, None as they
    are. All else is moved. Returns None when all blocks fit.
    """
    order = streamed_blocks(len(transformer.transformer_blocks), resident)
    with torch.inference_mode(False), torch.no_grad():  # slots outlive the block that a caller may be in
        passage = None
        if order:
            blocks = {number: transformer.transformer_blocks[number] for number in order}
            layout = Layout.of(blocks[order[0]], dtype)
            for number, block in blocks.items():
                assert Layout.of(block, dtype) == layout, f"block {number} is laid out otherwise than {order[0]}"
                on_host = all(weight.device.type == "cpu" for weight in _weights(block).values())
                assert on_host, f"block {number} is not on the host"
            weights = {number: _weights(block) for number, block in blocks.items()}
            source: Source = (FileSource if from_file else HostSource)(weights, layout, device, progress)
            passage = pass_through(transformer, order, layout, source, device, copies)
        transformer.to(device)
    return passage


def pass_through(
    transformer: Transformer,
    order: Sequence[int],
    layout: Layout,
    source: Source,
    device: torch.device,
    copies: Copies,
) -> Passage:
    """Put a :class:`StreamedBlock` in place of each block in ``order``, whose weights come from ``source``."""
    passage = Passage(order, [_shell(transformer, layout, device) for _ in range(SLOTS)], source, copies)
    for number in order:
        block = transformer.transformer_blocks[number]
        transformer.transformer_blocks[number] = StreamedBlock(block, number, passage)
    return passage


class Lent:
    """A module whose weights lie on the host and come to ``device`` for each of its forwards only, cast to ``dtype``.

    Nothing is prefetched: for layers whose copies take longer than they compute. The module stays as it is otherwise.
    """

    def __init__(self, module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self._home = [(tensor, tensor.data) for tensor in (*module.parameters(), *module.buffers())]
        self._device, self._dtype = device, dtype
        module.register_forward_pre_hook(self._come)
        module.register_forward_hook(self._go)

    def _come(self, *_: object) -> None:
        with torch.inference_mode(False), torch.no_grad():  # as weights are loaded
            for tensor, home in self._home:
                tensor.data = home.to(self._device, self._dtype if home.is_floating_point() else home.dtype)

    def _go(self, *_: object) -> None:
        for tensor, home in self._home:
            tensor.data = home


def lend(modules: Iterable[nn.Module], device: torch.device, dtype: torch.dtype) -> None:
    """Each of ``modules`` on ``device`` by itself, for as long as it computes."""
    for module in modules:
        Lent(module, device, dtype)


def _shell(transformer: Transformer, layout: Layout, device: torch.device) -> tuple[Tensor, nn.Module]:
    """The bytes of a slot, and a block without tables whose weights are views of them."""
    flat = torch.empty(layout.nbytes, dtype=torch.uint8, device=device)
    with torch.device("meta"):
        shell = Block(transformer.config)
    for name, _ in list(shell.named_parameters(recurse=False)):
        delattr(shell, name)
    shell.load_state_dict({place.name: place.view(flat) for place in layout.places}, strict=True, assign=True)
    return flat, shell.eval().requires_grad_(False)
