"""The sha256 of a file of weights, which is the only thing that tells the dev from the distilled transformer.

Reads the whole file; knows nothing of its content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

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
