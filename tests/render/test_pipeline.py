"""Whole renders of the tiny model through the command line: files, events, counts, refusals, kills."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from safetensors.torch import load_file
from scipy.io import wavfile

from shotclock.cli import main

SMALL = ["--models=tiny", "--size=64x64", "--frames=9", "--steps=3", "--device=cpu", "--no-verify"]  # noise


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def shotclock(*arguments: str, home: Path) -> Done:
    """The command line in this process: the imports alone would be seconds a call in another one."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("SHOTCLOCK_HOME", str(home))
        patch.setattr(sys, "argv", ["shotclock", *arguments])
        try:
            main()
            code: int | str | None = 0
        except SystemExit as exit_:
            code = exit_.code
    return Done(int(code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def rendered(home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    run = tmp_path_factory.mktemp("renders") / "run"
    return run, shotclock("render", "a red circle", "--run", str(run), "--fps=24000/1001", "--json", *SMALL, home=home)


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_a_render_leaves_a_clip_that_is_what_was_asked(rendered: tuple[Path, Done]) -> None:
    """Size, frames, exact rate, stereo at 48 kHz, durations within an audio latent, and all files of the run."""
    run, done = rendered
    assert done.returncode == 0, done.stderr
    with av.open(run / "clip.mp4") as clip:
        video, audio = clip.streams.video[0], clip.streams.audio[0]
        assert (video.width, video.height, video.average_rate) == (64, 64, Fraction(24000, 1001))
        assert (audio.rate, audio.channels, video.codec.name, audio.codec.name) == (48000, 2, "h264", "aac")
        assert abs(float(video.duration * video.time_base) - float(audio.duration * audio.time_base)) <= 0.04
        assert sum(1 for _ in clip.decode(video=0)) == 9
    rate, wave = wavfile.read(run / "clip.wav")
    assert rate == 48000 and wave.shape[1] == 2 and abs(len(wave) / rate - 9 * 1001 / 24000) <= 0.04
    latents = load_file(run / "latents.safetensors")
    assert latents["video"].shape == (1, 128, 2, 2, 2) and latents["audio"].shape == (1, 8, 9, 16)
    names = {path.name for path in run.iterdir()} - {".lock", "attempt.json"}
    snapshots = {name for name in names if name.startswith("snapshot-0000")}
    expected = {"request.json", "plan.json", "contexts.safetensors", "events.jsonl", "latents.safetensors"}
    expected |= {"memory.jsonl", "record.json", "clip.mp4", "clip.wav"}
    assert names - snapshots == expected, "and no temporary file"
    assert len(snapshots) == 2


def test_executed_forwards_are_the_planned_ones(rendered: tuple[Path, Done]) -> None:
    """By leg, in plan.json, in the events and in the result."""
    run, done = rendered
    plan = json.loads((run / "plan.json").read_text())
    ticks = [event for event in events(run) if event["event"] == "PassEnds"]
    counted = {leg: sum(leg in tick["legs"] for tick in ticks) for leg in plan["legs"]}
    assert counted == plan["forwards"] == json.loads(done.stdout.splitlines()[-1])["forwards"]
    assert counted == {"cond": 3, "uncond": 3, "perturbed": 3, "isolated": 3}


def test_phases_cover_the_wall_and_passes_the_denoise(rendered: tuple[Path, Done]) -> None:
    """Leaf phases at least 99 % of the wall; the passes' seconds within 1 % of the denoise phase.

    A busy machine takes the processor away between two tiny passes: 10 ms a pass are let.
    """
    log = events(rendered[0])
    ends = [event for event in log if event["event"] == "PhaseEnds"]
    wall_s = log[-1]["wall_s"]
    assert sum(event["last_s"] for event in ends) >= 0.99 * wall_s
    denoise_s = sum(event["last_s"] for event in ends if event["phase"] == "denoise")
    passes_s = [event["last_s"] for event in log if event["event"] == "PassEnds"]
    assert sum(passes_s) == pytest.approx(denoise_s, rel=0.01, abs=0.01 * len(passes_s))


def test_the_first_line_reproduces_the_clip(rendered: tuple[Path, Done], home: Path, tmp_path: Path) -> None:
    """The printed command, run again, ends in the same latents and the same sound, bit by bit.

    The mp4 is not compared: libx264 does not repeat its P frames on every processor (dev/LOG.md).
    """
    run, _ = rendered
    import shlex

    words = shlex.split(events(run)[0]["command"])
    assert words[:2] == ["shotclock", "render"]
    again = tmp_path / "again"
    words = [word.replace("--run=DIR", f"--run={again}") for word in words[1:]]
    done = shotclock(words[0], "--no-verify", *words[1:], home=home)
    assert done.returncode == 0, done.stderr
    assert (again / "latents.safetensors").read_bytes() == (run / "latents.safetensors").read_bytes()
    assert (again / "clip.wav").read_bytes() == (run / "clip.wav").read_bytes()


def test_contexts_of_a_run_replace_the_text_encoder(rendered: tuple[Path, Done], home: Path, tmp_path: Path) -> None:
    """No text phase, same latents."""
    run, _ = rendered
    done = shotclock(
        "render", "a red circle", "--run", str(tmp_path / "run"), "--fps=24000/1001",
        "--contexts", str(run / "contexts.safetensors"), *SMALL, home=home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    phases = {event["phase"] for event in events(tmp_path / "run") if event["event"] == "PhaseEnds"}
    assert "encode" not in phases and "load-text" not in phases
    ours, theirs = (load_file(folder / "latents.safetensors") for folder in (tmp_path / "run", run))
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_plain_lines_say_what_runs(rendered: tuple[Path, Done]) -> None:
    """Not a terminal: a line a phase and a pass, with t=, last= and an eta; nothing but the result on stdout."""
    _, done = rendered
    passes = re.findall(
        r"pass (\d)/3 phase denoise step (\d)/3 legs (\S+) t=[\d.]+s(?: last=([\d.]+)s)? eta=(\S+)", done.stderr
    )
    assert [p[0] for p in passes] == ["1", "2", "3"] and passes[0][3] == "" and passes[1][3] != ""
    assert passes[0][4] == "-:--" and passes[2][4] != "-:--"
    assert "12 forwards = 3 steps x 4 legs" in done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_quiet_says_nothing(home: Path, tmp_path: Path) -> None:
    """Not a character on either stream."""
    done = shotclock("render", "x", "--run", str(tmp_path / "run"), "--quiet", *SMALL, home=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--frames=10"], "10 frames are off the grid"),
        (["--frames=00000000250000000"], "frames '00000000250000000'"),
        (["--size=65x64"], "width 65"),
        (["--size=big"], "size 'big'"),
        (["--fps=x"], "frame rate 'x'"),
        (["--stg-blocks=99"], "stg blocks [99] of a model with 4 blocks"),
        (["--device=cuda:7"], "device 'cuda:7'"),
        (["--dtype=fp8"], "dtype 'fp8'"),
        (["--models=/nowhere"], "/nowhere is not there"),
        (["--negative-prompt=@/nowhere.txt"], "cannot be read"),
        (["--steps=1"], "steps 1"),
    ],
)
def test_bad_input_is_refused_before_a_folder_is_made(
    arguments: list[str], found: str, home: Path, tmp_path: Path
) -> None:
    """Exit code 2, found, allowed and way out, no traceback, nothing on disk."""
    done = shotclock("render", "x", "--run", str(tmp_path / "run"), *SMALL, *arguments, home=home)
    assert done.returncode == 2
    assert found in done.stderr.replace("\n", " ") and "allowed:" in done.stderr and "way out:" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "run").exists()


def test_a_run_folder_is_not_used_twice(rendered: tuple[Path, Done], home: Path) -> None:
    """The clip of the first run stays."""
    run, _ = rendered
    before = (run / "clip.mp4").read_bytes()
    done = shotclock("render", "another", "--run", str(run), *SMALL, home=home)
    assert done.returncode == 2 and "already holds a run" in done.stderr.replace("\n", " ")
    assert (run / "clip.mp4").read_bytes() == before


def test_inspect_and_doctor_answer_on_stdout(home: Path, rendered: tuple[Path, Done]) -> None:
    """Text for people, one JSON document for programs."""
    del rendered  # the tiny files exist now
    files = [str(path) for path in sorted(home.glob("tiny-*/*/*.safetensors"))]
    assert len(files) == 8
    done = shotclock("inspect", *files, "--json", home=home)
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 8
    done = shotclock("inspect", "/nowhere.safetensors", home=home)
    assert done.returncode == 2 and "allowed:" in done.stderr
    done = shotclock("doctor", "--json", home=home)
    assert done.returncode == 0 and json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--fps=1e-9999999"], "frame rate"),
        (["--fps=1e99999"], "frame rate"),
        (["--size=" + "9" * 5000 + "x64"], "size '999"),
        (["--size=99999999968x64"], "at most 8,192"),
        (["--frames=80001"], "at most 2,401"),
        (["--models=/tmp/[red]/a[/]b"], "/tmp/[red]/a[/]b is not there"),
    ],
)
def test_hostile_input_is_refused_in_full_words(arguments: list[str], found: str, home: Path, tmp_path: Path) -> None:
    """Nothing to compute with, no markup read out of a path, no traceback."""
    done = shotclock("render", "x", "--run", str(tmp_path / "run"), "--device=cpu", *arguments, home=home)
    assert done.returncode == 2 and found in done.stderr and "Traceback" not in done.stderr


def test_a_prompt_that_is_not_unicode_is_refused(home: Path, tmp_path: Path) -> None:
    """A byte that is not UTF-8 arrives as a lone surrogate."""
    done = shotclock("render", "a\udcff", "--run", str(tmp_path / "run"), *SMALL, home=home)
    assert done.returncode == 2 and "prompt" in done.stderr


def test_contexts_of_another_prompt_are_refused(rendered: tuple[Path, Done], home: Path, tmp_path: Path) -> None:
    """The picture would follow the file, the record the words."""
    file = str(rendered[0] / "contexts.safetensors")
    done = shotclock("render", "a blue square", "--run", str(tmp_path / "r"), "--contexts", file, *SMALL, home=home)
    assert done.returncode == 2 and "made from other prompts" in done.stderr and not (tmp_path / "r").exists()


def test_a_transformer_with_a_missing_tensor_is_refused_before_the_text_encoder(home: Path, tmp_path: Path) -> None:
    """Name by name and shape by shape, from the header: no run folder, no phase."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    shotclock("render", "x", "--run", str(tmp_path / "first"), *SMALL, home=home)
    source = next(path for path in home.rglob("*transformer*.safetensors"))
    with safe_open(source, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
        metadata = file.metadata()
    tensors.pop("model.diffusion_model.transformer_blocks.1.ff.net.2.weight")
    save_file(tensors, tmp_path / "t.safetensors", metadata=metadata)
    done = shotclock(
        "render",
        "x",
        "--run",
        str(tmp_path / "run"),
        "--transformer",
        str(tmp_path / "t.safetensors"),
        *SMALL,
        home=home,
    )
    assert done.returncode == 2 and "ff.net.2.weight" in done.stderr and not (tmp_path / "run").exists()


def test_a_resume_of_what_has_ended_has_the_exit_code_of_its_verdict(
    rendered: tuple[Path, Done], home: Path, tmp_path: Path
) -> None:
    """A script that resumes until all is done takes no failed clip for a good one; verdicts that no record can hold."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("request.json", "plan.json", "events.jsonl"):
        (run / name).write_bytes((rendered[0] / name).read_bytes())
    for verdict, code in ((None, 0), ("PASS", 0), ("FAIL", 4)):
        if verdict is not None:
            (run / "verdict.json").write_text(json.dumps({"outcome": verdict}))
        done = shotclock("resume", str(run), "--json", home=home)
        assert done.returncode == code
        assert json.loads(done.stdout) == {"ended_already": True, "verdict": verdict}
