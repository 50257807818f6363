"""Whole renders on two processes, through the command line: the bits of one, ended together, gone on with together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from shotclock.render.snapshot import read_snapshot, snapshots
from shotclock.rundir import RunDir

if TYPE_CHECKING:
    from conftest import Zygote

CLIP = ("--models=tiny", "--frames=17", "--steps=3", "--device=cpu", "--no-verify", "--rehearse=never", "--quiet")
LEGS = ("--size=64x64", *CLIP)
# 27 video and 17 audio tokens: two ranks divide neither
ONE_LEG = ("--size=96x96", "--fps=25", "--cfg=1", "--stg=0", "--modality=1", *CLIP)
TWO = ("--gpus=2", "--legs-per-pass=2")
PASSES = 6
RESUME = ("--no-verify", "--rehearse=never", "--quiet")
RESUMABLE, FAILED, REFUSED = 75, 1, 2


def render(zygote: Zygote, run: Path, *more: str, die: dict[str, Any] | None = None) -> int:
    return zygote.run("render", "a red circle", "--run", str(run), *more, log=run.with_suffix(".log"), die=die)


def resume(zygote: Zygote, run: Path, *more: str, die: dict[str, Any] | None = None) -> int:
    return zygote.run("resume", str(run), *RESUME, *more, log=run.with_suffix(".log"), die=die)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def said(run: Path) -> str:
    return " ".join(run.with_suffix(".log").read_text().split())


def latents(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "latents.safetensors")


@pytest.fixture(scope="module")
def alone(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, one leg a pass."""
    run = tmp_path_factory.mktemp("alone") / "run"
    assert render(zygote, run, *LEGS, "--legs-per-pass=1") == 0, said(run)
    return run


def test_killed_stopped_and_resumed_two_ranks_end_in_the_bits_of_one(
    zygote: Zygote, alone: Path, tmp_path: Path
) -> None:
    """Three attempts: the second rank is killed in a pass, a signal ends the next at a boundary, the last finishes."""
    run = tmp_path / "run"
    assert render(zygote, run, *LEGS, *TWO, die={"rank": 1, "place": "pass 3"}) == FAILED
    assert "rank 1 was ended by SIGKILL at pass 3" in said(run)
    assert any("rank 1 was ended by SIGKILL at pass 3" in line.get("text", line.get("found", "")) for line in log(run))
    kept = snapshots(RunDir(run))
    assert [(read_snapshot(path).state.step, len(read_snapshot(path).state.legs)) for path in kept] == [(1, 0), (0, 2)]
    begins = log(run)[0]
    assert (begins["ranks"], begins["split"], begins["law_key"]["gpus"]) == (["cpu", "cpu"], "legs over 2", 2)
    assert begins["law_key"]["split"] == "legs over 2"

    assert resume(zygote, run, "--gpus=1") == REFUSED
    assert "gpus 2 then, 1 now" in said(run) and "split legs over 2 then, none now" in said(run)

    boundary = {"event": "PassBegins", "index": 5}
    assert resume(zygote, run, die={"line": boundary, "signal": "SIGTERM"}) == RESUMABLE
    assert log(run)[-1]["event"] == "RunStops" and log(run)[-1]["exit_code"] == RESUMABLE
    assert resume(zygote, run) == 0, said(run)
    ended = [line["index"] for line in log(run) if line["event"] == "PassEnds"]
    assert ended == list(range(1, PASSES + 1))
    mine, theirs = latents(run), latents(alone)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (run / "clip.wav").read_bytes() == (alone / "clip.wav").read_bytes()


def test_the_death_of_rank_0_is_told_by_its_starter(zygote: Zygote, tmp_path: Path) -> None:
    """Killed in a pass it can say nothing any more: the log has its end all the same, and the ledger a record."""
    run = tmp_path / "run"
    before = set(zygote.home.rglob("*.json*"))
    assert render(zygote, run, *LEGS, *TWO, die={"rank": 0, "place": "pass 2"}) == FAILED
    assert log(run)[-1]["event"] == "RunFails"
    assert "rank 0 was ended by SIGKILL at pass 2" in log(run)[-1]["found"]
    assert set(zygote.home.rglob("*.json*")) > before
    record = json.loads((run / "record.json").read_text())
    assert "rank 0 was ended by SIGKILL at pass 2" in json.dumps(record)
    assert "rank 0 on cpu, rank 1 on cpu" in json.dumps(record) and "legs over 2" in json.dumps(record)
    assert [read_snapshot(path).state.step for path in snapshots(RunDir(run))] == [0]


def test_tokens_over_ranks_where_they_do_not_divide(zygote: Zygote, tmp_path: Path) -> None:
    """A single leg leaves nothing but tokens to share; relative L2 of the final latents in float32, issue 10."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert render(zygote, one, *ONE_LEG) == 0, said(one)
    assert render(zygote, two, *ONE_LEG, "--gpus=2") == 0, said(two)
    assert log(two)[0]["split"] == "tokens over 2"
    mine, theirs = latents(two), latents(one)
    assert [mine[name].shape for name in sorted(mine)] == [(1, 8, 17, 16), (1, 128, 3, 3, 3)]
    for name in mine:
        found, wanted = mine[name].double(), theirs[name].double()
        assert float((found - wanted).norm() / wanted.norm()) <= 1e-6, name


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--gpus=0",), "--gpus 0"),
        (("--gpus=-1",), "--gpus -1"),
        (("--gpus=99",), "--gpus 99, and this machine shows"),
        (("--gpus=2", "--device=cuda:1"), "--gpus 2 with --device cuda:1"),
        (("--gpus=9", "--device=cpu"), "--gpus 9 with --device cpu"),
        (("--gpus=7", "--device=cpu", "--split=tokens"), "no way to share a step of 4 legs over 7 GPUs"),
        (("--gpus=2", "--device=cpu", "--split=both"), "--split both"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    zygote: Zygote, tmp_path: Path, options: tuple[str, ...], found: str
) -> None:
    """Exit 2, no run folder; the plan refuses the same."""
    run = tmp_path / "run"
    assert render(zygote, run, *options) == REFUSED
    assert found in said(run) and "ranks failed" not in said(run)
    assert not run.exists()


def test_the_plan_prints_the_split(zygote: Zygote, tmp_path: Path) -> None:
    """Legs where an exchange costs as much as a block, by counted block passes."""
    printed = tmp_path / "plan.log"
    options = ("--gpus=2", "--device=cpu", "--size=64x64", "--frames=9", "--json")
    assert zygote.run("plan", "a red circle", *options, log=printed) == 0
    assert "stage 1 on 2 GPUs: legs over 2; 1.75x as fast as one at most, counted" in printed.read_text()
    plan = json.loads(printed.read_text().splitlines()[-1])["plan"]
    assert (plan["gpus"], plan["splits"]) == (2, [{"legs": 2, "tokens": 1, "share": 4 / 7}])
    assert plan["forecast"]["law_key"]["gpus"] == 2
