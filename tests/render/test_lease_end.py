"""Renders against a lease, on a clock that moves a second a reading: refused, stopped, continued, drafted, in order."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from shotclock.closing import finish
from shotclock.errors import DoesNotFit, RenderFailed, RenderStopped
from shotclock.events import StepEnds
from shotclock.govern import meter
from shotclock.lease import Lease, Moment, resolve_lease
from shotclock.model.transformer import Transformer
from shotclock.render import denoise, sample
from shotclock.render import run as runs
from shotclock.render.job import Judged, Outcome, Times
from shotclock.render.run import Terms
from shotclock.render.settings import Settings
from shotclock.render.snapshot import newest_snapshot
from shotclock.rundir import RunDir

PASSES = 8  # four steps of two legs each


def settings(run: Path) -> Settings:
    """Two legs a pass, so that leases can end inside a step."""
    return Settings(
        prompt="x", run=run, models="tiny", negative_prompt=None, size="64x64", frames=9, fps="24", seed=10, steps=4,
        cfg=None, audio_cfg=None, stg=None, stg_blocks=None, modality=None, rescale=None, skip_step=0,
        legs_per_pass=2, device="cpu", dtype=None, contexts=None, transformer=None, text_encoder=None, video_vae=None,
        audio_vae=None, pinned_config=False,
    )  # fmt: skip


def terms(clock: FakeClock, length: str | None, **more: Any) -> Terms:
    """A lease from now on, by the fake clock."""
    moment = Moment(monotonic_s=clock.now_s, wall=datetime(2026, 12, 1, tzinfo=UTC))
    lease = resolve_lease(moment, began_s=clock.now_s, length=length) if length else Lease(sources=())
    asked = {"leases": None, "on_overrun": "snapshot", "rehearse": "never", "judge": None}
    asked |= {"accept_seam": False, "trace_nonfinite": False}
    return Terms(lease=lease, **(asked | more))


def times(clock: FakeClock) -> Times:
    return Times(clock=clock, began_s=clock.now_s, imported_s=clock.now_s)


def start(run: Path, home: Path, clock: FakeClock, of: Terms) -> Outcome:
    return runs.start(settings(run), of, home=home, times=times(clock), console=None)


def resume(run: Path, home: Path, clock: FakeClock, of: Terms) -> Outcome | None:
    return runs.resume(run, of, models=None, home=home, times=times(clock), console=None)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def passes(run: Path) -> list[int]:
    return [line["index"] for line in log(run) if line["event"] == "PassEnds"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing in its way; rehearsed and judged."""
    run, clock = tmp_path_factory.mktemp("whole") / "run", FakeClock(1.0)
    judged: list[Path] = []

    def judge(path: Path) -> Judged:
        assert (path / "clip.mp4").is_file() and (path / "request.json").is_file()
        judged.append(path)
        return Judged(outcome="WARN", lines=("a line",))

    outcome = start(run, home, clock, terms(clock, None, rehearse="always", judge=judge))
    assert outcome.verdict == "WARN" and [path.name for path in judged] == [".rehearsal", "run"]
    return run


def until_the_lease_ends(run: Path, home: Path, length: str, **more: Any) -> RenderStopped:
    clock = FakeClock(1.0)
    with pytest.raises(RenderStopped) as stopped:
        start(run, home, clock, terms(clock, length, **more))
    return stopped.value


def test_a_rehearsal_comes_before_the_first_forward_and_leaves_nothing(whole: Path) -> None:
    """Its own phase, after the text and before the transformer is loaded."""
    phases = [line["phase"] for line in log(whole) if line["event"] == "PhaseBegins"]
    assert phases.index("connect") < phases.index("rehearse") < phases.index("load-transformer")
    assert not (whole / ".rehearsal").exists() and phases[-1] == "verify"


def test_a_rehearsal_narrows_a_guessed_tail(whole: Path) -> None:
    """Both the notice and every projection from then on have the narrower tail; on a clock of a second a reading."""
    said = next(line["text"] for line in log(whole) if line.get("text", "").startswith("tail after the rehearsal"))
    planned = json.loads((whole / "plan.json").read_text())["forecast"]["tail"]
    tails = {(line["tail_s"], line["tail_high_s"]) for line in log(whole) if line["event"] == "Projected"}
    assert len(tails) == 1 and "guesses within what the rehearsal allows" in said
    typical_s, high_s = tails.pop()
    # Four parts of one reading each: half of 4 s at least, 1.5 (1 + 9 + 2 (1 + 1)) s at most.
    assert typical_s == max(min(planned["typical_s"], 21.0), 2.0)
    assert high_s == max(min(planned["high_s"], 21.0), 2.0)


def test_a_lease_that_ends_in_between_leaves_a_snapshot_and_the_next_goes_on(
    whole: Path, home: Path, tmp_path: Path
) -> None:
    """Exit 75 with terms that sum; no forward ends after the lease; every pass once; the same bits."""
    run = tmp_path / "run"
    stopped = until_the_lease_ends(run, home, "60s")
    assert stopped.exit_code == 75 and "shotclock resume" in stopped.way_out
    last = log(run)[-1]
    assert last["event"] == "RunStops"
    assert last["sum_s"] == pytest.approx(sum(term["seconds"] for term in last["terms"]))
    assert last["sum_s"] > last["budget_s"] == 60
    assert 0 < len(passes(run)) < PASSES
    assert all(line["t_s"] <= 60 for line in log(run) if line["event"] in ("PassEnds", "Snapshotted"))
    for _ in range(6):
        clock = FakeClock(1.0)
        try:
            assert resume(run, home, clock, terms(clock, "60s")) is not None
            break
        except RenderStopped as again:
            assert again.exit_code == 75
    assert passes(run) == list(range(1, PASSES + 1))
    for name in ("latents.safetensors", "clip.wav"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_projections_say_where_it_would_end(whole: Path) -> None:
    """One before the first forward and one a step, from own forwards once a step has ended."""
    lines = [line for line in log(whole) if line["event"] == "Projected"]
    assert len(lines) == 5 and [line["forwards_left"] for line in lines] == [16, 12, 8, 4, 0]
    assert lines[0]["source"] in ("none", "law") and lines[-1]["source"] == "own forwards"
    assert lines[-1]["verdict"] == "GO" and lines[-1]["budget_s"] is None


def test_latents_are_kept_where_only_the_decode_does_not_fit(whole: Path, home: Path, tmp_path: Path) -> None:
    """The tail is refused as a whole; the next lease decodes and loads no transformer."""
    run = tmp_path / "run"
    assert until_the_lease_ends(run, home, "90s").exit_code == 75
    clock = FakeClock(1.0)
    while not (run / "latents.safetensors").exists():
        with pytest.raises(RenderStopped):
            resume(run, home, clock, terms(clock, "60s"))
    begun = len(log(run))
    assert resume(run, home, clock, terms(clock, None)) is not None
    phases = {line["phase"] for line in log(run)[begun:] if line["event"] == "PhaseBegins"}
    assert "decode-video" in phases and not phases & {"load-transformer", "denoise", "load-text"}
    assert (run / "clip.wav").read_bytes() == (whole / "clip.wav").read_bytes()


def test_a_draft_is_left_where_it_was_asked_for(whole: Path, home: Path, tmp_path: Path) -> None:
    """Beside the run, of the last finished step."""
    assert whole.exists()  # its contexts are in the prompt cache: readings of the clock are the same in any order
    run = tmp_path / "run"
    stopped = until_the_lease_ends(run, home, "60s", on_overrun="draft")
    assert stopped.exit_code == 75
    assert len(list(run.glob("draft-step-*.mp4"))) == 1 and not (run / "clip.mp4").exists()


def test_a_plan_that_cannot_fit_is_refused_before_anything_is_made(home: Path, tmp_path: Path) -> None:
    """Exit 3, no folder; the numbers are in the text."""
    clock = FakeClock(1.0)
    with pytest.raises(DoesNotFit) as refused:
        start(tmp_path / "run", home, clock, terms(clock, "3s", leases=1))
    assert refused.value.exit_code == 3 and not (tmp_path / "run").exists()


def test_memory_below_the_floor_ends_the_render_with_its_snapshot(
    whole: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 90 at a boundary; reading and floor are in the log; the rest is rendered later, to the same bits."""
    run, clock = tmp_path / "run", FakeClock(1.0)
    real = meter.Gauge.read
    seen = {"snapshots": 0}

    def read(gauge: meter.Gauge) -> meter.Reading:
        found = real(gauge)
        low = bool(list(run.glob("snapshot-*")))
        return replace(found, host_available_bytes=1000) if low else found

    monkeypatch.setattr(meter.Gauge, "read", read)
    monkeypatch.setattr(meter, "PERIOD_S", 0.001)
    with pytest.raises(RenderStopped) as stopped:
        start(run, home, clock, terms(clock, None))
    assert stopped.value.exit_code == 90 and log(run)[-1]["available_bytes"] == 1000 and seen
    monkeypatch.undo()
    assert resume(run, home, clock, terms(clock, None)) is not None
    assert (run / "latents.safetensors").read_bytes() == (whole / "latents.safetensors").read_bytes()


def test_a_latent_that_is_not_finite_stops_and_keeps_the_snapshot_before(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage, counts and place are in the log, the verdict is FAIL; a resume with tracing names block and leg."""
    real, run = denoise.denoise, tmp_path / "run"

    def broken(transformer: Transformer, *arguments: Any) -> Any:
        """A weight goes bad when two steps have ended."""
        for event in real(transformer, *arguments):
            yield event
            if isinstance(event, StepEnds) and event.state.step == 2:
                transformer.transformer_blocks[1].ff.net[2].weight.fill_(float("nan"))

    monkeypatch.setattr(sample, "denoise", broken)
    clock = FakeClock(1.0)
    with pytest.raises(RenderFailed, match="after step 2 are not finite"):
        start(run, home, clock, terms(clock, None, judge=partial(finish, verify=True, embed=True)))
    found = newest_snapshot(RunDir(run))
    assert found is not None and found.state.step == 2 and not found.state.legs and found.state.audio.isfinite().all()
    said = next(line for line in log(run) if line["event"] == "NonFinite")
    assert said["stage"] == "video of leg cond after step 2" and 0 < said["nans"] <= said["values"]
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "FAIL" and "video of leg cond after step 2" in json.dumps(verdict)
    assert log(run)[-1]["event"] == "RunFails"

    def still_broken(transformer: Transformer, *arguments: Any) -> Any:
        transformer.transformer_blocks[1].ff.net[2].weight.fill_(float("nan"))
        yield from real(transformer, *arguments)

    monkeypatch.setattr(sample, "denoise", still_broken)
    with pytest.raises(RenderFailed, match=r"block 1, video stream, legs cond.*ff\.net\.2\.weight"):
        resume(run, home, clock, terms(clock, None, trace_nonfinite=True))
