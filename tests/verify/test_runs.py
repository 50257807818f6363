"""Run folders: what was asked, what is known beside the clip, and the verdict that is left there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

from shotclock.errors import RequestError
from shotclock.geometry import Geometry
from shotclock.render.tiling import Span, Tiling
from shotclock.request import Scales, SoundGiven, make_request
from shotclock.verify import tones
from shotclock.verify.cases import Base
from shotclock.verify.document import VerdictDocument
from shotclock.verify.reader import Sound
from shotclock.verify.rules import Outcome
from shotclock.verify.runs import judge_path, judge_run, read_run
from shotclock.verify.tape import write_wav

pytestmark = pytest.mark.usefixtures("no_child")
GUIDED = Scales(cfg=3.0, stg=1.0, modality=3.0, rescale=0.7, stg_blocks=(1,), skip_step=0)
UNGUIDED = GUIDED.model_copy(update={"cfg": 1.0, "stg": 0.0, "modality": 1.0})
DECODED = {"event": "Decoded", "t_s": 9.0, "frames": 25, "distinct_frames": 25, "raw_sha256": "ab"}
NO_TILES: dict[str, Any] = {"tile_frames": [], "tile_rows": [], "tile_columns": []}


def _say(run: Path, *events: dict[str, Any]) -> None:
    with (run / "events.jsonl").open("a") as log:
        log.writelines(json.dumps(event) + "\n" for event in events)


@pytest.fixture
def run(base: Base, clip: Path, tmp_path: Path) -> Path:
    """A finished run, its documents written by the program's own classes, its clip by the verifier's writer."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(clip, folder / "clip.mp4")
    write_wav(folder / "clip.wav", base.sound)
    save_file({"video": torch.zeros(1, 4, dtype=torch.bfloat16)}, folder / "latents.safetensors")
    _documents(folder, GUIDED)
    _say(folder, {"event": "RunBegins", "t_s": 0.0}, DECODED | NO_TILES)
    return folder


def _documents(folder: Path, scales: Scales, **more: object) -> None:
    fields: dict[str, object] = {
        "prompt": "a tunnel",
        "negative_prompt": "",
        "width": 192,
        "height": 128,
        "frames": 25,
        "fps": "24",
        "seed": 0,
        "steps": 2,
        "video": scales,
        "audio": scales,
        "legs_per_pass": 4,
    }
    request = make_request(**(fields | more))
    (folder / "request.json").write_text(request.to_json())


def _rules(folder: Path, outcome: Outcome) -> set[str]:
    return {finding.rule for finding in judge_run(folder, sheet=None).broken(outcome)}


def test_a_run_is_judged_against_its_request_and_leaves_its_verdict(run: Path) -> None:
    """All four arms; verdict.json says what was returned, the sheet is drawn, nothing else is left."""
    before = {path.name for path in run.iterdir()}
    verdict = judge_run(run, sheet=run / "sheet.png")
    assert verdict.arms.keys() == {"container", "pixels", "audio", "stages"}
    assert verdict.outcome in (Outcome.PASS, Outcome.WARN), verdict.lines()
    assert VerdictDocument.from_json((run / "verdict.json").read_text()) == verdict.to_document()
    assert {path.name for path in run.iterdir()} - before == {"verdict.json", "sheet.png"}
    asked = verdict.expectation
    assert (asked.frames, asked.fps, asked.width, asked.height) == (25, Fraction(24), 192, 128)
    assert (asked.has_audio, asked.channels, asked.raw_distinct_frames) == (True, 2, 25)


def test_the_runs_own_wav_is_judged(run: Path, base: Base) -> None:
    """A dead channel there is a FAIL, although the clip's sound is whole."""
    write_wav(run / "clip.wav", tones.dead_channel(base.sound, np.random.default_rng(0)))
    assert _rules(run, Outcome.FAIL) == {"balance"}


def test_words_of_the_request_reach_the_rules(run: Path, base: Base) -> None:
    """Silence fails unless it is expected."""
    write_wav(run / "clip.wav", tones.silent(base.sound, np.random.default_rng(0)))
    assert _rules(run, Outcome.FAIL) == {"level", "zero_tail"}
    assert judge_run(run, sheet=None, expect=frozenset({"silent"})).outcome is not Outcome.FAIL


def test_a_sound_that_was_given_is_only_judged_for_being_whole(run: Path, base: Base) -> None:
    """Its silence is the user's; its NaN, or a length that is not the picture's, is ours."""
    _documents(run, GUIDED, sound=SoundGiven(name="a.wav", sha256="0" * 64))
    write_wav(run / "clip.wav", tones.zero_tail(base.sound, np.random.default_rng(0)))
    assert judge_run(run, sheet=None).outcome is not Outcome.FAIL
    write_wav(run / "clip.wav", tones.not_a_number(base.sound, np.random.default_rng(0)))
    assert _rules(run, Outcome.FAIL) == {"finite"}
    half = Sound(waveform=base.sound.waveform[:, : base.sound.waveform.shape[1] // 2], rate_hz=48000)
    write_wav(run / "clip.wav", half)
    assert _rules(run, Outcome.FAIL) == {"wav_length"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/m/pocket-ltx-2.5-transformer-bf16.safetensors", {"shapes", "note"}), ("/pocket-/ltx-2.5.safetensors", set())],
)
def test_a_run_of_the_pocket_model_expects_what_that_model_draws(run: Path, path: str, expected: set[str]) -> None:
    """The last attempt's transformer says so, by its name alone; a sound that was given comes on top."""
    _say(run, {"event": "RunBegins", "attempt": 2, "files": {"transformer": {"path": path, "bytes": 1}}})
    assert read_run(run).expectation.expect == expected
    _documents(run, GUIDED, sound=SoundGiven(name="a.wav", sha256="0" * 64))
    assert read_run(run).expectation.expect == expected | {"given"}


def test_tile_edges_come_from_the_event_log_as_the_render_computes_them(run: Path) -> None:
    """The boundaries of the render's tiling, written into an event, are the edges that are looked at."""
    span = Span(size=96, overlap=32)
    tiling = Tiling(frames=Span(size=16, overlap=8), height=span, width=span)
    edges = tiling.boundaries(Geometry(width=192, height=128, frames=25, fps=Fraction(24)))
    tiles = {"tile_frames": edges.frames, "tile_rows": edges.rows, "tile_columns": edges.columns}
    _say(run, DECODED | tiles | {"distinct_frames": 20})
    asked = read_run(run).expectation
    assert edges.columns and edges.rows and edges.frames
    assert (asked.tile_columns, asked.tile_rows, asked.tile_frames) == (edges.columns, edges.rows, edges.frames)
    assert "distinct" in _rules(run, Outcome.WARN)


def test_only_the_last_decode_counts_and_a_line_cut_by_a_kill_says_nothing(run: Path) -> None:
    """An attempt that only judges keeps the tile edges of the one that decoded; one that decodes anew forgets them.

    Half a line, and lines that are no events, are passed over.
    """
    _say(run, DECODED | NO_TILES | {"tile_columns": [96]})
    assert read_run(run).expectation.tile_columns == (96,)
    with (run / "events.jsonl").open("a") as log:
        log.write('{"event":"Decoded","dist\n[1]\n7\n')
    _say(run, {"event": "RunBegins", "attempt": 2}, {"event": "PhaseBegins", "phase": "verify"})
    assert read_run(run).expectation.tile_columns == (96,)
    _say(run, {"event": "RunBegins", "attempt": 3}, {"event": "PhaseBegins", "phase": "decode-video"})
    asked = read_run(run).expectation
    assert (asked.tile_columns, asked.raw_distinct_frames) == ((), None)


def test_a_run_that_stopped_at_a_nan_is_a_fail_that_names_the_stage_without_a_clip(run: Path) -> None:
    """And the attempt after it is judged by its clip again."""
    (run / "clip.mp4").rename(run / "kept.mp4")
    where = {"nans": 3, "infinities": 1, "values": 64, "first_index": [0, 2]}
    _say(run, {"event": "NonFinite", "t_s": 3.0, "stage": "video latents after step 2"} | where)
    verdict = judge_run(run, sheet=None)
    assert verdict.arms == {"stages": Outcome.FAIL}
    assert "video latents after step 2: 3 NaN and 1 Inf of 64 values, first at [0, 2]" in "\n".join(verdict.lines())
    assert VerdictDocument.from_json((run / "verdict.json").read_text()).outcome is Outcome.FAIL
    (run / "kept.mp4").rename(run / "clip.mp4")
    _say(run, {"event": "RunBegins", "attempt": 2})
    assert judge_run(run, sheet=None).outcome is not Outcome.FAIL


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32", "float64"])
def test_latents_on_disk_that_are_not_finite_fail(run: Path, kind: str) -> None:
    """In every dtype that a render may write; the tensor and the place are named."""
    values = torch.zeros(2, 3, dtype=getattr(torch, kind))
    values[1, 2] = torch.inf
    save_file({"audio": torch.zeros(2), "video": values}, run / "latents.safetensors")
    verdict = judge_run(run, sheet=None)
    assert {finding.rule for finding in verdict.broken(Outcome.FAIL)} == {"finite_stages"}
    assert "latents video: 0 NaN and 1 Inf of 6 values, first at [1, 2]" in "\n".join(verdict.lines())


def test_a_render_without_guidance_is_labelled(run: Path) -> None:
    """users.md row 59: WARN, not FAIL; one term that is on is enough, and so is a distilled model."""
    assert "guidance" not in _rules(run, Outcome.WARN)
    _documents(run, UNGUIDED)
    assert "guidance" in _rules(run, Outcome.WARN)
    for scales, more in ((UNGUIDED.model_copy(update={"modality": 3.0}), {}), (UNGUIDED, {"model_class": "distilled"})):
        _documents(run, scales, **more)
        assert "guidance" not in _rules(run, Outcome.WARN)


def test_a_guided_distilled_render_is_labelled(run: Path) -> None:
    """users.md row 60: guidance on distilled weights, said by class or by recipe, is a WARN; none without it."""
    for more in ({"model_class": "distilled"}, {"recipe": "distilled", "steps": 8}):
        _documents(run, UNGUIDED.model_copy(update={"cfg": 3.0}), **more)
        assert "distilled" in _rules(run, Outcome.WARN)
        _documents(run, UNGUIDED, **more)
        assert "distilled" not in _rules(run, Outcome.WARN)


def _without_clip(run: Path) -> None:
    (run / "clip.mp4").unlink()


def _without_request(run: Path) -> None:
    (run / "request.json").unlink()


def _huge_request(run: Path) -> None:
    (run / "request.json").write_bytes(bytes(1 << 21))


def _nan_frames(run: Path) -> None:
    (run / "request.json").write_text((run / "request.json").read_text().replace('"frames": 25', '"frames": NaN'))


def _rate(text: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        (run / "request.json").write_text((run / "request.json").read_text().replace('"24"', f'"{text}"'))

    return change


def _bad_event(run: Path) -> None:
    _say(run, DECODED | NO_TILES | {"tile_columns": ["a"]})


def _bad_latents(run: Path) -> None:
    (run / "latents.safetensors").write_bytes(b"\xff" * 64)


def _integer_latents(run: Path) -> None:
    save_numpy({"video": np.zeros(3, np.int64)}, run / "latents.safetensors")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_without_clip, "holds no clip.mp4"),
        (_without_request, "request.json is not there"),
        (_huge_request, "is larger than"),
        (_nan_frames, "is not what a render writes"),
        (_rate("1e999999999"), "has the rate"),
        (_rate("24/0"), "has the rate"),
        (_bad_event, "events.jsonl is not what a render writes: tile_columns.0"),
        (_bad_latents, "latents.safetensors cannot be read"),
        (_integer_latents, "latents.safetensors holds I64"),
    ],
)
def test_a_folder_that_is_no_run_is_refused_with_its_reason(
    run: Path, damage: Callable[[Path], None], words: str
) -> None:
    """A refusal with a way out, quickly, and no verdict."""
    damage(run)
    with pytest.raises(RequestError, match=words):
        judge_run(run, sheet=None)
    assert not (run / "verdict.json").exists()


def test_a_path_is_a_clip_or_a_run(run: Path, base: Base) -> None:
    """The same clip, without and with its request; a wav belongs to a clip only."""
    alone = judge_path(run / "clip.mp4")
    assert alone.expectation == replace(alone.expectation, frames=None, fps=None)
    assert "stages" not in alone.arms
    assert judge_path(run).expectation.frames == len(base.frames)
    with pytest.raises(RequestError, match="for a run folder"):
        judge_path(run, wav=run / "clip.wav")


def test_judging_a_run_imports_nothing_slow() -> None:
    """A fresh interpreter's list of imports: no torch, SciPy, renderer or command line; Pillow only for a sheet."""
    program = "import sys, shotclock.verify.runs, shotclock.verify.child; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    slow = {"torch", "diffusers", "transformers", "scipy", "matplotlib", "PIL", "pandas", "rich", "typer", "beartype"}
    ours = {"shotclock.render", "shotclock.model", "shotclock.weights", "shotclock.plan", "shotclock.cli"}
    assert imported & (slow | ours) == set()
    assert {"numpy", "av", "pydantic"} <= imported
