"""The governor on a fake clock: its two laws, replays of published logs, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shotclock.events import Event, PassBegins, PassEnds, Phase, PhaseBegins, State, StepEnds
from shotclock.govern.expected import TOLERANCE
from shotclock.govern.governor import WARM_UP_RATIO, Go, Governor, OnOverrun, Outlook, Reason, Stop
from shotclock.guidance import LegName, Pass
from shotclock.plan.estimate import Estimate, exactly
from shotclock.plan.law import kind_of

LEGS = tuple(LegName)
NOTHING = exactly(0.0, "test")
STATE = State(step=0, video=torch.zeros(1), audio=torch.zeros(1))
BUDGET_S, TAIL_S = 7153.0, 600.0  # of run 20260819T150230Z on a GB10: 1024x576, 25 frames, 30 steps of 2 forwards


def steps_of(steps: int, legs: Sequence[LegName], legs_per_pass: int) -> tuple[tuple[Pass, ...], ...]:
    """The same passes in every step."""
    groups = [tuple(legs[i : i + legs_per_pass]) for i in range(0, len(legs), legs_per_pass)]
    return (tuple(Pass(legs=group) for group in groups),) * steps


def within(seconds: float) -> Estimate:
    """The declared bounds of a forward."""
    return Estimate(low_s=seconds * (1 - TOLERANCE), typical_s=seconds, high_s=seconds * (1 + TOLERANCE), source="law")


def outlook(steps: tuple[tuple[Pass, ...], ...], *, end_s: float | None, **changes: object) -> Outlook:
    """No law, no tail, no reserve, snapshots."""
    fields: dict[str, object] = {
        "end_s": end_s,
        "steps": steps,
        "law": {},
        "tail": NOTHING,
        "closing": NOTHING,
        "reserve_s": 0.0,
        "on_overrun": OnOverrun.SNAPSHOT,
        "warm_up_passes": 1,
        "warm_up_ratio": WARM_UP_RATIO,
    }
    return Outlook(**(fields | changes))  # type: ignore[arg-type]


@dataclass
class Run:
    """A render on a fake clock: when each pass ended, when the tail did, what stopped it, and every verdict."""

    pass_ends_s: list[float]
    ended_s: float | None
    stop: Stop | None
    stopped_s: float
    said: list[Go | Stop]
    governor: Governor


def drive(told: Outlook, seconds: Sequence[float], *, first_s: float, tail_s: float = 0.0, from_step: int = 0) -> Run:
    """Let passes take ``seconds`` each, from ``first_s`` on, until the render ends or is stopped."""
    governor, clock_s = Governor(told), first_s
    run = Run([], None, None, math.nan, [], governor)
    durations = iter(seconds)
    index = sum(len(step) for step in told.steps[:from_step])

    def judged(event: Event) -> bool:
        verdict = governor.observe(event, clock_s)
        run.said.append(verdict)
        if isinstance(verdict, Stop):
            run.stop, run.stopped_s = verdict, clock_s
        return isinstance(verdict, Go)

    count = len(told.steps)
    for number in range(from_step, count):
        for launch in told.steps[number]:
            index += 1
            if not judged(PassBegins(index=index, step=number + 1, steps=count, legs=launch.legs)):
                return run
            clock_s += next(durations)
            run.pass_ends_s.append(clock_s)
            assert judged(PassEnds(index=index, step=number + 1, steps=count, legs=launch.legs))
        assert judged(StepEnds(steps=count, sigma=0.5, state=STATE))
    if judged(PhaseBegins(phase=Phase.LOAD_DECODERS)):
        run.ended_s = clock_s + tail_s
    return run


@dataclass
class Declared:
    """Plain numbers of a render whose every duration lies within the declared bounds; the lease may be too short."""

    legs: int
    legs_per_pass: int
    typical_s: list[float]
    factors: list[list[float]]
    warm_up: list[float]
    tail: tuple[float, float]
    first_s: float
    share: float
    extra_s: float
    closing_s: float
    reserve_s: float
    mode: int

    def run(self) -> tuple[Outlook, Run]:
        """Drive it."""
        steps = steps_of(len(self.factors), LEGS[: self.legs], self.legs_per_pass)
        kinds = [kind_of(launch) for launch in steps[0]]
        seconds = [f * t for row in self.factors for f, t in zip(row, self.typical_s[: len(kinds)], strict=False)]
        seconds = [f * s for f, s in zip(self.warm_up, seconds, strict=False)] + seconds[len(self.warm_up) :]
        tail = within(self.tail[0])
        tail_s = self.tail[0] * self.tail[1]
        told = outlook(
            steps,
            end_s=(self.first_s + sum(seconds) + tail_s) * self.share + self.extra_s,
            law={kind: within(s) for kind, s in zip(kinds, self.typical_s, strict=False)},
            tail=tail,
            closing=exactly(self.closing_s, "measured"),
            reserve_s=self.reserve_s,
            on_overrun=list(OnOverrun)[self.mode],
            warm_up_passes=len(self.warm_up),
        )
        return told, drive(told, seconds, first_s=self.first_s, tail_s=tail_s)


FACTOR = st.one_of(st.sampled_from([1 - TOLERANCE, 1.0, 1 + TOLERANCE]), st.floats(1 - TOLERANCE, 1 + TOLERANCE))
DECLARED = st.builds(
    Declared,
    legs=st.integers(1, 4),
    legs_per_pass=st.sampled_from([1, 2, 4]),
    typical_s=st.lists(st.floats(0.5, 400), min_size=4, max_size=4),
    factors=st.lists(st.lists(FACTOR, min_size=4, max_size=4), min_size=2, max_size=12),
    warm_up=st.lists(st.floats(1, WARM_UP_RATIO), max_size=2),
    tail=st.tuples(st.floats(0, 900), FACTOR),
    first_s=st.floats(0, 600),
    share=st.floats(0.1, 2.5),
    extra_s=st.floats(0, 20),
    closing_s=st.one_of(st.just(0.0), st.floats(0, 300)),
    reserve_s=st.floats(0, 30),
    mode=st.integers(0, 2),
)


def rest_at_upper_end_s(told: Outlook, done: int) -> float:
    """Everything left after ``done`` passes with each part at its declared upper end, reserve included."""
    uppers = [told.law[kind_of(launch)].high_s for launch in told.passes]
    factors = [WARM_UP_RATIO if number < told.warm_up_passes else 1.0 for number in range(len(uppers))]
    forwards_s = sum(a * b for a, b in list(zip(uppers, factors, strict=True))[done:])
    return forwards_s + told.tail.high_s + told.reserve_s


@settings(max_examples=150, deadline=None)
@given(declared=DECLARED)
def test_no_forward_ends_after_the_lease(declared: Declared) -> None:
    """Nor does the tail: not even in the reserve, whatever the mode; and a stop leaves time for what closes the run."""
    told, run = declared.run()
    assert told.end_s is not None
    ends = [*run.pass_ends_s, *([run.ended_s] if run.ended_s is not None else [])]
    assert all(end_s <= told.end_s - told.reserve_s + 1e-6 for end_s in ends)
    if run.stop is not None and run.pass_ends_s and run.stop.reason is not Reason.TAIL:
        assert run.pass_ends_s[-1] + told.closing.high_s <= told.end_s - told.reserve_s + 1e-6


@settings(max_examples=150, deadline=None)
@given(declared=DECLARED)
def test_never_a_stop_while_the_rest_fits_at_its_upper_end(declared: Declared) -> None:
    """Forwards at +20 %, warm-up at 10x, the tail's upper end and the reserve; between typical and upper may be either.

    A stop spells out terms that sum to more than the budget.
    """
    told, run = declared.run()
    assert told.end_s is not None
    if run.stop is None:
        assert len(run.pass_ends_s) == len(told.passes)
        assert run.ended_s is not None
        return
    assert run.stopped_s + rest_at_upper_end_s(told, len(run.pass_ends_s)) > told.end_s - 1e-6
    assert run.stop.sum_s > run.stop.budget_s == told.end_s
    assert run.stop.exit_code == (75 if run.pass_ends_s and told.on_overrun is not OnOverrun.STOP else 92)


@settings(max_examples=100, deadline=None)
@given(
    factors=st.lists(st.floats(1 - TOLERANCE, 1 + TOLERANCE), min_size=40, max_size=40),
    warm_up=st.floats(1, WARM_UP_RATIO),
    end_s=st.floats(50, 600),
    forward_s=st.floats(1, 30),
)
def test_without_a_law_the_own_forwards_keep_the_lease(
    factors: list[float], warm_up: float, end_s: float, forward_s: float
) -> None:
    """From the first measured one on, as nobody can bound the very first; a stop has the next one's longest time."""
    seconds = [forward_s * factor for factor in factors]
    seconds[0] *= warm_up
    run = drive(outlook(steps_of(40, LEGS, 4), end_s=end_s), seconds, first_s=10.0)
    measured = 2 if warm_up < 1.5 else 1  # a warm-up that is none bounds the second pass by its own length only
    assert all(pass_end_s <= end_s + 1e-6 for pass_end_s in run.pass_ends_s[measured:])
    if run.stop is not None:
        assert run.stopped_s + max(1.2 / 0.8 * 1.2 * forward_s, seconds[0]) > end_s - 1e-6


def test_a_lease_of_four_hours_is_used_to_its_last_forward_that_fits() -> None:
    """Forwards of 95 s until 120 have run: with 465 s less lease the last five do not fit, and 75 says so."""
    steps = steps_of(30, LEGS, 1)
    law = {kind_of(launch): within(95.0) for launch in steps[0]}
    fitting = drive(outlook(steps, end_s=14400.0, law=law, reserve_s=35.0), [95.0] * 120, first_s=1565.0, tail_s=1400.0)
    assert fitting.stop is None
    assert fitting.ended_s == 1565 + 11400 + 1400
    short = drive(outlook(steps, end_s=12565.0, law=law, reserve_s=35.0), [95.0] * 120, first_s=1565.0)
    assert short.stop is not None
    assert (short.stop.reason, short.stop.exit_code) == (Reason.NEXT_FORWARD, 75)
    assert len(short.pass_ends_s) == 115
    assert short.pass_ends_s[-1] + 1.2 * 95 + 35 > 12565


def test_the_first_published_log_is_not_aborted() -> None:
    """60 forwards of 46.6 s, what the law gives at 2,304 tokens; edges of utilisation said 69.1 and 162.0 s.

    The governor has no input for them.
    """
    steps = steps_of(30, LEGS[:2], 1)
    told = outlook(steps, end_s=BUDGET_S, tail=exactly(TAIL_S, "rate"), on_overrun=OnOverrun.STOP)
    run = drive(told, [46.6] * 60, first_s=481.0, tail_s=TAIL_S)
    assert run.stop is None
    assert run.ended_s == pytest.approx(481 + 60 * 46.6 + 600)
    projected = {round(said.projection.total_s) for said in run.said[20:-1] if said.projection.total_s}
    assert projected == {3877}


def test_a_run_that_is_truly_too_long_is_aborted_with_its_sum() -> None:
    """162.03 s a forward, synchronised: 481 + 60 x 162.03 + 600 = 10,803 s > 7,153 s, exit 92, after two steps."""
    steps = steps_of(30, LEGS[:2], 1)
    told = outlook(steps, end_s=BUDGET_S, tail=exactly(TAIL_S, "rate"), on_overrun=OnOverrun.STOP)
    run = drive(told, [162.03] * 60, first_s=481.0)
    assert run.stop is not None
    assert (run.stop.reason, run.stop.exit_code, len(run.pass_ends_s)) == (Reason.OVERRUN, 92, 4)
    assert round(run.stop.sum_s) == 10_803
    assert str(run.stop) == (
        "STOP[92] projected overrun: elapsed 1,129.1 s + 56 forwards (own forwards) 9,073.7 s + tail 600.0 s + "
        "reserve 0.0 s = 10,802.8 s > budget 7,153.0 s"
    )


def test_the_same_run_with_snapshots_uses_the_whole_lease() -> None:
    """41 forwards fit 7,153 s less what one more could take; then 75, not an abort after four."""
    steps = steps_of(30, LEGS[:2], 1)
    law = {kind_of(launch): within(162.03) for launch in steps[0]}
    run = drive(outlook(steps, end_s=BUDGET_S, law=law, tail=exactly(TAIL_S, "rate")), [162.03] * 60, first_s=481.0)
    assert run.stop is not None
    assert (run.stop.exit_code, len(run.pass_ends_s)) == (75, 40)
    assert "longest next pass 194.4 s" in str(run.stop)


def test_the_published_series_gives_its_projection() -> None:
    """Eight beginnings of run 20260820T084103Z: n=7, median 16.429 s, spread 3.5 %, about 41 minutes to the decode."""
    began_s = (478.846, 495.695, 512.112, 528.443, 544.873, 561.444, 578.058, 594.328)
    told = outlook(steps_of(30, LEGS, 1), end_s=14400.0, tail=exactly(TAIL_S, "rate"), warm_up_passes=0)
    run = Run([], None, None, math.nan, [], Governor(told))
    for number, t_s in enumerate(began_s):
        step = number // 4 + 1
        said = {"index": number + 1, "step": step, "steps": 30, "legs": (LEGS[number % 4],)}
        if number:
            run.governor.observe(PassEnds(**(said | {"index": number, "step": (number - 1) // 4 + 1})), t_s)
            if number % 4 == 0:
                run.governor.observe(StepEnds(steps=30, sigma=0.9, state=STATE), t_s)
        verdict = run.governor.observe(PassBegins(**said), t_s)
    found = verdict.projection
    assert (found.n, found.forwards_left, found.source) == (7, 113, "own forwards")
    assert round(found.per_forward_s or 0, 3) == 16.43
    assert round(100 * (found.spread_ratio or 0), 1) == 3.5
    assert found.total_s is not None
    assert (found.total_s - TAIL_S) / 60 == pytest.approx(41, abs=0.3)
    assert str(verdict).startswith("governor[own forwards]: first_dit=478.8s n=7 per_forward=16.430s spread=3.5%")
    assert str(verdict).endswith("forwards_left=113 tail=600.0s reserve=0.0s projected_total=3057.5s "
                                 "budget=14400.0s verdict=GO")  # fmt: skip


def test_the_published_times_have_their_median_and_spread() -> None:
    """The seven as they were logged: 16.429 s and 3.5 %."""
    seconds = [16.848, 16.418, 16.331, 16.429, 16.571, 16.614, 16.269]
    told = outlook(steps_of(7, LEGS[:1], 1), end_s=None, warm_up_passes=0)
    run = drive(told, seconds, first_s=478.846)
    assert run.said[-1].projection.per_forward_s == pytest.approx(16.429)
    assert round(100 * (run.said[-1].projection.spread_ratio or 0), 1) == 3.5


def test_before_one_full_step_only_the_law_speaks() -> None:
    """Three slow forwards of a step of four change no projection; the step's end does."""
    steps = steps_of(10, LEGS, 1)
    law = {kind_of(launch): within(10.0) for launch in steps[0]}
    run = drive(outlook(steps, end_s=None, law=law), [30.0] * 40, first_s=0.0)
    within_step, after = run.said[:8], run.said[8]
    assert {said.projection.source for said in within_step} == {"law"}
    assert [said.projection.left_s for said in within_step[::2]] == [400, 390, 380, 370]
    assert after.projection.source == "own forwards"
    assert after.projection.left_s == pytest.approx(36 * 30)


def test_without_law_and_forwards_nothing_is_projected() -> None:
    """Dashes, not zeros."""
    run = drive(outlook(steps_of(3, LEGS, 4), end_s=100.0), [1.0] * 3, first_s=5.0)
    assert str(run.said[0]) == (
        "governor[none, provisional]: first_dit=5.0s n=0 per_forward=- spread=- forwards_left=12 tail=0.0s "
        "reserve=0.0s projected_total=- budget=100.0s verdict=GO"
    )


def test_a_law_that_lacks_a_kind_is_no_law() -> None:
    """Half a sum is no projection."""
    run = drive(outlook(steps_of(2, LEGS, 1), end_s=100.0, law={"cond": within(1.0)}), [1.0] * 8, first_s=0.0)
    assert run.said[0].projection.source == "none"


def test_two_slow_first_forwards_do_not_abort() -> None:
    """58, 58, then 6 s each (first run of a card): the mean of few would abort, the median of enough does not."""
    told = outlook(steps_of(30, LEGS, 4), end_s=600.0, on_overrun=OnOverrun.STOP)
    run = drive(told, [58.0, 58.0] + [6.0] * 28, first_s=100.0)
    assert run.stop is None
    early = run.said[6]  # at the third beginning: one warm pass, 28 x 58 s left
    assert early.projection.provisional
    assert early.projection.overruns
    assert "provisional" in str(early)
    assert run.governor.observed.warm_up[0].seconds == 58.0


def test_a_change_point_is_named_with_its_evidence() -> None:
    """Three times slower from the 21st pass on: named after three of them, and the projection follows."""
    told = outlook(steps_of(40, LEGS, 4), end_s=None)
    run = drive(told, [16.4] * 20 + [49.2] * 20, first_s=0.0)
    names = [str(said.projection.change) for said in run.said if said.projection.change]
    assert set(names) == {
        "slower since pass 21: 49.200 s (n=3) after 16.400 s (n=19), 3.00 times; look for swap, clocks, neighbours"
    }
    first = next(said for said in run.said if said.projection.change)
    assert first.projection.left_s == pytest.approx(17 * 49.2)
    assert "change=[slower since pass 21" in str(first)


def test_noise_is_no_change_point() -> None:
    """Ten per cent up and down, and a single hiccup of ten times."""
    seconds = [16.0 + (k % 5) * 0.4 for k in range(40)]
    seconds[25] = 160.0
    run = drive(outlook(steps_of(40, LEGS, 4), end_s=None), seconds, first_s=0.0)
    assert run.governor.observed.change is None


def test_a_timing_that_is_no_number_is_left_out_and_counted() -> None:
    """A step that took no time or none that can be read changes no median and loses nothing."""
    run = drive(outlook(steps_of(6, LEGS, 4), end_s=None), [9.0, 2.0, 0.0, 2.0, 2.0, 2.0], first_s=1.0)
    last = run.said[-1].projection
    assert (last.rejected, last.per_forward_s, last.n) == (1, 0.5, 16)
    governor = Governor(outlook(steps_of(2, LEGS, 4), end_s=100.0))
    begins = PassBegins(index=1, step=1, steps=2, legs=LEGS)
    governor.observe(begins, 1.0)
    governor.observe(PassEnds(index=1, step=1, steps=2, legs=LEGS), math.nan)
    assert governor.observed.rejected == 1
    stop = governor.observe(PassBegins(index=2, step=2, steps=2, legs=LEGS), math.nan)
    assert isinstance(stop, Stop)
    assert (stop.reason, stop.exit_code) == (Reason.CLOCK, 75)


def test_a_lease_without_an_end_never_stops() -> None:
    """And prints no budget."""
    run = drive(outlook(steps_of(5, LEGS, 4), end_s=None), [1e6] * 5, first_s=0.0, tail_s=1e6)
    assert run.stop is None
    assert "budget=- verdict=GO" in str(run.said[-1])


def test_a_tail_that_does_not_fit_is_refused_before_it_begins() -> None:
    """All forwards ran, the latents are safe: 75, with the sum."""
    told = outlook(steps_of(3, LEGS, 4), end_s=20.0, tail=within(10.0), reserve_s=1.0)
    run = drive(told, [3.0] * 3, first_s=1.0)
    assert run.stop is not None
    assert (run.stop.reason, run.stop.exit_code, len(run.pass_ends_s)) == (Reason.TAIL, 75, 3)
    assert run.stop.sum_s == 10 + 12 + 1


def test_a_stop_leaves_time_to_close_and_a_render_that_ends_needs_none() -> None:
    """A draft of 40 s is kept free while the end is out of reach, and no more once all of the rest fits."""
    steps = steps_of(10, LEGS, 4)
    law = {kind_of(steps[0][0]): within(10.0)}

    def run(end_s: float) -> Run:
        told = outlook(steps, end_s=end_s, law=law, closing=exactly(40.0, "rate"), tail=exactly(1.0, "rate"))
        return drive(replace(told, on_overrun=OnOverrun.DRAFT, warm_up_passes=0), [10.0] * 10, first_s=0.0)

    short = run(100.0)
    assert short.stop is not None
    assert (short.stop.reason, short.pass_ends_s[-1]) == (Reason.NEXT_FORWARD, 50.0)
    assert run(10 * 12.0 + 1).stop is None


def test_where_nothing_could_be_resumed_the_exit_code_is_92() -> None:
    """The first forward cannot fit: no pass has run, there is nothing to go on from."""
    law = {kind_of(Pass(legs=LEGS)): within(100.0)}
    run = drive(outlook(steps_of(3, LEGS, 4), end_s=50.0, law=law), [], first_s=10.0)
    assert run.stop is not None
    assert (run.stop.reason, run.stop.exit_code) == (Reason.NEXT_FORWARD, 92)
    resumed = drive(outlook(steps_of(3, LEGS, 4), end_s=50.0, law=law), [], first_s=10.0, from_step=1)
    assert resumed.stop is not None
    assert resumed.stop.exit_code == 75
    assert resumed.stop.projection.forwards_left == 8


def test_a_law_that_was_wrong_gives_way_to_own_forwards() -> None:
    """Twice as slow as the law: the next forward is bounded by what was measured, and the lease is kept."""
    steps = steps_of(20, LEGS, 4)
    law = {kind_of(steps[0][0]): within(10.0)}
    run = drive(outlook(steps, end_s=130.0, law=law), [20.0] * 20, first_s=0.0)
    assert run.stop is not None
    assert run.pass_ends_s[-1] == 120
    assert "longest next pass 30.0 s" in str(run.stop)


def test_a_short_lease_begins_where_the_warm_up_was_measured() -> None:
    """Forwards of 450 s in an hour: ten times as long would forbid the first, a measured capture of 20 s does not."""
    steps = steps_of(8, LEGS, 4)
    law = {kind_of(steps[0][0]): within(450.0)}
    assert drive(outlook(steps, end_s=3600.0, law=law), [450.0] * 8, first_s=300.0).pass_ends_s == []
    run = drive(outlook(steps, end_s=3600.0, law=law, warm_up_ratio=1.1), [450.0] * 8, first_s=300.0)
    assert len(run.pass_ends_s) == 7
