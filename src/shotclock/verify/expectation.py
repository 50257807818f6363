"""What was asked of a clip, so that silence, a still or a fade is judged against the request and not against taste.

Knows no file, plan or threshold: the caller fills in what it knows, and what stays ``None`` is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from shotclock.errors import RequestError

EXPECTABLE = {
    "silent": "no sound, or almost none",
    "static": "a shot in which next to nothing moves",
    "fade": "the picture comes from or goes to one flat colour",
    "black": "black or plain frames",
    "strobe": "the light flashes",
    "cartoon": "animation on twos or threes: pictures are held, areas are flat",
    "title": "a flat graphic: a title card, a chart, a logo",
    "cut": "hard cuts",
    "shapes": "solid shapes on a plain ground; a clip without them fails",
    "note": "one held note; a sound that swells and dies fails",
    "given": "a sound that was given and not made: only that it is whole is judged",
}
POCKET_DRAWS = frozenset({"shapes", "note"})  # what the pocket model makes whatever it is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The request as far as it is known; ``None`` and empty mean unknown, and unknown is not judged.

    ``tile_columns`` and ``tile_rows`` hold the first pixel column or row of every decode tile but the first,
    ``tile_frames`` the first frame of every temporal chunk but the first. ``raw_distinct_frames`` is the number of
    distinct frames before encoding, which the encoder hides. Raises :class:`RequestError` for an unknown word.
    """

    frames: int | None = None
    fps: Fraction | None = None
    width: int | None = None
    height: int | None = None
    has_audio: bool | None = None
    sample_rate_hz: int | None = None
    channels: int | None = None
    raw_distinct_frames: int | None = None
    expect: frozenset[str] = frozenset()
    tile_columns: tuple[int, ...] = ()
    tile_rows: tuple[int, ...] = ()
    tile_frames: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        unknown = sorted(self.expect - EXPECTABLE.keys())
        if unknown:
            raise RequestError(
                f"--expect does not know {', '.join(unknown)}",
                allowed=", ".join(sorted(EXPECTABLE)),
                way_out="use these words, separated by commas",
            )


def parse_expect(words: str) -> frozenset[str]:
    """The words of ``--expect silent,static`` as a set; checked by :class:`Expectation`."""
    return frozenset(word.strip().lower() for word in words.split(",") if word.strip())
