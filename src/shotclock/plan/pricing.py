"""What a clip costs: the ledger of any geometry, guidance and number of steps, for one model on one device.

Arithmetic on laws, rates and counts. Knows no file, device or clock; total forwards come from ``passes()``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider, Leg, LegName, Pass
from shotclock.model.config import TransformerConfig
from shotclock.plan.copies import WHOLE, Apart
from shotclock.plan.cost import TEXT_TOKENS, alone_flops, pass_flops, step_segments
from shotclock.plan.estimate import Estimate, exactly, floor_of, total
from shotclock.plan.law import Law, curve_of, kind_of
from shotclock.plan.ledger import DENOISE, Basis, Ledger, Row
from shotclock.plan.rate import media_units
from shotclock.plan.stages import Stages, nothing
from shotclock.recipes import Stage

SCALED_FACTOR = 1.25  # on the interval of a kind that is scaled from another by its operations; a guess
WARM_UP_BOUND = 9.0  # extra time of a warm-up pass over a warm one where none was measured (users.md row 15)
START, LOAD_TEXT, TEXT, CONDITIONS, LOAD_MODEL, REHEARSAL, WARM_UP = (
    "start",
    "load text",
    "text",
    "conditions",
    "load model",
    "rehearsal",
    "warm-up",
)
BETWEEN, SNAPSHOTS, SAVE, LOAD_DECODERS, DECODE, AUDIO, MUX, VERIFY = (
    "between stages", "snapshots", "save latents", "load decoders", "decode", "audio", "mux", "verify"
)  # fmt: skip
TAIL = (SAVE, LOAD_DECODERS, DECODE, AUDIO, MUX, VERIFY)  # rows that follow the last forward


Recipe = Callable[[Geometry, Guidance, int], tuple[Stage, ...]]  # stages of a clip, its guidance and its steps
Appended = Callable[[Geometry], int]  # video tokens that conditions add at a stage's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Equal passes of one stage. ``kind`` is as the governor calls them, ``launch`` as the stage's guidance has it."""

    kind: str
    launch: Pass
    stage: Stage
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Passes still to run, in the order of their first. Each leaves a snapshot."""

    tasks: tuple[Task, ...]

    @classmethod
    def of(cls, stages: Sequence[Stage], blocks: int, passes_done: int = 0) -> Work:
        """From the lists that the sampler runs, without the first ``passes_done``."""
        tasks: list[Task] = []
        skip = passes_done
        for stage in stages:
            every = launches(stage.guidance, stage.evaluations, blocks)
            for launch, count in Counter(every[skip:]).items():
                kind = kind_of(replace(launch, stage=stage.number))
                tasks.append(Task(kind=kind, launch=launch, stage=stage, count=count))
            skip = max(skip - len(every), 0)
        return cls(tasks=tuple(tasks))

    @property
    def passes(self) -> int:
        """All of them."""
        return sum(task.count for task in self.tasks)

    @property
    def kinds(self) -> tuple[str, ...]:
        """By name."""
        return tuple(task.kind for task in self.tasks)

    @property
    def later(self) -> tuple[tuple[Stage, Stage], ...]:
        """Changes from one stage to the next that are still ahead."""
        stages = list({task.stage.number: task.stage for task in self.tasks}.values())
        return tuple(pairwise(stages))


@lru_cache(maxsize=256)  # a search prices hundreds of clips with one guidance
def launches(guidance: Guidance, evaluations: int, blocks: int) -> tuple[Pass, ...]:
    """Every pass of a stage."""
    return tuple(launch for step in range(evaluations) for launch in guidance.passes(step, blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which stages a render has: text encoded here or given, a rehearsal, a verdict; passes an earlier lease did.

    ``pictures`` and ``sound`` are given and are encoded in every attempt that still has a forward to run.
    """

    encodes_text: bool
    rehearses: bool
    verifies: bool
    passes_done: int = 0
    pictures: int = 0
    sound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of one model on one device. ``law`` is None where too little was measured.

    ``start_s`` went by before the plan was made; ``decode_flops`` counts the operations of an untiled decode. A floor
    divides the forwards evenly over ``gpus``. ``apart`` is what streamed weights change. ``parts`` says for each stage
    what share of a step on one GPU the split takes, where the law is that of one.
    """

    recipe: Recipe
    appended: Appended
    config: TransformerConfig
    law: Law | None
    stages: Stages
    scope: Scope
    start_s: float
    decode_flops: Callable[[Geometry], int]
    gpus: int = 1
    apart: Apart = WHOLE
    parts: tuple[float, ...] = ()

    def ledger(
        self,
        geometry: Geometry,
        guidance: Guidance,
        steps: int,
        *,
        lease_s: float | None,
        reserve_s: float,
        source: str,
    ) -> Ledger:
        """All parts of a render in the order they run."""
        work = Work.of(self.recipe(geometry, guidance, steps), self.config.blocks, self.scope.passes_done)
        rows = (*self.before(geometry, work), *self.forwards(geometry, work), *self.after(geometry))
        return Ledger(lease_s=lease_s, lease_source=source, reserve_s=reserve_s, rows=rows)

    def before(self, geometry: Geometry, work: Work) -> tuple[Row, ...]:
        """Everything before the first forward."""
        row = self.stages.row
        encodes = self.scope.encodes_text
        text = self._encoding(geometry), row(TEXT, Phase.CONNECT, geometry)
        given = "the contexts are there already"
        return (
            Row(name=START, estimate=exactly(self.start_s, "measured: imports and headers"), basis=Basis.MEASURED),
            self._loading(LOAD_TEXT, Phase.LOAD_TEXT, geometry) if encodes else nothing(LOAD_TEXT, given),
            joined(TEXT, *text) if encodes else nothing(TEXT, given),
            self._conditions(geometry, work),
            row(REHEARSAL, Phase.REHEARSE, geometry) if self.scope.rehearses else nothing(REHEARSAL, "not asked for"),
            joined(
                LOAD_MODEL,
                self._loading(LOAD_MODEL, Phase.LOAD_TRANSFORMER, geometry),
                row(LOAD_MODEL, Phase.PREPARE, geometry),
            ),
        )

    def _conditions(self, geometry: Geometry, work: Work) -> Row:
        """Pictures and sound to latents, their encoders loaded for it."""
        media = media_units(geometry, self.scope.pictures, sound=self.scope.sound)
        if not media or not work.passes:
            return nothing(CONDITIONS, "no forward is left" if media else "neither picture nor sound is given")
        return self.stages.row(CONDITIONS, Phase.CONDITION, geometry, media=media)

    def _loading(self, name: str, phase: Phase, geometry: Geometry) -> Row:
        """A load, of what of the file is read then."""
        row = self.stages.row(name, phase, geometry)
        share = self.apart.text_share if phase is Phase.LOAD_TEXT else self.apart.transformer_share
        return row.model_copy(update={"estimate": row.estimate.times(share)})

    def _encoding(self, geometry: Geometry) -> Row:
        """Both prompts, by the encoder where it is."""
        if self.apart.encode is None:
            return self.stages.row(TEXT, Phase.ENCODE, geometry)
        return Row(name=TEXT, estimate=self.apart.encode, basis=Basis.GUESS)

    def forwards(self, geometry: Geometry, work: Work) -> tuple[Row, ...]:
        """What the warm-up takes longer, the forwards, what lies between stages, and a snapshot after each pass."""
        if not work.passes:
            return tuple(nothing(name, "no forward is left") for name in (WARM_UP, DENOISE, BETWEEN, SNAPSHOTS))
        passes = [self.a_pass(task) for task in work.tasks]
        rows = [
            row.model_copy(update={"estimate": row.estimate.times(task.count)})
            for row, task in zip(passes, work.tasks, strict=True)
        ]
        return (
            self.warm_up(curve_of(work.tasks[0].kind), passes[0].estimate),
            joined(DENOISE, *rows),
            self.between(work),
            self.stages.row(SNAPSHOTS, Phase.SNAPSHOT, geometry, count=work.passes),
        )

    def between(self, work: Work) -> Row:
        """Upscaling, and the transformer once more where the next stage fuses another LoRA."""
        rows = []
        for stage, following in work.later:
            clip = following.geometry
            rows += [self.stages.row(BETWEEN, phase, clip) for phase in (Phase.UPSCALE, Phase.PREPARE)]
            if stage.lora != following.lora:
                rows.append(self._loading(BETWEEN, Phase.LOAD_TRANSFORMER, clip))
        return joined(BETWEEN, *rows) if rows else nothing(BETWEEN, "one stage is left")

    def after(self, geometry: Geometry) -> tuple[Row, ...]:
        """The tail: everything after the last forward."""
        row = self.stages.row
        return (
            row(SAVE, Phase.SAVE_LATENTS, geometry),
            row(LOAD_DECODERS, Phase.LOAD_DECODERS, geometry),
            row(AUDIO, Phase.DECODE_AUDIO, geometry),
            row(DECODE, Phase.DECODE_VIDEO, geometry, flops=self.decode_flops(geometry)),
            nothing(MUX, "part of decode: frames leave for the mp4 as they are decoded"),
            row(VERIFY, Phase.VERIFY, geometry) if self.scope.verifies else nothing(VERIFY, "not asked for"),
        )

    def a_pass(self, task: Task) -> Row:
        """One warm pass: as its blocks compute, or as they are copied where that takes longer."""
        row = self._computing(task)
        if self.apart.copies is None:
            return row
        segments = dict(step_segments(task.stage.guidance, self.config.blocks, 0)).get(task.launch)
        estimate = self.apart.copies.bound(row.estimate, segments[0].start if segments else 0)
        return row.model_copy(update={"estimate": estimate})

    def _computing(self, task: Task) -> Row:
        """By its own curve, else scaled from another kind by operations, else a floor."""
        kind = curve_of(task.kind)
        if self.law is None:
            return self._floor(task)
        if kind in self.law.curves:
            row = Row(name=task.kind, estimate=self._by_law(kind, task), basis=Basis.LAW)
        else:
            row = self._scaled(task)
        return self._shared(row, self.parts[task.stage.number - 1]) if self.parts else row

    def _shared(self, row: Row, part: float) -> Row:
        """A pass of one GPU on several: between evenly shared and not at all."""
        whole = row.estimate
        estimate = Estimate(
            low_s=min(whole.low_s / self.gpus, whole.typical_s * part),
            typical_s=whole.typical_s * part,
            high_s=max(whole.high_s, whole.typical_s * part),
            source=f"{whole.source} on one GPU, shared over {self.gpus} by counted block passes, a guess",
        )
        return Row(name=row.name, estimate=estimate, basis=Basis.GUESS)

    def warm_up(self, kind: str, warm: Estimate) -> Row:
        """How much longer the first passes take together, once a process."""
        curve = self.law.curves.get(kind) if self.law else None
        extra_s = curve.warm_up_extra_s if curve else None
        if extra_s is not None:
            estimate = Estimate(low_s=0.0, typical_s=extra_s, high_s=2 * extra_s, source="law: largest seen, doubled")
            return Row(name=WARM_UP, estimate=estimate, basis=Basis.LAW)
        high_s = WARM_UP_BOUND * warm.high_s
        estimate = Estimate(low_s=0.0, typical_s=warm.typical_s, high_s=high_s, source="guess: no warm-up was measured")
        return Row(name=WARM_UP, estimate=estimate, basis=Basis.GUESS)

    def _by_law(self, kind: str, task: Task) -> Estimate:
        assert self.law is not None, "asked with a law"
        return self.law.predict(kind, task.stage.geometry, self.appended(task.stage.geometry))

    def _floor(self, task: Task) -> Row:
        rate = self.stages.matrix_flops_per_s
        if rate is None:
            unknown = exactly(0.0, "unknown: neither a law nor a matrix rate was measured")
            return Row(name=task.kind, estimate=unknown, basis=Basis.FLOOR)
        return Row(
            name=task.kind, estimate=floor_of(self._flops(task.launch, task.stage), rate * self.gpus), basis=Basis.FLOOR
        )

    def _scaled(self, task: Task) -> Row:
        assert self.law is not None, "scaled from a law"
        kind = max(self.law.curves, key=lambda name: name.count("+"))
        known = self._by_law(kind, task)
        ratio = self._flops(task.launch, task.stage) / self._flops(pass_of(kind), task.stage)
        estimate = Estimate(
            low_s=known.low_s * ratio / SCALED_FACTOR,
            typical_s=known.typical_s * ratio,
            high_s=known.high_s * ratio * SCALED_FACTOR,
            source=f"law of {kind} scaled by operations, a guess",
        )
        return Row(name=task.kind, estimate=estimate, basis=Basis.GUESS)

    def _flops(self, launch: Pass, stage: Stage) -> int:
        """Operations of a pass, prefixes of earlier passes of its step taken off where the guidance has it."""
        blocks = self.config.blocks
        for step in range(2):
            passes = stage.guidance.passes(step, blocks)
            if launch in passes:
                counted = pass_flops(self.config, stage.geometry, stage.guidance, TEXT_TOKENS, step=step)
                return counted[passes.index(launch)]
        every = every_leg(stage.guidance, blocks)
        return alone_flops(self.config, stage.geometry, [every[name] for name in launch.legs], launch, TEXT_TOKENS)


def every_leg(guidance: Guidance, blocks: int) -> Mapping[LegName, Leg]:
    """All four legs with the guidance's STG blocks, whether it needs them or not."""

    def on(guider: Guider) -> Guider:
        return replace(guider, cfg=2.0, modality=2.0, stg=1.0 if guider.stg_blocks else 0.0)

    plain = {name: Leg() for name in LegName}  # without a block to perturb, the perturbed leg is the cond leg
    return plain | dict(replace(guidance, video=on(guidance.video), audio=on(guidance.audio)).legs(blocks))


def pass_of(kind: str) -> Pass:
    """The pass that :func:`kind_of` calls ``kind``."""
    legs, _, alone = kind.partition(" ")
    return Pass(
        legs=tuple(LegName(leg) for leg in legs.split("+")),
        video=not alone.startswith("audio"),
        audio=not alone.startswith("video"),
    )


def joined(name: str, *rows: Row) -> Row:
    """Rows as one: sums, the weakest basis and the sources that differ."""
    order = (Basis.FLOOR, Basis.GUESS, Basis.RATE, Basis.LAW, Basis.MEASURED, Basis.NONE)
    sources = "; ".join(dict.fromkeys(row.estimate.source for row in rows))
    return Row(
        name=name,
        estimate=total((row.estimate for row in rows), sources),
        basis=min((row.basis for row in rows), key=order.index),
    )
