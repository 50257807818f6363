"""Good clips made in code: thirteen moving pictures with the edge statistics of pictures, and six sounds.

Only NumPy and a seed. These are what faults are planted in and what must never fail; they know no metric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

FPS = 24  # frames a second of every base clip

Frame = UInt8[np.ndarray, "h w 3"]
Canvas = Float[np.ndarray, "rows columns 3"]
Field = Float[np.ndarray, "h w"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Size of a clip to make: pixels and frames."""

    width: int
    height: int
    frames: int


def smooth_noise(rng: np.random.Generator, height: int, width: int, cell: int) -> Field:
    """Gaussian values on a lattice of ``cell`` pixels, interpolated linearly."""
    rows, columns = height // cell + 2, width // cell + 2
    knots = rng.normal(size=(rows, columns)).astype(np.float32)
    y, x = np.arange(height, dtype=np.float32) / cell, np.arange(width, dtype=np.float32) / cell
    top, left = y.astype(int), x.astype(int)
    fy, fx = (y - top)[:, None], x - left
    across = knots[:, left] * (1 - fx) + knots[:, left + 1] * fx
    field: Field = across[top] * (1 - fy) + across[top + 1] * fy
    return field


def leaves(rng: np.random.Generator, height: int, width: int, *, count: int = 900) -> Canvas:
    """The dead-leaves model of natural images (Lee, Mumford, Huang 2001): discs and boxes, radii falling as r^-3."""
    canvas = np.empty((height, width, 3), np.float32)
    canvas[:] = 110 + 20 * smooth_noise(rng, height, width, 120)[..., None]
    least, most = height / 40, height / 3
    for _ in range(count):
        u = rng.random()
        radius = 1 / np.sqrt((1 - u) / least**2 + u / most**2)
        cy, cx = rng.random() * height, rng.random() * width
        _stamp(canvas, rng, cy, cx, radius)
    grain = 3 * smooth_noise(rng, height, width, 3) + 5 * smooth_noise(rng, height, width, 9)
    grainy: Canvas = np.clip(soften(canvas) + grain[..., None], 6, 246)
    return grainy


def _stamp(canvas: Canvas, rng: np.random.Generator, cy: float, cx: float, radius: float) -> None:
    """One opaque shape with a shaded colour."""
    height, width = canvas.shape[:2]
    top, bottom = max(int(cy - radius), 0), min(int(cy + radius) + 2, height)
    left, right = max(int(cx - radius), 0), min(int(cx + radius) + 2, width)
    y, x = np.mgrid[top:bottom, left:right]
    dy, dx = (y - cy) / radius, (x - cx) / radius
    inside = dy**2 + dx**2 < 1 if rng.random() < 0.7 else np.maximum(abs(dy * 1.3), abs(dx)) < 0.9
    colour = rng.uniform(20, 235) + rng.normal(0, 28, 3)
    shade = rng.normal(0, 14) * dx + rng.normal(0, 14) * dy
    patch = canvas[top:bottom, left:right]
    patch[inside] = (colour + shade[..., None])[inside]


def soften(canvas: Canvas) -> Canvas:
    """A lens: binomial weights (1, 2, 1) down and across, edges repeated; real pictures have no edge of one pixel."""
    tall = np.pad(canvas, ((1, 1), (0, 0), (0, 0)), mode="edge")
    down = 0.25 * (tall[:-2] + tall[2:]) + 0.5 * canvas
    wide = np.pad(down, ((0, 0), (1, 1), (0, 0)), mode="edge")
    soft: Canvas = 0.25 * (wide[:, :-2] + wide[:, 2:]) + 0.5 * down
    return soft


def look(canvas: Canvas, y: Field, x: Field) -> Frame:
    """Bilinear samples of a canvas at fractional positions, mirrored at its edges."""
    height, width = canvas.shape[:2]
    y, x = _mirror(y, height), _mirror(x, width)
    top, left = y.astype(np.int32), x.astype(np.int32)
    fy, fx = (y - top)[..., None], (x - left)[..., None]
    upper = canvas[top, left] * (1 - fx) + canvas[top, left + 1] * fx
    lower = canvas[top + 1, left] * (1 - fx) + canvas[top + 1, left + 1] * fx
    return to_bytes(upper * (1 - fy) + lower * fy)


def _mirror(position: Field, size: int) -> Field:
    folded = np.abs(position) % (2 * (size - 2))
    inside: Field = np.where(folded > size - 2, 2 * (size - 2) - folded, folded).astype(np.float32)
    return inside


def to_bytes(canvas: Canvas) -> Frame:
    """Rounded and clipped."""
    frame: Frame = np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
    return frame


def grid(screen: Screen) -> tuple[Field, Field]:
    """Row and column of every pixel, float32."""
    y, x = np.mgrid[: screen.height, : screen.width].astype(np.float32)
    return y, x


def _scene(rng: np.random.Generator, screen: Screen) -> Canvas:
    return leaves(rng, int(screen.height * 1.4), int(screen.width * 1.4))


def pan(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A camera moves across leaves."""
    canvas, (y, x) = _scene(rng, screen), grid(screen)
    return [look(canvas, y + 0.4 * t, x + screen.width / 900 * t) for t in range(screen.frames)]


def zoom(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A camera moves into leaves."""
    canvas, (y, x) = _scene(rng, screen), grid(screen)
    cy, cx = screen.height * 0.7, screen.width * 0.7
    scales = [1.3 * 0.997**t for t in range(screen.frames)]
    return [look(canvas, cy + (y - screen.height / 2) * s, cx + (x - screen.width / 2) * s) for s in scales]


def handheld(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A camera that shakes a little while it pans."""
    canvas, (y, x) = _scene(rng, screen), grid(screen)
    walk = np.cumsum(np.cumsum(rng.normal(0, 0.15, (screen.frames, 2)), axis=0) * 0.5, axis=0)
    return [look(canvas, y + 9 + dy, x + 9 + 0.6 * t + dx) for t, (dy, dx) in enumerate(walk)]


def sway(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """Leaves in the wind: rows shift by a travelling wave, more at the top."""
    canvas, (y, x) = _scene(rng, screen), grid(screen)
    lift = (1 - y / screen.height) * screen.width / 110
    waves = [np.sin(y / screen.height * 5 + t / screen.frames * 5) for t in range(screen.frames)]
    return [look(canvas, y + 20, x + 20 + lift * wave) for wave in waves]


def water(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A shore and its moving reflection below the middle."""
    canvas, (y, x) = _scene(rng, screen), grid(screen)
    middle = screen.height * 0.47
    depth = np.maximum(y - middle, 0)
    frames = []
    for t in range(screen.frames):
        ripple = np.sin(depth * 12 / (8 + depth * 0.2) + 0.5 * t) * depth * 0.05
        seen = look(canvas, np.where(y > middle, 2 * middle - y + ripple, y), x + 0.5 * t + ripple)
        frames.append(to_bytes(np.where((y > middle)[..., None], seen * np.float32(0.75) + 8, seen)))
    return frames


def mandelbrot(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A zoom into the Mandelbrot set."""
    height, width = int(screen.height * 1.3), int(screen.width * 1.3)
    span = 0.012
    real = -0.7436 + span * np.linspace(-1, 1, width, dtype=np.float64)
    imaginary = 0.1318 + span * height / width * np.linspace(-1, 1, height, dtype=np.float64)
    canvas = _escape(real + 1j * imaginary[:, None], 90, rng)
    y, x = grid(screen)
    scales = [1.25 * 0.996**t for t in range(screen.frames)]
    cy, cx = height / 2, width / 2
    return [look(canvas, cy + (y - screen.height / 2) * s, cx + (x - screen.width / 2) * s) for s in scales]


def _escape(c: np.ndarray, steps: int, rng: np.random.Generator) -> Canvas:
    """Escape times as colours."""
    shape, c = c.shape, c.ravel()
    count, z, left = np.full(c.size, float(steps)), np.zeros_like(c), np.arange(c.size)
    for step in range(steps):
        z = z * z + c[left]
        gone = np.abs(z) > 8
        count[left[gone]] = step + 1 - np.log2(np.log(np.abs(z[gone])))
        z, left = z[~gone], left[~gone]
    turn = np.sqrt(count)[:, None] * 2.1 + np.array([0.0, 0.7, 1.6]) + rng.random()
    colours = 125 + 105 * np.sin(turn)
    colours[count >= steps] = (24, 20, 38)
    canvas: Canvas = colours.reshape(*shape, 3).astype(np.float32)
    return canvas


def mosaic(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """Cells around random points, turning slowly."""
    size = int(np.hypot(screen.width, screen.height)) + 8
    sites = rng.random((90, 2)) * size
    colours = rng.uniform(25, 230, (90, 3))
    y, x = np.mgrid[:size, :size].astype(np.float32)
    nearest, best = np.zeros((size, size), np.int32), np.full((size, size), np.inf, np.float32)
    for index, (sy, sx) in enumerate(sites.astype(np.float32)):
        distance = (y - sy) ** 2 + (x - sx) ** 2
        closer = distance < best
        nearest[closer], best[closer] = index, distance[closer]
    shade = 12 * smooth_noise(rng, size, size, 40) + 3 * smooth_noise(rng, size, size, 4)
    canvas = np.clip(colours[nearest] + shade[..., None] - np.sqrt(best)[..., None] * 0.4, 6, 246).astype(np.float32)
    canvas = soften(canvas)
    return [_turned(canvas, screen, 0.006 * t) for t in range(screen.frames)]


def _turned(canvas: Canvas, screen: Screen, angle: float) -> Frame:
    y, x = grid(screen)
    dy, dx = y - screen.height / 2, x - screen.width / 2
    centre = canvas.shape[0] / 2
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    return look(canvas, centre + dy * cos - dx * sin, centre + dy * sin + dx * cos)


def tunnel(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A flight through a tunnel of shaded tiles."""
    y, x = grid(screen)
    dy, dx = y - screen.height * 0.46, x - screen.width * 0.44
    radius = np.hypot(dy, dx)
    depth = screen.height / (radius + screen.height / 24)
    turn = np.arctan2(dy, dx) * 8 / np.pi
    light = np.clip(radius / screen.height * 1.6, 0.08, 1)
    stain = 25 * smooth_noise(rng, screen.height, screen.width, 24)
    frames = []
    for t in range(screen.frames):
        ring, side = np.floor(depth * 1.5 + t * 0.06), np.floor(turn + t * 0.02)
        tone = 95 + 55 * ((ring + side) % 2) + 30 * np.sin(ring * 2.1) + stain
        colour = np.stack([tone, tone * 0.8 + 20 * np.sin(side), tone * 0.6 + 40], axis=-1)
        frames.append(to_bytes(soften(np.clip(colour * light[..., None] + 5, 4, 248))))
    return frames


def city(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A skyline at dusk in three layers that pass at different speeds, with lit windows."""
    layers = [_skyline(rng, screen, depth) for depth in range(3)]
    y, _ = grid(screen)
    sky = np.stack([150 - 70 * y / screen.height, 120 - 20 * y / screen.height, 140 + 60 * y / screen.height], axis=-1)
    sky += 6 * smooth_noise(rng, screen.height, screen.width, 30)[..., None]
    frames = []
    for t in range(screen.frames):
        picture = sky.copy()
        for depth, layer in enumerate(layers):
            shift = int((depth + 1) * t * max(screen.width / 1500, 0.4))
            seen = layer[:, shift : shift + screen.width]
            picture = np.where(seen[..., :1] > 0, seen, picture)
        frames.append(to_bytes(soften(picture)))
    return frames


def _skyline(rng: np.random.Generator, screen: Screen, depth: int) -> Canvas:
    layer = np.zeros((screen.height, int(screen.width * 1.25) + 120, 3), np.float32)
    left = 0
    while left < layer.shape[1]:
        width = int(screen.width * rng.uniform(0.05, 0.12))
        top = int(screen.height * (0.2 + 0.2 * depth + rng.uniform(0, 0.3)))
        wall = rng.uniform(30, 75) + 45 * (2 - depth) / 2 + rng.normal(0, 8, 3)
        layer[top:, left : left + width] = np.maximum(wall, 8)
        _windows(rng, layer[top + 4 :, left + 3 : left + width - 3], size=3 + depth)
        left += width + int(screen.width * rng.uniform(0, 0.03))
    return layer


def _windows(rng: np.random.Generator, wall: Canvas, *, size: int) -> None:
    for row in range(0, wall.shape[0] - size, size * 3):
        for column in range(0, wall.shape[1] - size, size * 2):
            if rng.random() < 0.45:
                wall[row : row + size, column : column + size] = rng.uniform(110, 235) + np.array([20, 5, -40])


def shapes(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """Textured discs fly over a textured ground."""
    ground = leaves(rng, screen.height, screen.width, count=300)
    sprites = [leaves(rng, screen.height // 3, screen.height // 3, count=60) for _ in range(4)]
    starts = rng.random((4, 2)) * (screen.height, screen.width)
    speeds = rng.uniform(-1, 1, (4, 2)) * screen.width / 120
    frames = []
    for t in range(screen.frames):
        picture = ground.copy()
        for sprite, start, speed in zip(sprites, starts, speeds, strict=True):
            _paste(picture, sprite, start + speed * t)
        frames.append(to_bytes(soften(picture)))
    return frames


def _paste(picture: Canvas, sprite: Float[np.ndarray, "s s 3"], centre: np.ndarray) -> None:
    """A disc cut out of ``sprite`` at whole pixels."""
    size = sprite.shape[0]
    y, x = np.mgrid[:size, :size]
    disc = (y - size / 2) ** 2 + (x - size / 2) ** 2 < (size / 2 - 1) ** 2
    rows, columns = y + int(centre[0]) - size // 2, x + int(centre[1]) - size // 2
    disc &= (rows >= 0) & (rows < picture.shape[0]) & (columns >= 0) & (columns < picture.shape[1])
    picture[rows[disc], columns[disc]] = sprite[disc]


def pendulum(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """A still camera: only one disc swings before leaves."""
    ground = leaves(rng, screen.height, screen.width, count=500)
    ball = leaves(rng, screen.height // 3, screen.height // 3, count=60)
    frames = []
    for t in range(screen.frames):
        angle = 0.9 * np.cos(t * 0.2)
        picture = ground.copy()
        reach = screen.height * 0.6
        _paste(picture, ball, np.array([reach * np.cos(angle), screen.width / 2 + reach * np.sin(angle)]))
        frames.append(to_bytes(soften(picture)))
    return frames


def gradients(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """Discs of moving colour gradients over a moving gradient, with hard rims."""
    y, x = grid(screen)
    centres = rng.random((14, 2)) * (screen.height, screen.width)
    speeds = rng.uniform(-1, 1, (14, 2)) * screen.width / 200
    radii = rng.uniform(0.06, 0.2, 14) * screen.height
    tones, slopes = rng.uniform(30, 225, (14, 3)), rng.normal(0, 50, (14, 3))
    frames = []
    for t in range(screen.frames):
        sweep = (x + 2 * y) / (screen.width + 2 * screen.height) + t / 200
        turns = sweep[..., None] + np.array([0, 0.33, 0.66], np.float32)
        picture = 120 + 80 * np.sin(2 * np.pi * turns)
        for (cy, cx), radius, tone, slope in zip(centres + speeds * t, radii, tones, slopes, strict=True):
            inside = (y - cy) ** 2 + (x - cx) ** 2 < radius**2
            across = ((x[inside] - cx) * np.cos(t / 6) + (y[inside] - cy) * np.sin(t / 6)) / radius
            picture[inside] = tone + slope * across[:, None]
        frames.append(to_bytes(soften(np.clip(picture, 6, 248))))
    return frames


def test_pattern(rng: np.random.Generator, screen: Screen) -> list[Frame]:
    """Colour bars, a ramp, lines (of 5 pixels and more: finer ones are a pixel grid themselves) and a moving box."""
    y, x = grid(screen)
    bars = np.array(
        [[180, 180, 180], [180, 180, 16], [16, 180, 180], [16, 180, 16], [180, 16, 180], [180, 16, 16], [16, 16, 180]]
    )
    still = bars[np.minimum((x / screen.width * 7).astype(int), 6)].astype(np.float32)
    still[y > screen.height * 0.6] = (16 + 220 * x / screen.width)[y > screen.height * 0.6][:, None]
    lines = (y > screen.height * 0.75) & (x < screen.width * 0.6)
    still[lines] = (40 + 150 * ((x // (5 + 8 * x / screen.width)).astype(int) % 2))[lines][:, None]
    still += 1.5 * smooth_noise(rng, screen.height, screen.width, 2)[..., None]
    frames = []
    for t in range(screen.frames):
        picture = still.copy()
        left, top = screen.width * (0.1 + 0.02 * t), screen.height * (0.2 + 0.01 * t)
        box = (abs(x - left) < screen.height / 8) & (abs(y - top) < screen.height / 8)
        hand = np.sin(np.arctan2(y - top, x - left) * 4 + t / 4) > 0
        picture[box] = np.where(hand[box][:, None], (210, 90, 40), (30, 60, 160))
        frames.append(to_bytes(picture))
    return frames


PICTURES: dict[str, Callable[[np.random.Generator, Screen], list[Frame]]] = {
    "pan": pan,
    "zoom": zoom,
    "mandelbrot": mandelbrot,
    "test_pattern": test_pattern,
    "shapes": shapes,
    "city": city,
    "mosaic": mosaic,
    "tunnel": tunnel,
    "sway": sway,
    "water": water,
    "gradients": gradients,
    "pendulum": pendulum,
    "handheld": handheld,
}
