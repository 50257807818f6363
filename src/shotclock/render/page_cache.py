"""How much of a file the kernel holds in memory: whether a load will read the disk.

Asks Linux; knows no checkpoint. Where it cannot be told, the answer is None, never 0.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

WINDOWS, WINDOW_BYTES = 64, 2**20  # of the file that are looked at, evenly spread: a 42 GB file has 10 million pages


def cached_share(path: Path) -> float | None:
    """Share of the file's pages in memory, from up to 64 windows of 1 MiB; None where the kernel does not say.

    Linux tells it only to those who own a file or may write it (mincore(2)); for others everything looks cached.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mincore"):
        return None
    try:
        status = path.stat()
        if not status.st_size or not (status.st_uid == os.geteuid() or os.access(path, os.W_OK)):
            return None
        with path.open("rb") as file:
            found = [_resident(libc, file.fileno(), offset, status.st_size) for offset in _offsets(status.st_size)]
    except OSError:
        return None
    resident, pages = sum(one for one, _ in found), sum(all_ for _, all_ in found)
    return resident / pages


def _offsets(size: int) -> list[int]:
    """Beginnings of the windows, on page borders."""
    last = max(size - WINDOW_BYTES, 0)
    count = min(WINDOWS, -(-size // WINDOW_BYTES))
    raw = [last * number // max(count - 1, 1) for number in range(count)]
    return [offset // mmap.PAGESIZE * mmap.PAGESIZE for offset in raw]


def _resident(libc: ctypes.CDLL, file: int, offset: int, size: int) -> tuple[int, int]:
    """Resident pages and all pages of one window; raises ``OSError``."""
    length = min(WINDOW_BYTES, size - offset)
    pages = -(-length // mmap.PAGESIZE)
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(
        None,
        ctypes.c_size_t(length),
        mmap.PROT_READ,
        mmap.MAP_SHARED,
        file,
        ctypes.c_long(offset),
    )
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        vector = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), vector):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(byte & 1 for byte in vector), pages
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))
