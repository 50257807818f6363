"""What a clip is apart from its container: the digest of its packets, and the short text that says which run made it.

The text lies in the mp4's ``comment`` tag and survives a remux; the packets' digest is unchanged by one. Holds no path
and no prompt. Knows no ledger.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import av
from pydantic import ValidationError

from shotclock.errors import RenderFailed, RunDirError
from shotclock.record.facts import Strict
from shotclock.rundir import aside

COPIED = ("video", "audio")  # kinds of streams that a clip has
MOVIE_TIMESCALE = "48000"  # finer than milliseconds, so that the durations of the edit lists stay exact to a sample


class Tag(Strict):
    """The ``comment`` of a clip: which run, which request, which packets, and the numerics that changed on the way.

    ``seams`` names, for each seam, the step before it and the fields that differ: "after step 12: torch". Empty for a
    clip that one fingerprint made. ``quantised`` says in what the transformer multiplied, where that was not exact.
    """

    shotclock: str
    run: str
    request_sha256: str
    packets_sha256: str
    seams: tuple[str, ...] = ()
    quantised: str | None = None

    def to_json(self) -> str:
        """Compact, for a metadata tag."""
        return json.dumps(self.model_dump(exclude_defaults=True), sort_keys=True, separators=(",", ":"))


def packets_sha256(clip: Path) -> str:
    """sha256 over the packets of all streams, video before audio: the same after any remux.

    Each stream adds its kind, its codec and, packet by packet, length and bytes. Times are left out: containers round
    them. Raises :class:`RunDirError` for a file that is no clip.
    """
    try:
        with av.open(str(clip)) as file:
            streams = [stream for stream in file.streams if stream.type in COPIED]
            digests = {stream.index: hashlib.sha256() for stream in streams}
            packets = 0
            for packet in file.demux(streams):
                if packet.size:
                    packets += 1
                    digests[packet.stream.index].update(packet.size.to_bytes(8, "little") + bytes(packet))
            parts = sorted(
                (COPIED.index(stream.type), stream.index, stream.codec_context.name, digests[stream.index].hexdigest())
                for stream in streams
            )
    except (av.FFmpegError, OSError) as bad:
        raise _unreadable(clip, bad) from None
    if not packets:
        raise _unreadable(clip, "it holds no picture and no sound")
    return hashlib.sha256(
        json.dumps([[COPIED[kind], codec, hexed] for kind, _, codec, hexed in parts]).encode()
    ).hexdigest()


def write_tag(
    clip: Path,
    *,
    run: str,
    request_sha256: str,
    version: str,
    seams: tuple[str, ...] = (),
    quantised: str | None = None,
) -> Tag:
    """Put the tag into ``clip`` by copying its packets into a new file that takes its place, whole or not at all.

    Raises :class:`RenderFailed` where the copy's packets are not the same: then the clip is as it was.
    """
    tag = Tag(
        shotclock=version,
        run=run,
        request_sha256=request_sha256,
        packets_sha256=packets_sha256(clip),
        seams=seams,
        quantised=quantised,
    )
    try:
        with aside(clip) as copy:
            remux(clip, copy, comment=tag.to_json())
            if packets_sha256(copy) != tag.packets_sha256:
                raise RenderFailed(
                    f"{clip.name}: the copy with a comment holds other packets",
                    allowed="the same packets",
                    way_out="render with --no-embed; the clip without a comment is kept",
                )
    except av.FFmpegError as bad:
        raise _unreadable(clip, bad) from None
    return tag


def remux(clip: Path, copy: Path, *, comment: str) -> None:
    """Copy video and audio packets as they are, the index in front, with ``comment``."""
    options = {"movflags": "+faststart", "movie_timescale": MOVIE_TIMESCALE}
    with av.open(str(clip)) as source, av.open(str(copy), "w", format="mp4", options=options) as target:
        target.metadata["comment"] = comment
        streams = {s.index: target.add_stream_from_template(s) for s in source.streams if s.type in COPIED}
        for packet in source.demux():
            if packet.size and packet.stream.index in streams:
                packet.stream = streams[packet.stream.index]
                target.mux(packet)


def read_tag(clip: Path) -> Tag | None:
    """The tag of a clip, None where it has none of ours."""
    try:
        with av.open(str(clip)) as file:
            text = file.metadata.get("comment") or file.metadata.get("COMMENT") or ""
    except (av.FFmpegError, OSError) as bad:
        raise _unreadable(clip, bad) from None
    try:
        return Tag.model_validate_json(text)
    except ValidationError:
        return None


def _unreadable(clip: Path, bad: Exception | str) -> RunDirError:
    return RunDirError(
        f"{clip.name}: {getattr(bad, 'strerror', None) or bad}",
        allowed="an mp4 that can be read",
        way_out="verify the clip: `shotclock verify CLIP`",
    )
