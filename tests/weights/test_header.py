"""The parser of safetensors headers: what it reads, and that everything else is refused in its own words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from weight_files import refusal, write_document, write_headed

from shotclock.errors import CheckpointError
from shotclock.weights.header import DTYPE_BITS, Header, read_header

TWO = {
    "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]},
}


def consistent(header: Header) -> bool:
    """Every byte of the file belongs to the header or to exactly one tensor of the right size."""
    end = 0
    for entry in sorted(header.tensors.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != end or (entry.end - entry.start) * 8 != entry.elements * DTYPE_BITS[entry.dtype]:
            return False
        end = entry.end
    return header.data_start + end == header.file_bytes


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    """Names, dtypes, shapes, sizes and metadata agree with a file that the safetensors library wrote."""
    tensors = {"x": torch.zeros(3, 4, dtype=torch.bfloat16), "y": torch.zeros((), dtype=torch.int64)}
    save_file(tensors, tmp_path / "f.safetensors", metadata={"model_version": "2.5.0", "config": '{"a": [1]}'})
    header = read_header(tmp_path / "f.safetensors")
    assert {name: (entry.dtype, entry.shape) for name, entry in header.tensors.items()} == {
        "x": ("BF16", (3, 4)),
        "y": ("I64", ()),
    }
    assert header.elements == 13
    assert header.tensor_bytes == 32
    assert header.dtypes == {"BF16": 1, "I64": 1}
    assert header.model_version == "2.5.0"
    assert header.config == {"a": [1]}
    assert header.file_bytes == (tmp_path / "f.safetensors").stat().st_size
    assert consistent(header)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ('"x"', "x"),
        ("true", True),
        ("2.10", "2.10"),
        ("null", "null"),
        ("{", "{"),
    ],
)
def test_metadata_is_parsed_except_bare_numbers(tmp_path: Path, text: str, value: object) -> None:
    """Objects, lists, strings and booleans are parsed; numbers and what is no JSON stay text."""
    path = write_document(tmp_path / "f", {"__metadata__": {"key": text}})
    assert read_header(path).metadata["key"] == value


def test_version_that_reads_as_a_number_keeps_its_digits(tmp_path: Path) -> None:
    """model_version 2.10 is not 2.1."""
    assert (
        read_header(write_document(tmp_path / "f", {"__metadata__": {"model_version": "2.10"}})).model_version == "2.10"
    )


def test_missing_file(tmp_path: Path) -> None:
    """A path that is not there is named."""
    refusal(lambda: read_header(tmp_path / "no"), found=str(tmp_path / "no"), allowed="existing", way_out="path")


def test_folder(tmp_path: Path) -> None:
    """A folder is not a file; --models takes folders."""
    refusal(lambda: read_header(tmp_path), found="is a folder", allowed="one .safetensors file", way_out="--models")


def test_pipe_does_not_block(tmp_path: Path) -> None:
    """A named pipe is refused at once; opening it for reading would wait for a writer."""
    os.mkfifo(tmp_path / "pipe")
    refusal(lambda: read_header(tmp_path / "pipe"), found="neither a file", allowed="regular", way_out="on disk")


def test_header_longer_than_the_file(tmp_path: Path) -> None:
    """A download that stopped inside the header says both lengths."""
    path = write_document(tmp_path / "f", TWO, bytes(20))
    size = path.stat().st_size
    with path.open("rb+") as file:
        file.write((size + 1000).to_bytes(8, "little"))
    refusal(lambda: read_header(path), found=f"{size + 1000:,} bytes", allowed="inside the file", way_out="again")


def test_broken_json(tmp_path: Path) -> None:
    """A header that is no JSON is called damaged."""
    (tmp_path / "f").write_bytes((6).to_bytes(8, "little") + b'{"a": ')
    refusal(lambda: read_header(tmp_path / "f"), found="is no JSON", allowed="safetensors header", way_out="sha256")


def test_deeply_nested_json(tmp_path: Path) -> None:
    """A header nested deeper than Python's stack is refused like other JSON damage."""
    text = b'{"a":' + b"[" * 200_000
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text)
    refusal(lambda: read_header(tmp_path / "f"), found="is no JSON", allowed="safetensors header", way_out="again")


def test_a_tensor_named_twice(tmp_path: Path) -> None:
    """JSON allows a name twice; a header does not, and the error names it."""
    text = b'{"a": 1, "a": 2}'
    (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text)
    refusal(lambda: read_header(tmp_path / "f"), found="names 'a' twice", allowed="unique names", way_out="again")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"data_offsets": [8, 16]}, "inside 'a'"),
        ({"data_offsets": [16, 24]}, "leaves 4 bytes before 'b'"),
        ({"shape": [3]}, "gives 'b' 8 bytes, where F32 [3] has 12"),
        ({"dtype": "F31"}, "unknown dtype 'F31'"),
        ({"dtype": 3}, "unknown dtype 3"),
        ({"shape": [-2]}, "shape [-2]"),
        ({"shape": [True, 2]}, "shape [True, 2]"),
        ({"shape": [1] * 65}, "shape [1, 1"),
        ({"shape": 2}, "shape 2"),
        ({"data_offsets": [20, 12]}, "gives 'b' -8 bytes"),
        ({"data_offsets": [12]}, "offsets [12]"),
        ({"data_offsets": [12.0, 20]}, "offsets [12.0, 20]"),
        ({"more": 1}, "without exactly dtype, shape and data_offsets"),
    ],
)
def test_entries_that_do_not_add_up(tmp_path: Path, change: dict[str, Any], found: str) -> None:
    """Overlaps, holes, wrong sizes, unknown dtypes and malformed fields each say what is wrong with which tensor."""
    path = write_document(tmp_path / "f", {**TWO, "b": {**TWO["b"], **change}}, bytes(24))
    refusal(lambda: read_header(path), found=found, allowed="no holes", way_out="official file")


@pytest.mark.parametrize("metadata", [[], "text", {"a": 1}, None])
def test_metadata_that_is_no_table_of_texts(tmp_path: Path, metadata: object) -> None:
    """Metadata must be a table of texts."""
    path = write_document(tmp_path / "f", {"__metadata__": metadata})
    refusal(lambda: read_header(path), found="no table of texts", allowed="header", way_out="official file")


def test_cut_off(tmp_path: Path) -> None:
    """A truncated file says how many bytes are missing and how many there should be."""
    path = write_document(tmp_path / "f", TWO, bytes(13))
    full = path.stat().st_size + 7
    refusal(lambda: read_header(path), found="7 are missing", allowed=f"exactly {full:,} bytes", way_out="repeat")


def test_tail(tmp_path: Path) -> None:
    """Bytes after the last tensor are refused with their number."""
    path = write_document(tmp_path / "f", TWO, bytes(25))
    refusal(lambda: read_header(path), found="tail of 5 bytes", allowed="exactly", way_out="fetch it again")


def test_empty_tensors_need_no_bytes(tmp_path: Path) -> None:
    """A tensor with a zero in its shape lies at any border."""
    path = write_headed(tmp_path / "f", {"a": ("F32", (0, 4)), "b": ("BF16", (2,)), "c": ("U8", (0,))})
    assert consistent(read_header(path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-4, 40) | st.floats(allow_nan=True) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "X"]) | json_values,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)
documents = (
    st.dictionaries(st.sampled_from(["a", "b", "", "__metadata__"]), entries | json_values, max_size=3) | json_values
)


@settings(max_examples=300, deadline=None)
@given(document=documents, data=st.integers(0, 48), shift=st.integers(-3, 3) | st.just(2**62))
def test_any_header_parses_consistently_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, document: object, data: int, shift: int
) -> None:
    """Whatever JSON stands in the header, and whatever its length field says: a consistent header or our error."""
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    text = json.dumps(document).encode()
    path.write_bytes(max(0, len(text) + shift).to_bytes(8, "little") + text + bytes(data))
    try:
        header = read_header(path)
    except CheckpointError as error:
        assert str(error).isprintable()
    else:
        assert consistent(header)


@settings(max_examples=300, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 400) | st.none(),
    tail=st.binary(max_size=3),
)
def test_any_damaged_file_parses_consistently_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], cut: int | None, tail: bytes
) -> None:
    """A good file with bytes changed, cut or added: a consistent header or our error, nothing else."""
    path = write_headed(
        tmp_path_factory.getbasetemp() / "damaged.safetensors",
        {"x": ("BF16", (2, 2)), "y": ("F32", (3,)), "z": ("U8", (5,))},
        {"config": '{"a": 1}'},
    )
    content = bytearray(path.read_bytes())
    for position, value in flips:
        content[position % len(content)] = value
    path.write_bytes(bytes(content[:cut]) + tail)
    try:
        header = read_header(path)
    except CheckpointError as error:
        assert error.found and error.allowed and error.way_out
    else:
        assert consistent(header)


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Arbitrary bytes never raise anything but our error."""
    path = tmp_path_factory.getbasetemp() / "bytes.safetensors"
    path.write_bytes(content)
    try:
        assert consistent(read_header(path))
    except CheckpointError as error:
        assert error.way_out
