"""The container arm's numbers: structure, counts, rate, times and tags against the request (verify.md, Container).

Reads what reader.py found, compares with what was asked, and judges nothing. Flags are 0 or 1; ``None`` is unknown.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from shotclock.verify.expectation import Expectation
from shotclock.verify.reader import Clip

BT709, UNSPECIFIED = 1, 2  # ITU-T H.273: matrix, primaries and transfer 1 = BT.709, 2 = unspecified
TV_RANGE, RANGE_UNSPECIFIED = 1, 0  # libavutil's AVColorRange
USUAL_PIX_FMT = "yuv420p"  # the one every player shows

Numbers = dict[str, float | None]


def container_numbers(clip: Clip, expectation: Expectation, *, has_wav: bool) -> Numbers:
    """Every number of the container arm; ``has_wav`` says that the sound lies in a file beside the clip."""
    return {
        **_structure_numbers(clip),
        **_count_numbers(clip, expectation),
        **_rate_numbers(clip, expectation),
        **_stream_numbers(clip, expectation, has_wav=has_wav),
        **_time_numbers(clip),
        **_tag_numbers(clip, expectation),
    }


def container_facts(clip: Clip) -> dict[str, str]:
    """What the headers say, in words."""
    video = {f"video {key}": str(value) for key, value in clip.video.items() if value is not None}
    audio = {f"audio {key}": str(value) for key, value in clip.audio.items() if value is not None}
    boxes = {"boxes": " ".join(clip.walk.names[:16])}
    wrong = {"structure": clip.walk.malformed} if clip.walk.malformed else {}
    return boxes | wrong | video | audio | {f"error {n + 1}": text for n, text in enumerate(clip.errors[:8])}


def _structure_numbers(clip: Clip) -> Numbers:
    is_mov = "EBML" not in clip.walk.names
    return {
        "box_overrun_bytes": None if clip.walk.overrun_bytes is None else float(clip.walk.overrun_bytes),
        "box_malformed": float(clip.walk.malformed is not None),
        "moov_missing": float(not clip.walk.has_moov) if is_mov else None,
        "moov_late": float(not clip.walk.starts_fast) if is_mov and clip.walk.has_moov else None,
        "decode_errors": float(len(clip.errors)),
        "corrupt_frames": float(clip.corrupt_frames),
        "illegal_packets": float(clip.illegal_packets),
        "size_changes": float(clip.size_changes),
    }


def _count_numbers(clip: Clip, expectation: Expectation) -> Numbers:
    header = clip.video.get("header_frames")
    kept = len(clip.frames) + clip.size_changes
    return {
        "frames_decoded": float(clip.decoded_frames),
        "frames_unlike_header": _gap(clip.decoded_frames, header),
        "frames_unlike_request": _gap(clip.decoded_frames, expectation.frames),
        "frames_left_out": float(clip.decoded_frames - kept),
        "samples_left_out": float(clip.samples_left_out),
    }


def _gap(found: int, asked: int | None) -> float | None:
    return None if asked is None else float(abs(found - asked))


def _rate_numbers(clip: Clip, expectation: Expectation) -> Numbers:
    fps: Fraction | None = clip.video.get("fps")
    steps_s = np.diff(sorted(clip.times_s))
    step_s = float(1 / fps) if fps else float(np.median(steps_s)) if steps_s.size else 0.0
    return {
        "fps": None if fps is None else float(fps),
        "fps_wrong": None if expectation.fps is None or fps is None else float(fps != expectation.fps),
        "fps_asked": float(expectation.fps is not None),
        "pts_jitter_ms": float(np.abs(steps_s - step_s).max() * 1e3) if steps_s.size else None,
    }


def _stream_numbers(clip: Clip, expectation: Expectation, *, has_wav: bool) -> Numbers:
    has_audio = bool(clip.audio) or has_wav
    asked = (expectation.width, expectation.height)
    size = (clip.video.get("width"), clip.video.get("height"))
    wrong = [a is not None and a != s for a, s in zip(asked, size, strict=True)]
    return {
        "video_missing": float(not clip.video or not clip.decoded_frames),
        "audio_missing": None if expectation.has_audio is None else float(expectation.has_audio and not has_audio),
        "audio_unasked": None if expectation.has_audio is None else float(has_audio and not expectation.has_audio),
        "audio_undecoded": float(bool(clip.audio) and clip.sound is None),
        "size_wrong": None if asked == (None, None) else float(any(wrong)),
        "rate_wrong": _differs(clip.audio.get("rate_hz"), expectation.sample_rate_hz),
        "channels_wrong": _differs(clip.audio.get("channels"), expectation.channels),
    }


def _differs(found: int | None, asked: int | None) -> float | None:
    return None if asked is None or found is None else float(found != asked)


def _time_numbers(clip: Clip) -> Numbers:
    fps: Fraction | None = clip.video.get("fps")
    video_s, audio_s = clip.video.get("duration_s"), clip.audio.get("duration_s")
    starts = clip.video.get("start_s"), clip.audio.get("start_s")
    gap_s = _minus(audio_s, video_s)
    start_gap_s = _minus(*starts)
    return {
        "video_s": video_s,
        "audio_s": audio_s,
        "av_gap_ms": None if gap_s is None else abs(gap_s) * 1e3,
        "av_gap_frames": None if gap_s is None or fps is None else abs(gap_s) * float(fps),
        "start_gap_ms": None if start_gap_s is None else abs(start_gap_s) * 1e3,
    }


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _tag_numbers(clip: Clip, expectation: Expectation) -> Numbers:
    if not clip.video:
        return dict.fromkeys(("colour_other", "colour_untagged", "pix_fmt_other", "request_known"))
    tags = [(clip.video[name], BT709, UNSPECIFIED) for name in ("matrix", "primaries", "transfer")]
    tags.append((clip.video["range"], TV_RANGE, RANGE_UNSPECIFIED))
    return {
        "colour_other": float(sum(tag not in (wanted, unknown) for tag, wanted, unknown in tags)),
        "colour_untagged": float(sum(tag == unknown for tag, _, unknown in tags)),
        "pix_fmt_other": float(clip.video["pix_fmt"] != USUAL_PIX_FMT),
        "request_known": float(expectation.frames is not None),
    }
