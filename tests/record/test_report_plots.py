"""Drawings and figures of a report: what they keep of the values, and how numbers are said."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from told_runs import write_film

from shotclock.record.figures import bytes_text, demand, duration_text, figure, seconds_text, significant
from shotclock.record.pictures import read_film, read_wave
from shotclock.record.plots import DARKEST_DB, Curve, envelope, inline, spectrogram, thin
from shotclock.record.seen import Missing


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=5000))
def test_a_thinned_curve_keeps_its_peaks(values: list[float]) -> None:
    """However many samples: at most twice 600 and the ends, in order, highest and lowest among them."""
    x, y = thin(range(len(values)), values)
    assert len(x) <= 1202 and x == sorted(set(x))
    known = [value for value in values if math.isfinite(value)]
    kept = [value for value in y if math.isfinite(value)]
    assert not known or (max(kept), min(kept)) == (max(known), min(known))


def test_a_gap_between_attempts_is_a_gap() -> None:
    """No line joins the end of one attempt and the beginning of the next."""
    curve = Curve(label="", t_s=(1.0, 2.0, 3.0), y=(5.0, 6.0, 7.0)).broken([0, 1])
    assert curve.t_s == (1.0, 1.0, 2.0, 2.0, 3.0)
    assert [math.isnan(value) for value in curve.y] == [False, True, False, True, False]


def test_a_tone_is_where_it_sounds_and_silence_is_dark() -> None:
    """3 kHz of 48 kHz is bin 64 of 512; all-zero sound has no loudest bin and is drawn darkest."""
    wave = np.sin(2 * np.pi * 3000 * np.arange(48_000) / 48_000)
    picture = spectrogram(wave, 48_000)
    assert set(picture.argmax(axis=0)) == {64} and picture.max() == 0 and picture.min() == -DARKEST_DB
    assert np.all(spectrogram(np.zeros(480), 48_000) == -DARKEST_DB)
    low, high = envelope(np.array([0.0, 1.0, -1.0, 0.5]), 2)
    assert low.tolist() == [0.0, -1.0] and high.tolist() == [1.0, 0.5]


def test_a_drawing_becomes_part_of_the_page() -> None:
    """Names get a prefix wherever they are used, colours become variables, names of other places go."""
    svg = '<?xml?><svg xmlns="http://w3" xmlns:xlink="http://x" width="1" viewBox="0 0 2 3" version="1.1"><g id="a"/>'
    svg += '<use xlink:href="#a" clip-path="url(#b)" style="fill: #010201"/></svg>'
    shown = inline(svg, "p")
    assert shown.startswith('<svg viewBox="0 0 2 3" aria-hidden="true"') and "http" not in shown
    assert 'id="p-a"' in shown and 'href="#p-a"' in shown and "url(#p-b)" in shown and "var(--series-1)" in shown


def test_frames_and_sound_of_a_clip(tmp_path: Path) -> None:
    """24 frames spread from the first to the last, the middle one as poster; the wav before the clip's own sound."""
    write_film(tmp_path / "clip.mp4", frames=49)
    film = read_film(tmp_path / "clip.mp4")
    assert not isinstance(film, Missing)
    assert (film.frames, film.poster.index, len(film.stills)) == (49, 24, 24)
    assert (film.stills[0].index, film.stills[-1].index) == (0, 48)
    assert film.stills[-1].t_s == pytest.approx(2.0)
    wave = read_wave(tmp_path / "clip.wav", tmp_path / "clip.mp4")
    assert not isinstance(wave, Missing) and wave.source == "clip.mp4"
    assert wave.samples.shape[0] == 2 and wave.seconds == pytest.approx(49 / 24, abs=0.05)
    assert isinstance(read_film(tmp_path / "none.mp4"), Missing)


def test_numbers_as_people_read_them() -> None:
    """Significant digits, no exponents, units that fit, and words where nothing is known."""
    assert [seconds_text(s) for s in (16.429, 0.0688, 10803.2, 0.0, None, math.nan)] == [
        "16.43 s", "0.0688 s", "10,803 s", "0 s", "not recorded", "not recorded",
    ]  # fmt: skip
    assert [duration_text(s) for s in (1.004, 59.96, 2470, 14400, 7380)] == [
        "1.00 s", "1 min", "41 min 10 s", "4 h", "2 h 3 min",
    ]  # fmt: skip
    assert [bytes_text(b) for b in (80433528832, 426747, 12, None)] == [
        "74.91 GiB",
        "416.7 KiB",
        "12 bytes",
        "not recorded",
    ]
    assert [significant(v) for v in (1344.0, 0.215, 52.0, -0.02476, 0.0, 1e-13)] == [
        "1,344", "0.215", "52", "-0.02476", "0", "1.000e-13",
    ]  # fmt: skip


def test_own_demand_is_the_peak_less_the_start() -> None:
    """A dirtier start is not a larger need; without a sample there is no figure, and one value has no spread."""
    assert demand([30, 40, 35]) == demand([4, 14, 9]) == 10
    assert demand([None, 4, None, 9]) == 5
    assert demand([None]) is None and demand([]) is None
    assert figure([]) is None
    one, four = figure([2.0]), figure([2.0, 4.0, 2.0, 2.0])
    assert one is not None and four is not None
    assert (one.spread_ratio, one.provisional, four.spread_ratio, four.n) == (None, True, 1.0, 4)
