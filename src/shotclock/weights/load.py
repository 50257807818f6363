"""Strict loading: tensors of a checked file, under new names, into a module that was built on the meta device.

On the CPU tensors are views of one private mapping of the file, so weights are never in host memory twice; on a CUDA
device they are views of a few flat buffers that the file was read into. Knows no model: names come from the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from shotclock.errors import CheckpointError
from shotclock.weights.header import Header, TensorEntry
from shotclock.weights.identity import DIT
from shotclock.weights.staging import (
    RING,
    SEGMENT_BYTES,
    Progress,
    Ring,
    changed,
    plan_segments,
    raw_read_seconds,
    read_segments,
)

__all__ = [
    "Progress",
    "load_module",
    "load_tensors",
    "mapped_tensors",
    "raw_read_seconds",
    "read_blob",
    "require_claimed",
    "require_match",
    "staged_tensors",
]

ALIGNMENT = 16  # bytes; vectorised CUDA kernels and cuBLAS take slower paths below it
NAMED = 3  # tensors an error names at most
TABLE = "scale_shift_table"  # the only F32 tensors of the transformer file, ltx25.md section 1.2
TORCH_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(  # safetensors dtype names
    {
        "BF16": torch.bfloat16,
        "F16": torch.float16,
        "F32": torch.float32,
        "F64": torch.float64,
        "U8": torch.uint8,
        "I8": torch.int8,
        "I32": torch.int32,
        "I64": torch.int64,
        "BOOL": torch.bool,
    }
)


def load_tensors(
    header: Header,
    names: Mapping[str, str],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Load ``names`` (key in the file -> key of the result) onto ``device``; ``progress`` is told of a long read.

    ``dtype`` None keeps the dtypes of the file; otherwise floating tensors are cast. Raises :class:`CheckpointError`
    for a key that the file lacks, two equal result keys, a dtype torch lacks, or a file that changed since its header.
    """
    _require_names(header, names)
    with torch.inference_mode(False), torch.no_grad():  # weights outlive the block that a caller may be in
        if device.type == "cpu":
            return mapped_tensors(header, names, dtype=dtype)
        return staged_tensors(header, names, device=device, dtype=dtype, progress=progress)


def load_module(
    module: nn.Module,
    header: Header,
    names: Mapping[str, str],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    in_file: Collection[str] = (),
    progress: Progress | None = None,
) -> None:
    """Give every parameter and buffer of ``module``, built on the meta device, its tensor of the file.

    Keys ``in_file`` stay there, mapped and as they are stored; ``progress`` is told bytes of a long read.

    ``names`` maps keys of the file to keys of the module's state. Strict before any weight is read: each key of the
    state named exactly once, shapes equal, dtypes as published (BF16; F32 for ``*scale_shift_table*`` of the
    transformer). Raises :class:`CheckpointError` otherwise.
    """
    require_match(module, header, names)
    here = {key: name for key, name in names.items() if key not in in_file}
    tensors = load_tensors(header, here, device=device, dtype=dtype, progress=progress)
    if in_file:
        there = {key: names[key] for key in in_file}
        tensors |= load_tensors(header, there, device=torch.device("cpu"), dtype=None)
    with torch.inference_mode(False):
        module.load_state_dict(tensors, strict=True, assign=True)


def require_match(module: nn.Module, header: Header, names: Mapping[str, str]) -> None:
    """The checks of :func:`load_module` alone; reads no weight. Raises :class:`CheckpointError`."""
    _require_names(header, names)
    _require_match(header, names, {key: tuple(value.shape) for key, value in module.state_dict().items()})


def mapped_tensors(header: Header, names: Mapping[str, str], *, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Views of one private mapping of the file, read page by page when touched; a cast copies tensor by tensor.

    Writing to such a tensor changes neither the file nor other processes.
    """
    if header.path.stat().st_size != header.file_bytes:
        raise changed(header.path, "has another size than when its header was read")
    storage = torch.UntypedStorage.from_file(str(header.path), shared=False, nbytes=header.file_bytes)
    assert isinstance(storage, torch.UntypedStorage), "from_file of a class gives that class"
    mapped = torch.empty(0, dtype=torch.uint8).set_(storage)
    return {
        name: _cast(_view(mapped, header.tensors[key], header.data_start + header.tensors[key].start, 1), dtype)
        for key, name in names.items()
    }


def staged_tensors(
    header: Header,
    names: Mapping[str, str],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    ring: Ring = RING,
    segment_bytes: int = SEGMENT_BYTES,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Views of flat buffers on ``device`` that the wanted byte ranges were read into; works on any device.

    A tensor that would not begin at a multiple of 16 bytes gets storage of its own.
    """
    plan = plan_segments(header, names, segment_bytes=segment_bytes)
    flats = read_segments(header.path, plan.segments, device=device, ring=ring, progress=progress)
    loaded: dict[str, Tensor] = {}
    for number, placements in enumerate(plan.by_segment):
        flat, flats[number] = flats[number], torch.empty(0)  # a segment is freed once all of its tensors are cast
        for placement in placements:
            view = _view(flat, header.tensors[placement.key], placement.offset, ALIGNMENT)
            loaded[placement.key] = _cast(view, dtype)
    for key in names.keys() - loaded.keys():
        entry = header.tensors[key]
        loaded[key] = _cast(torch.empty(entry.shape, dtype=TORCH_DTYPES[entry.dtype], device=device), dtype)
    return {name: loaded[key] for key, name in names.items()}


def read_blob(header: Header, key: str) -> bytes:
    """The bytes of one tensor, for texts stored as tensors such as ``tokenizer_json``."""
    _require_names(header, {key: key})
    entry = header.tensors[key]
    with header.path.open("rb") as file:
        file.seek(header.data_start + entry.start)
        blob = file.read(entry.end - entry.start)
    if len(blob) != entry.end - entry.start:
        raise changed(header.path, f"ends inside {key!r}")
    return blob


def require_claimed(header: Header, claimed: Iterable[str], *, unused: tuple[str, ...] = ()) -> None:
    """Refuse a file with tensors that no module takes: keys not in ``claimed`` and without an ``unused`` prefix."""
    left = [key for key in header.tensors.keys() - set(claimed) if not key.startswith(unused)]
    if left:
        raise CheckpointError(
            f"{header.path.name} holds {_listed(sorted(left))} that this model has no place for",
            allowed="a file that fits the model tensor by tensor",
            way_out="use the official file; a finetune that adds tensors cannot be rendered faithfully",
        )


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - NAMED:,} more" if len(items) > NAMED else ""
    return f"{', '.join(items[:NAMED])}{more}"


def _refuse(header: Header, found: str, allowed: str) -> CheckpointError:
    return CheckpointError(
        f"{header.path.name} {found}",
        allowed=allowed,
        way_out="use the official file of the version that its config describes",
    )


def _require_names(header: Header, names: Mapping[str, str]) -> None:
    if absent := [key for key in names if key not in header.tensors]:
        raise _refuse(header, f"lacks {_listed(absent)}", "a file with every tensor of the model")
    if twice := [name for name, count in Counter(names.values()).items() if count > 1]:
        raise _refuse(header, f"would fill {_listed(twice)} more than once", "one tensor of the file for each")
    if foreign := [
        f"{key} ({entry.dtype})" for key in names if (entry := header.tensors[key]).dtype not in TORCH_DTYPES
    ]:
        raise _refuse(header, f"holds {_listed(foreign)}", f"the dtypes {', '.join(TORCH_DTYPES)}")


def _require_match(header: Header, names: Mapping[str, str], wanted: Mapping[str, tuple[int, ...]]) -> None:
    if unfilled := sorted(wanted.keys() - set(names.values())):
        raise _refuse(header, f"has nothing for {_listed(unfilled)}", "a tensor for every parameter of the model")
    if homeless := sorted(set(names.values()) - wanted.keys()):
        raise _refuse(header, f"has tensors for {_listed(homeless)}", "no tensor but the model's own")
    entries = [(key, header.tensors[key], wanted[name]) for key, name in names.items()]
    if unequal := [f"{key} {list(entry.shape)}" for key, entry, shape in entries if entry.shape != shape]:
        shapes = [f"{key} {list(shape)}" for key, entry, shape in entries if entry.shape != shape]
        raise _refuse(header, f"holds {_listed(unequal)}", _listed(shapes))
    if other := [f"{key} in {entry.dtype}" for key, entry, _ in entries if entry.dtype != published_dtype(key)]:
        dtypes = [
            f"{key} in {published_dtype(key)}" for key, entry, _ in entries if entry.dtype != published_dtype(key)
        ]
        raise _refuse(header, f"holds {_listed(other)}", _listed(dtypes))


def published_dtype(key: str) -> str:
    """Dtype of a tensor in the released files: F32 for the transformer's tables, else BF16 (ltx25.md section 1.2)."""
    return "F32" if TABLE in key and key.startswith(DIT) else "BF16"


def _view(flat: Tensor, entry: TensorEntry, offset: int, alignment: int) -> Tensor:
    dtype = TORCH_DTYPES[entry.dtype]
    piece = flat[offset : offset + entry.end - entry.start]
    if offset % alignment or offset % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(entry.shape)


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
