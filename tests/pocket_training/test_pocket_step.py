"""A training step: exact bookkeeping of flat weights, no wait for the device, resumable state, data of one caption."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from pocket import network
from pocket.captions import choose_said, describe
from pocket.export import FLOAT32_MARK
from pocket.flat import FlatWeights
from pocket.loop import Schedule, load_state
from pocket.network import GEOMETRY
from pocket.pool import draw_groups
from pocket.scenes import sample_scenes, scenes_like
from pocket.train_dit import Step, draw_sigmas, negative_ids
from pocket.whole import AVERAGE, STATE, Whole, save_weights, write_official
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(autouse=True)
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks do what eight do, sooner."""
    monkeypatch.setattr(network, "BLOCKS", 2)


@dataclass
class Latents:
    """Stands for the pool: random latents of groups of `members`."""

    device: str
    members: int = 2

    def sample(self, groups: int) -> tuple[Tensor, ...]:
        rows, like = groups * self.members, {"device": self.device}
        video, audio = (torch.randn(rows, n, 128, **like) for n in (GEOMETRY.video_tokens, GEOMETRY.audio_tokens))
        return video, audio, torch.randint(4, 60, (groups, 32), **like), torch.full((groups,), 9, **like)


@dataclass
class Copies(TorchDispatchMode):
    """Notes what goes from one device to another."""

    found: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if "copy" in str(func):
            devices = {x.device.type for x in [*args, out] if isinstance(x, Tensor)}
            self.found += [str(func)] if len(devices) > 1 else []
        return out


def _step(device: str) -> Step:
    with torch.device(device):
        whole = Whole()
    weights = FlatWeights(whole, dtype=torch.float32, to_adam=lambda _: False, average_decay=0.9)
    return Step(
        whole=whole,
        weights=weights,
        pool=Latents(device),
        groups=1,
        tables=whole.tables(device),
        negative=negative_ids().to(device),
        sums=torch.zeros(2, device=device),
    )


def test_a_step_reads_nothing_back_and_copies_nothing_over() -> None:
    """On a device without values, where reading one raises, a whole step runs: a CUDA graph can hold it."""
    step = _step("meta")
    with Copies() as copies:
        step()
    assert copies.found == []
    with pytest.raises(RuntimeError):
        bool(step.sums[0] > 0)


def test_gradients_stay_in_the_flat_vector_and_a_step_changes_every_kind_of_weight() -> None:
    """The update reads what backward wrote; matrices, vectors and their average move."""
    torch.manual_seed(0)
    step = _step("cpu")
    weights = step.weights
    before, average = weights.master.clone(), weights.average.clone()
    weights.rate.fill_(1.0)
    loss_v, loss_a = step.losses()
    (loss_v + loss_a).backward()
    assert all(p.grad.untyped_storage().data_ptr() == weights.grad.data_ptr() for p in step.whole.parameters())
    weights.step(matrix_lr=1e-3, vector_lr=1e-3, clip=1.0)
    assert not torch.equal(weights.master, before)
    assert not torch.equal(weights.average, average)
    assert weights.grad.abs().sum() == 0
    changed = weights.named(weights.master)
    assert changed["transformer.proj_out.weight"].sub(weights.named(before)["transformer.proj_out.weight"]).any()
    assert changed["transformer.proj_out.bias"].sub(weights.named(before)["transformer.proj_out.bias"]).any()


def test_flat_weights_fit_a_line() -> None:
    """The optimiser optimises: the loss of a linear fit falls by a hundred times."""
    torch.manual_seed(0)
    module, true = nn.Linear(16, 8), torch.randn(16, 8)
    weights = FlatWeights(module, dtype=torch.float32, to_adam=lambda _: False, average_decay=0.9)
    losses = []
    for i in range(200):
        x = torch.randn(64, 16)
        loss = (module(x) - x @ true - 1).square().mean()
        loss.backward()
        weights.rate.fill_(min(1.0, (200 - i) / 100))
        weights.step(matrix_lr=0.2, vector_lr=0.1, clip=10.0)
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


def test_a_gradient_that_is_not_finite_moves_nothing_to_nan() -> None:
    """One broken batch does not end a run."""
    module = nn.Linear(16, 8)
    weights = FlatWeights(module, dtype=torch.float32, to_adam=lambda _: False, average_decay=0.9)
    weights.rate.fill_(1.0)
    weights.grad.fill_(float("nan"))
    weights.step(matrix_lr=0.1, vector_lr=0.1, clip=1.0)
    assert bool(weights.master.isfinite().all())


def test_state_resumes_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was saved comes back under every name, in files that travel, and makes a model."""
    torch.manual_seed(0)
    monkeypatch.setattr(network, "BLOCKS", 8)
    whole = Whole()
    weights = FlatWeights(whole, dtype=torch.float32, to_adam=lambda _: False, average_decay=0.9)
    weights.average.mul_(0.5)
    save_weights(tmp_path, weights.named(weights.master), weights.named(weights.average))
    files = list(tmp_path.iterdir())
    assert len(files) == 4
    assert all(f.stat().st_size < 16 * 2**20 for f in files)
    other = Whole()
    resumed = FlatWeights(other, dtype=torch.float32, to_adam=lambda _: False, average_decay=0.9)
    resumed.load(load_state(tmp_path, STATE), load_state(tmp_path, AVERAGE))
    assert (resumed.master - weights.master).abs().max() < 1e-3 * weights.master.abs().max()
    assert (resumed.average - weights.average).abs().max() < 1e-3 * weights.average.abs().max()
    shipped = Whole.load(tmp_path)
    name = "transformer.transformer_blocks.1.attn1.to_q.weight"
    assert torch.equal(dict(shipped.named_parameters())[name], load_state(tmp_path, AVERAGE)[name].float())
    write_official(tmp_path, shipped)
    rounded = dict(Whole.shipped(tmp_path).named_parameters())
    for name, weight in shipped.named_parameters():
        kept = weight if FLOAT32_MARK in name else weight.bfloat16().float()
        assert torch.equal(rounded[name], kept), name


def test_scenes_of_a_group_fit_its_caption_and_differ() -> None:
    """Every wording of a group describes all its scenes; what it leaves open varies."""
    generator = torch.Generator().manual_seed(3)
    first, said = sample_scenes(300, generator), choose_said(300, 5)
    new = scenes_like(first, said, generator)
    texts = [[c.text for c in describe(s, 9, held_out=False, said=said)] for s in (first, new)]
    assert texts[0] == texts[1]
    assert (new.x_px != first.x_px).any()
    open_colour = ~said.colour
    assert (new.colour[open_colour, 0] != first.colour[open_colour, 0]).any()
    assert (new.colour[:, 0] != new.colour[:, 1]).all()


def test_groups_repeat_with_their_seed() -> None:
    """A pool is a function of its seed."""
    a, b, c = draw_groups(4, 2, 7), draw_groups(4, 2, 7), draw_groups(4, 2, 8)
    assert torch.equal(a[0].x_px, b[0].x_px)
    assert torch.equal(a[1], b[1])
    assert not torch.equal(a[0].x_px, c[0].x_px)
    assert len(a[0]) == 8


def test_sigmas_of_a_step_cover_the_schedule() -> None:
    """Evenly spread, none 0, most of them high."""
    torch.manual_seed(0)
    values = draw_sigmas(4096, "cpu")
    assert 0 < values.min() < 0.01
    assert values.max() <= 1
    assert 0.6 < (values > 0.5).float().mean() < 0.8


def test_a_part_of_a_run_keeps_its_rate_and_the_last_one_lets_it_fall() -> None:
    """decay_from 1 never decays; 0.4 ends at 0."""
    now = [0.0]
    parts = [Schedule(seconds=102.0, max_steps=10**9, decay_from=d, clock=lambda: now[0]) for d in (1.0, 0.4)]
    for part in parts:
        part.advance()
        part.advance()
    now[0] = 101.9
    assert parts[0].rate() == 1.0
    assert parts[1].rate() < 0.01


def test_options_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented command lines are legal."""
    from pocket import train_dit

    command = "train_dit --models m --out o --resume r --seconds 500 --decay-from 1 --clips 96 --quick --seed 1"
    monkeypatch.setattr("sys.argv", command.split())
    options = train_dit.arguments()
    assert isinstance(options, argparse.Namespace)
    assert options.decay_from == 1.0
