"""Walks the boxes of an mp4 or mov, or the segment of a webm or mkv, to see whether the file is whole.

Reads a few bytes per box and trusts none of them. Knows no decoder and judges nothing. Finds what decoders miss:
``ffmpeg -v error -i f -f null -`` ends with 0 on an mp4 that was cut in half (verify.md section 0).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_BOXES = 100_000  # in one box: a film of fragments has a few thousand; more is an attempt to keep us busy
MOST_NAMES = 16  # kept of a malformed file
EBML_ID, SEGMENT_ID = 0x1A45DFA3, 0x18538067  # RFC 8794, RFC 9559
SIGNATURES = ((4, b"ftyp", "mov"), (0, b"\x1a\x45\xdf\xa3", "matroska"), (0, b"RIFF", "wav"), (0, b"fLaC", "flac"))
OLD_MOV_BOXES = (b"moov", b"mdat", b"wide", b"free", b"skip")  # QuickTime files before ftyp
PRINTABLE = range(0x20, 0x7F)
INNER = {"moov": "trak", "trak": "mdia", "mdia": "minf", "minf": "stbl", "stbl": ""}  # boxes that hold boxes only


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxWalk:
    """Top-level names in order, bytes missing at the end (``None``: the file does not say), and what is malformed."""

    names: tuple[str, ...]
    overrun_bytes: int | None
    malformed: str | None

    @property
    def has_moov(self) -> bool:
        """An mp4 without ``moov`` cannot be played."""
        return "moov" in self.names

    @property
    def starts_fast(self) -> bool:
        """``moov`` before ``mdat``: a browser can begin before the end has arrived."""
        return self.has_moov and "mdat" in self.names and self.names.index("moov") < self.names.index("mdat")


def sniff(path: Path) -> str | None:
    """The demuxer's name by the first bytes: mov, matroska, wav, flac, or ``None``; the file's name is not believed."""
    with path.open("rb") as file:
        head = file.read(12)
    for offset, magic, name in SIGNATURES:
        if head[offset : offset + len(magic)] == magic:
            return name if name != "wav" or head[8:12] == b"WAVE" else None
    return "mov" if head[4:8] in OLD_MOV_BOXES else None


def walk(path: Path, kind: str) -> BoxWalk:
    """The structure of a ``mov`` or ``matroska`` file; another kind has none that is read here."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if kind == "mov":
            return _walk_boxes(file, size)
        if kind == "matroska":
            return _walk_segment(file, size)
    return BoxWalk(names=(), overrun_bytes=None, malformed=None)


class _Malformed(Exception):
    """What is wrong with a box, and where."""


def _walk_boxes(file: BinaryIO, size: int) -> BoxWalk:
    """Top-level boxes may run over the end of a file that was cut; those inside them fill their box exactly."""
    names: list[str] = []
    end = 0
    try:
        for name, begin, end in _boxes(file, 0, size):
            names.append(name)
            if name == "moov" and end <= size:
                _require_whole(file, name, begin, end)
    except _Malformed as wrong:
        return BoxWalk(names=tuple(names[:MOST_NAMES]), overrun_bytes=None, malformed=str(wrong))
    return BoxWalk(names=tuple(names), overrun_bytes=end - size, malformed=None)


def _boxes(file: BinaryIO, position: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """(name, first byte of the content, first byte after it) of the boxes from ``position`` on.

    ISO/IEC 14496-12 section 4.2: 32-bit size, type; size 1: 64 bits follow, size 0: to the end.
    """
    for _ in range(MOST_BOXES):
        if position >= stop:
            return
        file.seek(position)
        header = file.read(16)
        if len(header) < 8:
            raise _Malformed(f"{len(header)} bytes at byte {position} where a box header belongs")
        length, name = struct.unpack(">I4s", header[:8])
        if any(byte not in PRINTABLE and byte != 0xA9 for byte in name):
            raise _Malformed(f"a box named {name!r} at byte {position}")
        begin = position + 8
        if length == 1 and len(header) == 16:
            length, begin = struct.unpack(">Q", header[8:])[0], position + 16
        elif length == 0:
            length = stop - position
        if position + length < begin:
            raise _Malformed(f"a box of {length} bytes at byte {position}")
        yield name.decode("latin-1"), begin, position + length
        position += length
    raise _Malformed(f"more than {MOST_BOXES} boxes")


def _require_whole(file: BinaryIO, name: str, begin: int, end: int) -> None:
    """Raise where a box on the way to the index runs over the end of the one around it."""
    for inner, first, after in _boxes(file, begin, end):
        if after > end:
            raise _Malformed(
                f"the box {inner!r} at byte {first - 8} ends {after - end} bytes after the {name!r} around it"
            )
        if inner == INNER[name]:
            _require_whole(file, inner, first, after)


def _walk_segment(file: BinaryIO, size: int) -> BoxWalk:
    """EBML header, then one segment whose size may be unknown (all ones)."""
    position, names = 0, list[str]()
    for expected, name in ((EBML_ID, "EBML"), (SEGMENT_ID, "Segment")):
        file.seek(position)
        head = file.read(12)
        if len(head) < 5 or int.from_bytes(head[:4], "big") != expected:
            return BoxWalk(names=tuple(names), overrun_bytes=None, malformed=f"no {name} element at byte {position}")
        names.append(name)
        length = _vint(head[4:])
        if length is None:
            malformed = f"{name} has a size that cannot be read"
            return BoxWalk(names=tuple(names), overrun_bytes=None, malformed=malformed)
        width, value = length
        if value == (1 << (7 * width)) - 1:
            return BoxWalk(names=tuple(names), overrun_bytes=None, malformed=None)
        position += 4 + width + value
    return BoxWalk(names=tuple(names), overrun_bytes=max(position - size, 0), malformed=None)


def _vint(head: bytes) -> tuple[int, int] | None:
    """(width, value) of an EBML variable-size integer."""
    width = 9 - head[0].bit_length() if head and head[0] else 0
    if not width or len(head) < width:
        return None
    return width, int.from_bytes(head[:width], "big") & ((1 << (7 * width)) - 1)
