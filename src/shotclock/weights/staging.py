"""Moves byte ranges of a file onto a device: several readers, a small ring of pinned buffers, asynchronous copies.

``plan_segments`` is pure arithmetic on a header; ``read_segments`` moves bytes and knows nothing of what they mean.
"""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import UInt8
from torch import Tensor

from shotclock.errors import CheckpointError
from shotclock.weights.header import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Host memory that bytes pass through: each reader owns ``buffers`` buffers of ``chunk_bytes``."""

    readers: int
    buffers: int
    chunk_bytes: int

    @property
    def total_bytes(self) -> int:
        """Pinned memory of the whole ring."""
        return self.readers * self.buffers * self.chunk_bytes


RING = Ring(readers=8, buffers=2, chunk_bytes=16 * 2**20)  # 256 MiB; while one buffer is copied, the other is filled
SEGMENT_BYTES = 2**30  # bounds what is held twice while a segment is cast
PROGRESS_S = 1.0  # between two reports of a read that goes on

Progress = Callable[[int, int], None]  # bytes done, of all bytes; called by the thread that waits, and may raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous byte range of a file, ``start`` counted from the file's first byte."""

    start: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a tensor lies: ``offset`` bytes into segment number ``segment``."""

    key: str
    segment: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to read (``segments``) and where the tensors are in it (``placements``), both in the order of the file."""

    segments: tuple[Segment, ...]
    placements: tuple[Placement, ...]

    @property
    def by_segment(self) -> list[list[Placement]]:
        """The placements of each segment."""
        groups: list[list[Placement]] = [[] for _ in self.segments]
        for placement in self.placements:
            groups[placement.segment].append(placement)
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a segment that fits one buffer."""

    segment: int
    offset: int
    nbytes: int


def plan_segments(header: Header, keys: Iterable[str], *, segment_bytes: int = SEGMENT_BYTES) -> Plan:
    """Join the byte ranges of ``keys`` into contiguous segments of at most ``segment_bytes``.

    A segment is cut between tensors only, so a larger tensor has a segment for itself. Empty tensors are left out.
    """
    segments: list[Segment] = []
    placements: list[Placement] = []
    for key, entry in sorted(((key, header.tensors[key]) for key in keys), key=lambda item: item[1].start):
        start, nbytes = header.data_start + entry.start, entry.end - entry.start
        if not nbytes:
            continue
        last = segments[-1] if segments else None
        if last and last.start + last.nbytes == start and last.nbytes + nbytes <= segment_bytes:
            segments[-1] = Segment(start=last.start, nbytes=last.nbytes + nbytes)
        else:
            segments.append(Segment(start=start, nbytes=nbytes))
        offset = start - segments[-1].start
        placements.append(Placement(key=key, segment=len(segments) - 1, offset=offset, nbytes=nbytes))
    return Plan(segments=tuple(segments), placements=tuple(placements))


def pieces(segments: Sequence[Segment], chunk_bytes: int) -> Iterator[Piece]:
    """Cut segments into pieces of at most ``chunk_bytes``, in file order."""
    for number, segment in enumerate(segments):
        for offset in range(0, segment.nbytes, chunk_bytes):
            yield Piece(segment=number, offset=offset, nbytes=min(chunk_bytes, segment.nbytes - offset))


class _Copier(Protocol):
    """Copies from numbered staging buffers; a buffer may be filled again once ``wait`` returned for its number."""

    def wait(self, number: int) -> None: ...
    def copy(self, target: Tensor, source: Tensor, number: int) -> None: ...
    def finish(self) -> None: ...


class _HostCopier:
    """Copies to host memory, at once."""

    def wait(self, number: int) -> None:
        """Nothing is ever in flight."""

    def copy(self, target: Tensor, source: Tensor, number: int) -> None:  # noqa: ARG002  (protocol)
        target.copy_(source)

    def finish(self) -> None:
        """Nothing is ever in flight."""


class _CudaCopier:
    """Copies from pinned memory on a stream of its own, which starts after ``ready``; one event a buffer."""

    def __init__(self, device: torch.device, buffers: int, ready: torch.cuda.Event) -> None:
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_event(ready)
        self._copied = [torch.cuda.Event() for _ in range(buffers)]

    def wait(self, number: int) -> None:
        self._copied[number].synchronize()

    def copy(self, target: Tensor, source: Tensor, number: int) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._copied[number].record(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()


def read_segments(
    path: Path,
    segments: Sequence[Segment],
    *,
    device: torch.device,
    ring: Ring = RING,
    progress: Progress | None = None,
    every_s: float = PROGRESS_S,
) -> list[UInt8[Tensor, " n"]]:
    """Read byte ranges into one uint8 tensor each on ``device``; returns when the last byte is there.

    On a CUDA device the ring is the only pinned allocation. ``progress`` is told every ``every_s`` seconds of a read
    that takes longer. Raises :class:`CheckpointError` where the file ends early, and what ``progress`` raises.
    """
    work: queue.SimpleQueue[Piece] = queue.SimpleQueue()
    for piece in pieces(segments, ring.chunk_bytes):
        work.put(piece)
    if work.empty():
        return []
    ring = replace(ring, readers=min(ring.readers, work.qsize()))
    with torch.inference_mode(False):  # inference tensors could not be written by other threads
        flats = [torch.empty(segment.nbytes, dtype=torch.uint8, device=device) for segment in segments]
        staging = torch.empty(ring.total_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(ring.readers) as pool:
        readers = [
            pool.submit(_drain, file.fileno(), path, segments, flats, work, lane.chunk(ring.buffers), copier)
            for lane, copier in zip(staging.chunk(ring.readers), _copiers(device, ring), strict=True)
        ]
        if progress is not None:
            _report(readers, work, sum(segment.nbytes for segment in segments), ring.chunk_bytes, progress, every_s)
        for reader in readers:
            reader.result()
    return flats


def _report(
    readers: Sequence[Future[None]],
    work: queue.SimpleQueue[Piece],
    total: int,
    chunk_bytes: int,
    progress: Progress,
    every_s: float,
) -> None:
    """Say how far the readers are while they read; a piece counts once a reader has taken it."""
    try:
        while wait(readers, timeout=every_s).not_done:
            progress(max(total - work.qsize() * chunk_bytes, 0), total)
    except BaseException:
        _discard(work)  # whoever was told wants no more
        raise


def _copiers(device: torch.device, ring: Ring) -> list[_Copier]:
    if device.type != "cuda":
        return [_HostCopier() for _ in range(ring.readers)]
    ready = torch.cuda.Event()
    ready.record(torch.cuda.current_stream(device))  # memory just allocated may still be read by queued kernels
    return [_CudaCopier(device, ring.buffers, ready) for _ in range(ring.readers)]


def _drain(
    descriptor: int,
    path: Path,
    segments: Sequence[Segment],
    flats: Sequence[Tensor],
    work: queue.SimpleQueue[Piece],
    buffers: Sequence[Tensor],
    copier: _Copier,
) -> None:
    """One reader: take pieces until none is left, filling one buffer while another is being copied."""
    try:
        for number in itertools.cycle(range(len(buffers))):
            piece = work.get_nowait()
            copier.wait(number)
            source = buffers[number][: piece.nbytes]
            _fill(descriptor, path, source, segments[piece.segment].start + piece.offset)
            copier.copy(flats[piece.segment][piece.offset : piece.offset + piece.nbytes], source, number)
    except queue.Empty:
        copier.finish()
    except BaseException:
        _discard(work)  # the other readers stop at their next piece
        raise


def _discard(work: queue.SimpleQueue[Piece]) -> None:
    try:
        while True:
            work.get_nowait()
    except queue.Empty:
        return


def _fill(descriptor: int, path: Path, target: Tensor, offset: int) -> None:
    view = target.numpy().data
    while view.nbytes:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise changed(path, f"ends at byte {offset:,} while it is read")
        view, offset = view[count:], offset + count


def changed(path: Path, what: str) -> CheckpointError:
    """The error for a file that is no longer what its header said."""
    return CheckpointError(
        f"{path.name} {what}",
        allowed="a file that stays as it is while it is in use",
        way_out="something is still writing to it: let the download finish, then start again",
    )


def raw_read_seconds(
    path: Path, device: torch.device, *, ring: Ring = RING, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds to read the whole file through the same ring into one flat tensor: what loading is compared with."""
    begun = clock()
    read_segments(path, [Segment(start=0, nbytes=path.stat().st_size)], device=device, ring=ring)
    return clock() - begun
