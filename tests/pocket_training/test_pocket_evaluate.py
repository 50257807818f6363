"""The evaluator sees and hears what was drawn, and notices what is wrong."""

from dataclasses import replace

import pytest
import torch
from pocket.captions import describe, is_held_out
from pocket.data import render_video
from pocket.evaluate import Score, listen, scores, see
from pocket.scenes import TONE_OF_SHAPE, Scenes, sample_scenes
from pocket.sound import OUTPUT_RATE_HZ, log_mel, render_sound


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return sample_scenes(12, torch.Generator().manual_seed(99))


def test_drawn_clips_score_full_marks(scenes: Scenes) -> None:
    """Colour, shape, movement, tone and clicks of ground truth are all recognised."""
    frames = ((render_video(scenes)[0] + 1) / 2).permute(0, 2, 3, 4, 1)
    waves = render_sound(scenes, OUTPUT_RATE_HZ)
    captions = describe(scenes, 0, held_out=True)
    seen, heard = [see(f) for f in frames], [listen(w) for w in waves]
    result = scores(captions, seen, heard, TONE_OF_SHAPE)
    assert all(s.hits == s.trials for s in result.values()), result
    swapped = scores(captions, seen[1:] + seen[:1], heard[1:] + heard[:1], TONE_OF_SHAPE)
    assert swapped["colour"].ratio < 0.6
    assert swapped["motion"].ratio < 0.6


def test_silence_and_an_empty_picture_score_nothing() -> None:
    """Nothing is recognised where there is nothing."""
    assert see(torch.zeros(25, 160, 256, 3)).colour is None
    assert listen(torch.zeros(2, 48000)).click_frames == ()


def test_training_and_held_out_captions_never_meet(scenes: Scenes) -> None:
    """A caption belongs to one side only."""
    assert all(is_held_out(c.text) for c in describe(scenes, 3, held_out=True))
    assert not any(is_held_out(c.text) for c in describe(scenes, 3, held_out=False))


def test_scenes_repeat_with_their_seed(scenes: Scenes) -> None:
    """The same seed draws the same scenes; another seed does not."""
    again = sample_scenes(12, torch.Generator().manual_seed(99))
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
    assert mel.shape == (12, 2, 101, 64)
    assert (mel[:, :, 40] - mel[:, :, 80]).abs().max() < 0.05


def test_score_interval_contains_the_ratio() -> None:
    """Wilson's interval."""
    low, high = Score(hits=190, trials=200).interval
    assert low < 0.95 < high
    assert high - low < 0.07
