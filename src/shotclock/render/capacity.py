"""What a render may hold and how fast weights move: the user's cap, sizes that can be apart, rates of copies.

Reads headers and measures copies; loads no weight.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

import torch

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.plan.copies import Apart, Copies
from shotclock.plan.estimate import Estimate, around
from shotclock.plan.memory import Needs, Room
from shotclock.plan.placement import Placement
from shotclock.plan.rate import PROMPTS, WARM_SHARE, PhaseSample, Rates
from shotclock.plan.stages import ENCODER_FLOPS_PER_BYTE
from shotclock.render import exact_tiles
from shotclock.render.given import UPSCALER
from shotclock.request import Request
from shotclock.weights.checkpoint import CheckpointHeaders, Header, Kind, identify
from shotclock.weights.diffusion_vae import diffusion_decoder
from shotclock.weights.fp8 import quantised_bytes
from shotclock.weights.lora import fuse_bytes
from shotclock.weights.stream import page_locked

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]*)")
BLOCK = re.compile(r"transformer_blocks\.(\d+)\.\w+\.")  # of a layer; a block's own tables have no further dot
TEXT_LAYER = re.compile(r"\blayers\.(\d+)\.")
COPY = "copy from host"  # no phase: page-locked memory to the device, units are bytes
COPY_BYTES, COPY_ROUNDS = 256 * 2**20, 3
MAPPED = {True: 4e9, False: 1e9}  # bytes a second through mapped pages of a file, cached or not; guesses
MAPPED_FACTOR = 3.0
HOST_FACTOR = 1.15  # on a measured copy: it shares memory with what computes; a guess
CPU_SHARE = 0.5  # of the CPU's matrix rate that an encoder reaches; a guess
CPU_MATRIX = "matrix of the CPU"


def parse_bytes(text: str) -> int:
    """ "20GB", "20 GiB" or a plain number of bytes; raises :class:`RequestError`."""
    found = SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() not in UNITS or not (size := int(float(found[1]) * UNITS[found[2].lower()])):
        raise RequestError(
            f"memory {text[:20]!r}", allowed="a size above 0, as 20GB, 18.5GiB or 900MB", way_out="write --memory 20GB"
        )
    return size


def capped(room: Room, cap_bytes: int | None) -> Room:
    """What is free, but for what the user does not allow."""
    if cap_bytes is None:
        return room
    device = cap_bytes if room.device_bytes is None else min(cap_bytes, room.device_bytes)
    return Room(device_bytes=device, host_bytes=room.host_bytes, shared=room.shared, cap_bytes=cap_bytes)


def block_bytes(header: Header, element_bytes: int) -> int:
    """Layers of the largest block of a transformer file, all weights ``element_bytes`` wide."""
    return max(_by_number(header, BLOCK, element_bytes).values(), default=0)


def text_layer_bytes(header: Header, element_bytes: int) -> tuple[int, int]:
    """All layers of a text encoder file together, and the largest."""
    found = _by_number(header, TEXT_LAYER, element_bytes)
    return sum(found.values()), max(found.values(), default=0)


def _by_number(header: Header, layer: re.Pattern[str], element_bytes: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for key, entry in header.tensors.items():
        if "vision" not in key and (match := layer.search(key)):
            found[int(match[1])] += element_bytes * entry.elements
    return found


def apart(
    placement: Placement, rates: Rates, *, text_bytes: tuple[int, int], kept_share: float, cached: Mapping[str, float]
) -> Apart:
    """What ``placement`` changes in the durations. ``text_bytes`` are the encoder's layers and all of it.

    ``kept_share`` is what of the transformer stays on the device, ``cached`` the share of each file in the page cache.
    """
    layers, whole = text_bytes
    from_file = placement.source == "file"
    return Apart(
        copies=_copies(placement, rates, cached),
        encode=encode_seconds(rates, layers, whole, cached).get(placement.text),
        text_share=1 - layers / whole if placement.text == "layers" and whole else 1.0,
        transformer_share=kept_share if from_file else 1.0,
    )


def _copies(placement: Placement, rates: Rates, cached: Mapping[str, float]) -> Copies | None:
    measured = [sample.units / sample.seconds for sample in rates.samples if sample.phase == COPY and sample.seconds]
    if placement.source == "host" and measured:
        rate = max(measured)
        said = f"page-locked copies at {rate / 1e9:.3g} GB/s, measured"
        return Copies.of(placement, rate, factor=HOST_FACTOR, source=said)
    rate = _mapped(cached.get("transformer"))
    said = f"guess: {rate / 1e9:g} GB/s through mapped pages of the file"
    return Copies.of(placement, rate, factor=MAPPED_FACTOR, source=said)


def _mapped(share: float | None) -> float:
    return MAPPED[share is not None and share >= WARM_SHARE]


def encode_seconds(rates: Rates, layers: int, whole: int, cached: Mapping[str, float]) -> dict[str, Estimate]:
    """Both prompts by an encoder that is apart: its layers one after the other, or all of it on the CPU."""
    rate = _mapped(cached.get("text_encoder"))
    said = f"guess: layers at {rate / 1e9:g} GB/s through mapped pages of the file"
    found = {"layers": around(PROMPTS * layers / rate, MAPPED_FACTOR, said)}
    measured = [sample.units / sample.seconds for sample in rates.samples if sample.phase == CPU_MATRIX]
    if measured:
        flops = PROMPTS * ENCODER_FLOPS_PER_BYTE * whole
        cpu = max(measured) * CPU_SHARE
        said = f"guess: {cpu / 1e9:.3g} GFLOP/s on the CPU"
        found["cpu"] = around(whole / rate + flops / cpu, MAPPED_FACTOR, said)
    return found


def copy_sample(device: torch.device) -> PhaseSample:
    """Seconds of a copy from page-locked memory to a CUDA device, the fastest of three after a warm-up."""
    source = page_locked(COPY_BYTES, device)
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    times = []
    for _ in range(COPY_ROUNDS + 1):
        torch.cuda.synchronize(device)
        begun_s = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun_s)
    return PhaseSample(
        phase=COPY, units=float(COPY_BYTES), seconds=min(times[1:]), run=f"copy {datetime.now(UTC):%Y-%m-%d}"
    )


def adapted(needs: Needs, request: Request, headers: CheckpointHeaders, others: Mapping[str, int]) -> Needs:
    """With what the request adds: LoRAs that are fused, float8, an upscaler; ``others`` are bytes of files by role.

    Float8 is made where all blocks are: nothing of it streams.
    """
    fuses = bool(request.loras or request.distilled_lora)
    weights = replace(
        needs.weights,
        fuse_bytes=fuse_bytes(headers.transformer) if fuses else 0,
        upscaler_bytes=others.get(UPSCALER, 0) * needs.element_bytes // 2,  # the file is in bfloat16
    )
    if request.quantise is not None:
        weights = replace(
            weights,
            unquantised_bytes=weights.transformer_bytes,
            transformer_bytes=quantised_bytes(headers.transformer),
            block_bytes=0,
        )
    return replace(needs, adapts=fuses, weights=weights)


def noise_counter(header: Header) -> Callable[[Geometry], int]:
    """Bytes of noise and pictures that a decode of any clip holds on the host; the conv decoder draws none."""
    if identify(header) is not Kind.VIDEO_VAE_DIFFUSION:
        return lambda _: 0
    config = diffusion_decoder(header).config
    return lambda geometry: exact_tiles.host_bytes(None, geometry, config=config)
