"""First use of a device: measures a few guided steps at several sizes, and loading, text and decode, for law and rates.

The passes go through the very loop that a render runs. Without files, a transformer of the released widths with random
weights stands for the real one: its forwards take as long. Writes nothing; the caller keeps what was measured.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import torch
from torch import nn

from shotclock.errors import RequestError
from shotclock.events import PassBegins, PassEnds, Phase
from shotclock.geometry import Geometry, unpatchify_video
from shotclock.guidance import Guidance, Guider
from shotclock.latents import noise, text_to_video
from shotclock.model.attention import attention_backends
from shotclock.model.config import TransformerConfig, transformer_config
from shotclock.model.quantise import device_product, quantise_in_place
from shotclock.model.transformer import Transformer
from shotclock.plan.cost import TEXT_TOKENS
from shotclock.plan.key import attention_order, law_key, quantisation_of
from shotclock.plan.law import AUDIO_WEIGHT, LawKey, Sample, Timings, kind_of
from shotclock.plan.rate import PhaseSample, Rates, units_of
from shotclock.render.ahead import Machine, matrix_sample, read_room
from shotclock.render.contexts import Contexts, connect
from shotclock.render.decoders import Decoders, load_decoders
from shotclock.render.denoise import denoise, prepare
from shotclock.render.finish import sound
from shotclock.render.media import write_clip
from shotclock.render.page_cache import cached_share
from shotclock.render.samplers import begin
from shotclock.render.settings import DTYPES, POCKET, device_name, folder_of, pick_device
from shotclock.render.text import TextEncoder
from shotclock.schedule import Sampler, sigmas
from shotclock.weights.checkpoint import CheckpointHeaders, Recipe, find_checkpoints, read_headers, recipe_for
from shotclock.weights.fp8 import require_asked, require_quantisable
from shotclock.weights.released import MODEL_VERSION, PINNED_25_CONFIG, one_stage
from shotclock.weights.transformer import load_connectors, load_transformer

BUDGET_S = 90.0  # for the forwards; loads, text and decodes come on top
WARM_PASSES = 3  # steps of each size beside those that warm up
MIN_SIZES = 3  # a law needs as many
FULL = (  # width, height, frames: 128 to 7,488 video tokens
    (256, 256, 9),
    (384, 256, 17),
    (512, 320, 25),
    (768, 448, 25),
    (1024, 576, 25),
    (1024, 576, 49),
    (1024, 576, 97),
)
FULL_START = 2  # the first size on a GPU; larger ones follow while they fit, smaller ones where too few did
SMALL = ((64, 64, 9), (128, 96, 17), (192, 128, 25), (256, 160, 25))  # 8 to 160 tokens, for models of few blocks
SMALL_BLOCKS = 8  # up to so many blocks a model counts as small
PROMPT = "a paper boat drifts across a pond while rain begins to fall and a bell rings far away"
DECODED = 3  # sizes whose pictures and sound are decoded
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured: passes of one key, and rates of its device and build."""

    timings: Timings
    rates: Rates
    seconds: float


@dataclass(slots=True, kw_only=True)
class Bench:
    """The device under measurement: times blocks to device-synchronised ends and collects samples.

    ``say`` is told one line a measurement.
    """

    machine: Machine
    clock: Callable[[], float]
    say: Callable[[str], None]
    run: str
    phases: list[PhaseSample] = field(default_factory=list)

    def wait(self) -> None:
        """Until the device has done all that was launched."""
        if self.machine.device.type == "cuda":
            torch.cuda.synchronize(self.machine.device)

    @contextmanager
    def phase(self, phase: Phase, units: float, cached: float | None = None) -> Iterator[None]:
        """Take the block as a sample of ``phase``."""
        self.wait()
        begun_s = self.clock()
        yield
        self.wait()
        seconds = self.clock() - begun_s
        self.phases.append(
            PhaseSample(phase=str(phase), units=units, seconds=seconds, run=self.run, cached_share=cached)
        )
        self.say(f"{phase}: {seconds:.3f} s")


def calibrate_here(
    models: str | None,
    device: str | None,
    dtype: str | None,
    *,
    home: Path,
    legs_per_pass: int,
    quantise: str | None,
    pinned_config: bool,
    say: Callable[[str], None],
) -> Calibration:
    """:func:`calibrate` from what was said on the command line."""
    where = pick_device(device)
    machine = Machine(device=where, name=device_name(where), dtype=dtype_for(where, dtype), room=read_room(where))
    require_asked(quantise, where, machine.dtype)
    headers = files_for(models, where, home, pinned_config=pinned_config)
    if quantise is not None and headers is not None:
        require_quantisable(headers.transformer)
    return calibrate(
        machine, headers, legs_per_pass=legs_per_pass, quantise=quantise, pinned_config=pinned_config, say=say
    )


def dtype_for(device: torch.device, name: str | None) -> torch.dtype:
    """The named dtype, or the device's own as a render has it."""
    if name is None:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise RequestError(f"dtype {name!r}", allowed=" or ".join(DTYPES), way_out="leave it to the device")
    return DTYPES[name]


def calibrate(
    machine: Machine,
    headers: CheckpointHeaders | None,
    *,
    legs_per_pass: int,
    pinned_config: bool,
    say: Callable[[str], None],
    quantise: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure ``headers``' model on ``machine``, or one of random weights; about a minute on a GPU.

    Raises :class:`RequestError` where the device cannot hold the model or gets through fewer than three sizes.
    """
    begun_s = clock()
    bench = Bench(machine=machine, clock=clock, say=say, run=f"calibrate {datetime.now(UTC).isoformat()}")
    bench.phases.append(matrix_sample(machine.device, machine.dtype))
    with torch.inference_mode(), attention_backends():
        contexts = None if headers is None or headers.text_encoder is None else encode(bench, headers, pinned_config)
        transformer = model_of(bench, headers, pinned_config)
        if quantise is not None:
            quantise_in_place(transformer, device_product)
        recipe = one_stage(MODEL_VERSION, None) if headers is None else recipe_for(headers.transformer)
        guidance = guidance_of(recipe, legs_per_pass)
        key = key_of(machine, transformer.config, guidance, quantise)
        ladder, start = ladder_of(transformer.config, machine.device)
        samples = forwards(bench, transformer, contexts or random_contexts(machine, transformer), guidance, key)
        del transformer, contexts
        free(machine)
        if headers is not None:
            decode(bench, headers, ladder[start:][:DECODED])
    return Calibration(
        timings=Timings(key=key, audio_weight=AUDIO_WEIGHT, samples=tuple(samples)),
        rates=Rates(device=key.device, build=key.build, samples=tuple(bench.phases)),
        seconds=clock() - begun_s,
    )


def files_for(models: str | None, device: torch.device, home: Path, *, pinned_config: bool) -> CheckpointHeaders | None:
    """Headers of the files to measure; None is random weights, the default on a GPU (pocket on a CPU)."""
    if models is None and device.type == "cuda":
        return None
    folder = folder_of(models or POCKET, home)
    return read_headers(find_checkpoints(folder, pinned_config=pinned_config), pinned_config=pinned_config)


def encode(bench: Bench, headers: CheckpointHeaders, pinned_config: bool) -> Contexts:
    """Load the text encoder, encode two prompts, run the connectors; the encoder is gone when this returns."""
    machine, header = bench.machine, headers.text_encoder
    assert header is not None, "a text encoder"
    cached = cached_share(header.path)
    with bench.phase(Phase.LOAD_TEXT, header.file_bytes, cached):
        encoder = TextEncoder.load(header, device=machine.device, dtype=machine.dtype)
    with encoder, bench.phase(Phase.ENCODE, 2.0):
        features = encoder.encode([PROMPT, ""])
    with bench.phase(Phase.CONNECT, 1.0):
        connectors = load_connectors(
            headers.transformer, device=machine.device, dtype=machine.dtype, pinned_config=pinned_config
        )
        return connect(connectors, features, machine.dtype)


def model_of(bench: Bench, headers: CheckpointHeaders | None, pinned_config: bool) -> Transformer:
    """The transformer of the file, or one of the released widths with random weights."""
    machine = bench.machine
    if headers is None:
        bench.say("no files: random weights of the released widths, made on the device")
        return random_transformer(transformer_config(PINNED_25_CONFIG), machine.device, machine.dtype)
    header = headers.transformer
    with bench.phase(Phase.LOAD_TRANSFORMER, header.file_bytes, cached_share(header.path)):
        return load_transformer(header, device=machine.device, dtype=machine.dtype, pinned_config=pinned_config)


def random_transformer(config: TransformerConfig, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Weights that keep every state finite and of order one, made on the device; tables stay float32 in bfloat16."""
    with torch.device("meta"):
        model = Transformer(config)
    for module in model.modules():
        for name, shaped in list(module.named_parameters(recurse=False)):
            kept = torch.float32 if "scale_shift_table" in name and dtype == torch.bfloat16 else dtype
            setattr(module, name, nn.Parameter(torch.empty(shaped.shape, device=device, dtype=kept)))
    generator = torch.Generator(device).manual_seed(SEED)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            parameter.data.normal_(1, 0.1, generator=generator)
        elif "table" in name or "keyframes" in name or parameter.ndim == 1:
            parameter.data.normal_(0, 0.1, generator=generator)
        else:
            parameter.data.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
    return model.eval().requires_grad_(False)


def random_contexts(machine: Machine, transformer: Transformer) -> Contexts:
    """Two texts of noise: a forward does not take longer for a better one."""
    config = transformer.config
    generator = torch.Generator(machine.device).manual_seed(SEED)
    video, audio = (
        torch.randn(2, TEXT_TOKENS, width, device=machine.device, generator=generator).to(machine.dtype)
        for width in (config.video_context, config.audio_context)
    )
    return video, audio


def guidance_of(recipe: Recipe, legs_per_pass: int) -> Guidance:
    """All four legs, as the recipe has them."""

    def guider(cfg: float) -> Guider:
        return Guider(
            cfg=cfg, stg=recipe.stg, modality=recipe.modality, rescale=recipe.rescale, stg_blocks=recipe.stg_blocks
        )

    return Guidance(video=guider(recipe.video_cfg), audio=guider(recipe.audio_cfg), legs_per_pass=legs_per_pass)


def key_of(machine: Machine, config: TransformerConfig, guidance: Guidance, quantise: str | None = None) -> LawKey:
    """The key that renders of this model here have."""
    return law_key(
        config,
        guidance,
        device=machine.name,
        torch_build=torch.__version__,
        dtype=machine.dtype_name,
        attention=attention_order(machine.device.type),
        quantisation=quantisation_of(quantise),
    )


def forwards(
    bench: Bench, transformer: Transformer, contexts: Contexts, guidance: Guidance, key: LawKey
) -> list[Sample]:
    """Guided steps at growing sizes while the time allows, then at smaller ones where it allowed fewer than three."""
    ladder, start = ladder_of(transformer.config, bench.machine.device)
    begun_s = bench.clock()
    samples: list[Sample] = []
    sizes = 0
    step_s, tokens = 0.0, 1
    for clip in ladder[start:]:
        expected_s = step_s * (clip.video_tokens / tokens) ** 2 * (key.warm_up_passes + WARM_PASSES)
        if bench.clock() - begun_s + expected_s > BUDGET_S:
            break
        found, step_s = steps_at(bench, transformer, contexts, guidance, key, clip)
        tokens, sizes = clip.video_tokens, sizes + 1
        samples += found
    for clip in reversed(ladder[:start]):
        if sizes >= MIN_SIZES:
            break
        found, _ = steps_at(bench, transformer, contexts, guidance, key, clip)
        samples, sizes = samples + found, sizes + 1
    if sizes < MIN_SIZES:
        raise RequestError(
            f"{sizes} sizes were measured within {BUDGET_S:g} s",
            allowed=f"{MIN_SIZES} or more",
            way_out="a faster device, or `shotclock fit` on finished runs",
        )
    return samples


def ladder_of(config: TransformerConfig, device: torch.device) -> tuple[list[Geometry], int]:
    """Sizes by tokens, and which of them goes first."""
    sizes = SMALL if config.blocks <= SMALL_BLOCKS else FULL
    clips = [Geometry(width=width, height=height, frames=frames, fps=Fraction(24)) for width, height, frames in sizes]
    return clips, FULL_START if sizes is FULL and device.type == "cuda" else 0


def steps_at(
    bench: Bench,
    transformer: Transformer,
    contexts: Contexts,
    guidance: Guidance,
    key: LawKey,
    clip: Geometry,
) -> tuple[list[Sample], float]:
    """A few steps of a clip: one sample a kind of pass, and the seconds of a warm step."""
    device = bench.machine.device
    with bench.phase(Phase.PREPARE, units_of(Phase.PREPARE, clip, {})):
        latents = text_to_video(clip, *noise(clip, SEED)).to(device, transformer.dtype)
        prepared = prepare(transformer, latents, contexts)
    warm_up: dict[str, list[float]] = {}
    warm: dict[str, list[float]] = {}
    passes, begun_s = 0, 0.0
    state = begin(Sampler.EULER, latents, SEED)
    for event in denoise(transformer, prepared, sigmas(key.warm_up_passes + WARM_PASSES), guidance, state):
        match event:
            case PassBegins():
                begun_s = bench.clock()
            case PassEnds(step=step):
                bench.wait()
                launch = guidance.passes(step - 1, transformer.config.blocks)
                kind = kind_of(next(one for one in launch if one.legs == event.legs))
                into = warm_up if passes < key.warm_up_passes else warm
                into.setdefault(kind, []).append(bench.clock() - begun_s)
                passes += 1
            case _:
                pass
    samples = [
        Sample(
            geometry=str(clip),
            video_tokens=clip.video_tokens,
            audio_tokens=clip.audio_tokens,
            kind=kind,
            warm_up_s=tuple(warm_up.get(kind, ())),
            pass_s=tuple(seconds),
            run=bench.run,
        )
        for kind, seconds in warm.items()
    ]
    step_s = sum(min(seconds) for seconds in warm.values())
    bench.say(f"{clip}: {clip.video_tokens:,} video tokens, {step_s:.4f} s a guided step")
    return samples, step_s


def decode(bench: Bench, headers: CheckpointHeaders, clips: Sequence[Geometry]) -> None:
    """Load both decoders and take noise at several sizes to a file; the first of all is not counted."""
    machine = bench.machine
    size = headers.video_vae.file_bytes + headers.audio_vae.file_bytes
    shares = [cached_share(header.path) for header in (headers.video_vae, headers.audio_vae)]
    cached = None if any(share is None for share in shares) else min(share for share in shares if share is not None)
    with bench.phase(Phase.LOAD_DECODERS, size, cached):
        decoders = load_decoders(headers, machine.device, machine.dtype)
    with tempfile.TemporaryDirectory() as folder:
        decode_one(bench, decoders, clips[0], Path(folder))
        warm_up = {Phase.DECODE_AUDIO, Phase.DECODE_VIDEO}
        bench.phases[:] = [sample for sample in bench.phases if sample.phase not in warm_up]
        for clip in clips:
            decode_one(bench, decoders, clip, Path(folder))


def decode_one(bench: Bench, decoders: Decoders, clip: Geometry, folder: Path) -> None:
    """Pictures and sound of noise, as a render decodes and writes them."""
    machine = bench.machine
    video, audio = noise(clip, SEED)
    with bench.phase(Phase.DECODE_AUDIO, units_of(Phase.DECODE_AUDIO, clip, {})):
        wave = sound(decoders.audio, audio.to(machine.device, machine.dtype), clip)
    with bench.phase(Phase.DECODE_VIDEO, units_of(Phase.DECODE_VIDEO, clip, {})):
        latent = unpatchify_video(video.to(machine.device, machine.dtype), clip)
        pictures = decoders.pictures(latent, torch.Generator().manual_seed(SEED))
        frames = pictures.frames(pictures.planned(clip))
        write_clip(
            folder / "clip.mp4",
            frames,
            fps=clip.fps,
            wave=wave,
            sample_rate=decoders.audio.sample_rate,
            comment="",
        )


def free(machine: Machine) -> None:
    """Give the transformer's memory back before the decoders are loaded."""
    gc.collect()
    if machine.device.type == "cuda":
        torch.cuda.empty_cache()
