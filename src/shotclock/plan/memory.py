"""What a render holds in memory at its widest points: weights, states of a pass, decode tiles, frames on the host.

Counted from shapes and from the statements of ``model/block.py``; tests measure live bytes against it. Knows no device:
what is free, and what a decode needs, is told by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shotclock.errors import DoesNotFit
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Leg, LegName, Pass
from shotclock.model.config import TransformerConfig
from shotclock.model.prefix import Prefix
from shotclock.plan.cost import TEXT_TOKENS, step_segments
from shotclock.plan.foreseen import Demand
from shotclock.plan.placement import FILE, Placement
from shotclock.weights.stream import SLOTS, streamed_blocks

GIB = 2**30
FLOAT_BYTES = 4
INNER = 4  # a feed-forward is four times as wide inside
WORKSPACE_BYTES = 64 * 2**20  # cuBLAS and cublasLt, 32 MiB each on Hopper; torch counts them as allocated
SPARE = 0.25  # of the states of a pass, kept free where blocks are streamed to make room for them; a guess
SLACK = 1.05  # on activations: what the allocator loses between blocks; a guess
RING_BYTES = 256 * 2**20  # pinned staging buffers of a load (weights/staging.py)
HOST_BYTES = 2**30  # driver, tokenizer, encoder and python while a render runs; a guess
LOOKAHEAD_FRAMES = 60  # that libx264 holds in YUV 4:2:0, 1.5 bytes a pixel, at its default preset
GROUP_FRAMES = 8  # that leave the decoder at once, 3 bytes a pixel
AUDIO_BYTES_PER_S = 200 * 2**20  # activations of audio decoder and vocoder in float32; a guess
UPSCALER_CHANNELS, UPSCALER_STATES = 1024, 5  # of the x2 upscaler at its widest: volumes alive in a residual block
TEXT, LOAD, DENOISE, UPSCALE, DECODE = "text", "load", "denoise", "upscale", "decode"
HOST: Literal["host"] = "host"

StepSeconds = Callable[[Guidance, Placement], float]
Jobs = Callable[[Geometry, Guidance], Sequence[tuple[Geometry, Guidance, int]]]
Tiles = Callable[[Geometry, int | None], tuple[int, str]]  # bytes beside the weights, and the tiles; may raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that are free before anything is loaded; None where it cannot be read.

    ``shared`` says that device and host have one memory, of which ``device_bytes`` is all. ``cap_bytes`` is what the
    user allows, already taken into account; ``most_resident`` is how many blocks may stay after more did not fit.
    """

    device_bytes: int | None
    host_bytes: int | None
    shared: bool
    cap_bytes: int | None = None
    most_resident: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes on the device of each model as it is loaded, and what the text encoder's states take a prompt.

    ``block_bytes`` are the layers of one block of the transformer, ``text_layers_bytes`` all layers of the text
    encoder and ``text_layer_bytes`` the largest: what need not be there at once. Zero where all must.
    ``unquantised_bytes`` is the transformer as it is read, where it is quantised then; ``fuse_bytes`` what fusing LoRAs
    holds beside it.
    """

    text_bytes: int
    text_states_bytes: int
    transformer_bytes: int
    decoder_bytes: int
    block_bytes: int = 0
    text_layers_bytes: int = 0
    text_layer_bytes: int = 0
    unquantised_bytes: int = 0
    fuse_bytes: int = 0
    upscaler_bytes: int = 0

    @property
    def loads_wider(self) -> bool:
        """Whether loading the transformer holds more than running it."""
        return bool(self.unquantised_bytes or self.fuse_bytes)


def _none(_: Geometry) -> int:
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory of one model. ``fused`` says that a feed-forward activates within its product, as on a CUDA device.

    ``jobs`` are the sizes and guidances at which a clip's stages run, with the video tokens that conditions append.
    ``text_apart`` is where an encoder computes that does not fit; ``adapts`` says that LoRAs are fused into the
    transformer, whose streamed blocks cannot stay in the file then. ``noise`` is what a decode keeps on the host.
    """

    jobs: Jobs
    config: TransformerConfig
    weights: Weights
    room: Room
    tiles: Tiles
    element_bytes: int
    fused: bool
    text_apart: Literal["layers", "cpu"] = "layers"
    adapts: bool = False
    noise: Callable[[Geometry], int] = _none

    def place(self, geometry: Geometry, guidance: Guidance) -> Placement:
        """The most that may stay on the device; at the least two blocks and one layer, whether they fit or not."""
        return self._placed(geometry, self._beside(geometry, guidance))

    def _placed(self, geometry: Geometry, beside: int) -> Placement:
        """As :meth:`place`, with ``beside`` bytes of a step beside the weights."""
        blocks, weights, room = self.config.blocks, self.weights, self.room
        resident = self._resident(geometry, beside)
        order = streamed_blocks(blocks, resident)
        free = self._free(geometry)
        whole = weights.text_bytes + weights.text_states_bytes
        text = "device" if free is None or whole <= free or not weights.text_layer_bytes else self.text_apart
        left = None if free is None else free - weights.decoder_bytes - self._sound(geometry)
        return Placement(
            cap_bytes=room.cap_bytes,
            blocks=blocks,
            resident=resident,
            source=self._source(len(order), geometry) if order else "device",
            text=text if weights.text_bytes else "none",
            tile_bytes=None if left is None or room.cap_bytes is None else max(left, 0),
            block_bytes=weights.block_bytes,
            streamed=len(order),
            shared=room.shared,
        )

    def _free(self, geometry: Geometry) -> int | None:
        """What the device has for models and states: a memory that is shared holds the process too."""
        free = self.room.device_bytes
        return free if free is None or not self.room.shared else free - sum(self._process(geometry).values())

    def _beside(self, geometry: Geometry, guidance: Guidance) -> int:
        """States of the widest pass."""
        return int(SLACK * max(self._states(*job) for job in self.jobs(geometry, guidance)))

    @property
    def _workspace(self) -> int:
        return WORKSPACE_BYTES if self.fused else 0

    def _resident(self, geometry: Geometry, beside: int) -> int:
        """Blocks on the device, slots among them."""
        weights, room, blocks = self.weights, self.room, self.config.blocks
        most = min(room.most_resident or blocks, blocks)
        free = self._free(geometry)
        if free is None or not weights.block_bytes or (room.shared and self.adapts):
            return most
        free -= beside + self._workspace
        fixed = weights.transformer_bytes - blocks * weights.block_bytes
        if weights.transformer_bytes - (blocks - most) * weights.block_bytes <= free:
            return most
        count = (free - int(SPARE * beside) - fixed) // weights.block_bytes
        return max(min(count, most), min(SLOTS, blocks))

    def _source(self, streamed: int, geometry: Geometry) -> Literal["host", "file"]:
        """Host memory where there is enough of its own; what LoRAs were fused into is no longer in the file."""
        room = self.room
        if room.shared:
            return FILE
        need = streamed * self.weights.block_bytes + sum(self._process(geometry).values())
        return HOST if self.adapts or room.host_bytes is None or need <= room.host_bytes else FILE

    def _process(self, geometry: Geometry) -> dict[str, int]:
        """What the render holds on the host beside weights."""
        return {
            "staging": RING_BYTES,
            "frames": geometry.width * geometry.height * (3 * GROUP_FRAMES + 3 * LOOKAHEAD_FRAMES // 2),
            "process": HOST_BYTES,
        }

    def demands(self, geometry: Geometry, guidance: Guidance) -> tuple[Demand, ...]:
        """One a phase, in the order they run. Raises :class:`DoesNotFit` where not even the smallest tiles decode."""
        where = HOST if self.room.shared else "device"
        free, weights = self.room.device_bytes, self.weights
        beside = self._beside(geometry, guidance)
        placed = self._placed(geometry, beside)
        left = self._free(geometry)
        sound = self._sound(geometry)
        tiled, tiles = self.tiles(geometry, None if left is None else left - weights.decoder_bytes - sound)
        host = self._process(geometry)
        if not self.room.shared and (drawn := self.noise(geometry)):
            host["noise"] = drawn
        shared = host if self.room.shared else {}
        kept = weights.transformer_bytes - (placed.blocks - placed.resident) * weights.block_bytes
        held = {"weights": kept, "states": beside, "workspaces": self._workspace}
        decoders = {"weights": weights.decoder_bytes, "sound": sound, "tiles": tiled}
        if placed.streams and not self.room.shared:
            host["blocks"] = (placed.streamed if placed.source == HOST else SLOTS) * weights.block_bytes
        found = [
            _demand(TEXT, where, self._text(placed) | shared, free) if placed.text in ("device", "layers") else None,
            _demand(LOAD, where, self._load(kept) | shared, free) if weights.loads_wider else None,
            _demand(DENOISE, where, held | shared, free),
            self._upscale(geometry, guidance, kept, shared) if weights.upscaler_bytes else None,
            _demand(f"{DECODE} {tiles}", where, decoders | shared, free),
            None if self.room.shared else _demand(HOST, HOST, host, self.room.host_bytes),
        ]
        return tuple(demand for demand in found if demand is not None)

    def _load(self, kept: int) -> dict[str, int]:
        """The transformer as it is read, and what is widened to float32 where LoRAs are fused."""
        return {"weights": self.weights.unquantised_bytes or kept, "fuse": self.weights.fuse_bytes}

    def _upscale(self, geometry: Geometry, guidance: Guidance, kept: int, shared: dict[str, int]) -> Demand:
        """Between two sizes: the upscaler beside the transformer of the stage before, which is still there."""
        larger = max(clip.video_tokens for clip, _, _ in self.jobs(geometry, guidance))
        states = UPSCALER_STATES * UPSCALER_CHANNELS * larger * self.element_bytes
        parts = {"weights": kept, "upscaler": self.weights.upscaler_bytes, "states": states}
        where = HOST if self.room.shared else "device"
        return _demand(UPSCALE, where, parts | shared, self.room.device_bytes)

    def _text(self, placed: Placement) -> dict[str, int]:
        """The encoder's weights that are on the device at once, and its states."""
        weights = self.weights
        away = weights.text_layers_bytes - weights.text_layer_bytes if placed.text == "layers" else 0
        return {"weights": weights.text_bytes - away, "states": weights.text_states_bytes}

    def refuses(self, geometry: Geometry, guidance: Guidance) -> str | None:
        """The first phase that needs more than is free; None where all fit."""
        try:
            demands = self.demands(geometry, guidance)
        except DoesNotFit as bad:
            return bad.found
        for demand in demands:
            if not demand.fits:
                free = (demand.free_bytes or 0) / GIB
                return f"{demand.phase} needs {demand.need_bytes / GIB:.2f} GiB of {free:.2f} GiB free ({demand.where})"
        return None

    def legs_per_pass(self, geometry: Geometry, guidance: Guidance, step_s: StepSeconds | None = None) -> int:
        """The legs a pass that memory holds with which a step takes least ``step_s``; the most, where that is alike.

        Without ``step_s`` the most. Raises :class:`DoesNotFit` where even one is too much.
        """
        counts = range(len(LegName), 0, -1)
        options = [replace(guidance, legs_per_pass=count) for count in counts]
        fitting = [option for option in options if self.refuses(geometry, option) is None]
        if fitting:
            if step_s is None:
                return fitting[0].legs_per_pass
            return min(fitting, key=lambda option: step_s(option, self.place(geometry, option))).legs_per_pass
        raise DoesNotFit(
            f"{geometry}, one leg a pass: {self.refuses(geometry, options[-1])}",
            allowed="a clip whose phases each fit in memory",
            way_out="a smaller --size, fewer --frames, or a device with more memory",
        )

    def _states(self, geometry: Geometry, guidance: Guidance, appended: int) -> int:
        return pass_bytes(
            self.config, geometry, guidance, appended=appended, element_bytes=self.element_bytes, fused=self.fused
        )

    def _sound(self, geometry: Geometry) -> int:
        return int(AUDIO_BYTES_PER_S * geometry.duration_s)


def _demand(phase: str, where: str, parts: Mapping[str, int], free: int | None) -> Demand:
    known = None if free is None else max(free, 0)
    return Demand(phase=phase, where=where, need_bytes=sum(parts.values()), free_bytes=known, parts=dict(parts))  # type: ignore[arg-type]


def pass_bytes(
    config: TransformerConfig,
    geometry: Geometry,
    guidance: Guidance,
    *,
    element_bytes: int,
    fused: bool,
    appended: int = 0,
) -> int:
    """Most bytes that a guided step holds beside the weights: at the widest segment of its widest pass."""
    n, m = geometry.video_tokens + appended, geometry.audio_tokens
    video, audio = n * config.video.width, m * config.audio.width  # elements of one row
    texts = 2 * TEXT_TOKENS * (config.video_context + config.audio_context)
    vectors = config.blocks * (16 * config.video.width + 16 * config.audio.width)  # 9 + 4 + 1 + 2 a block and stream
    tables = video + n * config.audio.width + 2 * audio  # cosines and sines, of all heads and of the cross-modal ones
    embedded = video + audio
    latents = n * config.video_in + m * config.audio_in
    widest, predicted = 0, 0
    kept: dict[Prefix, int] = {}
    for launch, segments in step_segments(guidance, config.blocks, 0):
        for segment in segments:
            rows, crossed = len(segment.rows), _crossed(segment.rows, segment.start, launch)
            fed = block_elements(rows, crossed, video, audio, fused=fused)
            read = text_elements(segment.rows, video, config)
            widest = max(widest, sum(kept.values()) + predicted + max(fed, read))
            # A kept row is a view: all rows of its segment stay with it, once.
            kept |= {prefix: 0 for _, prefix in segment.keep}
            if segment.keep:
                kept[segment.keep[0][1]] = rows * (video + audio)
        predicted += len(launch.legs) * latents
    return element_bytes * (texts + vectors + tables + embedded + 3 * latents + widest)


def block_elements(rows: int, crossed: int, video: int, audio: int, *, fused: bool) -> int:
    """Elements alive in one block at its widest point, one of the two feed-forwards.

    Held there: the states before the block and after its self and text attention; of the rows that cross, both
    modulated states and what came from the other stream; the state with that added, its modulated copy, and the inner
    activations: four widths and the result with fused kernels, eight before the result without.
    """
    inner = INNER + 1 if fused else 2 * INNER
    before, after, crossing = rows, rows, 3 * crossed
    both = (before + after + crossing) * (video + audio)
    return both + max((2 + inner) * rows * video, rows * video + (2 + inner) * rows * audio)


def text_elements(rows: Sequence[Leg], video: int, config: TransformerConfig) -> int:
    """Elements alive while the video rows read their texts: wider than a feed-forward for clips below about 500 tokens.

    Five states of all rows (before, after self-attention, its modulated copy, queries, result), two more where rows of
    one context are joined and parted again, and of each text in use the modulated context, its keys and its values.
    """
    contexts = [row.context for row in rows]
    joined = 2 if contexts != sorted(set(contexts)) else 0
    text = len(set(contexts)) * TEXT_TOKENS * (config.video_context + 2 * config.video.width)
    return (5 + joined) * len(rows) * video + text


def _crossed(rows: tuple[Leg, ...], block: int, launch: Pass) -> int:
    """Rows up to the last that takes part in cross-modal attention at ``block``."""
    part = [
        (launch.video and block not in row.perturbation.audio_to_video)
        or (launch.audio and block not in row.perturbation.video_to_audio)
        for row in rows
    ]
    return max((number + 1 for number, takes in enumerate(part) if takes), default=0)
