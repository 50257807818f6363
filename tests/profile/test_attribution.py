"""A guided step on the CPU is taken apart: nothing stays patched, counts are torch's own, and warnings are true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shotclock.model.linear import Linear
from shotclock.profile.attribution import Attribution, Ceilings, attribute
from shotclock.profile.command import profile
from shotclock.profile.count import bytes_of, count
from shotclock.profile.folder import spent
from shotclock.profile.ranges import MARKED, Part, marked, named
from shotclock.profile.trace import Reading, Split
from shotclock.profile.workload import RANDOM_TINY, Lap, Workload, clip, machine_of, model_for, workload


@pytest.fixture(scope="module")
def work() -> Workload:
    """A step of the tiny widths."""
    machine = machine_of("cpu", None)
    transformer, recipe = model_for(RANDOM_TINY, machine, Path(), pinned_config=False)
    with torch.inference_mode():
        return workload(transformer, recipe, clip("64x64", 9), machine, 4)


def test_ranges_leave_nothing_behind() -> None:
    """Every function is the very one it was, also where the part raised; an inherited one is inherited again."""
    before = [getattr(one.owner, one.name) for one in MARKED]
    with named():
        assert all(getattr(one.owner, one.name) is not old for one, old in zip(MARKED, before, strict=True))
    with pytest.raises(ZeroDivisionError), marked(lambda *_: 1 / 0):
        Linear(2, 2)(torch.ones(1, 2))
    assert all(getattr(one.owner, one.name) is old for one, old in zip(MARKED, before, strict=True))
    assert "forward" not in vars(Linear)


def test_counted_operations_are_those_that_torch_counts(work: Workload) -> None:
    """Every matrix product of the step, embeddings and heads too; what plan/cost.py leaves out is the difference."""
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as counter:
            work.step()
        found = count(work)
    total = sum(one.flops for one in found.values())
    assert total == counter.get_total_flops()
    assert work.flops < total  # heads and embeddings are not in the floor; 1 % at the released widths
    assert found[Part.NORM].moved_bytes > 0 and found[Part.GUIDANCE].flops == 0


def test_an_axis_that_repeats_a_value_has_no_bytes() -> None:
    """Broadcast vectors are read once."""
    assert bytes_of(torch.ones(3, 4)) == 48
    assert bytes_of(torch.ones(1, 4).expand(3, 4)) == 16


def test_a_step_on_the_cpu_is_attributed_by_part_and_leg(tmp_path: Path) -> None:
    """Through the command: every part has seconds, each leg alone has its own, the picture is drawn, n is said."""
    picture = tmp_path / "profile.png"
    asked = profile(
        models=RANDOM_TINY, size="64x64", frames=9, device="cpu", dtype=None, legs_per_pass=4, rounds=1, plot=picture
    )
    answer = asked.ask(tmp_path)
    together, alone = json.loads(json.dumps(answer.document))["profiles"]
    named_parts = {str(part) for part in Part if part is not Part.OTHER}
    assert named_parts <= set(together["parts_s"]) and all(together["parts_s"][part] > 0 for part in named_parts)
    assert {"cond", "uncond", "perturbed", "isolated"} <= set(alone["passes_s"])
    assert "cond+uncond+perturbed+isolated" in together["passes_s"]
    assert not together["device_events"] and together["transfer_s"] is None
    assert any("no device events" in line for line in answer.lines)
    assert any("n=1: provisional" in line for line in answer.lines)
    assert picture.read_bytes().startswith(b"\x89PNG")


def made(work: Workload, *, parts_s: float, wall_s: float, profiled_s: float, plain_s: float) -> Attribution:
    """Five steps of a device whose only part took ``parts_s``."""
    split = Split(wall_s=wall_s, compute_s=parts_s, transfer_s=0.0, parts={Part.FEED: parts_s}, passes={}, kernels=1)
    return Attribution(
        work=work,
        plain=(Lap(wall_s=plain_s, launch_s=0.1, device_s=plain_s),) * 5,
        profiled=(Lap(wall_s=profiled_s, launch_s=0.1, device_s=profiled_s),) * 5,
        reading=Reading(steps=(split,) * 5, device_events=True),
        counted={Part.FEED: count(work)[Part.FEED]},
        ceilings=Ceilings(flops_per_s=1e12, bytes_per_s=1e11),
    )


def test_what_does_not_add_up_is_said(work: Workload) -> None:
    """Parts beyond 5 % of the interval, a profiler that slows by more than 5 %; neither within it."""
    with torch.inference_mode():
        good = made(work, parts_s=0.9, wall_s=1.0, profiled_s=1.0, plain_s=0.97)
        assert good.warnings() == []
        assert good.plain_gaps_s == pytest.approx(0.07)
        assert good.dominant == "Dominant: feed-forward, 0.9 s, 93% of the step."
        apart = replace(good, profiled=(Lap(wall_s=1.2, launch_s=0.1, device_s=1.2),) * 5)
        assert any("parts sum to 83.3%" in line for line in apart.warnings())
        assert any("1.24 times" in line for line in apart.warnings())
        blind = replace(good, reading=replace(good.reading, device_events=False))
        assert any("no device events" in line for line in blind.warnings())


def test_attribution_of_more_legs_a_pass_has_one_pass(work: Workload) -> None:
    """Steps with and without the profiler are as many as asked for."""
    with torch.inference_mode():
        found = attribute(work, Ceilings(flops_per_s=1e12, bytes_per_s=1e11), 2)
    assert len(found.plain) == len(found.profiled) == len(found.reading.steps) == 2
    assert found.floor_s == work.flops / 1e12


def test_a_run_is_taken_apart_from_its_log(tmp_path: Path) -> None:
    """Phases, passes with warm-ups apart, denoise between passes, and seconds that no phase covers."""
    said = {"step": 1, "steps": 2, "legs": ["cond", "uncond"]}
    lines = [
        {"event": "RunBegins", "t_s": 0.0, "attempt": 1, "law_key": {"launch": "eager"}},
        {"event": "PhaseBegins", "t_s": 1.0, "phase": "load_transformer"},
        {"event": "PhaseEnds", "t_s": 3.0, "phase": "load_transformer"},
        {"event": "PhaseBegins", "t_s": 3.0, "phase": "denoise"},
        {"event": "PassBegins", "t_s": 3.1, "index": 1, **said},
        {"event": "PassEnds", "t_s": 5.1, "index": 1, **said},
        {"event": "PassBegins", "t_s": 5.2, "index": 2, **said, "step": 2},
        {"event": "PassEnds", "t_s": 6.2, "index": 2, **said, "step": 2},
        {"event": "PhaseEnds", "t_s": 6.4, "phase": "denoise"},
        {"event": "RunEnds", "t_s": 7.0, "exit_code": 0},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,) = spent(tmp_path).attempts
    assert one.phases == {"load_transformer": pytest.approx(2.0), "denoise": pytest.approx(3.4)}
    samples = one.passes["cond+uncond"]
    assert samples.warm_up == (pytest.approx(2.0),) and samples.values == (pytest.approx(1.0),)
    assert one.passes_s == pytest.approx(3.0) and one.between_s == pytest.approx(0.4)
    assert one.outside_s == pytest.approx(1.6)
    assert one.dominant == "Dominant in attempt 1: denoise, 3.4 s, 49% of its wall."
    answer = profile(run=tmp_path, plot=tmp_path / "run.png").ask(tmp_path)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert answer.document["attempts"][0]["outside_s"] == one.outside_s
