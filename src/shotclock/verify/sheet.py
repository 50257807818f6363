"""Draws a contact sheet: frames with the suspicious ones marked, luma and MAD over time, wave form, spectrogram.

For a person, who should be able to agree or not in five seconds. Draws what a verdict says and judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from shotclock.verify import grids, motion, still
from shotclock.verify.reader import Sound
from shotclock.verify.rules import Outcome
from shotclock.verify.sound import decibels
from shotclock.verify.verdict import Verdict, describe

Frame = UInt8[np.ndarray, "h w 3"]
Box = tuple[int, int, int, int]  # left, top, right, bottom

WIDTH = 1600  # pixels of the sheet
COLUMNS, MOST_FRAMES = 8, 24
MARGIN, LINE, PLOT_HEIGHT, FONT_SIZE = 12, 20, 130, 15
BACKGROUND, PAPER, INK, FAINT = (24, 26, 30), (36, 39, 45), (230, 230, 225), (130, 135, 140)
RED, AMBER, BLUE, GREEN = (255, 70, 60), (255, 180, 40), (90, 160, 255), (90, 220, 130)
COLOUR_OF = {Outcome.FAIL: RED, Outcome.WARN: AMBER, Outcome.PASS: GREEN, Outcome.SKIPPED: FAINT}
NOISY_SIGMA, CUT_RATIO, HELD_MAD = 9.0, 3.5, 0.02  # where the table warns: noise, cut, frozen
MOST_FINDINGS = 8
SPECTRUM_SAMPLES, DARKEST_DB = 1024, 90.0  # of the spectrogram
PALETTE = np.array([[12, 12, 30], [60, 20, 110], [180, 50, 90], [250, 140, 50], [255, 250, 190]], np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """What is drawn over time, per frame: brightness, MAD to the frame before (0 for the first), and a mark."""

    light: Float[np.ndarray, " t"]
    change: Float[np.ndarray, " t"]
    marks: dict[int, tuple[str, tuple[int, int, int]]]


def draw_sheet(frames: Sequence[Frame], sound: Sound | None, verdict: Verdict, path: Path) -> None:
    """Write the sheet as a PNG, aside first."""
    series = _measure(frames)
    findings = [f for outcome in (Outcome.FAIL, Outcome.WARN) for f in verdict.broken(outcome)][:MOST_FINDINGS]
    shown = _choose(len(frames), series)
    thumb_w = (WIDTH - MARGIN * (COLUMNS + 1)) // COLUMNS
    thumb_h = round(thumb_w * frames[0].shape[0] / frames[0].shape[1])
    rows = -(-len(shown) // COLUMNS)
    head = MARGIN + LINE * (2 + len(findings)) + MARGIN
    plots_top = head + rows * (thumb_h + LINE) + MARGIN
    sheet = Image.new("RGB", (WIDTH, plots_top + 2 * (PLOT_HEIGHT + LINE + MARGIN)), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.font = ImageFont.load_default(FONT_SIZE)
    _draw_head(draw, verdict, [(f.outcome, f"{f.arm} {f.rule}: {describe(f)}") for f in findings])
    dead = _dead_boxes(frames)
    for place, index in enumerate(shown):
        left = MARGIN + place % COLUMNS * (thumb_w + MARGIN)
        top = head + place // COLUMNS * (thumb_h + LINE)
        box = (left, top, left + thumb_w, top + thumb_h)
        _draw_frame(sheet, draw, frames[index], box, (index, series.marks.get(index)))
        _draw_regions(draw, frames[index].shape[1], box, dead, verdict)
    _draw_plots(sheet, draw, series, sound, plots_top)
    aside = path.with_name(path.name + ".part")
    sheet.save(aside, format="PNG")
    aside.replace(path)


def _measure(frames: Sequence[Frame]) -> _Series:
    light, marks = [], {}
    change = np.concatenate([[0.0], motion.lagged_differences(frames, 1)])
    usual = max(float(np.median(change[1:])) if len(frames) > 1 else 0.0, motion.STEP_FLOOR)
    for index, frame in enumerate(frames):
        y = still.luma(frame)
        light.append(float(y.mean()))
        if still.channel_moments(frame)[1].max() < still.FLAT_STD:
            marks[index] = ("flat", RED)
        elif still.noise_sigma(y) > NOISY_SIGMA:
            marks[index] = ("noise", RED)
        elif index and change[index] > CUT_RATIO * usual:
            marks[index] = ("step", AMBER)
        elif index and change[index] < HELD_MAD:
            marks[index] = ("held", BLUE)
    return _Series(light=np.array(light), change=change, marks=marks)


def _choose(total: int, series: _Series) -> list[int]:
    """All frames, or an even spread with the marked ones put in."""
    if total <= MOST_FRAMES:
        return list(range(total))
    marked = sorted(series.marks)[: MOST_FRAMES // 2]
    spread = np.linspace(0, total - 1, MOST_FRAMES - len(marked)).round().astype(int)
    return sorted({*marked, *(int(index) for index in spread)})


def _draw_head(draw: ImageDraw.ImageDraw, verdict: Verdict, findings: list[tuple[Outcome, str]]) -> None:
    arms = "   ".join(f"{arm} {outcome}" for arm, outcome in verdict.arms.items())
    title = f"{verdict.outcome}   {verdict.subject.clip}   {arms}"
    draw.text((MARGIN, MARGIN), title, COLOUR_OF[verdict.outcome])
    draw.text((MARGIN, MARGIN + LINE), verdict.seed_line(), FAINT)
    for line, (outcome, text) in enumerate(findings, start=2):
        draw.text((MARGIN, MARGIN + LINE * line), f"{outcome}  {text}"[:190], COLOUR_OF[outcome])


def _draw_frame(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    frame: Frame,
    box: Box,
    label: tuple[int, tuple[str, tuple[int, int, int]] | None],
) -> None:
    index, mark = label
    picture = Image.fromarray(frame).resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BILINEAR)
    sheet.paste(picture, box[:2])
    if mark is not None:
        draw.rectangle((box[0] - 3, box[1] - 3, box[2] + 2, box[3] + 2), outline=mark[1], width=3)
    text = str(index) if mark is None else f"{index} {mark[0]}"
    draw.text((box[0], box[3] + 1), text, FAINT if mark is None else mark[1])


def _dead_boxes(frames: Sequence[Frame]) -> list[Box]:
    """Blocks that are dead in the first, middle and last frame, in pixels of the clip."""
    picked = (frames[0], frames[len(frames) // 2], frames[-1])
    dead = np.logical_and.reduce([grids.dead_blocks(still.luma(frame)) for frame in picked])
    side = grids.TOKEN_PIXELS
    return [(int(c) * side, int(r) * side, int(c + 1) * side, int(r + 1) * side) for r, c in np.argwhere(dead)]


def _draw_regions(draw: ImageDraw.ImageDraw, width: int, box: Box, dead: list[Box], verdict: Verdict) -> None:
    """NaN blocks in red, known tile edges in amber, each only when its rule spoke."""
    scale = (box[2] - box[0]) / width
    spoke = {f.rule for outcome in (Outcome.FAIL, Outcome.WARN) for f in verdict.broken(outcome)}
    if "nan_blocks" in spoke:
        for left, top, right, bottom in dead:
            place = (box[0] + left * scale, box[1] + top * scale, box[0] + right * scale, box[1] + bottom * scale)
            draw.rectangle(place, outline=RED, width=2)
    if "tile_step" in spoke:
        for column in verdict.expectation.tile_columns:
            draw.line((box[0] + column * scale, box[1], box[0] + column * scale, box[3]), AMBER, 1)
        for row in verdict.expectation.tile_rows:
            draw.line((box[0], box[1] + row * scale, box[2], box[1] + row * scale), AMBER, 1)


def _draw_plots(sheet: Image.Image, draw: ImageDraw.ImageDraw, series: _Series, sound: Sound | None, top: int) -> None:
    """Two by two: brightness and MAD above, wave form and spectrogram below."""
    half = (WIDTH - 3 * MARGIN) // 2
    lower = top + PLOT_HEIGHT + LINE + MARGIN
    places = [(left, y) for y in (top, lower) for left in (MARGIN, 2 * MARGIN + half)]
    boxes = [(left, y + LINE, left + half, y + LINE + PLOT_HEIGHT) for left, y in places]
    _draw_line(draw, boxes[0], series.light, f"mean luma, 0 to 255, {len(series.light)} frames", 255.0)
    most = float(series.change.max()) or 1.0
    _draw_line(draw, boxes[1], series.change, f"MAD to the frame before, 0 to {most:.2f} levels", most)
    if sound is None or not sound.waveform.size:
        draw.text((boxes[2][0], boxes[2][1] - LINE), "no sound", FAINT)
        return
    wave = np.nan_to_num(sound.waveform.astype(np.float64)).mean(axis=0)
    _draw_wave(draw, boxes[2], wave, sound.rate_hz)
    _draw_spectrogram(sheet, draw, boxes[3], wave, sound.rate_hz)


def _draw_line(draw: ImageDraw.ImageDraw, box: Box, values: Float[np.ndarray, " t"], title: str, most: float) -> None:
    draw.text((box[0], box[1] - LINE), title, FAINT)
    draw.rectangle(box, fill=PAPER)
    x = np.linspace(box[0] + 4, box[2] - 4, max(len(values), 2))
    y = box[3] - 4 - np.clip(values / most, 0, 1) * (box[3] - box[1] - 8)
    draw.line([(float(a), float(b)) for a, b in zip(x, y, strict=False)], INK, 2)


def _draw_wave(draw: ImageDraw.ImageDraw, box: Box, wave: Float[np.ndarray, " n"], rate_hz: int) -> None:
    title = (
        f"wave form (mono), full scale, {len(wave) / rate_hz:.2f} s, peak {decibels(float(abs(wave).max())):.1f} dBFS"
    )
    draw.text((box[0], box[1] - LINE), title, FAINT)
    draw.rectangle(box, fill=PAPER)
    middle, reach = (box[1] + box[3]) / 2, (box[3] - box[1]) / 2
    for x, part in zip(range(box[0], box[2]), np.array_split(wave, box[2] - box[0]), strict=True):
        if part.size:
            low, high = np.clip([part.min(), part.max()], -1, 1)
            draw.line((x, middle - high * reach, x, middle - low * reach), GREEN)


def _draw_spectrogram(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, box: Box, wave: Float[np.ndarray, " n"], rate_hz: int
) -> None:
    draw.text((box[0], box[1] - LINE), f"spectrogram, 0 to {rate_hz / 2000:.1f} kHz, {DARKEST_DB:.0f} dB", FAINT)
    size = min(SPECTRUM_SAMPLES, len(wave))
    starts = np.linspace(0, len(wave) - size, box[2] - box[0]).astype(int)
    window = np.hanning(size)
    power = np.array([np.abs(np.fft.rfft(wave[start : start + size] * window)) for start in starts]).T
    level = 20 * np.log10(np.maximum(power, 1e-9))
    share = np.clip((level - level.max()) / DARKEST_DB + 1, 0, 1)[::-1]
    place = share * (len(PALETTE) - 1)
    low = np.minimum(place.astype(int), len(PALETTE) - 2)
    part = (place - low)[..., None]
    colours = PALETTE[low] * (1 - part) + PALETTE[low + 1] * part
    picture = Image.fromarray(colours.astype(np.uint8)).resize((box[2] - box[0], box[3] - box[1]))
    sheet.paste(picture, box[:2])
