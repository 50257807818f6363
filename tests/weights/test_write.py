"""Written files are read back by the library, depend on their content alone, and appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from shotclock.weights.header import read_header
from shotclock.weights.write import header_block, write_safetensors

TENSORS = {
    "b": torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "a": torch.arange(6, dtype=torch.uint8),
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 4),
    "strided": torch.arange(12.0).reshape(3, 4).T,
}


def test_the_library_reads_it_back(tmp_path: Path) -> None:
    """Values, shapes, dtypes and metadata survive, also of scalars, empty and strided tensors."""
    path = tmp_path / "f.safetensors"
    write_safetensors(path, TENSORS, {"model_version": "2.5.0", "a": "ä"})
    found = load_file(path)
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in TENSORS.items())
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"model_version": "2.5.0", "a": "ä"}


def test_data_is_laid_out_as_the_library_does(tmp_path: Path) -> None:
    """Widest dtype first, then by name: the same offsets as the library's own files."""
    write_safetensors(tmp_path / "ours", TENSORS, {})
    save_file({name: value.contiguous() for name, value in TENSORS.items()}, tmp_path / "theirs")
    assert read_header(tmp_path / "ours").tensors == read_header(tmp_path / "theirs").tensors


def test_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    """The order in which tensors and metadata were given does not matter."""
    write_safetensors(tmp_path / "one", TENSORS, {"a": "1", "b": "2"})
    write_safetensors(tmp_path / "two", dict(reversed(TENSORS.items())), {"b": "2", "a": "1"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Where a tensor cannot be written the former file stays and no part is left."""
    path = tmp_path / "f"
    write_safetensors(path, {"a": torch.ones(1)}, {})
    before = path.read_bytes()
    with pytest.raises(KeyError):
        write_safetensors(path, {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.complex64)}, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_header_is_padded_with_spaces() -> None:
    """The JSON ends at a multiple of eight bytes, or where it is asked to."""
    block = header_block({"a": ("F32", (1,), 4)}, {})
    assert len(block) % 8 == 0
    padded = header_block({"a": ("F32", (1,), 4)}, {}, padded_to=1000)
    assert len(padded) == 1008
    assert padded[8:].rstrip(b" ") == block[8:].rstrip(b" ")
