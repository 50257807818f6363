"""Whose law it is: the key of a render, from what it runs on and how.

Fields only; knows no file, device or clock. The same function makes the key of the plan and of the event log, so that a
law that was measured by one is found by the other.
"""

from __future__ import annotations

from typing import Literal

from shotclock import __version__
from shotclock.guidance import Guidance
from shotclock.model.attention import BACKENDS
from shotclock.model.config import TransformerConfig
from shotclock.plan.law import ONE, RESIDENT, LawKey
from shotclock.weights.fp8 import QUANTISATION

UNQUANTISED = "none"


def law_key(
    config: TransformerConfig,
    guidance: Guidance,
    *,
    device: str,
    torch_build: str,
    dtype: str,
    attention: str,
    quantisation: str = UNQUANTISED,
    launch: Literal["eager", "graph", "compiled"] = "eager",
    gpus: int = 1,
    split: str = ONE,
    streaming: str = RESIDENT,
) -> LawKey:
    """The key of a render: ``LawKey(...).model_dump(mode="json")`` is the field ``law_key`` of ``RunBegins``.

    ``device`` and ``dtype`` as the plan calls them, ``torch_build`` is ``torch.__version__``, ``attention`` from
    :func:`attention_order` or what replaces it. The STG blocks are those of the guiders, whether STG is on or not: the
    kinds of passes tell that.
    """
    return LawKey(
        device=device,
        build=build(torch_build),
        model=f"{config.blocks} blocks of {config.video.width} + {config.audio.width}",
        dtype=dtype,
        attention=attention,
        quantisation=quantisation,
        launch=launch,
        legs_per_pass=guidance.legs_per_pass,
        stg_blocks=tuple(sorted({*guidance.video.stg_blocks, *guidance.audio.stg_blocks})),
        gpus=gpus,
        split=split,
        streaming=streaming,
    )


def quantisation_of(quantise: str | None) -> str:
    """What law keys, plans and numerics call the arithmetic of a request's ``quantise``."""
    return UNQUANTISED if quantise is None else QUANTISATION


def build(torch_build: str) -> str:
    """What laws and rates call the software: another version of either measures anew."""
    return f"shotclock {__version__}, torch {torch_build}"


def attention_order(device_type: str) -> str:
    """The attention kernels that are tried in order on a CUDA device; torch's own choice elsewhere."""
    if device_type != "cuda":
        return "sdpa"
    return ">".join(backend.name.removesuffix("_ATTENTION").lower() for backend in BACKENDS)
