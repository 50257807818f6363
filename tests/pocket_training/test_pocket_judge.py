"""Guided sampling follows shotclock's rules, and judging renders, breaks, scores and writes what it says."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pocket import judge, network, sampling
from pocket.captions import describe
from pocket.loop import Log
from pocket.scenes import sample_scenes
from pocket.whole import Whole
from torch import Tensor

from shotclock.guidance import Guider, LegName
from shotclock.guidance import combine as shipped
from shotclock.schedule import sigmas

LEGS = (LegName.COND, LegName.UNCOND, LegName.PERTURBED, LegName.ISOLATED)


@dataclass
class Screen:
    """Stands for the autoencoders: notes the tokens, shows black and says nothing."""

    device: str = "cpu"

    def decode(self, video: Tensor, _audio: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(video), 25, 32, 32, 3), torch.zeros(len(video), 2, 4800)


@pytest.fixture(scope="module")
def whole() -> Whole:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "BLOCKS", 2)
        patch.setattr(network, "STG_BLOCK", 1)
        whole = Whole()
    for p in whole.parameters():
        torch.nn.init.normal_(p, std=0.08)
    return whole.eval().requires_grad_(False)


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize(
    "scales", [sampling.Scales(), sampling.Scales(rescale=(0.0, 0.0)), sampling.Scales(cfg=(1.0, 4.0), stg=(0.5, 0.0))]
)
def test_combination_is_the_one_of_shotclock(stream: int, scales: sampling.Scales) -> None:
    """Each row of a batch is combined as shotclock.guidance combines a render."""
    torch.manual_seed(0)
    states = [torch.randn(3, 7, 128) for _ in LEGS]
    mine = sampling.combine(*states, scales, stream)
    guider = Guider(
        cfg=scales.cfg[stream],
        stg=scales.stg[stream],
        modality=scales.modality[stream],
        rescale=scales.rescale[stream],
        stg_blocks=(network.STG_BLOCK,),
    )
    for row in range(3):
        legs = {name: state[row : row + 1] for name, state in zip(LEGS, states, strict=True)}
        assert torch.allclose(mine[row : row + 1], shipped(legs, guider), atol=1e-5)


def test_legs_without_weight_are_not_run_and_change_nothing(whole: Whole) -> None:
    """Sampling with all terms off is plain sampling: one leg, whatever the negative prompt."""
    tables = whole.tables("cpu")
    torch.manual_seed(1)
    video, audio = torch.randn(3, 8, 192), torch.randn(3, 8, 96)
    off = sampling.Scales(cfg=(1.0, 1.0), stg=(0.0, 0.0), modality=(1.0, 1.0), rescale=(0.0, 0.0))
    assert sampling.Legs.of(off).flags == [(1.0, 1.0)]
    start, steps = sampling.noise(2, 5, "cpu"), sigmas(2)
    results = []
    for negative in (2, 1):
        texts = sampling.Contexts(
            video=video[:2],
            audio=audio[:2],
            negative_video=video[negative : negative + 1],
            negative_audio=audio[negative : negative + 1],
        )
        results.append(sampling.sample(whole.transformer, tables, texts, start, off, steps))
    assert torch.equal(results[0][0], results[1][0])
    guided = sampling.sample(whole.transformer, tables, texts, start, sampling.Scales(), steps)
    assert not torch.allclose(guided[0], results[0][0])


def test_judging_writes_every_setting_and_what_broken_ones_lose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings run on a fresh model, swapped prompts without a render of their own."""
    renders = []

    def quickly(_model: object, _tables: object, texts: sampling.Contexts, start: sampling.Tokens, *rest: object):
        renders.append(rest)
        return start[0][: len(texts.video)], start[1][: len(texts.audio)]

    monkeypatch.setattr(judge, "sample", quickly)
    court = judge.Court.open(Whole().requires_grad_(False), Screen(), 2)
    settings = judge.settings_of(True)
    results = court.judge(settings, tmp_path, Log(tmp_path / "log.jsonl"))
    assert set(results) == {s.name for s in settings}
    assert len(renders) == len(settings) - 1
    written = json.loads((tmp_path / "dit_result.json").read_text())
    assert set(written["lost_points"]) == {s.name for s in judge.BROKEN}
    assert written["scores"]["default"]["pan"] == [0, 2]
    assert (tmp_path / "dit_strip.png").exists()
    assert court.captions == describe(
        sample_scenes(2, torch.Generator().manual_seed(judge.HELD_OUT_SEED)), judge.HELD_OUT_SEED, held_out=True
    )


def test_broken_settings_change_the_render(whole: Whole) -> None:
    """A zeroed block and reversed sigmas give other tokens than the default."""
    tables = whole.tables("cpu")
    torch.manual_seed(1)
    video, audio = torch.randn(2, 8, 192), torch.randn(2, 8, 96)
    texts = sampling.Contexts(video=video[:1], audio=audio[:1], negative_video=video[1:], negative_audio=audio[1:])
    start, steps = sampling.noise(1, 5, "cpu"), sigmas(2)

    def run(schedule: Tensor) -> Tensor:
        return sampling.sample(whole.transformer, tables, texts, start, sampling.Scales(), schedule)[0]

    good = run(steps)
    assert not torch.allclose(run(judge.reversed_steps(steps)), good)
    with judge.zeroed(whole.transformer.transformer_blocks[1]):
        assert not torch.allclose(run(steps), good)
    assert torch.equal(run(steps), good)
