"""What happens in a pocket clip: seeded random scenes as tensors, all on the device they are drawn on.

Must not know pixels, samples, words or models: data.py draws the picture, sound.py the sound, captions.py the words.
"""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WIDTH, HEIGHT, FRAMES, FPS = 256, 160, 25, 24  # multiples of 32, 8k+1 frames: 8 x 5 x 4 video tokens
COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
SHAPES = ("circle", "square", "triangle", "diamond")
MOTIONS = ("right", "left", "up", "down", "bounces", "grows", "shrinks", "blinks")
TONES = ("low", "middle", "high")
BACKGROUNDS = ("black", "grey", "gradient")
TONE_OF_SHAPE = (0, 1, 2, 2)  # the sound of a shape when the caption states no tone

MOTION_WEIGHTS = (0.15, 0.15, 0.15, 0.15, 0.13, 0.09, 0.09, 0.09)
SECOND_SHAPE_RATIO = 0.25
TONE_STATED_RATIO = 0.7
MARGIN_PX = 4.0
RADIUS_PX = (20.0, 30.0)
RADIUS_WITH_SECOND_PX = (20.0, 26.0)
SMALL_PX, LARGE_PX = (14.0, 18.0), (36.0, 44.0)
SECOND_RADIUS_PX = (18.0, 26.0)
EXTENT_X = (1.0, 0.886, 1.351, 1.253)  # half width of a shape of radius 1 with the circle's area
EXTENT_Y = (1.0, 0.886, 1.17, 1.253)
BOUNCE_KEPT = 0.7  # share of the height kept by each bounce
BLINK_OFF_FRAMES = 5
LAST_EVENT_FRAME = 23.2  # later clicks would be cut off by the end of the clip
MAX_EVENTS = 3
NO_EVENT = -1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenes:
    """A batch of b scenes; index 0 of the axis "2" is the moving, sounding shape, index 1 the still second one."""

    colour: Int[Tensor, "b 2"]
    shape: Int[Tensor, "b 2"]
    motion: Int[Tensor, " b"]
    tone: Int[Tensor, " b"]
    tone_stated: Bool[Tensor, " b"]
    second: Bool[Tensor, " b"]
    background: Int[Tensor, " b"]
    gradient_axis: Int[Tensor, " b"]
    background_rgb: Float[Tensor, "b 2 3"]
    x_px: Float[Tensor, "b 2 f"]
    y_px: Float[Tensor, "b 2 f"]
    radius_px: Float[Tensor, "b 2 f"]
    visible: Float[Tensor, "b 2 f"]
    event_frame: Float[Tensor, "b 3"]

    def __len__(self) -> int:
        """The number of scenes."""
        return len(self.motion)

    def to(self, device: torch.device | str) -> "Scenes":
        """The same scenes on another device."""
        return Scenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def select(self, index: Tensor | slice) -> "Scenes":
        """The scenes at `index` of the batch axis."""
        return Scenes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def repeated(self, count: int) -> "Scenes":
        """Each scene `count` times in a row."""
        return Scenes(**{f.name: getattr(self, f.name).repeat_interleave(count, 0) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a caption states of the moving shape and the background; the rest it always states, or never."""

    colour: Bool[Tensor, " b"]
    shape: Bool[Tensor, " b"]
    motion: Bool[Tensor, " b"]
    background: Bool[Tensor, " b"]

    def repeated(self, count: int) -> "Said":
        """Each row `count` times."""
        return Said(**{f.name: getattr(self, f.name).repeat_interleave(count, 0) for f in fields(self)})


@dataclass(frozen=True, slots=True)
class _Draw:
    """Uniform numbers from one named generator."""

    count: int
    generator: torch.Generator

    def between(self, low: Tensor | float, high: Tensor | float) -> Float[Tensor, " b"]:
        unit = torch.rand(self.count, generator=self.generator, device=self.generator.device)
        return low + (high - low) * unit

    def index(self, size: int) -> Int[Tensor, " b"]:
        return torch.randint(size, (self.count,), generator=self.generator, device=self.generator.device)

    def chance(self, ratio: float) -> Bool[Tensor, " b"]:
        return self.between(0.0, 1.0) < ratio


def _background(draw: _Draw, same: "_Same | None") -> tuple[Tensor, Tensor]:
    """Kind of background and its two end colours; plain ones have twice the same."""
    kind = draw.index(len(BACKGROUNDS))
    kind = kind if same is None else torch.where(same.said.background, same.scenes.background, kind)
    level = torch.where(kind == 0, draw.between(0.02, 0.06), draw.between(0.30, 0.40))
    plain = level[:, None, None].expand(-1, 2, 3)
    ends = [torch.stack([draw.between(0.05, 0.35) for _ in range(3)], -1) for _ in range(2)]
    return kind, torch.where((kind == 2)[:, None, None], torch.stack(ends, 1), plain)


def _bounce(start_px: Tensor, floor_px: Tensor, first_hit: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Height of a dropped ball and the frames of its hits: parabolas whose height shrinks by BOUNCE_KEPT."""
    drop = (floor_px - start_px)[:, None]
    y = start_px[:, None] + drop * (time / first_hit[:, None]) ** 2
    hits, hit, height, half = [first_hit], first_hit[:, None], drop, first_hit[:, None]
    for _ in range(MAX_EVENTS):
        height, half = height * BOUNCE_KEPT, half * BOUNCE_KEPT**0.5
        arc = floor_px[:, None] - height * (1 - ((time - hit - half) / half) ** 2)
        y = torch.where(time >= hit, arc, y)
        hit = hit + 2 * half
        hits.append(hit[:, 0])
    events = torch.stack(hits[:MAX_EVENTS], 1)
    return y, torch.where(events <= LAST_EVENT_FRAME, events, NO_EVENT)


def _blink(draw: _Draw, time: Tensor) -> tuple[Tensor, Tensor]:
    """Visibility per frame and the frames at which the shape vanishes (once or twice)."""
    first = draw.between(4.0, 9.0).floor()
    again = (first + draw.between(9.0, 13.0)).floor()
    again = torch.where(draw.chance(0.5) & (again <= FRAMES - 5), again, NO_EVENT)
    events = torch.stack([first, again, torch.full_like(first, NO_EVENT)], 1)
    off = (time[:, None] >= events[..., None]) & (time[:, None] < events[..., None] + BLINK_OFF_FRAMES)
    return 1.0 - (off & (events[..., None] >= 0)).any(1).float(), events


def _lane(draw: _Draw, size_px: float, edge: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Centres across the direction of movement: anywhere alone, one half of the picture each with a second shape."""
    side = torch.where(draw.chance(0.5), 0.25, 0.75)
    main = torch.where(second, size_px * side, draw.between(edge, size_px - edge))
    return main, size_px * (1.0 - side)


@dataclass(frozen=True, slots=True)
class _Same:
    """What new scenes take over from others."""

    scenes: Scenes
    said: Said

    def colours(self, first: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Colours of both shapes: the second is always stated, so an unstated first one only has to differ from it."""
        other = self.scenes.colour[:, 1]
        free = torch.where(self.scenes.second, (other + step) % len(COLOURS), first)
        first = torch.where(self.said.colour, self.scenes.colour[:, 0], free)
        return first, torch.where(self.scenes.second, other, (first + step) % len(COLOURS))


def scenes_like(scenes: Scenes, said: Said, generator: torch.Generator) -> Scenes:
    """New scenes, one for each given one, that the same caption describes: what it leaves open is drawn anew."""
    return sample_scenes(len(scenes), generator, _Same(scenes, said))


def sample_scenes(count: int, generator: torch.Generator, same: _Same | None = None) -> Scenes:
    """Draw `count` scenes on the generator's device; the order of draws is part of the data set."""
    draw = _Draw(count, generator)
    device = generator.device
    weights = torch.tensor(MOTION_WEIGHTS, device=device)
    motion = torch.multinomial(weights, count, replacement=True, generator=generator)
    shape = torch.stack([draw.index(len(SHAPES)), draw.index(len(SHAPES))], 1)
    first, step = draw.index(len(COLOURS)), draw.index(len(COLOURS) - 1) + 1
    other = (first + step) % len(COLOURS)
    second, stated = draw.chance(SECOND_SHAPE_RATIO), draw.chance(TONE_STATED_RATIO)
    if same is not None:
        old, said = same.scenes, same.said
        motion = torch.where(said.motion, old.motion, motion)
        second, stated = old.second, old.tone_stated
        kept = torch.stack([said.shape, second], 1)
        shape = torch.where(kept, old.shape, shape)
        first, other = same.colours(first, step)
    rule = torch.tensor(TONE_OF_SHAPE, device=device)[shape[:, 0]]
    tone = draw.index(len(TONES))
    tone = torch.where(stated, tone if same is None else same.scenes.tone, rule)
    kind, ends = _background(draw, same)
    paths = _paths(draw, motion, second, shape[:, 0])
    return Scenes(
        colour=torch.stack([first, other], 1),
        shape=shape,
        motion=motion,
        tone=tone,
        tone_stated=stated,
        second=second,
        background=kind,
        gradient_axis=draw.index(2),
        background_rgb=ends,
        **paths,
    )


def _paths(draw: _Draw, motion: Tensor, second: Tensor, shape: Tensor) -> dict[str, Tensor]:
    """Centre, radius, visibility and events of both shapes for every frame."""
    time = torch.arange(FRAMES, device=motion.device, dtype=torch.float32).expand(len(motion), -1)
    unit = time / (FRAMES - 1)
    alone, shared = draw.between(*RADIUS_PX), draw.between(*RADIUS_WITH_SECOND_PX)
    radius = torch.where(second, shared, alone)[:, None].expand(-1, FRAMES)
    small, large = draw.between(*SMALL_PX)[:, None], draw.between(*LARGE_PX)[:, None]
    kind = motion[:, None]
    radius = torch.where(kind == 5, small + (large - small) * unit, radius)
    radius = torch.where(kind == 6, large + (small - large) * unit, radius)
    low_x, low_y = (
        radius.amax(1) * torch.tensor(extent, device=motion.device)[shape] + MARGIN_PX
        for extent in (EXTENT_X, EXTENT_Y)
    )
    sideways = motion < 2
    x, other_x = _lane(draw, WIDTH, low_x, second)
    y, other_y = _lane(draw, HEIGHT, low_y, second & sideways)
    start, end = draw.between(0.0, 0.15)[:, None], draw.between(0.85, 1.0)[:, None]
    share = start + (end - start) * unit
    span_x, span_y = WIDTH - 2 * low_x[:, None], HEIGHT - 2 * low_y[:, None]
    x = torch.where(sideways[:, None], low_x[:, None] + span_x * torch.where(kind == 0, share, 1 - share), x[:, None])
    still_y, vertical = y[:, None], (kind == 2) | (kind == 3)
    y = torch.where(vertical, low_y[:, None] + span_y * torch.where(kind == 3, share, 1 - share), still_y)
    top, floor = draw.between(0.0, 0.2) * span_y[:, 0] + low_y, HEIGHT - low_y
    fall, hits = _bounce(top, floor, draw.between(6.0, 11.0), time)
    y = torch.where(kind == 4, fall, y)
    seen, vanishings = _blink(draw, time)
    seen = torch.where(kind == 7, seen, 1.0)
    events = torch.where(kind == 4, hits, torch.where(kind == 7, vanishings, NO_EVENT))
    other_radius = draw.between(*SECOND_RADIUS_PX)
    rest_x, rest_y = draw.between(40.0, WIDTH - 40.0), draw.between(36.0, HEIGHT - 36.0)
    other_x = torch.where(sideways, rest_x, other_x)
    other_y = torch.where(sideways, other_y, rest_y)
    constant = [v[:, None].expand(-1, FRAMES) for v in (other_x, other_y, other_radius, second.float())]
    pairs = zip((x, y, radius, seen), constant, strict=True)
    both = [torch.stack([a.expand(-1, FRAMES), b], 1) for a, b in pairs]
    return dict(zip(("x_px", "y_px", "radius_px", "visible"), both, strict=True)) | {"event_frame": events}
