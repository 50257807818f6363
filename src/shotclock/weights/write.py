"""Writes safetensors files whose bytes depend on nothing but their content, aside and then renamed.

Knows no model. Unlike the safetensors library it orders the metadata, so equal content means equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from shotclock.rundir import aside
from shotclock.weights.header import LENGTH_BYTES, METADATA_KEY

NAMES: Mapping[torch.dtype, str] = MappingProxyType(  # safetensors dtype names
    {
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        torch.float32: "F32",
        torch.float64: "F64",
        torch.uint8: "U8",
        torch.int8: "I8",
        torch.int32: "I32",
        torch.int64: "I64",
        torch.bool: "BOOL",
    }
)
HEADER_ALIGNMENT = 8  # safetensors format: the header is padded with spaces so that the data is aligned


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write ``tensors`` to ``path``: beside it, fsynced, then renamed, so that a half-written file is never seen.

    Widest dtype first, then by name, as the library orders them. Raises ``OSError`` where the disk refuses.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    with aside(path) as temporary, temporary.open("wb") as file:
        file.write(header_block({name: _described(tensors[name]) for name in order}, metadata))
        for name in order:
            _write_values(file, tensors[name])


def header_block(
    described: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str], *, padded_to: int = 0
) -> bytes:
    """Length and JSON of a header for tensors given as dtype, shape and bytes, in the order of their data.

    ``padded_to`` fills the JSON with spaces to that many bytes where it is shorter.
    """
    document: dict[str, Any] = {METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name, (dtype, shape, nbytes) in described.items():
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    text = text.ljust(max(padded_to, -(-len(text) // HEADER_ALIGNMENT) * HEADER_ALIGNMENT))
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _described(tensor: Tensor) -> tuple[str, tuple[int, ...], int]:
    return NAMES[tensor.dtype], tuple(tensor.shape), tensor.numel() * tensor.dtype.itemsize


def _write_values(file: BinaryIO, tensor: Tensor) -> None:
    values = tensor.detach().cpu().contiguous().reshape(-1)
    if values.numel():
        file.write(values.view(torch.uint8).numpy().data)
