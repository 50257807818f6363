"""The opt-in float8 path of a loaded transformer: refused where device or file do not allow it, before any work.

Knows headers, devices and the transformer; no request and no run.
"""

from __future__ import annotations

import torch

from shotclock.errors import CheckpointError, RequestError
from shotclock.model.quantise import LEFT, MULTIPLE, Quantised, device_product, quantise_in_place
from shotclock.model.transformer import Transformer
from shotclock.weights.header import Header

FP8 = "fp8"  # the word of ``--quantise``
BLOCKS, CONNECTOR = ".transformer_blocks.", "embeddings_connector."
SCALE_BYTES = 4
FP8_CAPABILITY = (8, 9)  # Ada; Hopper and Blackwell follow
QUANTISATION = "fp8 e4m3 rowwise"  # as law keys and numerics call it


def require_asked(quantise: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse ``--quantise`` for another word, device or dtype than there is a product for; None asks for nothing."""
    if quantise is None:
        return
    if quantise != FP8:
        raise RequestError(f"--quantise {quantise[:40]!r}", allowed=FP8, way_out="leave it out for bfloat16")
    require_fp8(device)
    if dtype != torch.bfloat16:
        raise RequestError(
            f"--quantise fp8 with --dtype {str(dtype).removeprefix('torch.')}",
            allowed="bfloat16, what a float8 product with a scale a row gives",
            way_out="leave --dtype out, or --quantise",
        )


def require_fp8(device: torch.device) -> None:
    """Raises :class:`RequestError` for a device that multiplies no float8."""
    found = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    if found is None or found < FP8_CAPABILITY:
        said = device.type
        if found is not None:
            said = f"{torch.cuda.get_device_name(device)}, compute capability {found[0]}.{found[1]}"
        raise RequestError(
            f"--quantise fp8 on a device without float8 products ({said})",
            allowed=f"a CUDA device of compute capability {FP8_CAPABILITY[0]}.{FP8_CAPABILITY[1]} or more",
            way_out="render in bfloat16: leave --quantise out",
        )


def require_quantisable(header: Header) -> None:
    """Raises :class:`CheckpointError` for weights that are quantised already; reads the header only."""
    matrices = {name: entry.dtype for name, entry in header.tensors.items() if len(entry.shape) == 2}
    other = sorted({dtype for dtype in matrices.values() if dtype not in ("BF16", "F32")})
    if other:
        raise CheckpointError(
            f"--quantise fp8 of {header.path.name}, whose weights are {', '.join(other)} already",
            allowed="a bf16 file: quantising twice adds one error to another",
            way_out="use the bf16 file, or leave --quantise out",
        )


def quantised_bytes(header: Header) -> int:
    """What a transformer file's tensors take once :func:`to_fp8` has run, connectors left out; reads the header only.

    A weight of a quantised layer has a byte an element and a float32 scale a row.
    """
    held = 0
    for key, entry in header.tensors.items():
        if CONNECTOR in key:
            continue
        layer = key.removesuffix(".weight")
        matrix = BLOCKS in key and key.endswith(".weight") and len(entry.shape) == 2
        fits = matrix and not layer.endswith(LEFT) and all(side % MULTIPLE == 0 for side in entry.shape)
        held += entry.elements + SCALE_BYTES * entry.shape[0] if fits else entry.end - entry.start
    return held


def to_fp8(transformer: Transformer, header: Header, device: torch.device) -> Quantised:
    """Quantise a transformer that was just loaded from ``header`` onto ``device``, in place.

    Raises as :func:`require_fp8` and :func:`require_quantisable`; call those two before weights are read.
    """
    require_fp8(device)
    require_quantisable(header)
    return quantise_in_place(transformer, device_product)
