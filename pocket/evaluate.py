"""Judges pocket clips from decoded frames and sound alone: colour, shape, movement, tone, clicks, their agreement.

The measuring half knows no model: it is calibrated on drawn clips and on reconstructions before it judges renders.
Shapes are told apart by moments: skewness in y, kurtosis in x and y, and how much of the bounding box is filled.
A clip without anything solid in it, and sound without a clear tone, are misses of every measure, never an error.
The last part breaks a sampler on purpose: what a broken run must lose shows that the measures measure something.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pocket.captions import Caption
from pocket.data import PALETTE
from pocket.scenes import COLOURS, FPS, MOTIONS, SHAPES
from pocket.sound import OUTPUT_RATE_HZ, TONE_HZ

COLOUR_RADIUS = 0.27  # RGB distance to a palette colour below which a pixel belongs to it
SMALLEST_AREA_PX = 120.0
LARGEST_AREA_RATIO = 0.35  # the largest drawn shape covers 0.15 of the picture
SOLID_RATIO = 0.5  # of a mask's pixels have all four neighbours in it: 0.86 for the smallest circle, 0 for noise
VANISHED_RATIO, GROWN_RATIO, DOMINANT_RATIO = 0.35, 1.5, 0.25
BOUNCE_DEPTH_PX, MOVED_PX = 8.0, 20.0
PROTOTYPES = (  # circle, square, triangle, diamond: skewness of y, kurtosis of x, of y, filled share of the box
    (0.0, 2.0, 2.0, 0.785),
    (0.0, 1.8, 1.8, 1.0),
    (-0.566, 2.4, 2.4, 0.5),
    (0.0, 2.4, 2.4, 0.5),
)
FEATURE_SPREAD = (0.15, 0.1, 0.1, 0.08)  # how far a feature strays on reconstructed shapes, about
CLICK_HOP, CLICK_WINDOW, CLICK_FLOOR_HZ = 240, 480, 2000.0
CLICK_THRESHOLD = 0.08  # summed magnitude above CLICK_FLOOR_HZ; a click of the data set has 1 to 3
EDGE_HOPS = 5  # the cut at the end of a tone is no click
CLICK_GAP_S, CLICK_REACH_FRAMES = 0.12, 2.0
TONE_BAND_HZ, TONE_LOWEST_HZ, TONE_HIGHEST_HZ = 20, 100, 2000
TONE_RATIO = 0.3  # of the power between lowest and highest lies near a tone that is heard; noise has 0.02
SILENCE_POWER = 1e-4  # of the second's spectrum below which nothing is heard; a tone of amplitude 0.1 has 6e6
LAST_JUDGED_FRAME = 22.0  # the sound of a later event is cut off
PAN_REACH = 0.12
NORMAL_95 = 1.96
BROKEN_MEASURES = ("colour", "shape", "direction", "tone")  # what a broken run must lose, as a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the pictures of one clip show; indices into the tables of scenes, None where nothing is recognised."""

    colour: int | None
    shape: int | None
    motion: int | None
    event_frames: tuple[float, ...]
    x_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the sound of one clip holds: tone index, click times in frames, angle between channels (0 left, 1 right)."""

    tone: int | None
    click_frames: tuple[float, ...]
    pan_ratio: float


NOTHING = Seen(colour=None, shape=None, motion=None, event_frames=(), x_ratio=None)


def _nearest_colour(frames: Float[Tensor, "b f h w 3"]) -> Tensor:
    """Index of the palette colour that each pixel is near to, -1 where it is near to none; (b f h w)."""
    best = torch.full(frames.shape[:-1], COLOUR_RADIUS**2, device=frames.device)
    nearest = torch.full(frames.shape[:-1], -1, device=frames.device, dtype=torch.int8)
    for index, colour in enumerate(PALETTE):
        distance = (frames - torch.tensor(colour, device=frames.device)).square().sum(-1)
        nearest = torch.where(distance < best, index, nearest)
        best = torch.minimum(best, distance)
    return nearest


def _solid_area(mask: Bool[Tensor, "b f h w"]) -> Float[Tensor, "b f"]:
    """Area in pixels, 0 where it is scattered or covers much of the picture."""
    inner = mask[..., 1:-1, 1:-1] & mask[..., :-2, 1:-1] & mask[..., 2:, 1:-1] & mask[..., 1:-1, :-2]
    inner = (inner & mask[..., 1:-1, 2:]).sum((-2, -1)).float()
    area = mask.sum((-2, -1)).float()
    legal = (inner >= SOLID_RATIO * area) & (area <= LARGEST_AREA_RATIO * mask[0, 0].numel())
    return torch.where(legal, area, 0.0)


def _moments(mask: Bool[Tensor, "b f h w"]) -> dict[str, Float[Tensor, "b f"]]:
    """Area, centroid and the shape features of each mask."""
    h, w = mask.shape[-2:]
    x = torch.arange(w, device=mask.device).float() + 0.5
    y = torch.arange(h, device=mask.device).float() + 0.5
    across, down = mask.sum(-2).float(), mask.sum(-1).float()
    area = across.sum(-1).clamp(min=1e-6)
    out = {"area": _solid_area(mask)}
    for name, line, profile in (("x", x, across), ("y", y, down)):
        mean = (line * profile).sum(-1) / area
        centred = line - mean[..., None]
        var = (centred**2 * profile).sum(-1) / area + 1e-6
        out[name], out[f"kurtosis_{name}"] = mean, (centred**4 * profile).sum(-1) / area / var**2
        out[f"skewness_{name}"] = (centred**3 * profile).sum(-1) / area / var**1.5
        out[f"extent_{name}"] = (profile >= 2).float().sum(-1)
    out["fill"] = area / (out["extent_x"] * out["extent_y"]).clamp(min=1)
    return out


def _moving_colour(m: dict[str, Tensor]) -> int | None:
    """The colour that moves or changes most among those that cover enough of some frame."""
    largest = m["area"].amax(1)
    eligible = (largest > SMALLEST_AREA_PX) & (largest > DOMINANT_RATIO * largest.max())
    if not bool(eligible.any()):
        return None
    shown = m["area"] > VANISHED_RATIO * largest[:, None]
    change = (m["area"].sqrt()).std(1) * 2
    for axis in ("x", "y"):
        low = torch.where(shown, m[axis], torch.inf).amin(1)
        high = torch.where(shown, m[axis], -torch.inf).amax(1)
        change = change + (high - low).clamp(min=0)
    return int(torch.where(eligible, change + 1e-3 * largest, -1.0).argmax())


def _shape(m: dict[str, Tensor], shown: Tensor) -> int:
    """Nearest prototype of the median features."""
    features = [m[n][shown].median() for n in ("skewness_y", "kurtosis_x", "kurtosis_y", "fill")]
    distances = [
        sum(((float(f) - p) / s) ** 2 for f, p, s in zip(features, row, FEATURE_SPREAD, strict=True))
        for row in PROTOTYPES
    ]
    return distances.index(min(distances))


def _lows(y: Tensor, shown: Tensor) -> list[float]:
    """Frames at which the shape is lowest before it rises again by BOUNCE_DEPTH_PX."""
    values = torch.where(shown, y, torch.nan).tolist()
    found: list[float] = []
    best, best_frame, lowest_since = -1e9, 0, 1e9
    falling = True
    for frame, value in enumerate(values):
        if value != value:
            continue
        if falling:
            if value > best:
                best, best_frame = value, frame
            elif value < best - BOUNCE_DEPTH_PX:
                if best > values[0] + BOUNCE_DEPTH_PX or found:
                    found.append(float(best_frame))
                falling, lowest_since = False, value
        else:
            lowest_since = min(lowest_since, value)
            if value > lowest_since + BOUNCE_DEPTH_PX:
                falling, best, best_frame = True, value, frame
    return found


def _movement(m: dict[str, Tensor], shown: Tensor) -> tuple[int | None, list[float]]:
    """Index into MOTIONS and the frames of bounces or disappearances."""
    frames = shown.nonzero()[:, 0].tolist()
    if not frames:
        return None, []
    first, last = frames[0], frames[-1]
    hidden = ~shown
    vanish = [f for f in range(first + 1, last) if hidden[f] and shown[f - 1]]
    if vanish and int(hidden[first:last].sum()) >= 2:
        return MOTIONS.index("blinks"), [float(f) for f in vanish]
    lows = _lows(m["y"], shown)
    if lows:
        return MOTIONS.index("bounces"), lows
    ratio = float(m["area"][max(last - 1, 0) : last + 1].mean() / m["area"][first : first + 2].mean())
    if ratio > GROWN_RATIO or ratio < 1 / GROWN_RATIO:
        return MOTIONS.index("grows" if ratio > 1 else "shrinks"), []
    dx, dy = float(m["x"][last] - m["x"][first]), float(m["y"][last] - m["y"][first])
    if max(abs(dx), abs(dy)) < MOVED_PX:
        return None, []
    if abs(dx) > abs(dy):
        return MOTIONS.index("right" if dx > 0 else "left"), []
    return MOTIONS.index("down" if dy > 0 else "up"), []


def _seen(colours: dict[str, Float[Tensor, "c f"]], width: int) -> Seen:
    """What the moments of one clip's colours show."""
    colour = _moving_colour(colours)
    if colour is None:
        return NOTHING
    m = {name: value[colour] for name, value in colours.items()}
    area, largest = m["area"], m["area"].amax()
    shown = area > VANISHED_RATIO * largest
    grows = (area[0] < 0.6 * largest) | (area[-1] < 0.6 * largest)
    steady = area.diff().abs().amax() < 0.3 * largest
    if bool(grows & steady & (area > 60).all()):
        shown = area > 60
    if not bool(shown.any()):
        return NOTHING
    motion, events = _movement(m, shown)
    x = float(m["x"][shown].mean()) / width
    return Seen(colour=colour, shape=_shape(m, shown), motion=motion, event_frames=tuple(events), x_ratio=x)


@torch.no_grad()
def look(frames: Float[Tensor, "b f h w 3"]) -> list[Seen]:
    """Look at clips, RGB in [0, 1]; what is not finite counts as black. Reads the device once."""
    nearest = _nearest_colour(frames.float().nan_to_num(0.0, 0.0, 0.0))
    by_colour = [_moments(nearest == c) for c in range(len(PALETTE))]
    moments = {name: torch.stack([m[name] for m in by_colour], 1).cpu() for name in by_colour[0]}
    return [_seen({name: value[i] for name, value in moments.items()}, frames.shape[3]) for i in range(len(frames))]


def see(frames: Float[Tensor, "f h w 3"]) -> Seen:
    """Look at one clip."""
    return look(frames[None])[0]


def _clicks(level: list[float]) -> tuple[float, ...]:
    """Frames at which the level above CLICK_FLOOR_HZ, a value a hop, rises suddenly."""
    clicks: list[float] = []
    floor = max(CLICK_THRESHOLD, 0.25 * max(level))
    hop_s = CLICK_HOP / OUTPUT_RATE_HZ
    for i in range(1, len(level) - EDGE_HOPS):
        rises = level[i] > floor and level[i] > 1.5 * min(level[max(0, i - 4) : i]) and level[i - 1] <= floor
        if rises and (not clicks or i * hop_s - clicks[-1] > CLICK_GAP_S):
            clicks.append(i * hop_s)
    return tuple(c * FPS for c in clicks)


def _tones(power: Float[Tensor, "b k"]) -> list[int | None]:
    """The tone that dominates the spectrum (1 Hz bins) of each clip, or None."""
    whole = power[:, TONE_LOWEST_HZ:TONE_HIGHEST_HZ].sum(1)
    near = torch.stack([power[:, round(f) - TONE_BAND_HZ : round(f) + TONE_BAND_HZ + 1].sum(1) for f in TONE_HZ], 1)
    heard = (near.amax(1) > TONE_RATIO * whole) & (whole > SILENCE_POWER)
    return [t if h else None for t, h in zip(near.argmax(1).tolist(), heard.tolist(), strict=True)]


@torch.no_grad()
def hear(samples: Float[Tensor, "b 2 n"]) -> list[Heard]:
    """Hear clips at 48 kHz; what is not finite counts as silence. Reads the device once."""
    samples = samples.float().nan_to_num(0.0, 0.0, 0.0)
    power = torch.fft.rfft(samples[..., :OUTPUT_RATE_HZ], OUTPUT_RATE_HZ).abs().square().sum(1)
    window = torch.hann_window(CLICK_WINDOW, device=samples.device)
    spectrum = torch.stft(samples.flatten(0, 1), CLICK_WINDOW, CLICK_HOP, window=window, return_complex=True).abs()
    high = spectrum[:, round(CLICK_FLOOR_HZ * CLICK_WINDOW / OUTPUT_RATE_HZ) :].unflatten(0, (-1, 2))
    level = high.square().sum((1, 2)).sqrt() / CLICK_WINDOW * 10
    loud = samples.square().mean(2).sqrt()
    pan = torch.atan2(loud[:, 1], loud[:, 0]) / (torch.pi / 2)
    return [
        Heard(tone=tone, click_frames=_clicks(row), pan_ratio=angle)
        for tone, row, angle in zip(_tones(power), level.tolist(), pan.tolist(), strict=True)
    ]


def listen(samples: Float[Tensor, "2 n"]) -> Heard:
    """Hear one clip."""
    return hear(samples[None])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Successes among trials."""

    hits: int
    trials: int

    @property
    def ratio(self) -> float:
        """Share of successes; 0 without trials."""
        return self.hits / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval."""
        n, p, z = self.trials, self.ratio, NORMAL_95
        if not n:
            return 0.0, 1.0
        centre, spread = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def scores(captions: list[Caption], seen: list[Seen], heard: list[Heard], rule: tuple[int, ...]) -> dict[str, Score]:
    """Accuracy of what the captions state, and agreement of sound and picture where they leave it open.

    `rule` is the tone of each shape when none is stated.
    """
    tallies: dict[str, list[bool]] = {
        k: [] for k in ("colour", "shape", "direction", "motion", "tone", "click", "no_false_click", "rule_tone", "pan")
    }
    for caption, picture, sound in zip(captions, seen, heard, strict=True):
        if caption.colour is not None:
            tallies["colour"].append(picture.colour == caption.colour)
        if caption.shape is not None:
            tallies["shape"].append(picture.shape == caption.shape)
        if caption.motion is not None:
            tallies["motion"].append(picture.motion == caption.motion)
            if caption.motion < 4:
                tallies["direction"].append(picture.motion == caption.motion)
                tallies["no_false_click"].append(sound.tone is not None and not sound.click_frames)
            if MOTIONS[caption.motion] in ("bounces", "blinks"):
                tallies["click"].append(_all_clicked(picture, sound))
        if caption.tone is not None:
            tallies["tone"].append(sound.tone == caption.tone)
        else:
            tallies["rule_tone"].append(picture.shape is not None and sound.tone == rule[picture.shape])
        there = picture.x_ratio is not None and sound.tone is not None
        tallies["pan"].append(there and abs(sound.pan_ratio - picture.x_ratio) < PAN_REACH)
    return {name: Score(hits=sum(t), trials=len(t)) for name, t in tallies.items()}


def _all_clicked(picture: Seen, sound: Heard) -> bool:
    """Whether every event that is seen has a click within reach."""
    events = [e for e in picture.event_frames if e <= LAST_JUDGED_FRAME]
    return bool(events) and all(any(abs(c - e) <= CLICK_REACH_FRAMES for c in sound.click_frames) for e in events)


def table(result: dict[str, Score]) -> str:
    """One line a measure: ratio, 95 % interval, n."""
    rows = [
        f"{k:16s} {s.ratio:6.1%}  [{s.interval[0]:.1%}, {s.interval[1]:.1%}]  n={s.trials}" for k, s in result.items()
    ]
    return "\n".join(rows)


def reversed_steps(sigmas: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """A broken schedule: the nonzero sigmas rise, then comes the 0."""
    return torch.cat([sigmas[:-1].flip(0), sigmas[-1:]])


@contextmanager
def zeroed(module: nn.Module) -> Iterator[None]:
    """A broken model: within it, every parameter of `module` (one block) is 0."""
    kept = [p.detach().clone() for p in module.parameters()]
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(module.parameters(), kept, strict=True):
                p.copy_(value)


def swapped(captions: Sequence[Caption]) -> list[Caption]:
    """A broken prompt: every clip is judged by the caption of the next one."""
    return [*captions[1:], *captions[:1]]


def accuracy(result: dict[str, Score]) -> float:
    """Mean of the accuracies that a broken run must lose."""
    return sum(result[name].ratio for name in BROKEN_MEASURES) / len(BROKEN_MEASURES)


def lost_points(good: dict[str, Score], broken: dict[str, Score]) -> float:
    """Percentage points of `accuracy` that a broken run loses."""
    return 100 * (accuracy(good) - accuracy(broken))


__all__ = ["COLOURS", "SHAPES", "Heard", "Score", "Seen", "hear", "listen", "look", "scores", "see", "table"]
