"""The box walker finds every cut and survives anything."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shotclock.verify.boxes import MOST_BOXES, sniff, walk

SEGMENT = b"\x1a\x45\xdf\xa3\x84\x00\x00\x00\x00\x18\x53\x80\x67"
NO_CHECKS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _box(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), name) + body


TRAK = _box(b"trak", _box(b"tkhd", b"t" * 20) + _box(b"mdia", _box(b"minf", _box(b"stbl", _box(b"stsz", b"s" * 12)))))
MOOV = _box(b"moov", _box(b"mvhd", b"m" * 20) + TRAK)
WHOLE = _box(b"ftyp", b"isom0000") + MOOV + _box(b"mdat", b"d" * 100)


def _walk(path: Path, content: bytes, kind: str = "mov") -> object:
    path.write_bytes(content)
    return walk(path, kind)


def test_a_whole_file_ends_where_its_last_box_ends(tmp_path: Path) -> None:
    """Names in order, nothing missing, index in front."""
    path = tmp_path / "a.mp4"
    path.write_bytes(WHOLE)
    found = walk(path, "mov")
    assert (found.names, found.overrun_bytes, found.malformed) == (("ftyp", "moov", "mdat"), 0, None)
    assert found.has_moov
    assert found.starts_fast


@pytest.mark.parametrize("left_out", [1, 50, 99, 100, 107, 108])
def test_every_cut_inside_the_last_box_is_an_overrun(tmp_path: Path, left_out: int) -> None:
    """Down to a single byte; a cut between boxes loses the box instead."""
    path = tmp_path / "a.mp4"
    path.write_bytes(WHOLE[:-left_out])
    found = walk(path, "mov")
    assert (found.overrun_bytes or 0) > 0 or found.names == ("ftyp", "moov")


def test_large_and_open_sizes_are_read(tmp_path: Path) -> None:
    """Size 1 takes 64 bits, size 0 runs to the end."""
    path = tmp_path / "a.mp4"
    last = struct.pack(">I4s", 0, b"moov") + _box(b"mvhd", b"x")
    path.write_bytes(struct.pack(">I4sQ", 1, b"mdat", 20) + b"data" + last)
    found = walk(path, "mov")
    assert (found.names, found.overrun_bytes) == (("mdat", "moov"), 0)
    assert not found.starts_fast


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (WHOLE + b"\x00\x00\x00\x07free", "7 bytes"),
        (WHOLE + b"\x00\x00\x00\x10\x00\x01\x02\x03" + b"x" * 8, "named"),
        (WHOLE + b"\x00\x00", "where a box header belongs"),
        (b"\x00\x00\x00\x08free" * (MOST_BOXES + 2), "more than"),
    ],
)
def test_what_is_no_box_is_malformed(tmp_path: Path, content: bytes, word: str) -> None:
    """Too small, without a name, cut in its header, endless."""
    path = tmp_path / "a.mp4"
    path.write_bytes(content)
    assert word in str(walk(path, "mov").malformed)


@pytest.mark.parametrize("box", [b"mvhd", b"trak", b"mdia", b"minf", b"stbl", b"stsz"])
def test_a_box_that_ends_after_the_one_around_it_is_malformed(tmp_path: Path, box: bytes) -> None:
    """Decoders shrink it without a word; each level on the way to the index."""
    content = bytearray(WHOLE)
    content[WHOLE.index(box) - 2] = 1
    (tmp_path / "a.mp4").write_bytes(content)
    assert "around it" in str(walk(tmp_path / "a.mp4", "mov").malformed)


def test_boxes_nested_without_end_are_walked_without_recursion_error(tmp_path: Path) -> None:
    """A hundred thousand boxes, each in the one before."""
    depth = 100_000
    content = b"".join(struct.pack(">I4s", 8 * left, b"moov") for left in range(depth, 0, -1))
    (tmp_path / "a.mp4").write_bytes(content)
    assert walk(tmp_path / "a.mp4", "mov").malformed is None


def test_a_segment_of_known_size_tells_what_is_missing(tmp_path: Path) -> None:
    """webm and mkv; a live recording does not say."""
    path = tmp_path / "a.webm"
    path.write_bytes(SEGMENT + b"\x8a" + b"x" * 6)
    assert walk(path, "matroska").overrun_bytes == 4
    path.write_bytes(SEGMENT + b"\xff" + b"x" * 6)
    assert walk(path, "matroska").overrun_bytes is None
    path.write_bytes(SEGMENT[:8])
    assert walk(path, "matroska").malformed is not None


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"\x00\x00\x00\x18ftypisom", "mov"),
        (b"\x00\x00\x00\x18moov....", "mov"),
        (b"\x1a\x45\xdf\xa3........", "matroska"),
        (b"RIFF....WAVE", "wav"),
        (b"RIFF....AVI ", None),
        (b"#EXTM3U\nhttp", None),
        (b"ffconcat ver", None),
        (b"", None),
    ],
)
def test_the_bytes_tell_the_kind_and_playlists_are_none(tmp_path: Path, head: bytes, kind: str | None) -> None:
    """A playlist named clip.mp4 would make a decoder open other files and addresses."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(head)
    assert sniff(path) == kind


@NO_CHECKS
@given(content=st.binary(max_size=200), kind=st.sampled_from(["mov", "matroska", "wav"]))
def test_any_bytes_end_in_a_walk(tmp_path: Path, content: bytes, kind: str) -> None:
    """No exception, no endless loop, and nothing missing is negative unless bytes follow."""
    found = _walk(tmp_path / "any", content, kind)
    assert found is not None


@NO_CHECKS
@given(place=st.integers(0, len(WHOLE) - 1), value=st.integers(0, 255), end=st.integers(0, len(WHOLE)))
def test_a_mutated_file_ends_in_a_walk(tmp_path: Path, place: int, value: int, end: int) -> None:
    """One byte changed and the end cut off."""
    content = bytearray(WHOLE)
    content[place] = value
    assert _walk(tmp_path / "mutated", bytes(content[:end])) is not None
