"""Clips that are hard to judge and legitimate: they may warn and must not fail. Knows no metric."""

from __future__ import annotations

import numpy as np

from shotclock.verify.bases import leaves, smooth_noise, to_bytes
from shotclock.verify.faults import Frame, Frames

FONT_ROWS, FONT_COLUMNS = 7, 5  # strokes of the title card's letters


def fade(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """From black, over two thirds of the clip."""
    gains = np.clip(np.arange(len(frames)) / (len(frames) * 0.66), 0, 1)
    return [to_bytes(frame * np.float32(gain)) for frame, gain in zip(frames, gains, strict=True)]


def night(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """A fifth of the light and the noise of a sensor."""
    return [to_bytes(f * np.float32(0.2) + 4 + rng.normal(0, 1.2, f.shape)) for f in frames]


def fog(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Three fifths of the contrast are gone, more at the top."""
    height = frames[0].shape[0]
    share = np.linspace(0.75, 0.45, height, dtype=np.float32)[:, None, None]
    return [to_bytes(frame * (1 - share) + 185 * share) for frame in frames]


def still_with_grain(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """One picture with fresh film grain of 3 levels in every frame."""
    return [to_bytes(frames[0] + rng.normal(0, 3, frames[0].shape[:2])[..., None]) for _ in frames]


def grain(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Film grain of 6 levels on a moving picture."""
    return [to_bytes(frame + rng.normal(0, 6, frame.shape[:2])[..., None]) for frame in frames]


def title_card(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Pale letters on a dark plain ground, moving slowly: verify.md's one false FAIL."""
    height, width = frames[0].shape[:2]
    card = np.full((height, width), 28.0, np.float32)
    stroke = max(height // 60, 2)
    left = width // 8
    while left < width * 7 // 8 - FONT_COLUMNS * stroke:
        letter = rng.random((FONT_ROWS, FONT_COLUMNS)) < 0.5
        top = height * 2 // 5
        block = np.kron(letter, np.ones((stroke, stroke)))
        card[top : top + block.shape[0], left : left + block.shape[1]] += 200 * block
        left += (FONT_COLUMNS + 1) * stroke
    return [to_bytes(np.roll(card, t, axis=1)[..., None] + np.array([0, 4, 14])) for t in range(len(frames))]


def letterbox(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """2.39:1 between black bars."""
    height, width = frames[0].shape[:2]
    bar = (height - round(width / 2.39)) // 2
    out = [frame.copy() for frame in frames]
    for frame in out:
        frame[:bar], frame[height - bar :] = 0, 0
    return out


def hard_cut(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Another shot from the middle on."""
    height, width = frames[0].shape[:2]
    other = leaves(rng, height + 8, width + len(frames), count=300)
    half = len(frames) // 2
    return [*frames[:half], *(to_bytes(other[4 : height + 4, t : t + width]) for t in range(half, len(frames)))]


def soft_focus(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Shallow focus: everything but a sharp patch is smooth."""
    height, width = frames[0].shape[:2]
    haze = 128 + 60 * smooth_noise(rng, height, width, height // 5)[..., None]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    sharp = np.clip(2 - np.hypot(y / height - 0.5, x / width - 0.5) * 5, 0, 1)[..., None]
    return [to_bytes(frame * sharp + (haze + t * 0.4) * (1 - sharp)) for t, frame in enumerate(frames)]


def on_twos(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Animation on twos: with ``--expect cartoon`` it must not fail."""
    return [frames[t // 2 * 2] for t in range(len(frames))]


def strobe(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Strobe light: with ``--expect strobe`` it must not fail."""
    return [to_bytes(frame * np.float32(1.0 if t % 2 else 0.7)) for t, frame in enumerate(frames)]


def still(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """A still: with ``--expect static`` it must not fail."""
    return [frames[0]] * len(frames)


def black(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Black throughout: with ``--expect black`` it must not fail."""
    return [np.zeros_like(frame) for frame in frames]
