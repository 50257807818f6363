"""The safetensors header: which tensors a file holds, where their bytes lie, and its metadata.

A file is a little-endian u64 (length of the header), the header as JSON, then the bytes of all tensors without holes.
Reads only the header and never a weight. Knows nothing of models: what a file is for is the matter of checkpoint.py.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from shotclock.errors import CheckpointError
from shotclock.weights.foreign import foreign_error

LENGTH_BYTES = 8  # safetensors format: u64 little-endian, length of the JSON that follows
MAX_HEADER_BYTES = 100_000_000  # safetensors format: longer headers are refused
METADATA_KEY = "__metadata__"  # safetensors format: the only header entry that is no tensor
DTYPE_BITS = MappingProxyType(  # safetensors format, version 0.7
    {
        "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
    }
)  # fmt: skip
MAX_DIMENSIONS = 64  # torch's own limit for the rank of a tensor
SNIFF_BYTES = 1024  # enough to tell what a file is that is no safetensors file


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor of a file: safetensors dtype name, shape, and bytes ``[start, end)`` counted from the first tensor."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        """Number of values; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says about itself. ``header_bytes`` is the JSON alone; the first tensor begins 8 bytes later.

    ``metadata`` values are JSON-parsed where they are objects, lists, strings or booleans; a bare number stays the text
    it is, so that version "2.10" does not become 2.1.
    """

    path: Path
    file_bytes: int
    header_bytes: int
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, Any]

    @property
    def data_start(self) -> int:
        """Offset of the first tensor byte in the file."""
        return LENGTH_BYTES + self.header_bytes

    @property
    def elements(self) -> int:
        """Values of all tensors together."""
        return sum(entry.elements for entry in self.tensors.values())

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(entry.end - entry.start for entry in self.tensors.values())

    @property
    def dtypes(self) -> Mapping[str, int]:
        """Number of tensors by dtype name, the most frequent first."""
        return dict(Counter(entry.dtype for entry in self.tensors.values()).most_common())

    @property
    def model_version(self) -> str | None:
        """``model_version`` of the metadata, such as "2.5.0"."""
        version = self.metadata.get("model_version")
        return version if isinstance(version, str) else None

    @property
    def config(self) -> Mapping[str, Any] | None:
        """``config`` of the metadata where it is a JSON object."""
        config = self.metadata.get("config")
        return config if isinstance(config, Mapping) else None


def read_header(path: Path) -> Header:
    """Read and check the header of ``path``.

    Raises :class:`CheckpointError` for whatever is no complete safetensors file, each kind in its own words.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(path, status.st_mode)
        header_bytes, text = _header_text(descriptor, path, status.st_size)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    tensors, metadata = _parse(path, text)
    _check_ranges(path, tensors)
    _check_size(path, status.st_size, LENGTH_BYTES + header_bytes, tensors)
    return Header(path=path, file_bytes=status.st_size, header_bytes=header_bytes, tensors=tensors, metadata=metadata)


def _header_text(descriptor: int, path: Path, file_bytes: int) -> tuple[int, bytes]:
    start = os.pread(descriptor, SNIFF_BYTES, 0)
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    looks_like_header = start[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{" and length <= MAX_HEADER_BYTES
    if not looks_like_header:
        raise foreign_error(path, file_bytes, start)
    if length > file_bytes - LENGTH_BYTES:
        raise CheckpointError(
            f"{path.name} says that its header has {length:,} bytes, but the whole file has {file_bytes:,}",
            allowed="a header that lies inside the file",
            way_out="the download stopped inside the header: fetch the file again",
        )
    return length, os.pread(descriptor, length, LENGTH_BYTES)


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointError(
            f"there is no file {path}", allowed="an existing .safetensors file", way_out="check the path for typos"
        )
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return CheckpointError(
        f"{path} cannot be read: {reason}",
        allowed="a file that this user may read",
        way_out="check its permissions and the disk it lies on",
    )


def _irregular(path: Path, mode: int) -> CheckpointError:
    if stat.S_ISDIR(mode):
        return CheckpointError(
            f"{path} is a folder",
            allowed="one .safetensors file",
            way_out="name a file in it, or pass the folder as --models",
        )
    return CheckpointError(
        f"{path} is neither a file nor a folder",
        allowed="a regular .safetensors file",
        way_out="pipes and devices cannot be read as weights: store the file on disk first",
    )


class _DuplicateKey(ValueError):
    pass


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        name = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise _DuplicateKey(name)
    return result


def _parse(path: Path, text: bytes) -> tuple[Mapping[str, TensorEntry], Mapping[str, Any]]:
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except _DuplicateKey as error:
        raise _damaged(path, f"names {str(error)!r} twice") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the header of {path.name} is no JSON: {error}",
            allowed="a safetensors header",
            way_out="the file is damaged: compare its size and sha256 with the publisher's and fetch it again",
        ) from error
    assert isinstance(document, dict), "a header begins with a brace"
    metadata = _metadata(path, document.pop(METADATA_KEY, {}))
    return MappingProxyType({name: _entry(path, name, value) for name, value in document.items()}), metadata


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"the header of {path.name} {what}",
        allowed="a safetensors header: unique names, dtype, shape and data_offsets that agree, no holes",
        way_out="the file was written by a faulty tool or is damaged: fetch the official file again",
    )


def _bad(path: Path, what: str) -> NoReturn:
    raise _damaged(path, what)


def _metadata(path: Path, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        _bad(path, "has a __metadata__ that is no table of texts")
    return MappingProxyType({key: _parsed_text(item) for key, item in value.items()})


def _parsed_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number or value is None else value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _entry(path: Path, name: str, value: object) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        _bad(path, f"describes {name!r} without exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _bad(path, f"gives {name!r} the unknown dtype {reprlib.repr(dtype)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_count, shape)):
        _bad(path, f"gives {name!r} the shape {reprlib.repr(shape)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        _bad(path, f"gives {name!r} the offsets {reprlib.repr(offsets)}")
    start, end = offsets
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits != 8 * (end - start):
        _bad(
            path,
            f"gives {name!r} {end - start:,} bytes, where {dtype} {shape} has {bits / 8 if bits % 8 else bits // 8:,}",
        )
    return TensorEntry(dtype=dtype, shape=tuple(shape), start=start, end=end)


def _check_ranges(path: Path, tensors: Mapping[str, TensorEntry]) -> None:
    end, before = 0, None
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start < end:
            _bad(path, f"lets {name!r} begin at byte {entry.start:,}, inside {before!r}")
        if entry.start > end:
            _bad(path, f"leaves {entry.start - end:,} bytes before {name!r} to no tensor")
        end, before = entry.end, name


def _check_size(path: Path, file_bytes: int, data_start: int, tensors: Mapping[str, TensorEntry]) -> None:
    expected = data_start + max((entry.end for entry in tensors.values()), default=0)
    if file_bytes < expected:
        raise CheckpointError(
            f"{path.name} is cut off: {file_bytes:,} bytes, {expected - file_bytes:,} are missing",
            allowed=f"exactly {expected:,} bytes, as its header says",
            way_out="the download or copy stopped early: resume or repeat it",
        )
    if file_bytes > expected:
        raise CheckpointError(
            f"{path.name} has a tail of {file_bytes - expected:,} bytes after its last tensor",
            allowed=f"exactly {expected:,} bytes, as its header says",
            way_out="two downloads were joined or another file was written over: fetch it again",
        )
