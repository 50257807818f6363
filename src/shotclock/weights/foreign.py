"""Says what a file is that is no safetensors file, from its first bytes.

Called only once a file has been found not to begin like a safetensors file. Reads nothing itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from shotclock.errors import CheckpointError

LFS_MARK = b"version https://git-lfs"  # first line of a Git-LFS pointer, git-lfs specification
ZIP_MARK = b"PK\x03\x04"  # torch.save writes zip archives
PICKLE_MARK = b"\x80"  # PROTO opcode, pickle protocol 2 and above
GGUF_MARK = b"GGUF"  # ggml file format
HTML_MARKS = (b"<!doctype html", b"<html", b"<?xml", b"<head", b"<body")
SAFETENSORS = "a .safetensors file"


def foreign_error(path: Path, file_bytes: int, start: bytes) -> CheckpointError:
    """The error for a file of ``file_bytes`` bytes that begins with ``start`` and is no safetensors file."""
    for describe in (_lfs, _error_page, _archive, _gguf, _empty):
        if error := describe(path, file_bytes, start):
            return error
    return CheckpointError(
        f"{path.name} is no safetensors file: it begins with {start[:16]!r}",
        allowed=SAFETENSORS,
        way_out="it is damaged or of another format: fetch the official .safetensors file",
    )


Describe = Callable[[Path, int, bytes], CheckpointError | None]


def _empty(path: Path, file_bytes: int, _start: bytes) -> CheckpointError | None:
    if file_bytes > 8:
        return None
    return CheckpointError(
        f"{path.name} is empty" if file_bytes == 0 else f"{path.name} has only {file_bytes} bytes",
        allowed=SAFETENSORS,
        way_out="the download never began, or the disk is full: free space and fetch it again",
    )


def _lfs(path: Path, file_bytes: int, start: bytes) -> CheckpointError | None:
    if not start.startswith(LFS_MARK):
        return None
    size = re.search(rb"^size (\d{1,18})\s*$", start, re.MULTILINE)
    stands_for = f"{int(size[1]):,} bytes" if size else "a file of unknown size"
    return CheckpointError(
        f"{path.name} is a Git-LFS pointer of {file_bytes:,} bytes that stands for {stands_for}",
        allowed="the file itself",
        way_out="run `git lfs pull` in that folder, or download the file directly",
    )


def _error_page(path: Path, file_bytes: int, start: bytes) -> CheckpointError | None:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    is_html = text[:32].lower().startswith(HTML_MARKS)
    if not is_html and not text.startswith(b"{"):
        return None
    what = "an HTML page" if is_html else "a JSON text"
    excerpt = " ".join(text[:120].decode("utf-8", "replace").split())
    return CheckpointError(
        f"{path.name} is {what} of {file_bytes:,} bytes, not weights: {excerpt!r}",
        allowed=SAFETENSORS,
        way_out="the server sent an error or login page: accept the model's licence, sign in and fetch it again",
    )


def _archive(path: Path, _file_bytes: int, start: bytes) -> CheckpointError | None:
    if start.startswith(ZIP_MARK):
        what = "a zip archive, as torch.save writes it (.pt, .pth, .bin)"
    elif start.startswith(PICKLE_MARK):
        what = "a pickle (.bin, .ckpt), which can run code when it is opened"
    else:
        return None
    return CheckpointError(
        f"{path.name} is {what}",
        allowed=SAFETENSORS,
        way_out="fetch the official .safetensors file; pickles are not read",
    )


def _gguf(path: Path, _file_bytes: int, start: bytes) -> CheckpointError | None:
    if not start.startswith(GGUF_MARK):
        return None
    return CheckpointError(
        f"{path.name} is a GGUF file (quantised weights of llama.cpp and its relatives)",
        allowed="a .safetensors file in bf16",
        way_out="fetch the official bf16 .safetensors file",
    )
