"""What a render is expected to take, before it starts: the ledger, the largest clip that fits, and the other ways out.

One function that every command asks. Arithmetic on what was measured before; reads no file, weight, device or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shotclock.errors import DoesNotFit, RequestError
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance
from shotclock.lease import Lease
from shotclock.model.config import TransformerConfig
from shotclock.plan.copies import WHOLE, Apart
from shotclock.plan.estimate import exactly
from shotclock.plan.foreseen import Demand, Foreseen
from shotclock.plan.key import UNQUANTISED
from shotclock.plan.law import ONE, RESIDENT, Law, LawKey, Timings, curve_of, fit_law
from shotclock.plan.ledger import DENOISE, Fit, Ledger, default_reserve_s
from shotclock.plan.memory import Needs
from shotclock.plan.options import Option, Pricing, fewer_legs, fewer_steps
from shotclock.plan.pricing import (
    AUDIO,
    BETWEEN,
    CONDITIONS,
    DECODE,
    LOAD_DECODERS,
    LOAD_MODEL,
    SNAPSHOTS,
    START,
    TAIL,
    WARM_UP,
    Appended,
    Prices,
    Recipe,
    Scope,
    Task,
    Work,
    joined,
)
from shotclock.plan.rate import WARM_SHARE
from shotclock.plan.reach import Reach, Refuses, Share, search, split
from shotclock.plan.stages import Stages
from shotclock.plan.store import Known
from shotclock.weights.fp8 import QUANTISATION

ANY_LEASES = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is to be rendered and on what. ``decode_flops`` counts an untiled decode, ``cached_shares`` are by file.

    ``parts`` are the shares of one GPU's step that a split over several takes, by stage.
    ``recipe`` gives the stages of any clip, ``legal`` whether it takes a clip, ``fixed_steps`` that it has its own.
    """

    geometry: Geometry
    guidance: Guidance
    steps: int
    recipe: Recipe
    appended: Appended
    legal: Callable[[Geometry], bool]
    fixed_steps: bool
    config: TransformerConfig
    key: LawKey
    scope: Scope
    file_bytes: Mapping[str, int]
    cached_shares: Mapping[str, float]
    decode_flops: Callable[[Geometry], int]
    needs: Needs
    apart: Apart = WHOLE
    parts: tuple[float, ...] = ()

    def work(self, passes_done: int = 0) -> Work:
        """The passes of the wish."""
        stages = self.recipe(self.geometry, self.guidance, self.steps)
        return Work.of(stages, self.config.blocks, passes_done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Answer of :func:`forecast`. ``document`` goes into plan.json, with the ingredients of the governor's outlook.

    ``allowed_leases`` is how many the user accepts, None any number; ``refused`` is what memory says. ``price`` gives
    the ledger of another clip, guidance and number of steps in the same lease, ``refuses`` what memory says of a clip.
    """

    document: Foreseen
    reach: Reach
    options: tuple[Option, ...]
    shares: tuple[Share, ...]
    allowed_leases: int | None
    refused: str | None
    case: Case
    price: Pricing
    refuses: Refuses

    @property
    def ledger(self) -> Ledger:
        """Of the wish."""
        return self.document.ledger

    @property
    def accepted(self) -> bool:
        """Whether the render may start: memory holds it, and one lease or as many as are allowed."""
        if self.refused is not None:
            return False
        if self.ledger.fit is not Fit.TOO_LONG:
            return True
        return bool(self.shares) and (self.allowed_leases is None or len(self.shares) <= self.allowed_leases)

    def lines(self) -> list[str]:
        """What a person reads before a render: law, ledger, memory, leases."""
        said = [*self.document.law_said, *self.ledger.lines(), *(one.line() for one in self.document.memory)]
        said += self.document.placement.lines() if self.document.placement is not None else []
        said += [f"page cache: {cached_line(self.case.cached_shares)}"] if self.case.cached_shares else []
        if len(self.shares) > 1:
            passes = ", ".join(str(share.passes) for share in self.shares)
            said.append(f"leases: {len(self.shares)} of {self.ledger.lease_s or 0:,.0f} s, with {passes} passes")
        return said

    def require(self) -> None:
        """Raises :class:`DoesNotFit` (exit 3) with the largest that fits and the price of each other way out."""
        if self.accepted:
            return
        ways = [one for one in self.options if one.fits] or [one for one in self.options if one.possible]
        options = [option.line() for option in ways]
        if self.refused is not None:  # by memory, which was asked about the smallest setting: shorter does not help
            options = ["more free memory, or a larger --memory"]
        elif len(self.shares) > 1:
            options.append(f"--leases {len(self.shares)} renders it in {len(self.shares)} leases of this length")
        if self.refused is None and self.allowed_leases and self.allowed_leases > 1 and self.shares:
            raise DoesNotFit(
                f"{self.reach.wish.geometry} needs {len(self.shares)} leases of {self.ledger.lease_s or 0:,.0f} s",
                allowed=f"--leases {self.allowed_leases}",
                way_out=f"--leases {len(self.shares)} or --leases any",
            )
        self.reach.require(options)
        raise AssertionError("a plan that is not accepted has a wish that does not fit")


def forecast(case: Case, known: Known, *, lease: Lease, began_s: float, now_s: float, leases: int | None) -> Forecast:
    """Expect a render. ``began_s`` and ``now_s`` are monotonic: when the command began, and now.

    ``leases`` is how many leases the user accepts, None any number. Nothing is refused here: see :meth:`require`.
    """
    known, apart = _streamed(case, known)
    known, parts = _shared(case, known)
    law, said = _law(case, known)
    lease_s = lease.length_s(began_s)
    reserve_s = default_reserve_s(lease_s)
    stages = Stages(
        rates=known.rates,
        file_bytes=case.file_bytes,
        cached_shares=case.cached_shares,
        matrix_flops_per_s=known.rates.matrix_flops_per_s(case.key.dtype),
    )
    prices = Prices(
        recipe=case.recipe,
        appended=case.appended,
        config=case.config,
        law=law,
        stages=stages,
        scope=case.scope,
        start_s=max(now_s - began_s, 0.0),
        decode_flops=case.decode_flops,
        gpus=case.key.gpus,
        apart=apart,
        parts=parts,
    )

    def price(geometry: Geometry, guidance: Guidance, steps: int) -> Ledger:
        return prices.ledger(geometry, guidance, steps, lease_s=lease_s, reserve_s=reserve_s, source=lease.source)

    def refuses(geometry: Geometry) -> str | None:
        return case.needs.refuses(geometry, case.guidance)

    ledger = price(case.geometry, case.guidance, case.steps)
    reach = search(case.geometry, lambda geometry: price(geometry, case.guidance, case.steps), refuses, case.legal)
    shares = _shares(case, ledger)
    return Forecast(
        document=_foreseen(case, prices, ledger, said, len(shares) or None),
        reach=reach,
        options=_options(case, known, prices, price),
        shares=shares,
        allowed_leases=leases,
        refused=refuses(case.geometry),
        case=case,
        price=price,
        refuses=refuses,
    )


def _streamed(case: Case, known: Known) -> tuple[Known, Apart]:
    """Where no law of streamed blocks was measured: the law of resident ones, and the copies that bound a pass."""
    if case.apart.copies is None:
        return known, case.apart
    if known.timings is not None:
        return known, replace(case.apart, copies=None)
    plain = case.key.model_copy(update={"streaming": RESIDENT})
    return replace(known, timings=next((one for one in known.others if one.key == plain), None)), case.apart


def _shared(case: Case, known: Known) -> tuple[Known, tuple[float, ...]]:
    """Where no law of this split over several GPUs was measured: that of one, and what share of it each stage takes."""
    if case.key.gpus == 1 or known.timings is not None:
        return known, ()
    one = case.key.model_copy(update={"gpus": 1, "split": ONE})
    found = next((timings for timings in known.others if timings.key == one), None)
    return replace(known, timings=found), case.parts if found else ()


def cached_line(shares: Mapping[str, float]) -> str:
    """Which files a load reads from memory, and which from the disk."""
    return ", ".join(
        f"{share:.0%} of {name} ({'warm' if share >= WARM_SHARE else 'cold'})" for name, share in shares.items()
    )


def _law(case: Case, known: Known) -> tuple[Law | None, tuple[str, ...]]:
    """The fitted law, and what is said of it."""
    if known.timings is None:
        floor = "a floor from counted operations, which refuses what cannot fit and promises nothing"
        way = "`shotclock calibrate` measures a law"
        return None, (*known.stale_lines(case.key), f"no law for this device and build: denoise is {floor}; {way}")
    try:
        law = fit_law(known.timings)
    except RequestError as bad:
        return None, (f"no law: {bad.found}; {bad.way_out}",)
    kinds = list(dict.fromkeys(curve_of(kind) for kind in case.work().kinds))
    said = [f"law of {kind}: {law.curves[kind].chosen}" for kind in kinds if kind in law.curves]
    said += [f"law: {kind} was not measured, scaled by operations" for kind in kinds if kind not in law.curves]
    return law, tuple(said)


def _options(case: Case, known: Known, prices: Prices, price: Pricing) -> tuple[Option, ...]:
    """Fewer legs, fewer steps, and the quantised weights that were measured."""
    wish = case.geometry, case.guidance, case.steps
    wish_s = price(*wish).row(DENOISE).typical_s
    quantised = []
    for timings in known.others:
        alike = timings.key.model_copy(update={"quantisation": case.key.quantisation}) == case.key
        if alike and (law := _fitted(timings)) is not None:
            ledger = price(*wish)
            rows = replace(prices, law=law).ledger(
                *wish, lease_s=ledger.lease_s, reserve_s=ledger.reserve_s, source=ledger.lease_source
            )
            quantised.append(Option(flags=flags_of(timings.key.quantisation), ledger=rows, wish_denoise_s=wish_s))
    shorter = () if case.fixed_steps else fewer_steps(*wish, price)
    return (*fewer_legs(*wish, price), *shorter, *quantised)


def flags_of(quantisation: str) -> str:
    """How the arithmetic of another measured law is asked for."""
    if quantisation == QUANTISATION:
        return "--quantise fp8 (measured, not exact)"
    exact = quantisation == UNQUANTISED
    return "without --quantise (measured)" if exact else f"{quantisation} weights (measured)"


def _fitted(timings: Timings) -> Law | None:
    try:
        return fit_law(timings)
    except RequestError:
        return None


def _shares(case: Case, ledger: Ledger) -> tuple[Share, ...]:
    """The render over leases of this length, where one does not do; none where no number of them does."""
    if ledger.lease_s is None or ledger.fit is not Fit.TOO_LONG:
        return ()
    work = case.work(case.scope.passes_done)
    before = ledger.rows[: [row.name for row in ledger.rows].index(DENOISE)]
    again_s = sum(row.estimate.typical_s for row in before if row.name in (START, CONDITIONS, LOAD_MODEL, WARM_UP))
    forwards_s = sum(ledger.row(name).typical_s for name in (DENOISE, BETWEEN, SNAPSHOTS))
    if not forwards_s:
        return ()
    try:
        return split(
            work.passes,
            forwards_s / work.passes,
            lease_s=ledger.lease_s,
            first_s=sum(row.estimate.typical_s for row in before),
            resume_s=again_s,
            tail_s=sum(ledger.row(name).typical_s for name in TAIL),
            reserve_s=ledger.reserve_s,
        )
    except DoesNotFit:
        return ()


def _foreseen(case: Case, prices: Prices, ledger: Ledger, said: tuple[str, ...], leases: int | None) -> Foreseen:
    """The document: with the law of the kinds that were measured, and only those."""
    law, whole = prices.law, case.work()
    known = [task for task in whole.tasks if law is not None and curve_of(task.kind) in law.curves]
    passes = {task.kind: prices.a_pass(task).estimate for task in known}
    tail = joined("tail", *(row for row in ledger.rows if row.name in TAIL))
    draft = joined("draft", *(row for row in ledger.rows if row.name in (LOAD_DECODERS, AUDIO, DECODE)))
    left = case.work(case.scope.passes_done).passes
    return Foreseen(
        ledger=ledger,
        law_key=case.key,
        law_said=said,
        law=passes,
        tail=tail.estimate,
        closing=ledger.row(SNAPSHOTS).times(1 / left) if left else exactly(0.0, "no forward is left"),
        draft=draft.estimate,
        reserve_s=ledger.reserve_s,
        warm_up_passes=case.key.warm_up_passes,
        warm_up_ratio=_warm_up_ratio(prices, known),
        leases=1 if ledger.fit is not Fit.TOO_LONG else leases,
        memory=_memory(case),
        placement=case.needs.place(case.geometry, case.guidance),
    )


def _warm_up_ratio(prices: Prices, known: Sequence[Task]) -> float | None:
    """Bound of the first pass over a warm one of its kind; after a resume it may be any, so the largest counts."""
    ratios = [
        prices.law.warm_up_ratio(curve_of(task.kind), task.stage.geometry) for task in known if prices.law is not None
    ]
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _memory(case: Case) -> tuple[Demand, ...]:
    try:
        return case.needs.demands(case.geometry, case.guidance)
    except DoesNotFit:
        return ()  # said by ``refused``


def parse_leases(text: str) -> int | None:
    """ "3" to 3 and "any" to None; raises :class:`RequestError`."""
    if text == ANY_LEASES:
        return None
    if text.isascii() and text.isdigit() and int(text[:6]) > 0:
        return int(text[:6])
    raise RequestError(f"leases {text[:20]!r}", allowed="a number from 1, or any", way_out="write --leases 2")
