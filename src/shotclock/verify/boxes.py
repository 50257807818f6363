"""Walks the top-level boxes of an mp4 or mov, or the segment of a webm or mkv, to see whether the file is whole.

Reads a few bytes per box and trusts none of them. Knows no decoder and judges nothing. Finds what decoders miss:
``ffmpeg -v error -i f -f null -`` ends with 0 on an mp4 that was cut in half (verify.md section 0).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MOST_BOXES = 100_000  # a film of fragments has a few thousand; more is an attempt to keep us busy
EBML_ID, SEGMENT_ID = 0x1A45DFA3, 0x18538067  # RFC 8794, RFC 9559
SIGNATURES = ((4, b"ftyp", "mov"), (0, b"\x1a\x45\xdf\xa3", "matroska"), (0, b"RIFF", "wav"), (0, b"fLaC", "flac"))
OLD_MOV_BOXES = (b"moov", b"mdat", b"wide", b"free", b"skip")  # QuickTime files before ftyp
PRINTABLE = range(0x20, 0x7F)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxWalk:
    """Names in order, bytes missing at the end (``None``: the file does not say), and what is malformed."""

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


def _walk_boxes(file: BinaryIO, size: int) -> BoxWalk:
    """ISO/IEC 14496-12 section 4.2: 32-bit size, type; size 1: 64 bits follow, size 0: to the end."""
    names: list[str] = []
    position = 0
    while position < size:
        file.seek(position)
        header = file.read(16)
        if len(header) < 8:
            return _found(names, position + 8 - size, "ends inside a box header")
        length, name = struct.unpack(">I4s", header[:8])
        if any(byte not in PRINTABLE and byte != 0xA9 for byte in name):
            return _found(names, None, f"a box named {name!r} at byte {position}")
        names.append(name.decode("latin-1"))
        if length == 1 and len(header) == 16:
            length = struct.unpack(">Q", header[8:])[0]
        elif length == 0:
            length = size - position
        if length < 8:
            return _found(names, None, f"a box of {length} bytes at byte {position}")
        if len(names) > MOST_BOXES:
            return _found(names[:16], None, f"more than {MOST_BOXES} boxes")
        position += length
    return _found(names, position - size, None)


def _found(names: list[str], overrun: int | None, malformed: str | None) -> BoxWalk:
    return BoxWalk(names=tuple(names), overrun_bytes=overrun, malformed=malformed)


def _walk_segment(file: BinaryIO, size: int) -> BoxWalk:
    """EBML header, then one segment whose size may be unknown (all ones)."""
    position, names = 0, list[str]()
    for expected, name in ((EBML_ID, "EBML"), (SEGMENT_ID, "Segment")):
        file.seek(position)
        head = file.read(12)
        if len(head) < 5 or int.from_bytes(head[:4], "big") != expected:
            return _found(names, None, f"no {name} element at byte {position}")
        names.append(name)
        length = _vint(head[4:])
        if length is None:
            return _found(names, None, f"{name} has a size that cannot be read")
        width, value = length
        if value == (1 << (7 * width)) - 1:
            return _found(names, None, None)
        position += 4 + width + value
    return _found(names, max(position - size, 0), None)


def _vint(head: bytes) -> tuple[int, int] | None:
    """(width, value) of an EBML variable-size integer."""
    width = 9 - head[0].bit_length() if head and head[0] else 0
    if not width or len(head) < width:
        return None
    return width, int.from_bytes(head[:width], "big") & ((1 << (7 * width)) - 1)
