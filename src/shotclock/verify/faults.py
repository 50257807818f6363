"""Damage planted in good frames, one function a fault, so that a reader sees what each one is. Knows no metric.

Levels and names are those that verify.md measured; every function takes good frames and a generator, and returns
frames of the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8

from shotclock.verify.bases import smooth_noise, to_bytes

TOKEN_PIXELS = 32  # a latent column or row in pixels
CHUNK_FRAMES = 8  # frames a latent frame

Frame = UInt8[np.ndarray, "h w 3"]
Frames = Sequence[Frame]
Plane = Float[np.ndarray, "h w"]
Fault = Callable[[Frames, np.random.Generator], list[Frame]]


def plain(red: int, green: int, blue: int) -> Fault:
    """Every frame one colour."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        return [np.full_like(frame, 0) + np.array([red, green, blue], np.uint8) for frame in frames]

    return fault


def white_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Independent noise in every frame."""
    return [to_bytes(rng.normal(128, 60, frame.shape)) for frame in frames]


def static_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """One frame of noise, all the time."""
    return white_noise(frames[:1], rng) * len(frames)


def sparse_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Every fifth pixel black or white."""
    out = []
    for frame in frames:
        chance = rng.random(frame.shape[:2])[..., None]
        out.append(np.where(chance < 0.1, 0, np.where(chance > 0.9, 255, frame)).astype(np.uint8))
    return out


def latent_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """What a decoder makes of noise: coloured blotches of many sizes, eight frames melting from one into the next."""
    height, width = frames[0].shape[:2]
    keys = [_blotches(rng, height, width) for _ in range(len(frames) // CHUNK_FRAMES + 2)]
    out = []
    for t in range(len(frames)):
        key, part = divmod(t / CHUNK_FRAMES, 1.0)
        here, there = keys[int(key)], keys[int(key) + 1]
        out.append(to_bytes((here * (1 - part) + there * part) / np.hypot(part, 1 - part) + 128))
    return out


def _blotches(rng: np.random.Generator, height: int, width: int) -> Float[np.ndarray, "h w 3"]:
    picture = np.zeros((height, width, 3), np.float32)
    for cell, amplitude in ((32, 24), (16, 22), (8, 18), (4, 16), (2, 9)):
        shared = smooth_noise(rng, height, width, cell)
        for channel in range(3):
            picture[..., channel] += amplitude * (0.7 * shared + smooth_noise(rng, height, width, cell))
    return picture


def pink_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Noise with the spectrum of pictures (amplitude 1/f in space), drifting slowly."""
    height, width = frames[0].shape[:2]
    falloff = 1 / np.maximum(np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)), 1 / width)
    keys = [_shaped(rng, falloff, (height, width)) for _ in range(2)]
    turn = np.linspace(0, np.pi / 3, len(frames))
    return [to_bytes(128 + 45 * (keys[0] * np.cos(a) + keys[1] * np.sin(a))) for a in turn]


def _shaped(
    rng: np.random.Generator, falloff: Float[np.ndarray, "h f"], shape: tuple[int, int]
) -> Float[np.ndarray, "h w 3"]:
    channels = [np.fft.irfft2(np.fft.rfft2(rng.normal(size=shape)) * falloff, s=shape) for _ in range(3)]
    picture: Float[np.ndarray, "h w 3"] = np.stack([channel / channel.std() for channel in channels], axis=-1)
    return picture


def phase_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Every frame keeps its spectrum and loses its phases: the colours and grain of the clip, no edges."""
    shape = frames[0].shape[:2]
    turn = np.fft.rfft2(rng.normal(size=shape))
    turn /= np.maximum(np.abs(turn), 1e-9)
    turn[0, 0] = 1
    out = []
    for frame in frames:
        spectra = np.fft.rfft2(frame.astype(np.float32), axes=(0, 1))
        out.append(to_bytes(np.fft.irfft2(np.abs(spectra) * turn[..., None], s=shape, axes=(0, 1))))
    return out


def growing_noise(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Latent noise over the picture: 60 % of it in the first frame, all of it in the last."""
    noise = latent_noise(frames, rng)
    shares = np.linspace(0.6, 1.0, len(frames))
    return [to_bytes(f * (1 - s) + n * s) for f, n, s in zip(frames, noise, shares, strict=True)]


def noisy_start(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """The first frame and the first latent frame are noise, the rest is good."""
    count = min(CHUNK_FRAMES + 1, len(frames) // 2)
    return white_noise(frames[:count], rng) + list(frames[count:])


def frozen(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """The first frame, all the time."""
    return [frames[0]] * len(frames)


def half_frozen(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """The first half stands still."""
    half = len(frames) // 2
    return [frames[half]] * half + list(frames[half:])


def doubled(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Every frame twice, at half the number of pictures."""
    return [frames[t // 2 * 2] for t in range(len(frames))]


def shuffled(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """The frames in random order."""
    return [frames[t] for t in rng.permutation(len(frames))]


def flicker(share: float) -> Fault:
    """Brightness goes up and down by ``share`` with every frame."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        return [to_bytes(frame * np.float32(1 + share * (-1) ** t)) for t, frame in enumerate(frames)]

    return fault


def colour_flicker(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Red goes up when blue goes down, by 10 %, with every frame."""
    gains = [np.array([1 + 0.1 * s, 1, 1 - 0.1 * s], np.float32) for s in ((-1) ** t for t in range(len(frames)))]
    return [to_bytes(frame * gain) for frame, gain in zip(frames, gains, strict=True)]


def _added(frames: Frames, pattern: Plane) -> list[Frame]:
    return [to_bytes(frame + pattern[..., None]) for frame in frames]


def _places(frames: Frames) -> tuple[Int[np.ndarray, "h w"], Int[np.ndarray, "h w"]]:
    """Row and column of every pixel."""
    y, x = np.mgrid[: frames[0].shape[0], : frames[0].shape[1]]
    return y, x


def checker(period: int, levels: float) -> Fault:
    """A checkerboard of ``period`` pixels from square to like square, ``levels`` up and down."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        y, x = _places(frames)
        sign = ((y // (period // 2) + x // (period // 2)) % 2) * 2.0 - 1
        return _added(frames, (levels * sign).astype(np.float32))

    return fault


def lines8(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """A dark line of 4 levels every 8 pixels, across and down."""
    y, x = _places(frames)
    return _added(frames, -4.0 * ((y % 8 == 0) | (x % 8 == 0)).astype(np.float32))


def token_ramp(levels: float) -> Fault:
    """Every 32-pixel token ramps by ``levels``, so that each one begins with the same step."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        y, x = _places(frames)
        ramp = (x % TOKEN_PIXELS + y % TOKEN_PIXELS) / (TOKEN_PIXELS - 1.0) - 1
        return _added(frames, (levels * ramp).astype(np.float32))

    return fault


def token_steps(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Every 32-pixel token is brighter or darker by 3 levels, at random."""
    height, width = frames[0].shape[:2]
    signs = rng.choice([-3.0, 3.0], (-(-height // TOKEN_PIXELS), -(-width // TOKEN_PIXELS)))
    pattern = np.kron(signs, np.ones((TOKEN_PIXELS, TOKEN_PIXELS)))[:height, :width]
    return _added(frames, pattern.astype(np.float32))


def tile_seam(levels: float) -> Fault:
    """The right part of the picture, from :func:`seam_column` on, is brighter."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        x = _places(frames)[1]
        return _added(frames, (levels * (x >= seam_column(frames[0].shape[1]))).astype(np.float32))

    return fault


def seam_column(width: int) -> int:
    """Where :func:`tile_seam` puts its seam: on the token grid, right of the middle."""
    return (width // TOKEN_PIXELS * 5 // 8) * TOKEN_PIXELS


def nan_blocks(frames: Frames, rng: np.random.Generator) -> list[Frame]:
    """Five 32-pixel tokens inside the picture are black."""
    rows, columns = frames[0].shape[0] // TOKEN_PIXELS, frames[0].shape[1] // TOKEN_PIXELS
    tokens = [(r, c) for r in range(1, rows - 1) for c in range(1, columns - 1)]
    out = [frame.copy() for frame in frames]
    for index in rng.choice(len(tokens), 5, replace=False):
        r, c = (TOKEN_PIXELS * place for place in tokens[index])
        for frame in out:
            frame[r : r + TOKEN_PIXELS, c : c + TOKEN_PIXELS] = 0
    return out


def half_plain(red: int, green: int, blue: int) -> Fault:
    """The lower half is one colour."""

    def fault(frames: Frames, _: np.random.Generator) -> list[Frame]:
        out = [frame.copy() for frame in frames]
        for frame in out:
            frame[frame.shape[0] // 2 :] = (red, green, blue)
        return out

    return fault


def last_black(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """The last frame is black."""
    return [*frames[:-1], np.zeros_like(frames[-1])]


def washed_out(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """A quarter of the contrast around middle grey."""
    return [to_bytes(128 + (frame - np.float32(128)) * 0.22) for frame in frames]


def burnt(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Four times the contrast."""
    return [to_bytes(128 + (frame - np.float32(128)) * 4) for frame in frames]


def skewed(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Every row is read three pixels late: a line size taken for a width."""
    y, x = _places(frames)
    return [frame[y, (x + 3 * y) % frame.shape[1]] for frame in frames]


def blurred(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """A Gaussian of sigma 20 pixels at 448 rows: nothing sharp is left."""
    height, width = frames[0].shape[:2]
    sigma = 20 * height / 448
    fy, fx = np.fft.fftfreq(2 * height)[:, None], np.fft.rfftfreq(2 * width)
    gain = np.exp(-2 * (np.pi * sigma) ** 2 * (fy**2 + fx**2))[..., None]
    out = []
    for frame in frames:
        mirrored = np.pad(frame, ((0, height), (0, width), (0, 0)), mode="symmetric").astype(np.float32)
        soft = np.fft.irfft2(np.fft.rfft2(mirrored, axes=(0, 1)) * gain, s=(2 * height, 2 * width), axes=(0, 1))
        out.append(to_bytes(soft[:height, :width]))
    return out


def chunk_step(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """From frame 9 on the picture is 8 levels brighter: a seam between temporal chunks."""
    return [to_bytes(frame + np.float32(8 * (t >= chunk_frame()))) for t, frame in enumerate(frames)]


def chunk_frame() -> int:
    """The first frame of the second latent frame after the first."""
    return CHUNK_FRAMES + 1


def beat(frames: Frames, _: np.random.Generator) -> list[Frame]:
    """Every latent frame is lighter or darker than the one before by 5 levels."""
    return [to_bytes(frame + np.float32(5 * (((t - 1) // CHUNK_FRAMES) % 2))) for t, frame in enumerate(frames)]
