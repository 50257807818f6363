"""Files that are no safetensors files are called what they are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from weight_files import refusal

from shotclock.weights.header import read_header

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    "size 42018190584\n"
)


def test_git_lfs_pointer_names_the_size_it_stands_for(tmp_path: Path) -> None:
    """A 130-byte pointer says which file is missing and how to get it."""
    path = tmp_path / "ltx.safetensors"
    path.write_text(POINTER)
    error = refusal(lambda: read_header(path), found="Git-LFS pointer", allowed="file itself", way_out="git lfs pull")
    assert "42,018,190,584 bytes" in error.found
    assert f"{len(POINTER)} bytes" in error.found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<!DOCTYPE html><html><title>Access denied</title></html>", "an HTML page"),
        ("\n <html><body>502</body></html>", "an HTML page"),
        ('{"error": "Access to model is restricted"}', "a JSON text"),
    ],
)
def test_error_page(tmp_path: Path, text: str, found: str) -> None:
    """A page or JSON text that the server sent instead of the file is quoted; the licence is the usual reason."""
    path = tmp_path / "ltx.safetensors"
    path.write_text(text)
    error = refusal(lambda: read_header(path), found=found, allowed=".safetensors", way_out="licence")
    assert text.strip()[:20] in error.found


def test_torch_zip(tmp_path: Path) -> None:
    """What torch.save writes is called a zip archive."""
    path = tmp_path / "model.pt"
    torch.save({"w": torch.zeros(4)}, path)
    refusal(lambda: read_header(path), found="zip archive", allowed=".safetensors", way_out="official")


def test_pickle(tmp_path: Path) -> None:
    """A bare pickle is never opened, and the message says why."""
    path = tmp_path / "model.bin"
    path.write_bytes(pickle.dumps({"w": list(range(50))}))
    refusal(lambda: read_header(path), found="can run code", allowed=".safetensors", way_out="pickles are not read")


def test_gguf(tmp_path: Path) -> None:
    """A GGUF file is named, and which file to fetch instead."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(64))
    refusal(lambda: read_header(path), found="GGUF", allowed="bf16", way_out="bf16 .safetensors")


@pytest.mark.parametrize(("size", "found"), [(0, "is empty"), (7, "has only 7 bytes"), (8, "has only 8 bytes")])
def test_empty(tmp_path: Path, size: int, found: str) -> None:
    """An empty file, and one too short for a length, are told apart from damage."""
    path = tmp_path / "f"
    path.write_bytes(bytes(size))
    refusal(lambda: read_header(path), found=found, allowed=".safetensors", way_out="disk is full")


def test_anything_else_shows_how_it_begins(tmp_path: Path) -> None:
    """Unknown content is quoted."""
    path = tmp_path / "f"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    refusal(lambda: read_header(path), found="PNG", allowed=".safetensors", way_out="format")
