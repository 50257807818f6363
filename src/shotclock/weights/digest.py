"""The sha256 of a file of weights, which is the only thing that tells the dev from the distilled transformer.

Of the whole file, or of its size and pages spread over it, which takes milliseconds. Knows nothing of its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

PAGE_BYTES, PAGES = 65536, 64
BLOCK_BYTES = 16 * 2**20  # large enough that reading and hashing, not Python, take the time


def content_sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hex sha256 of the file; ``progress`` is told the bytes read so far. Raises ``OSError``."""
    digest = hashlib.sha256()
    buffer = bytearray(BLOCK_BYTES)
    view, done = memoryview(buffer), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            done += count
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def sampled_sha256(path: Path) -> str:
    """Hex sha256 of the size and of 64 pages from the first to the last: of all content up to 4 MiB.

    Tells one training run's weights from another's, where the headers are equal; not one changed byte of a large file.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size}\0".encode())
    if size <= PAGES * PAGE_BYTES:
        digest.update(path.read_bytes())
    else:
        with path.open("rb", buffering=0) as file:
            for page in range(PAGES):
                file.seek((size - PAGE_BYTES) * page // (PAGES - 1))
                digest.update(file.read(PAGE_BYTES))
    return digest.hexdigest()
