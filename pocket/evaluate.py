"""Judges pocket clips from decoded frames and sound alone: colour, shape, movement, tone, clicks, their agreement.

The measuring half knows no model: it is calibrated on drawn clips and on reconstructions before it judges renders.
Shapes are told apart by moments: skewness in y, kurtosis in x and y, and how much of the bounding box is filled.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from pocket.captions import Caption
from pocket.data import PALETTE
from pocket.scenes import COLOURS, FPS, MOTIONS, SHAPES
from pocket.sound import OUTPUT_RATE_HZ, TONE_HZ

COLOUR_RADIUS = 0.27  # RGB distance to a palette colour below which a pixel belongs to it
SMALLEST_AREA_PX = 120.0
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
LAST_JUDGED_FRAME = 22.0  # the sound of a later event is cut off
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the pictures of one clip show; indices into the tables of scenes, None where nothing is recognised."""

    colour: int | None
    shape: int | None
    motion: int | None
    event_frames: tuple[float, ...]
    x_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the sound of one clip holds: tone index, click times in frames, angle between the channels."""

    tone: int
    click_frames: tuple[float, ...]
    pan_ratio: float


def _colour_masks(frames: Float[Tensor, "f h w 3"]) -> Float[Tensor, "c f h w"]:
    """1 where a pixel is near a palette colour (and nearest to it)."""
    palette = torch.tensor(PALETTE, device=frames.device)
    distance = torch.cdist(frames.reshape(-1, 3), palette).reshape(*frames.shape[:3], -1)
    nearest = distance.argmin(-1)
    near = distance.amin(-1) < COLOUR_RADIUS
    return torch.stack([(near & (nearest == c)).float() for c in range(len(PALETTE))])


def _moments(mask: Float[Tensor, "... h w"]) -> dict[str, Float[Tensor, "..."]]:
    """Area, centroid and the shape features of each mask."""
    h, w = mask.shape[-2:]
    x = torch.arange(w, device=mask.device).float() + 0.5
    y = torch.arange(h, device=mask.device).float() + 0.5
    across, down = mask.sum(-2), mask.sum(-1)
    area = across.sum(-1).clamp(min=1e-6)
    out = {"area": across.sum(-1)}
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
    if largest.max() < SMALLEST_AREA_PX:
        return None
    shown = m["area"] > VANISHED_RATIO * largest[:, None]
    change = (m["area"].sqrt()).std(1) * 2
    for axis in ("x", "y"):
        low = torch.where(shown, m[axis], torch.inf).amin(1)
        high = torch.where(shown, m[axis], -torch.inf).amax(1)
        change = change + (high - low).clamp(min=0)
    eligible = (largest > SMALLEST_AREA_PX) & (largest > DOMINANT_RATIO * largest.max())
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
    frames = shown.nonzero()[:, 0]
    first, last = int(frames[0]), int(frames[-1])
    hidden = ~shown
    vanish = [f for f in range(first + 1, last) if hidden[f] and shown[f - 1]]
    if vanish and int(hidden[first:last].sum()) >= 2:
        return MOTIONS.index("blinks"), [float(f) for f in vanish]
    lows = _lows(m["y"], shown)
    if lows:
        return MOTIONS.index("bounces"), lows
    ratio = float(m["area"][last - 1 : last + 1].mean() / m["area"][first : first + 2].mean())
    if ratio > GROWN_RATIO or ratio < 1 / GROWN_RATIO:
        return MOTIONS.index("grows" if ratio > 1 else "shrinks"), []
    dx, dy = float(m["x"][last] - m["x"][first]), float(m["y"][last] - m["y"][first])
    if max(abs(dx), abs(dy)) < MOVED_PX:
        return None, []
    if abs(dx) > abs(dy):
        return MOTIONS.index("right" if dx > 0 else "left"), []
    return MOTIONS.index("down" if dy > 0 else "up"), []


def see(frames: Float[Tensor, "f h w 3"]) -> Seen:
    """Look at one clip, RGB in [0, 1]."""
    moments = _moments(_colour_masks(frames))
    colour = _moving_colour(moments)
    if colour is None:
        return Seen(colour=None, shape=None, motion=None, event_frames=(), x_ratio=0.5)
    m = {name: value[colour].cpu() for name, value in moments.items()}
    shown = m["area"] > VANISHED_RATIO * m["area"].amax()
    growing = (m["area"] > 60) & (m["area"][0] < 0.6 * m["area"].amax()) | (m["area"] > 60) & (
        m["area"][-1] < 0.6 * m["area"].amax()
    )
    steady = m["area"].diff().abs().amax() < 0.3 * m["area"].amax()
    shown = growing if bool(steady) and bool(growing.all()) else shown
    motion, events = _movement(m, shown)
    x = float(m["x"][shown].mean()) / frames.shape[2]
    return Seen(colour=colour, shape=_shape(m, shown), motion=motion, event_frames=tuple(events), x_ratio=x)


def listen(samples: Float[Tensor, "2 n"]) -> Heard:
    """Hear one clip at 48 kHz."""
    power = torch.fft.rfft(samples[:, :OUTPUT_RATE_HZ], OUTPUT_RATE_HZ).abs().square().sum(0)
    tone = int(torch.stack([power[round(f) - 3 : round(f) + 4].sum() for f in TONE_HZ]).argmax())
    window = torch.hann_window(CLICK_WINDOW, device=samples.device)
    spectrum = torch.stft(samples, CLICK_WINDOW, CLICK_HOP, window=window, return_complex=True).abs()
    level = (
        spectrum[:, round(CLICK_FLOOR_HZ * CLICK_WINDOW / OUTPUT_RATE_HZ) :].square().sum((0, 1)).sqrt().cpu()
        / CLICK_WINDOW
        * 10
    )
    clicks: list[float] = []
    floor = max(CLICK_THRESHOLD, 0.25 * float(level.max()))
    hop_s = CLICK_HOP / OUTPUT_RATE_HZ
    for i in range(1, len(level) - EDGE_HOPS):
        rises = level[i] > floor and level[i] > 1.5 * level[max(0, i - 4) : i].min() and level[i - 1] <= floor
        if rises and (not clicks or i * hop_s - clicks[-1] > CLICK_GAP_S):
            clicks.append(i * hop_s)
    loud = samples.square().mean(1).sqrt()
    pan = float(torch.atan2(loud[1], loud[0]) / (torch.pi / 2))
    return Heard(tone=tone, click_frames=tuple(c * FPS for c in clicks), pan_ratio=pan)


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
                tallies["no_false_click"].append(not sound.click_frames)
            if MOTIONS[caption.motion] in ("bounces", "blinks"):
                tallies["click"].append(_all_clicked(picture, sound))
        if caption.tone is not None:
            tallies["tone"].append(sound.tone == caption.tone)
        elif picture.shape is not None:
            tallies["rule_tone"].append(sound.tone == rule[picture.shape])
        tallies["pan"].append(abs(sound.pan_ratio - picture.x_ratio) < 0.12)
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


__all__ = ["COLOURS", "SHAPES", "Heard", "Score", "Seen", "listen", "scores", "see", "table"]
