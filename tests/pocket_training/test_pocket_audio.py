"""Cuts for the vocoder hold a click where there is one, and sound and log-mel stay together."""

import torch
from pocket.scenes import FPS, sample_scenes
from pocket.sound import HOP_S, MEL_RATE_HZ, OUTPUT_RATE_HZ, log_mel, render_sound
from pocket.train_audio import CUT_FRAMES, CUT_MARGIN, EVENT_SCENES, cut, cut_starts, eventful, heard_right


def test_most_cuts_hold_a_click() -> None:
    """Clips with events are many, and their clicks lie where the loss is taken."""
    generator = torch.Generator().manual_seed(0)
    scenes = eventful(64, generator)
    event = scenes.event_frame[:, 0]
    assert abs((event >= 0).float().mean().item() - EVENT_SCENES) < 0.1
    start = cut_starts(scenes, generator)
    place = event / FPS / HOP_S - start
    inside = (place >= CUT_MARGIN) & (place <= CUT_FRAMES - CUT_MARGIN - 3)
    assert inside[event >= 0].float().mean() > 0.7
    assert 0 <= int(start.min()) <= int(start.max()) <= 101 - CUT_FRAMES


def test_a_cut_is_a_piece_of_both() -> None:
    """Frames and samples of a cut are those of the clip."""
    scenes = sample_scenes(3, torch.Generator().manual_seed(0))
    mel, wave = log_mel(render_sound(scenes, MEL_RATE_HZ)), render_sound(scenes, OUTPUT_RATE_HZ)
    start = torch.tensor([0, 10, 65])
    some_mel, some_wave = cut(mel, wave, start)
    for i, first in enumerate(start.tolist()):
        assert torch.equal(some_mel[i], mel[i, :, first : first + CUT_FRAMES])
        assert torch.equal(some_wave[i], wave[i, :, first * 480 : (first + CUT_FRAMES) * 480])


def test_true_sound_is_heard_right_and_mono_is_not() -> None:
    """The measure of the vocoder gives full marks to the truth and misses lost channels and lost clicks."""
    scenes = sample_scenes(16, torch.Generator().manual_seed(1))
    wave = render_sound(scenes, OUTPUT_RATE_HZ)
    assert heard_right(scenes, wave) == {"tone": 16, "clicks": 16, "pan": 16}
    worse = heard_right(scenes, wave.mean(1, keepdim=True).expand(-1, 2, -1))
    assert worse["pan"] < 12
    assert heard_right(scenes, torch.zeros_like(wave))["clicks"] < 16
