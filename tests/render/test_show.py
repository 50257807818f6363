"""What is left of a render, as a person sees it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shotclock.events import Notice, PassBegins, PassEnds, Phase, PhaseBegins, PhaseEnds, Progress
from shotclock.guidance import LegName
from shotclock.plan.estimate import exactly
from shotclock.plan.foreseen import Foreseen
from shotclock.plan.law import LawKey
from shotclock.plan.ledger import Basis, Ledger, Row
from shotclock.plan.planner import Plan
from shotclock.render.journal import Tick
from shotclock.render.show import LiveBar, Outlook, PlainLines, clock_text

PLAN = Plan(
    request_sha256="",
    device="cpu",
    dtype="float32",
    video_tokens=160,
    audio_tokens=26,
    text_tokens=1024,
    latent_frames=4,
    audio_latents=26,
    legs=("cond", "uncond"),
    forwards={"cond": 10, "uncond": 10},
    passes=20,
    steps=10,
    sigmas=(1.0, 0.0),
    sigmas_sha256="0" * 64,
    switches=(),
    step_flops=1000,
    decode_flops=3000,
    blocks=4,
    pinned_config=False,
    files={},
)


KEY = LawKey(
    device="cpu",
    build="x",
    model="x",
    dtype="float32",
    attention="sdpa",
    quantisation="none",
    launch="eager",
    legs_per_pass=4,
    stg_blocks=(2,),
    gpus=1,
)


def foreseen(tail_s: float, verify_s: float) -> Foreseen:
    """A forecast whose tail takes so long, and the verdict in it."""
    verify = Row(name="verify", estimate=exactly(verify_s, "rate"), basis=Basis.RATE)
    return Foreseen(
        ledger=Ledger(lease_s=None, lease_source="none", reserve_s=2.0, rows=(verify,)),
        law_key=KEY,
        law_said=(),
        law={},
        tail=exactly(tail_s, "rate"),
        closing=exactly(0.0, "rate"),
        draft=exactly(0.0, "rate"),
        reserve_s=2.0,
        warm_up_passes=1,
        warm_up_ratio=None,
        leases=1,
        memory=(),
    )


FORESEEN = PLAN.model_copy(update={"forecast": foreseen(30.0, 5.0)})


def ended(index: int, last_s: float, t_s: float = 0.0) -> Tick:
    event = PassEnds(index=index, step=(index + 1) // 2, steps=10, legs=(LegName.COND,))
    return Tick(event=event, t_s=t_s, last_s=last_s)


def test_the_outlook_counts_the_tail() -> None:
    """users.md row 23: when sampling is done, decode and verdict are left, as long as the plan expects."""
    outlook = Outlook(FORESEEN)
    assert outlook.left_s(0.0) is None
    for index in range(1, 21):
        outlook.see(ended(index, 2.0, t_s=2.0 * index))
        assert outlook.left_s(2.0 * index) == pytest.approx((20 - index) * 2.0 + 30)
    assert outlook.left_s(50.0) == pytest.approx(20)
    assert outlook.left_s(500.0) == 0


def test_one_slow_pass_does_not_move_the_outlook() -> None:
    """users.md row 15: the first pass compiles; the median of the others is what is left to pay."""
    outlook = Outlook(FORESEEN)
    for index, seconds in enumerate([58.0, 6.0, 6.0, 6.0], 1):
        outlook.see(ended(index, seconds))
    assert outlook.left_s(0.0) == pytest.approx(16 * 6 + 30)


def test_a_resumed_render_has_only_the_rest_left() -> None:
    """The first pass of the second attempt is number 16 of 20."""
    outlook = Outlook(FORESEEN)
    outlook.see(ended(16, 6.0))
    assert outlook.left_s(0.0) == pytest.approx(4 * 6 + 30)


def test_a_plan_without_a_forecast_counts_its_passes_only() -> None:
    """Those of an older version."""
    outlook = Outlook(PLAN)
    outlook.see(ended(1, 2.0))
    assert outlook.left_s(0.0) == pytest.approx(19 * 2)


def test_the_decode_is_told_by_its_own_progress() -> None:
    """Half the frames in 8 s: 8 s are left, and the verdict."""
    outlook = Outlook(FORESEEN)
    outlook.see(ended(1, 2.0))
    outlook.see(Tick(event=PhaseBegins(phase=Phase.DECODE_VIDEO), t_s=100.0, last_s=None))
    outlook.see(Tick(event=Progress(phase=Phase.DECODE_VIDEO, done=5, total=10), t_s=108.0, last_s=None))
    assert outlook.left_s(108.0) == pytest.approx(8.0 + 5.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-:--"), (0, "0:00"), (0.01, "0:01"), (61, "1:01"), (3600, "1:00:00"), (79_200.5, "22:00:01")],
)
def test_times_read_like_a_clock(seconds: float | None, text: str) -> None:
    """Rounded up: 0:00 means that nothing is left."""
    assert clock_text(seconds) == text


TICKS = [
    Tick(event=PhaseBegins(phase=Phase.DENOISE), t_s=1.0, last_s=None),
    Tick(event=PassBegins(index=1, step=1, steps=10, legs=(LegName.COND, LegName.UNCOND)), t_s=1.0, last_s=None),
    ended(1, 2.0),
    Tick(event=Notice(text="decoding untiled"), t_s=3.0, last_s=None),
    Tick(event=Progress(phase=Phase.DECODE_VIDEO, done=1, total=2), t_s=3.5, last_s=None),
    Tick(event=PhaseEnds(phase=Phase.DENOISE), t_s=4.0, last_s=3.0),
    Tick(event=PhaseBegins(phase=Phase.SNAPSHOT), t_s=4.0, last_s=None),
    Tick(event=PhaseEnds(phase=Phase.SNAPSHOT), t_s=4.2, last_s=0.2),
    Tick(event=PhaseBegins(phase=Phase.DENOISE), t_s=4.2, last_s=None),
    Tick(event=PhaseEnds(phase=Phase.DENOISE), t_s=5.2, last_s=1.0),
    Tick(event=PhaseBegins(phase=Phase.SAVE_LATENTS), t_s=5.2, last_s=None),
]


def test_plain_lines_have_the_fields_of_the_seeds() -> None:
    """Index, phase, step, legs, t= and last=; the pieces of denoise between snapshots are one phase."""
    lines: list[str] = []
    show = PlainLines(PLAN, lines.append)
    for tick in TICKS:
        show(tick)
    assert lines == [
        "phase denoise begins t=1.000s",
        "pass 1/20 phase denoise step 1/10 legs cond+uncond t=1.000s eta=-:--",
        "note: decoding untiled",
        "phase denoise ends t=5.200s last=4.000s",
        "note: 1 snapshots, 0.200 s beside it",
        "phase save-latents begins t=5.200s",
    ]


def test_the_live_bar_draws_on_a_terminal() -> None:
    """Phase names with their seconds stay, the bar goes."""
    screen = io.StringIO()
    with LiveBar(PLAN, Console(file=screen, force_terminal=True, width=100)) as bar:
        for tick in TICKS:
            bar(tick)
    assert "denoise" in screen.getvalue() and "4.000 s" in screen.getvalue()
