"""The evaluator sees and hears what was drawn, and notices what is wrong."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pocket.captions import describe, is_held_out
from pocket.data import PALETTE, render_video
from pocket.evaluate import (
    Heard,
    Score,
    Seen,
    hear,
    listen,
    look,
    lost_points,
    reversed_steps,
    scores,
    see,
    swapped,
    zeroed,
)
from pocket.scenes import TONE_OF_SHAPE, Scenes, sample_scenes
from pocket.sound import OUTPUT_RATE_HZ, log_mel, render_sound

from shotclock.schedule import sigmas


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return sample_scenes(8, torch.Generator().manual_seed(99))


def test_drawn_clips_score_full_marks(scenes: Scenes) -> None:
    """Colour, shape, movement, tone and clicks of ground truth are all recognised."""
    frames = ((render_video(scenes)[0] + 1) / 2).permute(0, 2, 3, 4, 1)
    waves = render_sound(scenes, OUTPUT_RATE_HZ)
    captions = describe(scenes, 0, held_out=True)
    seen, heard = [see(f) for f in frames], [listen(w) for w in waves]
    result = scores(captions, seen, heard, TONE_OF_SHAPE)
    assert all(s.hits == s.trials for s in result.values()), result
    moved = scores(swapped(captions), seen, heard, TONE_OF_SHAPE)
    assert moved["colour"].ratio < 0.6
    assert moved["motion"].ratio < 0.6
    assert lost_points(result, moved) > 30


def _pictures(kind: str, generator: torch.Generator) -> torch.Tensor:
    """Two clips that show nothing."""
    shape = (2, 25, 160, 256, 3)
    if kind == "noise":
        return torch.rand(shape, generator=generator)
    if kind == "grain":
        return (0.5 + 0.3 * torch.randn(shape, generator=generator)).clamp(0, 1)
    if kind == "not finite":
        return torch.full(shape, float("nan"))
    return torch.full(shape, {"black": 0.0, "white": 1.0, "grey": 0.4}[kind])


def _sounds(kind: str, generator: torch.Generator) -> torch.Tensor:
    """Two sounds of nothing."""
    shape = (2, 2, 48480)
    if kind == "not finite":
        return torch.full(shape, float("inf"))
    return torch.zeros(shape) if kind == "silence" else 0.1 * torch.randn(shape, generator=generator)


@pytest.mark.parametrize(
    ("picture", "sound"),
    [
        ("black", "silence"),
        ("white", "noise"),
        ("grey", "silence"),
        ("noise", "noise"),
        ("grain", "noise"),
        ("not finite", "not finite"),
    ],
)
def test_broken_clips_miss_every_measure(picture: str, sound: str) -> None:
    """Whatever shows and says nothing is a miss of everything that is asked, and never an error."""
    generator = torch.Generator().manual_seed(5)
    seen, heard = look(_pictures(picture, generator)), hear(_sounds(sound, generator))
    motions = sample_scenes(40, generator)
    captions = [c for c in describe(motions, 1, held_out=True) if c.colour is not None and c.shape is not None][:2]
    result = scores(captions, seen, heard, TONE_OF_SHAPE)
    assert {name: s.hits for name, s in result.items()} == dict.fromkeys(result, 0)
    assert all(s.x_ratio is None and s.event_frames == () for s in seen)


@settings(max_examples=6, deadline=None)
@given(
    radius=st.floats(0.0, 90.0),
    x=st.floats(-80.0, 300.0),
    y=st.floats(-80.0, 200.0),
    frames=st.sets(st.integers(0, 24)),
    seed=st.integers(0, 9),
)
def test_no_clip_is_an_error(radius: float, x: float, y: float, frames: set[int], seed: int) -> None:
    """A disc of any size anywhere, shown in any frames and none, gives an answer of the right kind."""
    generator = torch.Generator().manual_seed(seed)
    down, across = torch.meshgrid(torch.arange(160.0), torch.arange(256.0), indexing="ij")
    disc = ((across - x) ** 2 + (down - y) ** 2 < radius**2).float()[..., None]
    clip = 0.02 * torch.rand(25, 160, 256, 3, generator=generator)
    for frame in frames:
        clip[frame] = torch.lerp(clip[frame], torch.tensor(PALETTE[seed % 6]), disc)
    picture = see(clip)
    assert isinstance(picture, Seen)
    assert (picture.colour is None) == (picture.shape is None)
    assert all(0 <= e < 25 for e in picture.event_frames)
    wave = torch.randn(2, 4800 * (1 + seed), generator=generator) * 10.0 ** (seed - 8)
    assert isinstance(listen(wave), Heard)


def test_one_clip_is_seen_as_in_a_batch(scenes: Scenes) -> None:
    """Judging together is judging apart."""
    frames = ((render_video(scenes.select(slice(0, 3)))[0] + 1) / 2).permute(0, 2, 3, 4, 1)
    waves = render_sound(scenes.select(slice(0, 3)), OUTPUT_RATE_HZ)
    assert look(frames) == [see(f) for f in frames]
    assert hear(waves) == [listen(w) for w in waves]


def test_reversed_steps_rise_and_end_at_zero() -> None:
    """The broken schedule holds the same sigmas."""
    steps = reversed_steps(sigmas(30))
    assert steps[-1] == 0
    assert (steps[1:-1] > steps[:-2]).all()
    assert torch.equal(steps.sort().values, sigmas(30).sort().values)


def test_a_zeroed_block_is_whole_again_afterwards() -> None:
    """Breaking a model leaves no trace, not even after an error."""
    block = torch.nn.Linear(3, 3)
    before = [p.detach().clone() for p in block.parameters()]
    with pytest.raises(ZeroDivisionError), zeroed(block):
        assert all(not p.any() for p in block.parameters())
        raise ZeroDivisionError
    assert all(torch.equal(a, b) for a, b in zip(before, block.parameters(), strict=True))


def test_training_and_held_out_captions_never_meet(scenes: Scenes) -> None:
    """A caption belongs to one side only."""
    assert all(is_held_out(c.text) for c in describe(scenes, 3, held_out=True))
    assert not any(is_held_out(c.text) for c in describe(scenes, 3, held_out=False))


def test_scenes_repeat_with_their_seed(scenes: Scenes) -> None:
    """The same seed draws the same scenes; another seed does not."""
    again = sample_scenes(8, torch.Generator().manual_seed(99))
    assert torch.equal(again.x_px, scenes.x_px)
    assert not torch.equal(sample_scenes(12, torch.Generator().manual_seed(1)).x_px, scenes.x_px)


def test_a_tone_looks_the_same_in_every_hop(scenes: Scenes) -> None:
    """Steady tones repeat with the hop of the log-mel: the vocoder has no phase to guess."""
    still = replace(
        scenes,
        x_px=torch.full_like(scenes.x_px, 100.0),
        radius_px=torch.full_like(scenes.radius_px, 20.0),
        visible=torch.ones_like(scenes.visible),
        event_frame=torch.full_like(scenes.event_frame, -1.0),
    )
    mel = log_mel(render_sound(still, 16000))
    assert mel.shape == (8, 2, 101, 64)
    assert (mel[:, :, 40] - mel[:, :, 80]).abs().max() < 0.05


def test_score_interval_contains_the_ratio() -> None:
    """Wilson's interval."""
    low, high = Score(hits=190, trials=200).interval
    assert low < 0.95 < high
    assert high - low < 0.07
