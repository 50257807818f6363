"""What a render holds in memory at its widest points: weights, states of a pass, decode tiles, frames on the host.

Counted from shapes and from the statements of ``model/block.py``; tests measure live bytes against it. Knows no device:
what is free, and what a decode needs, is told by the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shotclock.errors import DoesNotFit
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Leg, LegName, Pass
from shotclock.model.config import TransformerConfig
from shotclock.model.prefix import Prefix
from shotclock.plan.cost import TEXT_TOKENS, step_segments
from shotclock.plan.foreseen import Demand

GIB = 2**30
FLOAT_BYTES = 4
INNER = 4  # a feed-forward is four times as wide inside
WORKSPACE_BYTES = 64 * 2**20  # cuBLAS and cublasLt, 32 MiB each on Hopper; torch counts them as allocated
SLACK = 1.05  # on activations: what the allocator loses between blocks; a guess
RING_BYTES = 256 * 2**20  # pinned staging buffers of a load (weights/staging.py)
HOST_BYTES = 2**30  # driver, tokenizer, encoder and python while a render runs; a guess
LOOKAHEAD_FRAMES = 60  # that libx264 holds in YUV 4:2:0, 1.5 bytes a pixel, at its default preset
GROUP_FRAMES = 8  # that leave the decoder at once, 3 bytes a pixel
AUDIO_BYTES_PER_S = 200 * 2**20  # activations of audio decoder and vocoder in float32; a guess
TEXT, DENOISE, DECODE, HOST = "text", "denoise", "decode", "host"

Jobs = Callable[[Geometry, Guidance], Sequence[tuple[Geometry, Guidance, int]]]
Tiles = Callable[[Geometry, int | None], tuple[int, str]]  # bytes beside the weights, and the tiles; may raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that are free before anything is loaded; None where it cannot be read.

    ``shared`` says that device and host have one memory, of which ``device_bytes`` is all.
    """

    device_bytes: int | None
    host_bytes: int | None
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Bytes on the device of each model as it is loaded, and what the text encoder's states take a prompt."""

    text_bytes: int
    text_states_bytes: int
    transformer_bytes: int
    decoder_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory of one model. ``fused`` says that a feed-forward activates within its product, as on a CUDA device.

    ``jobs`` are the sizes and guidances at which a clip's stages run, with the video tokens that conditions append.
    """

    jobs: Jobs
    config: TransformerConfig
    weights: Weights
    room: Room
    tiles: Tiles
    element_bytes: int
    fused: bool

    def demands(self, geometry: Geometry, guidance: Guidance) -> tuple[Demand, ...]:
        """One a phase, in the order they run. Raises :class:`DoesNotFit` where not even the smallest tiles decode."""
        where = HOST if self.room.shared else "device"
        free = self.room.device_bytes
        widest = max(self._states(*job) for job in self.jobs(geometry, guidance))
        workspace = WORKSPACE_BYTES if self.fused else 0
        decoders = {"weights": self.weights.decoder_bytes, "sound": self._sound(geometry)}
        left = None if free is None else free - self.weights.decoder_bytes
        tiled, tiles = self.tiles(geometry, left)
        host = {
            "staging": RING_BYTES,
            "frames": geometry.width * geometry.height * (3 * GROUP_FRAMES + 3 * LOOKAHEAD_FRAMES // 2),
            "process": HOST_BYTES,
        }
        text = {"weights": self.weights.text_bytes, "states": self.weights.text_states_bytes}
        held = {"weights": self.weights.transformer_bytes, "states": int(SLACK * widest), "workspaces": workspace}
        shared = host if self.room.shared else {}
        found = [
            _demand(TEXT, where, text | shared, free) if self.weights.text_bytes else None,
            _demand(DENOISE, where, held | shared, free),
            _demand(f"{DECODE} {tiles}", where, decoders | {"tiles": tiled} | shared, free),
            None if self.room.shared else _demand(HOST, HOST, host, self.room.host_bytes),
        ]
        return tuple(demand for demand in found if demand is not None)

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

    def legs_per_pass(self, geometry: Geometry, guidance: Guidance) -> int:
        """The most legs a pass that memory holds; raises :class:`DoesNotFit` where even one is too much."""
        counts = range(len(LegName), 0, -1)
        options = [replace(guidance, legs_per_pass=count) for count in counts]
        for option in options:
            if self.refuses(geometry, option) is None:
                return option.legs_per_pass
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
