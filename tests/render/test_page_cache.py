"""How much of a file is in the page cache, as the kernel says it."""

from __future__ import annotations

import os
from pathlib import Path

from shotclock.render.page_cache import WINDOW_BYTES, WINDOWS, _offsets, cached_share


def test_a_file_that_was_just_written_is_cached(tmp_path: Path) -> None:
    """All of it; and where the kernel lets it be dropped, less of it afterwards."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(3 * WINDOW_BYTES))
        file.flush()
        os.fsync(file.fileno())
    assert cached_share(path) == 1.0
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = cached_share(path)
    assert share is not None and 0 <= share <= 1


def test_what_cannot_be_told_is_none(tmp_path: Path) -> None:
    """No file, an empty one, a folder."""
    (tmp_path / "empty").touch()
    assert cached_share(tmp_path / "none") is None
    assert cached_share(tmp_path / "empty") is None


def test_windows_cover_small_files_whole_and_large_ones_evenly() -> None:
    """At most 64 of 1 MiB; first and last are the file's."""
    assert _offsets(1) == [0]
    assert _offsets(2 * WINDOW_BYTES) == [0, WINDOW_BYTES]
    large = _offsets(42_018_190_584)
    assert len(large) == WINDOWS and large[0] == 0
    assert large[-1] + WINDOW_BYTES <= 42_018_190_584 < large[-1] + 2 * WINDOW_BYTES
    assert all(offset % 4096 == 0 for offset in large)
