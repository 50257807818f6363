"""Clips damaged at random, the same ones each time: every one ends in a verdict that can be written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shotclock.verify.bases import Screen
from shotclock.verify.cases import PLAIN_TAPE
from shotclock.verify.reader import Limits
from shotclock.verify.rules import Outcome
from shotclock.verify.selftest import synthetic_base
from shotclock.verify.tape import write_clip
from shotclock.verify.verdict import Verdict
from shotclock.verify.verifier import judge

FUZZ = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LIMITS = Limits(kept_pixels=5_000_000, frame_pixels=1 << 20, frames=1000, samples=1_000_000)
PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"dinf"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip of a few kilobytes, to be mutated."""
    base = synthetic_base("mosaic", Screen(width=64, height=64, frames=9))
    return write_clip(tmp_path_factory.mktemp("tiny") / "a.mp4", base.frames, base.sound, PLAIN_TAPE)


def _judged(path: Path, content: bytes) -> Verdict:
    path.write_bytes(content)
    verdict = judge(path, limits=LIMITS)
    assert verdict.to_document().to_json()
    return verdict


@FUZZ
@given(end=st.integers(12, 100_000))
def test_a_clip_cut_anywhere_fails(tiny: Path, tmp_path: Path, end: int) -> None:
    """FAIL at every length but the whole one."""
    whole = tiny.read_bytes()
    content = whole[: max(end % len(whole), 12)]
    assert _judged(tmp_path / "cut.mp4", content).outcome is Outcome.FAIL


@FUZZ
@given(places=st.lists(st.tuples(st.integers(8, 1 << 20), st.integers(0, 255)), min_size=1, max_size=30))
def test_a_clip_with_any_bytes_changed_ends_in_a_verdict(
    tiny: Path, tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    """Headers, index and packets alike."""
    content = bytearray(tiny.read_bytes())
    for place, value in places:
        content[8 + place % (len(content) - 8)] = value
    assert _judged(tmp_path / "mutated.mp4", bytes(content))


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """What is done to which box: (kind, box, place in its content, value)."""
    kinds = st.sampled_from(["size", "name", "number", "delete", "double"])
    numbers = st.sampled_from([0, 1, 2, 7, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
    one = st.tuples(kinds, st.integers(0, 99), st.integers(0, 199), numbers)
    return draw(st.lists(one, min_size=1, max_size=4))


def _boxes(content: bytes, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(first byte, size) of every box, those inside of others too."""
    while begin + 8 <= end:
        size, name = struct.unpack_from(">I4s", content, begin)
        if size < 8 or begin + size > end:
            return
        yield begin, size
        if name in PARENTS:
            yield from _boxes(content, begin + 8, begin + size)
        begin += size


def _mutate(content: bytes, kind: str, which: int, place: int, value: int) -> bytes:
    found = [*_boxes(content, 0, len(content))] or [(0, len(content))]
    begin, size = found[which % len(found)]
    number = struct.pack(">I", value)
    match kind:
        case "size":
            return content[:begin] + number + content[begin + 4 :]
        case "name":
            return content[: begin + 4] + number + content[begin + 8 :]
        case "number":
            at = begin + 8 + place % max(size - 8, 1)
            return content[:at] + number + content[at + 4 :]
        case "delete":
            return content[:begin] + content[begin + size :] if begin else content
    return content[: begin + size] + content[begin : begin + size] + content[begin + size :]


@FUZZ
@given(changes=mutations())
def test_a_clip_with_mutated_boxes_ends_in_a_verdict(
    tiny: Path, tmp_path: Path, changes: list[tuple[str, int, int, int]]
) -> None:
    """Sizes, names, counts and offsets of the index; boxes that are missing or there twice."""
    content = tiny.read_bytes()
    for change in changes:
        content = _mutate(content, *change)
    content = content if content[4:8] == b"ftyp" else tiny.read_bytes()[:8] + content
    assert _judged(tmp_path / "mutated.mp4", content)
