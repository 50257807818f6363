"""Event logs of runs, as the journal writes them, to timings: kinds, warm-up, attempts, broken lines."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import FakeClock
from shotclock.errors import RequestError, RunDirError, ShotclockError
from shotclock.events import PassBegins, PassEnds, Phase
from shotclock.guidance import LegName
from shotclock.plan.law import AUDIO_WEIGHT, LawKey, fit_law
from shotclock.record.fit import fit_runs
from shotclock.render.journal import Journal
from shotclock.request import Request, Scales, make_request
from shotclock.rundir import RunDir

KEY = LawKey(
    device="cpu",
    build="shotclock 0.1.0, torch 2.13.0",
    model="4 blocks of 64 + 32",
    dtype="float32",
    attention="math",
    quantisation="none",
    launch="eager",
    legs_per_pass=4,
    stg_blocks=(2,),
    gpus=1,
)


def request(width: int = 64, height: int = 32, frames: int = 9, *, audio_skip: int = 0) -> Request:
    """A guided render of four steps."""

    def scales(skip_step: int) -> Scales:
        return Scales(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(2,), skip_step=skip_step)

    return make_request(
        prompt="a red circle",
        negative_prompt="",
        width=width,
        height=height,
        frames=frames,
        fps="24",
        seed=0,
        steps=4,
        video=scales(0),
        audio=scales(audio_skip),
        legs_per_pass=4,
    )


def write_run(
    folder: Path, asked: Request, attempts: Sequence[Sequence[float]], *, key: LawKey | None = KEY, tail: str = ""
) -> RunDir:
    """A run folder whose log the journal writes: each attempt has passes of the given seconds, then decodes 3 s."""
    run = RunDir.create(folder)
    run.request.write_text(asked.to_json())
    log = io.BytesIO()
    for number, seconds in enumerate(attempts):
        clock = FakeClock()
        journal = Journal(log, clock=clock, synchronise=lambda: None, start_s=0.0)
        first: dict[str, Any] = {"event": "RunBegins", "request_sha256": asked.digest, "utc": f"2026-12-0{number + 1}"}
        first |= {"files": {"transformer": {"bytes": 1000}}}
        journal.write(first | ({"law_key": key.model_dump(mode="json")} if key else {}))
        with journal.phase(Phase.LOAD_TRANSFORMER):
            clock.now_s += 2.0
        with journal.phase(Phase.DENOISE):
            for index, duration in enumerate(seconds, start=1):
                said: dict[str, Any] = {"index": index, "step": index, "steps": 4, "legs": tuple(LegName)}
                journal.say(PassBegins(**said))
                clock.now_s += duration
                journal.say(PassEnds(**said))
        with journal.phase(Phase.DECODE_VIDEO):
            clock.now_s += 3.0
    run.events.write_bytes(log.getvalue() + tail.encode())
    return run


def test_passes_and_phases_are_read_as_they_were(tmp_path: Path) -> None:
    """The first pass apart, the others raw and in order; phases with their units, denoising left to its passes."""
    found = fit_runs([write_run(tmp_path / "a", request(), [[5.0, 1.25, 1.5, 1.125]])])
    (sample,) = found.timings.samples
    assert found.timings.key == KEY
    assert found.timings.audio_weight == AUDIO_WEIGHT
    assert (sample.kind, sample.warm_up_s, sample.pass_s) == (
        "cond+uncond+perturbed+isolated",
        (5.0,),
        (1.25, 1.5, 1.125),
    )
    assert (sample.geometry, sample.video_tokens) == ("64x32, 9 frames at 24", 4)
    assert sample.audio_tokens == request().geometry.audio_tokens
    assert [(one.phase, one.units, one.seconds) for one in found.rates.samples] == [
        ("load-transformer", 1000.0, 2.0),
        ("decode-video", 64.0 * 32 * 9, 3.0),
    ]


def test_runs_of_three_sizes_become_a_law(tmp_path: Path) -> None:
    """Seconds that grow with the tokens are found again."""
    sizes = {(64, 32): 1.0, (128, 64): 4.0, (256, 128): 16.0}
    runs = [
        write_run(tmp_path / str(width), request(width, height), [[9.0, seconds, seconds]])
        for (width, height), seconds in sizes.items()
    ]
    law = fit_law(fit_runs(runs).timings)
    (curve,) = law.curves.values()
    assert [point.seconds for point in curve.points] == list(sizes.values())
    assert curve.warm_up_extra_s == 8.0


def test_each_attempt_of_a_resumed_run_has_its_own_warm_up(tmp_path: Path) -> None:
    """Two processes, two slow first passes, one run folder."""
    found = fit_runs([write_run(tmp_path / "a", request(), [[5.0, 1.0], [6.0, 1.0]])]).timings
    assert [sample.warm_up_s for sample in found.samples] == [(5.0,), (6.0,)]
    assert len({sample.run for sample in found.samples}) == 2


def test_captured_graphs_warm_up_twice(tmp_path: Path) -> None:
    """The key says how passes are launched: with graphs the first runs eagerly and the second is captured."""
    graph = KEY.model_copy(update={"launch": "graph"})
    (sample,) = fit_runs([write_run(tmp_path / "a", request(), [[5.0, 4.0, 1.0, 1.0]], key=graph)]).timings.samples
    assert (sample.warm_up_s, sample.pass_s) == ((5.0, 4.0), (1.0, 1.0))


def test_steps_that_skip_a_stream_are_another_kind(tmp_path: Path) -> None:
    """Audio every second step: passes of one stream are not mixed with those of both."""
    samples = fit_runs([write_run(tmp_path / "a", request(audio_skip=1), [[5.0, 0.75, 1.0, 0.75]])]).timings.samples
    assert {sample.kind: sample.pass_s for sample in samples} == {
        "cond+uncond+perturbed+isolated": (1.0,),
        "cond+uncond+perturbed+isolated video alone": (0.75, 0.75),
    }


def test_passes_of_two_stages_have_their_own_sizes(tmp_path: Path) -> None:
    """The distilled recipe: eight passes at half size, three at full size, one kind."""
    changes = {"recipe": "distilled", "steps": 8, "width": 128, "height": 128}
    run = write_run(tmp_path / "a", request().model_copy(update=changes), [[5.0] + [1.0] * 7 + [4.0] * 3])
    half, whole = fit_runs([run]).timings.samples
    assert half.kind == whole.kind == "cond+uncond+perturbed+isolated"
    assert (half.geometry, half.video_tokens, half.pass_s) == ("64x64, 9 frames at 24", 8, (1.0,) * 7)
    assert (whole.geometry, whole.video_tokens, whole.pass_s) == ("128x128, 9 frames at 24", 32, (4.0,) * 3)
    assert (half.warm_up_s, whole.warm_up_s) == ((5.0,), ())


def test_a_load_knows_how_warm_its_file_was(tmp_path: Path) -> None:
    """Where the first line says so."""
    run = write_run(tmp_path / "a", request(), [[5.0, 1.0]])
    text = run.events.read_text().replace(
        '"event": "RunBegins"', '"event": "RunBegins", "cached_shares": {"transformer": 0.25}'
    )
    run.events.write_text(text)
    shares = {sample.phase: sample.cached_share for sample in fit_runs([run]).rates.samples}
    assert shares == {"load-transformer": 0.25, "decode-video": None}


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    """Everything before it counts."""
    run = write_run(tmp_path / "a", request(), [[5.0, 1.0]], tail='{"event": "PassEn')
    assert fit_runs([run]).timings.samples[0].pass_s == (1.0,)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("garbage", "garbage"),
        ("[1]", r"\[1\]"),
        ('{"event": "PassEnds", "last_s": NaN}', "PassEnds with last_s nan"),
        ('{"event": "PhaseEnds", "last_s": -1}', "PhaseEnds with last_s -1"),
        ('{"event": "PassEnds", "last_s": "1"}', "PassEnds with last_s 1"),
        ('{"event": "PassEnds", "last_s": 0}', "PassEnds with last_s 0"),
        ('{"event": "PassEnds", "last_s": 1, "step": 1, "legs": ["fifth"]}', "PassEnds: 'fifth'"),
        ('{"event": "PassEnds", "last_s": 1}', "PassEnds: 'step'"),
        ('{"event": "RunBegins", "law_key": {}}', "law_key: Field required"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, said: str) -> None:
    """File, number and what it says; nothing is fitted around it."""
    run = write_run(tmp_path / "a", request(), [[5.0, 1.0]], tail=f"{line}\n")
    with pytest.raises(RunDirError, match=rf"events\.jsonl line 12: {said}.*leave this run out"):
        fit_runs([run])


def test_runs_of_different_keys_are_not_merged(tmp_path: Path) -> None:
    """The folder and the fields are named."""
    other = KEY.model_copy(update={"device": "NVIDIA H200", "dtype": "bfloat16"})
    runs = [write_run(tmp_path / "a", request(), [[1.0]]), write_run(tmp_path / "b", request(), [[1.0]], key=other)]
    with pytest.raises(RequestError, match=r"b was measured with device NVIDIA H200, not cpu; dtype bfloat16"):
        fit_runs(runs)


def test_a_folder_without_a_run_or_a_key_is_refused(tmp_path: Path) -> None:
    """With what to name instead."""
    with pytest.raises(RunDirError, match=r"request\.json cannot be read"):
        fit_runs([RunDir(tmp_path)])
    with pytest.raises(RunDirError, match="line 1: RunBegins without law_key"):
        fit_runs([write_run(tmp_path / "old", request(), [[1.0]], key=None)])
    with pytest.raises(RequestError, match="no runs"):
        fit_runs([])
    quiet = write_run(tmp_path / "quiet", request(), [])
    quiet.events.unlink()
    with pytest.raises(ShotclockError, match="no runs"):
        fit_runs([quiet])


def test_newer_timings_join_older_ones_and_replace_their_own(tmp_path: Path) -> None:
    """Fitting a run twice counts it once; another key is refused."""
    first = fit_runs([write_run(tmp_path / "a", request(), [[5.0, 1.0]])]).timings
    second = fit_runs([write_run(tmp_path / "b", request(128, 64), [[5.0, 2.0]])]).timings
    both = first.merged(second)
    assert [sample.pass_s for sample in both.samples] == [(1.0,), (2.0,)]
    assert both.merged(second) == both
    assert json.loads(both.to_json())["format"] == "shotclock/law/1"
    with pytest.raises(RequestError, match=r"STALE.*dtype"):
        first.merged(second.model_copy(update={"key": KEY.model_copy(update={"dtype": "bfloat16"})}))
