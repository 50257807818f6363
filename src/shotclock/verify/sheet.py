"""Draws a contact sheet: the verdict in words, one frame and its detail, the others marked, light, MAD and sound.

For a person, who should be able to agree or not in five seconds. Draws what a verdict says and judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from shotclock.rundir import aside
from shotclock.verify import grids, motion, still
from shotclock.verify.reader import Sound
from shotclock.verify.rules import Outcome
from shotclock.verify.sound import decibels
from shotclock.verify.thresholds import limit
from shotclock.verify.verdict import Verdict, describe

Frame = UInt8[np.ndarray, "h w 3"]
Box = tuple[int, int, int, int]  # left, top, right, bottom
Colour = tuple[int, int, int]

WIDTH = 1600  # pixels of the sheet
THUMB, MOST_FRAMES = 185, 16  # longest side of a small frame, and how many: two rows of eight
MARGIN, LINE, PLOT_HEIGHT, MOST_HEIGHT = 12, 22, 120, 460
SMALL, MIDDLE, LARGE = 15, 19, 44  # font sizes
BACKGROUND, PAPER, INK, FAINT = (24, 26, 30), (36, 39, 45), (230, 230, 225), (140, 145, 150)
RED, AMBER, BLUE, GREEN = (255, 70, 60), (255, 180, 40), (90, 160, 255), (90, 220, 130)
COLOUR_OF = {Outcome.FAIL: RED, Outcome.WARN: AMBER, Outcome.PASS: GREEN, Outcome.SKIPPED: FAINT}
NOISY_SIGMA, CUT_RATIO = limit("noise", "noise_sigma_most"), limit("cut", "cut_ratio")
HELD_MAD = limit("freeze_run", "mad_least")
MOST_FINDINGS = 5
GRID_RULES = {"grid2", "grid4", "grid8", "grid32", "grid32_tokens", "tile_step"}  # seen in the mean of all frames only
GRID_BLUR, GRID_GAIN = 9, 24.0  # pixels of the local mean that is taken away, and how much what is left is amplified
ZOOM = 3
SPECTRUM_SAMPLES, DARKEST_DB = 1024, 90.0  # of the spectrogram
PALETTE = np.array([[12, 12, 30], [60, 20, 110], [180, 50, 90], [250, 140, 50], [255, 250, 190]], np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is drawn of the frames: brightness, MAD to the frame before, marks by frame, dead blocks, the mean luma."""

    light: Float[np.ndarray, " t"]
    change: Float[np.ndarray, " s"]
    marks: dict[int, tuple[str, Colour]]
    dead: list[Box]
    mean_y: Float[np.ndarray, "h w"]

    @property
    def key(self) -> int:
        """The frame to look at: the first marked red, else any marked, else the middle one."""
        red = [index for index, (_, colour) in self.marks.items() if colour == RED]
        return min(red or self.marks or [len(self.light) // 2])


class _Canvas:
    """A sheet that grows downwards."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (WIDTH, 4000), BACKGROUND)
        self.draw = ImageDraw.Draw(self.image)
        self.y = MARGIN

    def text(self, x: int, y: int, text: str, colour: Colour, size: int = SMALL) -> int:
        """Write one line and return where it ends."""
        self.draw.text((x, y), text, colour, _font(size))
        return x + round(_font(size).getlength(text))

    def paste(self, picture: Frame, box: Box, sampling: Image.Resampling = Image.Resampling.BILINEAR) -> None:
        """Put a picture into a box, whatever its size."""
        self.image.paste(Image.fromarray(picture).resize((box[2] - box[0], box[3] - box[1]), sampling), box[:2])


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow's own font at a size is a FreeType font"
    return font


def draw_sheet(frames: Sequence[Frame], sound: Sound | None, verdict: Verdict, path: Path) -> None:
    """Write the sheet as a PNG, aside first; a clip without frames or sound has less to show."""
    canvas = _Canvas()
    _draw_head(canvas, verdict)
    if frames:
        seen = _measure(frames)
        _draw_key(canvas, frames, seen, verdict)
        _draw_strip(canvas, frames, seen, verdict)
        _draw_timelines(canvas, seen, verdict)
    else:
        canvas.text(MARGIN, canvas.y, "no picture that decodes", RED, MIDDLE)
        canvas.y += 2 * LINE
    _draw_sound(canvas, sound)
    with aside(path) as temporary:
        canvas.image.crop((0, 0, WIDTH, canvas.y)).save(temporary, format="PNG")


def _measure(frames: Sequence[Frame]) -> _Seen:
    light, marks = [], {}
    change = motion.lagged_differences(frames, 1)
    usual = max(float(np.median(change)) if change.size else 0.0, motion.STEP_FLOOR)
    total = np.zeros(frames[0].shape[:2])
    for index, frame in enumerate(frames):
        y = still.luma(frame)
        total += y
        light.append(float(y.mean()))
        if still.channel_moments(frame)[1].max() < still.FLAT_STD:
            marks[index] = ("flat", RED)
        elif still.noise_sigma(y) > NOISY_SIGMA:
            marks[index] = ("noise", RED)
        elif index and change[index - 1] > CUT_RATIO * usual:
            marks[index] = ("step", AMBER)
        elif index and change[index - 1] < HELD_MAD:
            marks[index] = ("held", BLUE)
    return _Seen(
        light=np.array(light), change=change, marks=marks, dead=_dead_boxes(frames), mean_y=total / len(frames)
    )


def _dead_boxes(frames: Sequence[Frame]) -> list[Box]:
    """Blocks that are dead in the first, middle and last frame, in pixels of the clip."""
    picked = (frames[0], frames[len(frames) // 2], frames[-1])
    dead = np.logical_and.reduce([grids.dead_blocks(still.luma(frame)) for frame in picked])
    side = grids.TOKEN_PIXELS
    return [(int(c) * side, int(r) * side, int(c + 1) * side, int(r + 1) * side) for r, c in np.argwhere(dead)]


def _spoke(verdict: Verdict) -> set[str]:
    return {finding.rule for outcome in (Outcome.FAIL, Outcome.WARN) for finding in verdict.broken(outcome)}


def _draw_head(canvas: _Canvas, verdict: Verdict) -> None:
    """The outcome large, the arms, then every finding as a sentence with its number below."""
    x = canvas.text(MARGIN, canvas.y, verdict.outcome, COLOUR_OF[verdict.outcome], LARGE) + 2 * MARGIN
    canvas.text(x, canvas.y + 2, verdict.subject.clip[:100], INK, MIDDLE)
    for arm, outcome in verdict.arms.items():
        x = canvas.text(x, canvas.y + 28, f"{arm} {outcome}", COLOUR_OF[outcome], MIDDLE) + 2 * MARGIN
    canvas.y += 2 * LINE + MARGIN
    findings = [*verdict.broken(Outcome.FAIL), *verdict.broken(Outcome.WARN)]
    for finding in findings[:MOST_FINDINGS]:
        x = canvas.text(MARGIN, canvas.y, finding.meaning, COLOUR_OF[finding.outcome], MIDDLE) + MARGIN
        number = f"{finding.rule}: {describe(finding)}"
        if x + _font(SMALL).getlength(number) > WIDTH - MARGIN:
            canvas.y += LINE
            x = 3 * MARGIN
        canvas.text(x, canvas.y + 3, number, FAINT)
        canvas.y += LINE + 3
    more = f"and {len(findings) - MOST_FINDINGS} more;  " if len(findings) > MOST_FINDINGS else ""
    canvas.text(MARGIN, canvas.y + 2, more + verdict.seed_line(), FAINT)
    canvas.y += LINE + MARGIN


def _draw_key(canvas: _Canvas, frames: Sequence[Frame], seen: _Seen, verdict: Verdict) -> None:
    """One frame large, and beside it either a detail of it or the pattern that all frames share."""
    frame = frames[seen.key]
    height, width = frame.shape[:2]
    half = (WIDTH - 3 * MARGIN) // 2
    scale = min(half / width, MOST_HEIGHT / height)
    box = (MARGIN, canvas.y + LINE, MARGIN + round(width * scale), canvas.y + LINE + round(height * scale))
    name, colour = seen.marks.get(seen.key, ("", FAINT))
    canvas.text(MARGIN, canvas.y, f"frame {seen.key} of {len(frames)} {name}", colour)
    canvas.paste(frame, box)
    _draw_regions(canvas, width, box, seen, verdict)
    left = box[2] + MARGIN
    rows, columns = _detail(frame.shape, seen, (box[3] - box[1], WIDTH - MARGIN - left))
    place = (left, box[1], left + ZOOM * (columns.stop - columns.start), box[1] + ZOOM * (rows.stop - rows.start))
    if _spoke(verdict) & GRID_RULES and not seen.dead:
        canvas.text(left, canvas.y, f"what all frames share: mean less its surroundings, x {GRID_GAIN:.0f}", AMBER)
        fine = seen.mean_y - grids.local_mean(seen.mean_y.astype(np.float32), GRID_BLUR)
        shown = np.clip(128 + GRID_GAIN * fine, 0, 255).astype(np.uint8)
        canvas.paste(np.repeat(shown[rows, columns, None], 3, axis=2), place, Image.Resampling.NEAREST)
    else:
        canvas.text(left, canvas.y, f"detail of frame {seen.key}, x {ZOOM}", FAINT)
        canvas.paste(frame[rows, columns], place, Image.Resampling.NEAREST)
    canvas.y = box[3] + MARGIN


def _detail(shape: tuple[int, ...], seen: _Seen, room: tuple[int, int]) -> tuple[slice, slice]:
    """Rows and columns that fit into ``room`` when zoomed: around the first dead block, else around the middle."""
    left, top, right, bottom = seen.dead[0] if seen.dead else (0, 0, shape[1], shape[0])
    found = []
    for total, pixels, middle in zip(shape, room, ((top + bottom) // 2, (left + right) // 2), strict=False):
        size = max(min(total, pixels // ZOOM), 1)
        start = int(np.clip(middle - size // 2, 0, total - size))
        found.append(slice(start, start + size))
    return found[0], found[1]


def _draw_regions(canvas: _Canvas, width: int, box: Box, seen: _Seen, verdict: Verdict) -> None:
    """NaN blocks in red, known tile edges in amber, each only when its rule spoke."""
    scale = (box[2] - box[0]) / width
    spoke, draw = _spoke(verdict), canvas.draw
    if "nan_blocks" in spoke:
        for left, top, right, bottom in seen.dead:
            place = (box[0] + left * scale, box[1] + top * scale, box[0] + right * scale, box[1] + bottom * scale)
            draw.rectangle(place, outline=RED, width=2)
    if "tile_step" in spoke:
        for column in verdict.expectation.tile_columns:
            draw.line((box[0] + column * scale, box[1], box[0] + column * scale, box[3]), AMBER, 1)
        for row in verdict.expectation.tile_rows:
            draw.line((box[0], box[1] + row * scale, box[2], box[1] + row * scale), AMBER, 1)


def _draw_strip(canvas: _Canvas, frames: Sequence[Frame], seen: _Seen, verdict: Verdict) -> None:
    """All frames, or an even spread with the marked ones put in."""
    height, width = frames[0].shape[:2]
    thumb_w = min(THUMB, max(THUMB * width // height, 1))
    thumb_h = max(thumb_w * height // width, 1)
    columns = (WIDTH - MARGIN) // (max(thumb_w, THUMB // 2) + MARGIN)
    for place, index in enumerate(_choose(len(frames), seen)):
        left = MARGIN + place % columns * (max(thumb_w, THUMB // 2) + MARGIN)
        top = canvas.y + place // columns * (thumb_h + LINE)
        box = (left, top, left + thumb_w, top + thumb_h)
        canvas.paste(frames[index], box)
        name, colour = seen.marks.get(index, ("", FAINT))
        if name:
            canvas.draw.rectangle((box[0] - 3, box[1] - 3, box[2] + 2, box[3] + 2), outline=colour, width=4)
        _draw_regions(canvas, frames[index].shape[1], box, seen, verdict)
        canvas.text(left, box[3] + 1, f"{index} {name}", colour)
    canvas.y = box[3] + LINE + MARGIN


def _choose(total: int, seen: _Seen) -> list[int]:
    marked = sorted(seen.marks)
    if len(marked) > MOST_FRAMES // 2:
        marked = [marked[place] for place in np.linspace(0, len(marked) - 1, MOST_FRAMES // 2).astype(int)]
    spread = np.linspace(0, total - 1, min(total, MOST_FRAMES - len(marked))).round().astype(int)
    return sorted({*marked, *map(int, spread)})


def _plots(canvas: _Canvas) -> tuple[Box, Box]:
    """Two boxes side by side, with a line for a title above each."""
    half, top = (WIDTH - 3 * MARGIN) // 2, canvas.y + LINE
    canvas.y = top + PLOT_HEIGHT + MARGIN
    left, right = MARGIN, 2 * MARGIN + half
    return (left, top, left + half, top + PLOT_HEIGHT), (right, top, right + half, top + PLOT_HEIGHT)


def _draw_timelines(canvas: _Canvas, seen: _Seen, verdict: Verdict) -> None:
    """Brightness and MAD by frame; marked frames as lines in their colour, chunk edges of the plan dotted below."""
    one, two = _plots(canvas)
    most = float(seen.change.max(initial=0.0)) or 1.0
    change = np.concatenate([[np.nan], seen.change])
    for box, values, title, top in (
        (one, seen.light, "brightness of the frame, 0 to 255", 255.0),
        (two, change, f"change to the frame before (MAD), 0 to {most:.2f} levels", most),
    ):
        canvas.text(box[0], box[1] - LINE, f"{title}, frames 0 to {len(seen.light) - 1}", FAINT)
        canvas.draw.rectangle(box, fill=PAPER)
        x = np.linspace(box[0] + 4, box[2] - 4, max(len(values), 2))
        y = box[3] - 4 - np.clip(values / top, 0, 1) * (box[3] - box[1] - 8)
        for index, (_, colour) in seen.marks.items():
            canvas.draw.line((x[index], box[1], x[index], box[3]), tuple(part // 2 for part in colour), 2)
        for edge in verdict.expectation.tile_frames:
            if 0 < edge < len(x):
                canvas.draw.line((x[edge], box[3] - 8, x[edge], box[3]), BLUE, 3)
        points = [(float(a), float(b)) for a, b in zip(x, y, strict=False) if np.isfinite(b)]
        canvas.draw.line(points, INK, 2)


def _draw_sound(canvas: _Canvas, sound: Sound | None) -> None:
    """Wave form and spectrogram of the mean of the channels."""
    if sound is None or not sound.waveform.size:
        canvas.text(MARGIN, canvas.y, "no sound", FAINT)
        canvas.y += LINE + MARGIN
        return
    one, two = _plots(canvas)
    wave = np.nan_to_num(sound.waveform.astype(np.float64)).mean(axis=0)
    peak = decibels(float(abs(wave).max()))
    title = f"sound (mono), {len(wave) / sound.rate_hz:.2f} s, full scale, peak {peak:.1f} dBFS"
    canvas.text(one[0], one[1] - LINE, title, FAINT)
    canvas.draw.rectangle(one, fill=PAPER)
    middle, reach = (one[1] + one[3]) / 2, (one[3] - one[1]) / 2
    for x, part in zip(range(one[0], one[2]), np.array_split(wave, one[2] - one[0]), strict=True):
        if part.size:
            low, high = np.clip([part.min(), part.max()], -1, 1)
            canvas.draw.line((x, middle - high * reach, x, middle - low * reach), GREEN)
    canvas.text(two[0], two[1] - LINE, f"spectrogram, 0 to {sound.rate_hz / 2000:g} kHz, {DARKEST_DB:.0f} dB", FAINT)
    canvas.paste(_spectrogram(wave, two[2] - two[0]), two)


def _spectrogram(wave: Float[np.ndarray, " n"], columns: int) -> UInt8[np.ndarray, "f columns 3"]:
    """Power in dB below its largest value as colours, low frequencies at the bottom."""
    size = min(SPECTRUM_SAMPLES, len(wave))
    starts = np.linspace(0, len(wave) - size, columns).astype(int)
    window = np.hanning(size)
    power = np.array([np.abs(np.fft.rfft(wave[start : start + size] * window)) for start in starts]).T
    level = 20 * np.log10(np.maximum(power, 1e-9))
    place = np.clip((level - level.max()) / DARKEST_DB + 1, 0, 1)[::-1] * (len(PALETTE) - 1)
    low = np.minimum(place.astype(int), len(PALETTE) - 2)
    part = (place - low)[..., None]
    colours: UInt8[np.ndarray, "f columns 3"] = (PALETTE[low] * (1 - part) + PALETTE[low + 1] * part).astype(np.uint8)
    return colours
