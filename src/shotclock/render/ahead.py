"""Before a render: gathers what the forecast needs (headers, free memory, measured laws and rates) and asks for it.

Reads headers, the home folder and memory counters; loads no weight. ``render``, ``plan`` and ``resume`` all go through
:func:`look_ahead`, so what is planned is what is run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import psutil
import torch

from shotclock import recipes
from shotclock.device import is_unified
from shotclock.errors import RequestError, RunDirError
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance
from shotclock.lease import Lease
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.model.diffusion_decoder import DecoderConfig
from shotclock.plan.cost import TEXT_TOKENS, pass_flops
from shotclock.plan.cost import decode_flops as conv_flops
from shotclock.plan.forecast import Case, Forecast, forecast
from shotclock.plan.key import attention_order, law_key, quantisation_of
from shotclock.plan.law import ONE, LawKey
from shotclock.plan.memory import FLOAT_BYTES, Jobs, Needs, Room, Tiles, Weights
from shotclock.plan.placement import Placement
from shotclock.plan.pricing import Scope
from shotclock.plan.rate import MATRIX, PhaseSample, Rates
from shotclock.plan.store import Known, keep_rates, read_known
from shotclock.recipes import RecipeName, Stage
from shotclock.render import exact_tiles
from shotclock.render.capacity import (
    COPY,
    CPU_MATRIX,
    adapted,
    apart,
    block_bytes,
    capped,
    copy_sample,
    encode_seconds,
    noise_counter,
    text_layer_bytes,
)
from shotclock.render.decode import decoder_stages
from shotclock.render.decoders import words
from shotclock.render.page_cache import cached_share
from shotclock.render.tiling import choose_tiling, decode_bytes
from shotclock.request import Request
from shotclock.weights import keys
from shotclock.weights.checkpoint import CheckpointHeaders, Header, Kind, identify, transformer_settings
from shotclock.weights.diffusion_vae import diffusion_decoder

logger = logging.getLogger(__name__)

ENDLESS_BYTES = 2**62  # stands for memory that could not be read: nothing is refused on it
MATRIX_SIDES = {"cuda": 8192, "cpu": 512}
MATRIX_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a render runs. ``name`` is what plan and record call the device."""

    device: torch.device
    name: str
    dtype: torch.dtype
    room: Room
    gpus: int = 1
    split: str = ONE
    parts: tuple[float, ...] = ()

    @property
    def dtype_name(self) -> str:
        """As plan and record write it."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The lease, and monotonic readings of when the command began and of now; ``leases`` as the user accepts them."""

    lease: Lease
    began_s: float
    now_s: float
    leases: int | None


def read_room(device: torch.device, cap_bytes: int | None = None) -> Room:
    """What is free now, before any model is loaded, and allowed; a memory that is shared is capped as one."""
    host = int(psutil.virtual_memory().available)
    shared = is_unified(device)
    free = host if shared else int(torch.cuda.mem_get_info(device)[0])
    return capped(Room(device_bytes=free, host_bytes=host, shared=shared), cap_bytes)


def look_ahead(
    request: Request,
    headers: CheckpointHeaders,
    machine: Machine,
    *,
    scope: Scope,
    window: Window,
    home: Path,
    others: Mapping[str, int],
    pinned_config: bool = False,
) -> Forecast:
    """The forecast of a render; measures the device's matrix rate on first use (a fraction of a second).

    ``others`` are bytes of all files of weights by role.
    """
    case = case_of(request, headers, machine, scope=scope, others=others, pinned_config=pinned_config)
    case, known = informed(case, machine, home)
    known = replace(known, rates=known.rates.of_decoder(request.decoder))
    return forecast(case, known, lease=window.lease, began_s=window.began_s, now_s=window.now_s, leases=window.leases)


def informed(case: Case, machine: Machine, home: Path) -> tuple[Case, Known]:
    """The case with what its placement changes, and what is known of it; measures rates that are missed, once."""
    known = with_matrix_rate(read_known(home, case.key), machine, home)
    clip, weights = (case.geometry, case.guidance), case.needs.weights
    placement = case.needs.place(*clip)
    text = weights.text_layers_bytes, weights.text_bytes
    if machine.device.type == "cuda" and placement.text not in ("none", "device"):
        known = with_rate(known, CPU_MATRIX, home, lambda: cpu_sample(machine.dtype))
        ways = encode_seconds(known.rates, *text, case.cached_shares)
        fastest: Any = min(ways, key=lambda way: ways[way].typical_s)
        case = replace(case, needs=replace(case.needs, text_apart=fastest))
        placement = case.needs.place(*clip)
    if machine.device.type == "cuda" and placement.source == "host":
        known = with_rate(known, COPY, home, lambda: copy_sample(machine.device))
    away = (placement.blocks - placement.resident) * weights.block_bytes
    kept_share = 1 - away / max(weights.transformer_bytes, 1)
    found = apart(placement, known.rates, text_bytes=text, kept_share=kept_share, cached=case.cached_shares)
    return replace(case, apart=found), known


def fitting_legs(
    request: Request,
    headers: CheckpointHeaders,
    machine: Machine,
    *,
    home: Path,
    encodes_text: bool,
    pinned_config: bool,
) -> int:
    """The legs a pass that memory holds and that are fastest, for a user who has not said any.

    A step takes as long as its computing or its copies. Raises :class:`DoesNotFit` where not even one leg fits.
    """
    scope = Scope(encodes_text=encodes_text, rehearses=False, verifies=False)
    case = case_of(request, headers, machine, scope=scope, others={}, pinned_config=pinned_config)
    case, known = informed(case, machine, home)
    flops_per_s = known.rates.matrix_flops_per_s(machine.dtype_name)

    def step_s(guidance: Guidance, placement: Placement) -> float:
        text = case.needs.weights.text_layers_bytes, case.needs.weights.text_bytes
        found = apart(placement, known.rates, text_bytes=text, kept_share=1.0, cached=case.cached_shares)
        computed = pass_flops(case.config, case.geometry, guidance, TEXT_TOKENS, step=0)
        seconds = [flops / flops_per_s if flops_per_s else float(flops) for flops in computed]
        copies_s = found.copies.a_pass().typical_s if found.copies is not None else 0.0
        return sum(max(one, copies_s) for one in seconds)

    return case.needs.legs_per_pass(case.geometry, case.guidance, step_s)


def key_of(request: Request, config: TransformerConfig, machine: Machine, streaming: str) -> LawKey:
    """The key of a render as its plan and its event log have it."""
    return law_key(
        config,
        request.guidance,
        device=machine.name,
        torch_build=torch.__version__,
        dtype=machine.dtype_name,
        attention=attention_order(machine.device.type),
        quantisation=quantisation_of(request.quantise),
        gpus=machine.gpus,
        split=machine.split,
        streaming=streaming,
    )


def case_of(
    request: Request,
    headers: CheckpointHeaders,
    machine: Machine,
    *,
    scope: Scope,
    others: Mapping[str, int],
    pinned_config: bool,
) -> Case:
    """What the headers say, as the planner takes it; ``others`` as :func:`look_ahead` has them."""
    config = transformer_config(transformer_settings(headers.transformer, pinned_config=pinned_config))
    files = {name: header for name, header in files_of(headers).items() if header is not None}
    name = RecipeName(request.recipe)

    def stages_of(geometry: Geometry, guidance: Guidance, steps: int) -> tuple[Stage, ...]:
        return recipes.stages(name, geometry, guidance, steps=steps, seed=request.seed)

    def legal(geometry: Geometry) -> bool:
        try:
            recipes.require(name, geometry, request.guidance, request.steps)
        except RequestError:
            return False
        return True

    def jobs(geometry: Geometry, guidance: Guidance) -> list[tuple[Geometry, Guidance, int]]:
        stages = stages_of(geometry, guidance, request.steps)
        return [(one.geometry, one.guidance, request.appended_tokens(one.geometry)) for one in stages]

    needs = needs_of(headers, config, machine, jobs, encodes_text=scope.encodes_text)
    needs = adapted(needs, request, headers, others)
    if machine.gpus > 1 or request.quantise is not None:  # ranks and float8 have all of their weights on the device
        needs = replace(needs, weights=replace(needs.weights, block_bytes=0))
    streaming = needs.place(request.geometry, request.guidance).key
    return Case(
        geometry=request.geometry,
        guidance=request.guidance,
        steps=request.steps,
        recipe=stages_of,
        appended=request.appended_tokens,
        legal=legal,
        fixed_steps=recipes.RECIPES[name].fixed_steps,
        config=config,
        key=key_of(request, config, machine, streaming),
        scope=replace(scope, pictures=len(request.images), sound=request.sound is not None),
        file_bytes={name: header.file_bytes for name, header in files.items()},
        cached_shares=cached_shares(headers),
        decode_flops=decode_counter(headers.video_vae),
        needs=needs,
        parts=machine.parts,
    )


def files_of(headers: CheckpointHeaders) -> Mapping[str, Header | None]:
    """By the names that plan and event log use."""
    return {
        "transformer": headers.transformer,
        "text_encoder": headers.text_encoder,
        "video_vae": headers.video_vae,
        "audio_vae": headers.audio_vae,
    }


def cached_shares(headers: CheckpointHeaders) -> dict[str, float]:
    """How much of each file is in the page cache, where the kernel says it: field ``cached_shares`` of RunBegins."""
    shares = {name: cached_share(header.path) for name, header in files_of(headers).items() if header is not None}
    return {name: share for name, share in shares.items() if share is not None}


def decode_counter(header: Header) -> Callable[[Geometry], int]:
    """Operations of an untiled decode of any clip with the decoder of the file."""
    if identify(header) is Kind.VIDEO_VAE_DIFFUSION:
        layout = diffusion_decoder(header)
        return lambda geometry: exact_tiles.decode_flops(None, geometry, config=layout.config)
    shapes = {name: entry.shape for name, entry in header.tensors.items()}
    config: Mapping[str, Any] = header.metadata["config"]["vae"]
    return lambda geometry: conv_flops(shapes, config, geometry)


def needs_of(
    headers: CheckpointHeaders, config: TransformerConfig, machine: Machine, jobs: Jobs, *, encodes_text: bool
) -> Needs:
    """Memory of the four files on the machine."""
    size = machine.dtype.itemsize
    as_stored = machine.dtype == torch.bfloat16
    text = headers.text_encoder if encodes_text else None
    transformer = {k: e for k, e in headers.transformer.tensors.items() if "embeddings_connector." not in k}
    video = {k: e for k, e in headers.video_vae.tensors.items() if "decoder." in k}
    layers, layer = (0, 0) if text is None else text_layer_bytes(text, size)
    return Needs(
        jobs=jobs,
        config=config,
        weights=Weights(
            text_bytes=0 if text is None else sum(size * entry.elements for entry in text.tensors.values()),
            text_states_bytes=0 if text is None else text_states_bytes(text, size),
            transformer_bytes=sum(e.end - e.start if as_stored else size * e.elements for e in transformer.values()),
            decoder_bytes=sum(size * entry.elements for entry in video.values())
            + sum(FLOAT_BYTES * entry.elements for entry in headers.audio_vae.tensors.values()),
            block_bytes=block_bytes(headers.transformer, size),
            text_layers_bytes=layers,
            text_layer_bytes=layer,
        ),
        room=machine.room,
        tiles=tile_needs(headers.video_vae, size, shared=machine.room.shared),
        element_bytes=size,
        fused=machine.device.type == "cuda",
        noise=noise_counter(headers.video_vae),
    )


def text_states_bytes(header: Header, element_bytes: int) -> int:
    """All layers' states of one prompt of 1,024 tokens: as computed, and twice in float32 while they are scaled."""
    gemma = header.metadata["gemma_config"]["text_config"]
    states = TEXT_TOKENS * gemma["hidden_size"] * (gemma["num_hidden_layers"] + 1)
    return int(states * (element_bytes + 2 * FLOAT_BYTES))


def tile_needs(header: Header, element_bytes: int, *, shared: bool) -> Tiles:
    """The tiles that the decode would take in a given room, and the bytes they need; ``shared`` is the room with it.

    The diffusion decoder's noise lies on the host: it counts here where that is the device's memory too.
    """
    if identify(header) is Kind.VIDEO_VAE_DIFFUSION:
        return exact_tile_needs(diffusion_decoder(header).config, element_bytes, shared=shared)
    stages = decoder_stages(keys.video_vae(header).arguments)

    def needed(geometry: Geometry, free: int | None) -> tuple[int, str]:
        room = ENDLESS_BYTES if free is None else max(free, 0)
        tiling = choose_tiling(geometry, free_bytes=room, stages=stages, element_bytes=element_bytes)
        size = decode_bytes(tiling, geometry, stages=stages, element_bytes=element_bytes)
        return size, words(tiling)

    return needed


def exact_tile_needs(config: DecoderConfig, element_bytes: int, *, shared: bool) -> Tiles:
    """:func:`tile_needs` of the diffusion decoder."""

    @cache
    def needed(geometry: Geometry, free: int | None) -> tuple[int, str]:
        beside = exact_tiles.host_bytes(None, geometry, config=config) if shared else 0
        room = ENDLESS_BYTES if free is None else max(free - beside, 0)
        cuts = exact_tiles.choose_cuts(geometry, free_bytes=room, config=config, element_bytes=element_bytes)
        size = exact_tiles.decode_bytes(cuts, geometry, config=config, element_bytes=element_bytes)
        return size + beside, words(cuts)

    return needed


def with_matrix_rate(known: Known, machine: Machine, home: Path) -> Known:
    """With the device's matrix rate in the render's dtype, measured and kept where it was not known."""
    phase = f"{MATRIX} {machine.dtype_name}"
    return with_rate(known, phase, home, lambda: matrix_sample(machine.device, machine.dtype))


def with_rate(known: Known, phase: str, home: Path, measure: Callable[[], PhaseSample]) -> Known:
    """With a sample of ``phase``, measured and kept where there was none."""
    if any(sample.phase == phase for sample in known.rates.samples):
        return known
    rates = Rates(device=known.rates.device, build=known.rates.build, samples=(measure(),))
    try:
        keep_rates(home, rates)
    except RunDirError as bad:
        logger.warning("the rate of %s is not kept: %s", phase, bad)
    return Known(timings=known.timings, rates=known.rates.merged(rates), others=known.others)


def matrix_sample(device: torch.device, dtype: torch.dtype) -> PhaseSample:
    """Seconds of a square matrix product on random values, the fastest of five after a warm-up."""
    side = MATRIX_SIDES[device.type]
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, device=device, generator=generator).to(dtype) for _ in range(2))
    times = []
    for _ in range(MATRIX_ROUNDS + 1):
        begun_s = time.perf_counter()
        _ = a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begun_s)
    name = str(dtype).removeprefix("torch.")
    return PhaseSample(
        phase=f"{MATRIX} {name}",
        units=2.0 * prod((side, side, side)),
        seconds=min(times[1:]),
        run=f"matrix {name} {datetime.now(UTC):%Y-%m-%d}",
    )


def cpu_sample(dtype: torch.dtype) -> PhaseSample:
    """The same on the CPU, beside a device: what an encoder that does not fit there could compute at."""
    return matrix_sample(torch.device("cpu"), dtype).model_copy(update={"phase": CPU_MATRIX})
