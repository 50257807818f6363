"""Legal clips, their token counts and layouts, and refusals that name both neighbours."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shotclock.errors import RequestError
from shotclock.geometry import (
    Geometry,
    audio_positions,
    keyframe_marker,
    patchify_audio,
    patchify_video,
    unpatchify_audio,
    unpatchify_video,
    video_positions,
)

rates = st.sampled_from([Fraction(24), Fraction(25), Fraction(30), Fraction(24000, 1001), Fraction(50), Fraction(60)])


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    fps = draw(rates)
    return Geometry(
        width=32 * draw(st.integers(1, 6)),
        height=32 * draw(st.integers(1, 6)),
        frames=8 * draw(st.integers(1, 8)) + 1,
        fps=fps,
    )


@given(st.integers(-50, 300))
def test_every_frame_count_is_legal_or_both_neighbours_are_named(frames: int) -> None:
    """users.md row 67: never a silent change of the number of frames."""
    legal = frames >= 1 and frames % 8 == 1
    try:
        clip = Geometry(width=64, height=64, frames=frames, fps=Fraction(24))
    except RequestError as error:
        assert not legal or (frames == 1 and "audio latent" in error.found)
        if frames > 1:
            below, above = (frames - 1) // 8 * 8 + 1, (frames - 1) // 8 * 8 + 9
            assert error.way_out == f"use {below} or {above} frames"
    else:
        assert legal
        assert clip.latent_frames == (frames - 1) // 8 + 1


@pytest.mark.parametrize(
    ("side", "way_out"), [(70, "width 64 or 96"), (20, "width 32"), (0, "width 32"), (-5, "width 32")]
)
def test_sides_off_the_grid_are_refused(side: int, way_out: str) -> None:
    """users.md row 69: the rule is stated once, here."""
    with pytest.raises(RequestError) as refusal:
        Geometry(width=side, height=64, frames=9, fps=Fraction(24))
    assert way_out in refusal.value.way_out and "multiples of 32" in refusal.value.allowed


@given(geometries())
def test_positions_cover_picture_and_sound_without_gaps(clip: Geometry) -> None:
    """Tokens in order (frame, row, column); the first latent frame holds one frame; sound ends within a latent."""
    video, audio = video_positions(clip)[0], audio_positions(clip)[0, 0]
    assert video.shape == (3, clip.video_tokens, 2) and audio.shape == (clip.audio_tokens, 2)
    grid = video.reshape(3, clip.latent_frames, clip.rows, clip.columns, 2)
    times = grid[0, :, 0, 0]
    assert torch.allclose(times[0], torch.tensor([0.0, 1.0]) / float(clip.fps))
    assert torch.equal(times[1:, 0], times[:-1, 1])
    assert times[-1, 1] == pytest.approx(float(clip.duration_s), abs=1e-5)
    assert grid[1, 0, -1, 0, 1] == clip.height and grid[2, 0, 0, -1, 1] == clip.width
    assert torch.equal(audio[1:, 0], audio[:-1, 1])
    assert abs(float(audio[-1, 1]) - float(clip.duration_s)) <= 0.04 + 0.03  # rounding of the count, first latent
    assert keyframe_marker(clip).sum() == clip.rows * clip.columns


@given(geometries())
def test_patchify_and_back_is_the_identity(clip: Geometry) -> None:
    """Both layouts, and the channel-major order of sound features."""
    video = torch.randn(2, 5, clip.latent_frames, clip.rows, clip.columns)
    assert torch.equal(unpatchify_video(patchify_video(video), clip), video)
    audio = torch.randn(2, 8, clip.audio_tokens, 16)
    assert torch.equal(unpatchify_audio(patchify_audio(audio)), audio)
    assert torch.equal(patchify_audio(audio)[0, 0, :16], audio[0, 0, 0])


def test_tokens_of_the_published_example() -> None:
    """512x768, 121 frames: 6,144 tokens and 126 audio latents (ltx25.md section 4)."""
    clip = Geometry(width=512, height=768, frames=121, fps=Fraction(24))
    assert (clip.video_tokens, clip.audio_tokens) == (6144, 126)
