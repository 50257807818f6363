"""Byte ranges: planned without gap or overlap, and read through a small ring exactly as they are in the file."""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_files import refusal, write_headed

from shotclock.weights.header import Header, read_header
from shotclock.weights.load import load_tensors
from shotclock.weights.staging import (
    RING,
    Ring,
    Segment,
    pieces,
    plan_segments,
    raw_read_seconds,
    read_segments,
)

CPU = torch.device("cpu")
sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def header_of(folder: Path, sizes: list[int]) -> Header:
    """A file with byte tensors of the given sizes, named by number."""
    tensors = {f"{number:02}": ("U8", (size,)) for number, size in enumerate(sizes)}
    return read_header(write_headed(folder / "plan.safetensors", tensors))


@settings(max_examples=200, deadline=None)
@given(sizes=sizes, segment_bytes=st.integers(1, 120), chosen=st.randoms(use_true_random=False))
def test_segments_hold_exactly_the_wanted_bytes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], segment_bytes: int, chosen: random.Random
) -> None:
    """For any tensors, any subset in any order and any limit: each wanted byte once, in file order, nothing else."""
    header = header_of(tmp_path_factory.getbasetemp(), sizes)
    keys = chosen.sample(sorted(header.tensors), chosen.randint(1, len(sizes)))
    plan = plan_segments(header, keys, segment_bytes=segment_bytes)
    read = [byte for segment in plan.segments for byte in range(segment.start, segment.start + segment.nbytes)]
    wanted = [
        header.data_start + byte
        for key in sorted(keys)
        for byte in range(header.tensors[key].start, header.tensors[key].end)
    ]
    assert read == wanted
    for placement in plan.placements:
        entry, segment = header.tensors[placement.key], plan.segments[placement.segment]
        assert segment.start + placement.offset == header.data_start + entry.start
        assert placement.nbytes == entry.end - entry.start
        assert placement.offset + placement.nbytes <= segment.nbytes


@settings(max_examples=200, deadline=None)
@given(sizes=sizes, segment_bytes=st.integers(1, 120))
def test_segments_are_as_few_as_the_limit_allows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], segment_bytes: int
) -> None:
    """A segment exceeds the limit only with a single tensor; neighbours could not have been joined."""
    header = header_of(tmp_path_factory.getbasetemp(), sizes)
    plan = plan_segments(header, header.tensors, segment_bytes=segment_bytes)
    groups = plan.by_segment
    for segment, group in zip(plan.segments, groups, strict=True):
        assert segment.nbytes <= segment_bytes or len(group) == 1
        assert sum(placement.nbytes for placement in group) == segment.nbytes
    for left, right in zip(plan.segments, groups[1:], strict=False):
        assert left.nbytes + right[0].nbytes > segment_bytes


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(0, 50), max_size=5), chunk_bytes=st.integers(1, 60))
def test_pieces_cover_each_segment_once(sizes: list[int], chunk_bytes: int) -> None:
    """Pieces follow one another, fit a buffer, and add up to their segment."""
    segments = [Segment(start=7 * number, nbytes=size) for number, size in enumerate(sizes)]
    found = list(pieces(segments, chunk_bytes))
    for number, segment in enumerate(segments):
        own = [piece for piece in found if piece.segment == number]
        covered = [byte for piece in own for byte in range(piece.offset, piece.offset + piece.nbytes)]
        assert covered == list(range(segment.nbytes))
        assert all(0 < piece.nbytes <= chunk_bytes for piece in own)


@settings(max_examples=40, deadline=None)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 100)), max_size=6),
    readers=st.integers(1, 4),
    buffers=st.integers(1, 3),
    chunk_bytes=st.integers(1, 64),
)
def test_any_ring_reads_what_is_in_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    ranges: list[tuple[int, int]],
    readers: int,
    buffers: int,
    chunk_bytes: int,
) -> None:
    """Whatever the number of readers and the size of their buffers, the bytes are those of the file."""
    path = tmp_path_factory.getbasetemp() / "ring.bin"
    content = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(32))
    path.write_bytes(content)
    ring = Ring(readers=readers, buffers=buffers, chunk_bytes=chunk_bytes)
    segments = [Segment(start=start, nbytes=nbytes) for start, nbytes in ranges]
    flats = read_segments(path, segments, device=CPU, ring=ring)
    found = [bytes(flat.numpy()) for flat in flats] if any(nbytes for _, nbytes in ranges) else [b""] * len(ranges)
    assert found == [content[start : start + nbytes] for start, nbytes in ranges]


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    """A file that shrank since its header was read stops all readers with our error."""
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    refusal(
        lambda: read_segments(
            path, [Segment(start=0, nbytes=200)], device=CPU, ring=Ring(readers=2, buffers=2, chunk_bytes=8)
        ),
        found="ends at byte 1",
        allowed="stays as it is",
        way_out="still writing",
    )


def test_the_ring_is_small() -> None:
    """All pinned memory of a load is 256 MiB, whatever the file."""
    assert RING.total_bytes == 256 * 2**20


def test_buffers_do_not_outgrow_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small read takes no more readers than it has pieces."""
    taken: list[int] = []
    empty = torch.empty

    def counting(*size: int, **options: object) -> torch.Tensor:
        taken.append(size[0])
        return empty(*size, **options)  # type: ignore[call-overload,no-any-return]  # passed through

    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    monkeypatch.setattr(torch, "empty", counting)
    read_segments(path, [Segment(start=0, nbytes=100)], device=CPU, ring=Ring(readers=8, buffers=2, chunk_bytes=60))
    assert max(taken) == 2 * 2 * 60


def test_raw_read_is_timed_with_the_given_clock(tmp_path: Path) -> None:
    """The baseline is the difference of two readings of the clock."""
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    readings = iter([10.0, 12.5])
    assert raw_read_seconds(path, CPU, clock=lambda: next(readings)) == 2.5


@pytest.mark.gpu
def test_loading_takes_little_longer_than_reading(tmp_path: Path) -> None:
    """From a warm page cache, open to last tensor is at most 1.3 times reading into pinned memory and copying it."""
    device = torch.device("cuda")
    tensors = {f"{number:03}": ("BF16", (4096, 4096)) for number in range(128)}
    path = write_headed(tmp_path / "f.safetensors", tensors)
    raw, load = [], []
    for _ in range(4):  # the first round warms page cache and allocators
        raw.append(raw_read_seconds(path, device))
        begun = time.perf_counter()
        header = read_header(path)
        loaded = load_tensors(header, {key: key for key in header.tensors}, device=device, dtype=None)
        load.append(time.perf_counter() - begun)
        del loaded
    assert min(load[1:]) <= 1.3 * min(raw[1:])


def test_a_long_read_says_how_far_it_is_and_can_be_ended(tmp_path: Path) -> None:
    """Reported by the thread that waits, never backwards; what the listener raises ends the read."""
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 64)
    segments = [Segment(start=0, nbytes=path.stat().st_size)]
    ring = Ring(readers=1, buffers=1, chunk_bytes=16)
    seen: list[tuple[int, int]] = []
    read_segments(path, segments, device=CPU, ring=ring, progress=lambda *said: seen.append(said), every_s=0.0)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(0 <= done <= total == 2**14 for done, total in seen)

    def stop(_done: int, _total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        for _ in range(1000):  # a read that is over before anybody waits says nothing
            read_segments(path, segments, device=CPU, ring=ring, progress=stop, every_s=0.0)
