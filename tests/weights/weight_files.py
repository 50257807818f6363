"""Files of weights for the tests: headers without weights (sparse files), and tiny files with parts changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from shotclock.errors import CheckpointError
from shotclock.weights.header import DTYPE_BITS, METADATA_KEY
from shotclock.weights.load import published_dtype
from shotclock.weights.released import PINNED_25_CONFIG
from shotclock.weights.shapes import transformer_shapes
from shotclock.weights.write import header_block

Document = dict[str, Any]
RELEASED_BYTES = 42_018_190_584  # ltx25.md section 2
RELEASED_HEADER_BYTES = 677_616  # ltx25.md section 1.2
RELEASED_METADATA = {
    "config": json.dumps(
        {
            "transformer": dict(PINNED_25_CONFIG),
            "scheduler": {"_class_name": "RectifiedFlowScheduler", "num_train_timesteps": 1000},
        }
    ),
    "model_version": "2.5.0",
    "gemma_source_checkpoint": json.dumps({"ltx_version": "2.5.0", "gemma_version": "gemma4-12b-ltx-v1"}),
}


def write_headed(
    path: Path,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
    *,
    padded_to: int = 0,
) -> Path:
    """A file with a true header and true size whose weights are a hole: it takes no space on disk."""
    described = {name: (dtype, shape, prod(shape) * DTYPE_BITS[dtype] // 8) for name, (dtype, shape) in tensors.items()}
    block = header_block(described, metadata or {}, padded_to=padded_to)
    with path.open("wb") as file:
        file.write(block)
        file.truncate(len(block) + sum(nbytes for _, _, nbytes in described.values()))
    return path


def write_released_transformer(path: Path) -> Path:
    """The dev transformer of the release, header only: true names, shapes, dtypes, metadata and sizes."""
    shapes = transformer_shapes(PINNED_25_CONFIG)
    tensors = {name: (published_dtype(name), shape) for name, shape in shapes.items()}
    return write_headed(path, tensors, RELEASED_METADATA, padded_to=RELEASED_HEADER_BYTES)


def write_document(path: Path, document: object, data: bytes = b"") -> Path:
    """A file whose header is any JSON value."""
    text = json.dumps(document).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def read_document(path: Path) -> Document:
    """The JSON of a header, as written."""
    with path.open("rb") as file:
        document: Document = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return document


def changed_copy(source: Path, target: Path, change: Callable[[Document], object]) -> Path:
    """A header-only copy of ``source`` after ``change`` edited its JSON; offsets are laid out anew."""
    document = read_document(source)
    change(document)
    metadata = document.pop(METADATA_KEY, {})
    tensors = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in document.items()}
    return write_headed(target, tensors, metadata)


def changed_config(source: Path, target: Path, change: Callable[[Document], object], key: str = "config") -> Path:
    """A header-only copy of ``source`` after ``change`` edited one JSON text of its metadata."""

    def edit(document: Document) -> None:
        config = json.loads(document[METADATA_KEY][key])
        change(config)
        document[METADATA_KEY][key] = json.dumps(config)

    return changed_copy(source, target, edit)


def refusal(act: Callable[[], object], *, found: str, allowed: str, way_out: str) -> CheckpointError:
    """Run ``act``, which must refuse; each part of the message must contain the given words."""
    with pytest.raises(CheckpointError) as caught:
        act()
    error = caught.value
    assert found in error.found
    assert allowed in error.allowed
    assert way_out in error.way_out
    return error
