"""The forecast of a render on the seeds' GB10: its ledger, what fits instead, the ways out, leases, no law at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.errors import DoesNotFit, RequestError
from shotclock.events import Phase
from shotclock.geometry import Geometry
from shotclock.guidance import Guidance, Guider
from shotclock.lease import Lease, Source
from shotclock.model.config import transformer_config
from shotclock.plan.forecast import Case, Forecast, forecast, parse_leases
from shotclock.plan.foreseen import Foreseen
from shotclock.plan.key import attention_order, law_key
from shotclock.plan.law import LawKey, Sample, Timings
from shotclock.plan.ledger import DENOISE, Basis, Fit, Row
from shotclock.plan.memory import Needs, Room, Weights
from shotclock.plan.pricing import CONDITIONS, DECODE, LOAD_MODEL, SNAPSHOTS, TAIL, TEXT, Scope
from shotclock.plan.rate import SOUND_PIXELS_PER_S, PhaseSample, Rates, media_units, units_of
from shotclock.plan.store import Known
from shotclock.plan.table import reach_table
from shotclock.recipes import RecipeName, Stage, stages
from shotclock.weights.released import PINNED_25_CONFIG

CONFIG = transformer_config(PINNED_25_CONFIG)
LEASE_S = 4 * 3600.0
RUNGS = {(768, 448, 25): 16.61, (1024, 576, 49): 135.77, (1024, 576, 97): 458.24}  # s a forward, run 20260820T223701Z
MEASURED = {  # of its lease: 1,100 s to load, 465 s to the first forward, tail so that 11,400 s = 120 x 95 s are left
    Phase.LOAD_TRANSFORMER: 1100.0,
    Phase.ENCODE: 465.0,
    Phase.DECODE_VIDEO: 1000.0,
    Phase.VERIFY: 147.0,
}


def clip(width: int, height: int, frames: int) -> Geometry:
    """At 24 frames a second."""
    return Geometry(width=width, height=height, frames=frames, fps=Fraction(24))


def guidance(legs_per_pass: int = 1, **changes: float) -> Guidance:
    """As the recipe has it."""
    scales: dict[str, Any] = {"stg": 1.0, "modality": 3.0, "rescale": 0.7, "stg_blocks": (28,)} | changes
    return Guidance(
        video=Guider(**({"cfg": 3.0} | scales)), audio=Guider(**({"cfg": 7.0} | scales)), legs_per_pass=legs_per_pass
    )


def key(legs_per_pass: int = 1, **changes: Any) -> LawKey:
    """Of the GB10."""
    fields = {"device": "GB10", "torch_build": "2.13.0", "dtype": "bfloat16", "attention": attention_order("cuda")}
    return law_key(CONFIG, guidance(legs_per_pass), **(fields | changes))


def timings(kinds: tuple[str, ...], of: LawKey, factor: float = 1.0) -> Timings:
    """The three rungs for every kind of pass, video tokens alone."""
    samples = [
        Sample(
            geometry=str(clip(*size)),
            video_tokens=clip(*size).video_tokens,
            audio_tokens=0,
            kind=kind,
            warm_up_s=(factor * seconds + 30.0,) if kind == kinds[0] else (),
            pass_s=(factor * seconds,) * 3,
            run="20260820T223701Z",
        )
        for size, seconds in RUNGS.items()
        for kind in kinds
    ]
    return Timings(key=of, audio_weight=0.0, samples=tuple(samples))


def rates(wish: Geometry, seconds: dict[Phase, float] | None = None) -> Rates:
    """Each phase as if it had been measured once for exactly this clip; what is not named takes no time."""
    stages = [phase for phase in Phase if phase not in (Phase.IMPORT, Phase.INSPECT, Phase.DENOISE)]
    found = MEASURED if seconds is None else seconds
    samples = [
        PhaseSample(phase=str(phase), units=units_of(phase, wish, {}), seconds=found.get(phase, 0.0), run="a")
        for phase in stages
    ]
    return Rates(device="GB10", build=key().build, samples=tuple(samples))


FOUR = ("cond", "uncond", "perturbed", "isolated")


def needs(gib: float | None = None) -> Needs:
    """Weights of 36 GiB on a device of ``gib``."""
    room = Room(device_bytes=None if gib is None else int(gib * 2**30), host_bytes=None, shared=False)
    weights = Weights(text_bytes=0, text_states_bytes=0, transformer_bytes=36 * 2**30, decoder_bytes=2**30)
    return Needs(
        jobs=lambda *job: [(*job, 0)],
        config=CONFIG,
        weights=weights,
        room=room,
        tiles=lambda *_: (2**30, "untiled"),
        element_bytes=2,
        fused=True,
    )


def recipe(name: RecipeName, wish: Geometry, asked: Guidance, steps: int) -> tuple[Stage, ...]:
    """Its stages; seeds do not matter here."""
    return stages(name, wish, asked, steps=steps, seed=0)


def case(wish: Geometry, **changes: Any) -> Case:
    """30 steps, one leg a pass, everything on."""
    fields: dict[str, Any] = {
        "geometry": wish,
        "guidance": guidance(),
        "steps": 30,
        "recipe": partial(recipe, RecipeName.ONE_STAGE),
        "appended": lambda _: 0,
        "legal": lambda _: True,
        "fixed_steps": False,
        "config": CONFIG,
        "key": key(),
        "scope": Scope(encodes_text=True, rehearses=True, verifies=True),
        "file_bytes": {},
        "cached_shares": {},
        "decode_flops": lambda geometry: 10**6 * geometry.video_tokens,
        "needs": needs(),
    }
    return Case(**(fields | changes))


def lease(length_s: float | None = LEASE_S) -> Lease:
    """Begun at 1,000 s on the monotonic clock."""
    if length_s is None:
        return Lease(sources=())
    end = datetime(2026, 12, 1, tzinfo=UTC) + timedelta(seconds=length_s)
    return Lease(sources=(Source(name="--lease 4h", end_s=1000 + length_s, end=end),))


def expected(
    wish: Geometry, known: Known | None = None, length_s: float | None = LEASE_S, leases: int | None = 1, **changes: Any
) -> Forecast:
    """Of the seeds' device, unless told otherwise."""
    known = Known(timings=timings(FOUR, key()), rates=rates(wish)) if known is None else known
    return forecast(case(wish, **changes), known, lease=lease(length_s), began_s=1000.0, now_s=1000.0, leases=leases)


def test_the_ledger_of_a_four_hour_lease_sums_to_it() -> None:
    """120 forwards by the law, the seeds' load and first forward, 11,400 s for denoising."""
    found = expected(clip(896, 512, 49)).ledger
    assert found.lease_s == LEASE_S
    parts = sum(row.estimate.typical_s for row in found.rows)
    assert parts + found.reserve_s + (found.free_s or 0.0) == pytest.approx(LEASE_S, abs=1)
    assert found.row(LOAD_MODEL).typical_s == 1100
    assert found.row(TEXT).typical_s == 465
    assert found.reserve_s == 288
    assert found.leaves_s(DENOISE) == pytest.approx(11_400 - found.row("warm-up").typical_s)
    forward_s = 0.2277 + 1.476e-3 * 3136 + 7.972e-6 * 3136**2
    assert found.row(DENOISE).typical_s == pytest.approx(120 * forward_s, rel=1e-3)
    assert found.fit is Fit.LIKELY
    assert {row.basis for row in found.rows} == {Basis.MEASURED, Basis.RATE, Basis.LAW, Basis.NONE}


def test_a_wish_that_is_too_long_is_refused_with_the_largest_that_fits_and_prices() -> None:
    """1024x576 with 49 frames, exit 3: 928x512, 49 frames fits; fewer steps, fewer legs, more leases are priced."""
    found = expected(clip(1024, 576, 49))
    assert not found.accepted
    with pytest.raises(DoesNotFit) as caught:
        found.require()
    assert caught.value.exit_code == 3
    assert caught.value.found.startswith("1024x576, 49 frames at 24 needs 16,")
    assert "largest that fits: 928x512, 49 frames at 24" in caught.value.way_out
    assert "--steps 20: denoise 10," in caught.value.way_out
    assert "--stg 0 --modality 1: denoise 8," in caught.value.way_out
    assert "--leases 2 renders it in 2 leases of this length" in caught.value.way_out
    assert found.document.leases == 2


@pytest.mark.parametrize(("allowed", "accepted"), [(1, False), (2, True), (3, True), (None, True)])
def test_a_plan_of_several_leases_needs_to_be_accepted(allowed: int | None, accepted: bool) -> None:
    """By --leases 2 or more, or any."""
    found = expected(clip(1024, 576, 49), leases=allowed)
    assert found.accepted is accepted
    if accepted:
        found.require()
        assert "leases: 2 of 14,400 s" in "\n".join(found.lines())


def test_too_few_leases_are_told_how_many_it_takes() -> None:
    """The 23 h clip in three leases."""
    with pytest.raises(
        DoesNotFit, match=r"needs \d+ leases of 14,400 s; allowed: --leases 3; way out: --leases \d+ or"
    ):
        expected(clip(1024, 576, 121), leases=3).require()


def test_without_a_law_there_is_a_floor_that_refuses_but_promises_nothing() -> None:
    """At 100 TFLOP/s the arithmetic alone of 1024x576 with 49 frames takes a while; a minute is too short for it."""
    wish = clip(1024, 576, 49)
    matrix = PhaseSample(phase="matrix bfloat16", units=1e14, seconds=1.0, run="m")
    known = Known(
        timings=None, rates=rates(wish, {}).merged(Rates(device="GB10", build=key().build, samples=(matrix,)))
    )
    roomy = expected(wish, known)
    row = next(row for row in roomy.ledger.rows if row.name == DENOISE)
    assert row.basis is Basis.FLOOR
    assert row.estimate.source == "floor at 100 TFLOP/s, no law measured"
    assert roomy.ledger.fit is Fit.UNKNOWN
    assert roomy.accepted
    assert roomy.document.law == {}
    assert "no law for this device and build" in roomy.lines()[0]
    with pytest.raises(DoesNotFit, match="largest that may fit"):
        expected(wish, known, length_s=60.0).require()


def test_a_law_of_another_device_is_stale_and_not_used() -> None:
    """Its fields are named; denoising has a floor instead."""
    other = key(device="NVIDIA H200")
    known = Known(timings=None, rates=rates(clip(768, 448, 25)), others=(timings(FOUR, other),))
    found = expected(clip(768, 448, 25), known)
    assert found.lines()[0] == "STALE: a law was measured with device NVIDIA H200, not GB10"
    assert found.document.law == {}


def test_a_law_of_one_gpu_is_shared_as_the_split_is_counted_and_called_a_guess() -> None:
    """The longer rank has 0.6 of a step: so it takes, evenly shared at best, not shared at all at worst."""
    wish = clip(896, 512, 49)
    two = key(gpus=2, split="legs over 2")

    def denoise(law: Timings | None, of: LawKey) -> Row:
        known = Known(timings=law, rates=rates(wish), others=() if of.gpus == 1 else (timings(FOUR, key()),))
        rows = expected(wish, known, key=of, parts=(0.6,)).ledger.rows
        return next(row for row in rows if row.name == DENOISE)

    one, guessed = denoise(timings(FOUR, key()), key()), denoise(None, two)
    measured = denoise(timings(FOUR, two, factor=0.55), two)
    assert (one.basis, guessed.basis, measured.basis) == (Basis.LAW, Basis.GUESS, Basis.LAW)
    assert guessed.estimate.low_s == pytest.approx(one.estimate.low_s / 2)
    assert guessed.estimate.typical_s == pytest.approx(0.6 * one.estimate.typical_s)
    assert guessed.estimate.high_s == pytest.approx(one.estimate.high_s)
    assert measured.estimate.typical_s == pytest.approx(0.55 * one.estimate.typical_s)


def test_too_few_geometries_are_no_law_and_the_plan_says_what_is_missing() -> None:
    """Two of three."""
    whole = timings(FOUR, key())
    few = whole.model_copy(update={"samples": whole.samples[:8]})
    found = expected(clip(768, 448, 25), Known(timings=few, rates=rates(clip(768, 448, 25))))
    assert "no law: too little was measured for a law: cond: 2 of 3 geometries" in found.lines()[0]


def test_the_governor_is_given_law_tail_closing_and_warm_up() -> None:
    """Every kind of pass; the tail is what follows the last forward; a snapshot closes; the document survives JSON."""
    found = expected(clip(768, 448, 25))
    document = found.document
    assert set(document.law) == set(FOUR)
    assert document.law["cond"].typical_s == pytest.approx(16.61, rel=0.02)
    assert document.tail.typical_s == sum(found.ledger.row(name).typical_s for name in TAIL) == 1147
    assert document.draft.typical_s == found.ledger.row(DECODE).typical_s
    assert document.closing.typical_s == found.ledger.row(SNAPSHOTS).typical_s / 120
    assert document.warm_up_passes == 1
    assert document.warm_up_ratio == pytest.approx(1 + 2 * 30 / document.law["cond"].typical_s)
    assert Foreseen.model_validate_json(document.to_json()) == document


def test_passes_of_an_earlier_lease_are_not_paid_again() -> None:
    """100 of 120 done, contexts there: 20 passes and no text."""
    scope = Scope(encodes_text=False, rehearses=False, verifies=True, passes_done=100)
    whole, rest = expected(clip(768, 448, 25)), expected(clip(768, 448, 25), scope=scope)
    assert rest.ledger.row(DENOISE).typical_s == pytest.approx(whole.ledger.row(DENOISE).typical_s / 6)
    assert rest.ledger.row(TEXT).typical_s == 0
    done = expected(clip(768, 448, 25), scope=replace(scope, passes_done=120))
    assert done.ledger.row(DENOISE).typical_s == 0
    assert done.accepted


def test_a_pass_that_was_not_measured_is_scaled_and_called_a_guess() -> None:
    """Four legs in one pass were; without STG the pass has three, and fewer operations."""
    four = "cond+uncond+perturbed+isolated"
    wish = clip(768, 448, 25)
    known = Known(timings=timings((four,), key(4), 3.0), rates=rates(wish))
    found = expected(wish, known, key=key(4), guidance=guidance(4, stg=0.0))
    row = next(row for row in found.ledger.rows if row.name == DENOISE)
    assert row.basis is Basis.GUESS
    assert row.estimate.source == f"law of {four} scaled by operations, a guess"
    assert 0.8 * 30 * 3 * 16.61 < row.estimate.typical_s < 0.95 * 30 * 3 * 16.61
    assert found.document.law == {}
    assert "law: cond+uncond+isolated was not measured, scaled by operations" in found.lines()


def test_quantised_weights_that_were_measured_are_priced() -> None:
    """A law that differs in nothing else; one of another device is not."""
    half = timings(FOUR, key(quantisation="fp8"), 0.5)
    elsewhere = timings(FOUR, key(quantisation="fp8", device="NVIDIA H200"), 0.1)
    wish = clip(1024, 576, 49)
    known = Known(timings=timings(FOUR, key()), rates=rates(wish), others=(half, elsewhere))
    (option,) = [one for one in expected(wish, known).options if "fp8" in one.flags]
    assert option.line().startswith("fp8 weights (measured): denoise 8,1")
    assert "(50%)" in option.line()


def test_memory_refuses_before_time_does() -> None:
    """37 GiB hold the weights but no pass of 121 frames; a smaller clip is named."""
    found = expected(clip(1024, 576, 121), length_s=None, needs=needs(37.2))
    with pytest.raises(
        DoesNotFit, match=r"denoise needs 37\.\d\d GiB of 37\.20 GiB free \(device\); allowed: a clip that"
    ) as refused:
        found.require()
    assert "--stg" not in str(refused.value) and "a larger --memory" in str(refused.value)
    assert found.reach.largest is not None
    assert found.reach.largest.geometry.video_tokens < 9216


def test_the_table_has_every_clip_at_every_number_of_steps() -> None:
    """Cells agree with the ledger of the wish; memory is said where it refuses."""
    found = expected(clip(896, 512, 49), needs=needs(37.2))
    table = reach_table(found)
    assert table.steps == (8, 15, 30)
    (own,) = [row for row in table.rows if row.geometry == found.case.geometry]
    assert own.ledgers[-1] == found.ledger
    assert any("memory" in line for line in table.lines())
    assert [len(row.ledgers) for row in table.rows] == [3] * len(table.rows)
    assert table.to_json()[0]["steps"]["30"]["fit"] == "fits"


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("12", 12), ("any", None)])
def test_leases_are_a_number_or_any(text: str, count: int | None) -> None:
    """From 1."""
    assert parse_leases(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5"])
def test_other_leases_are_refused(text: str) -> None:
    """With an example."""
    with pytest.raises(RequestError, match="write --leases 2"):
        parse_leases(text)


def test_two_stages_cost_what_each_of_their_sizes_does() -> None:
    """30 guided steps at half size, three bare ones at full size, and what lies between: LoRA, upscaler."""
    wish = clip(1536, 896, 25)
    measured = rates(wish, MEASURED | {Phase.UPSCALE: 7.0})
    known = Known(timings=timings(FOUR, key()), rates=measured)
    found = expected(wish, known, 1e6, recipe=partial(recipe, RecipeName.TWO_STAGE))
    whole = expected(wish, known, 1e6).document.law["cond"].typical_s
    half = expected(clip(768, 448, 25), known, 1e6).document.law["cond"].typical_s
    assert set(found.document.law) == {*FOUR, "cond in stage 2"}
    assert found.document.law["cond in stage 2"].typical_s == pytest.approx(whole)
    assert found.ledger.row(DENOISE).typical_s == pytest.approx(120 * half + 3 * whole)
    assert found.ledger.row("between stages").typical_s == pytest.approx(7 + 1100)
    rest = expected(
        wish,
        known,
        1e6,
        recipe=partial(recipe, RecipeName.TWO_STAGE),
        scope=Scope(encodes_text=False, rehearses=False, verifies=False, passes_done=121),
    )
    assert rest.ledger.row(DENOISE).typical_s == pytest.approx(2 * whole)
    assert rest.ledger.row("between stages").typical_s == 0


def test_a_recipe_with_its_own_steps_and_sizes_is_offered_no_others() -> None:
    """The distilled recipe: eight and three steps, sizes in multiples of 64."""
    wish = clip(1024, 640, 121)
    found = expected(
        wish,
        length_s=3600.0,
        steps=8,
        recipe=partial(recipe, RecipeName.DISTILLED),
        fixed_steps=True,
        legal=lambda geometry: not (geometry.width % 64 or geometry.height % 64),
    )
    assert not [option for option in found.options if "--steps" in option.flags]
    assert found.reach.largest is not None
    assert found.reach.largest.geometry.width % 64 == found.reach.largest.geometry.height % 64 == 0
    assert reach_table(found).steps == (8,)


def test_tokens_that_conditions_append_are_paid() -> None:
    """A keyframe slot adds its latents to every pass."""
    bare, more = expected(clip(768, 448, 25)), expected(clip(768, 448, 25), appended=lambda _: 336)
    ratio = more.ledger.row(DENOISE).typical_s / bare.ledger.row(DENOISE).typical_s
    assert ratio == pytest.approx(expected_ratio(1344 + 336) / expected_ratio(1344), rel=1e-3)


def expected_ratio(tokens: int) -> float:
    """Seconds of a pass by the seeds' law."""
    return 0.2277 + 1.476e-3 * tokens + 7.972e-6 * tokens**2


@settings(max_examples=25, deadline=None)
@given(
    seconds=st.dictionaries(st.sampled_from(list(MEASURED)), st.floats(0, 5000)),
    length_s=st.floats(30, 100_000),
    steps=st.integers(2, 40),
)
def test_any_ledger_sums_to_its_lease(seconds: dict[Phase, float], length_s: float, steps: int) -> None:
    """Within 1 s; what is accepted at one lease fits it or rests on a guess, what is not needs too much for certain."""
    wish = clip(384, 224, 9)
    known = Known(timings=timings(FOUR, key()), rates=rates(wish, seconds))
    found = expected(wish, known, length_s, steps=steps)
    whole = found.ledger
    parts = sum(row.estimate.typical_s for row in whole.rows) + whole.reserve_s + (whole.free_s or 0.0)
    assert abs(parts - length_s) < 1
    assert found.accepted == (whole.least_s + whole.reserve_s <= length_s)


def test_pictures_and_sound_are_a_row_of_their_own() -> None:
    """By the pixels there are to encode, again in every lease that has a forward left; nothing where none are given."""
    wish = clip(768, 448, 25)
    scope = Scope(encodes_text=False, rehearses=False, verifies=True, pictures=2, sound=True)
    media = media_units(wish, 2, sound=True)
    assert media == 2 * 768 * 448 + SOUND_PIXELS_PER_S * float(wish.duration_s)
    sample = PhaseSample(phase=Phase.CONDITION, units=media / 2, seconds=3.0, run="b")
    others = rates(wish)
    known = [one for one in others.samples if one.phase != Phase.CONDITION]
    measured = Known(timings=timings(FOUR, key()), rates=others.model_copy(update={"samples": (*known, sample)}))
    row = next(row for row in expected(wish, measured, scope=scope).ledger.rows if row.name == CONDITIONS)
    assert row.basis is Basis.RATE and row.estimate.typical_s == pytest.approx(6.0)
    assert expected(wish, measured).ledger.row(CONDITIONS).typical_s == 0
    assert expected(wish, measured, scope=replace(scope, passes_done=120)).ledger.row(CONDITIONS).typical_s == 0
    unmeasured = replace(measured, rates=others.model_copy(update={"samples": tuple(known)}))
    assert "guess" in expected(wish, unmeasured, scope=scope).ledger.row(CONDITIONS).source
