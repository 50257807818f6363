"""The mp4's own word: which run made it, and that its packets are those; through remuxes, without paths or prompts."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import av
import pytest
import torch

from shotclock.errors import RunDirError
from shotclock.record.essence import packets_sha256, read_tag, remux, write_tag
from shotclock.render.media import write_clip

RATE = 48000


def clip_at(path: Path, fps: Fraction = Fraction(24), level: int = 0) -> Path:
    """Nine pictures with sound, as a render writes them."""
    ramp = torch.arange(64 * 48).reshape(1, 48, 64, 1).expand(9, 48, 64, 3)
    frames = ((ramp + 7 * torch.arange(9)[:, None, None, None] + level) % 256).to(torch.uint8)
    wave = torch.sin(torch.arange(int(9 / fps * RATE)) / 20).repeat(2, 1) * 0.3
    write_clip(path, [frames], fps=fps, wave=wave, sample_rate=RATE, comment="")
    return path


def shape(path: Path) -> list[tuple[object, ...]]:
    """What a player sees: kinds, times, durations, rates, and every packet's time."""
    with av.open(str(path)) as file:
        streams = [(s.type, s.start_time, s.duration, s.time_base, s.frames) for s in file.streams]
        packets = [(p.stream.index, p.pts, p.dts, p.duration) for p in file.demux() if p.size]
        return [*streams, *sorted(packets)]


def tag(path: Path) -> None:
    write_tag(path, run="20261201T100000Z-abc123", request_sha256="a" * 64, version="0.1.0")


@pytest.mark.parametrize("fps", [Fraction(24), Fraction(24000, 1001)])
def test_tagging_changes_the_comment_and_nothing_else(tmp_path: Path, fps: Fraction) -> None:
    """Packets, their times, priming, durations and rates stay; the index stays in front."""
    clip = clip_at(tmp_path / "clip.mp4", fps)
    before, packets = shape(clip), packets_sha256(clip)
    tag(clip)
    assert shape(clip) == before and packets_sha256(clip) == packets
    found = read_tag(clip)
    assert found is not None and (found.run, found.packets_sha256) == ("20261201T100000Z-abc123", packets)
    content = clip.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")
    assert [path.name for path in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_tag_and_packets_survive_a_remux_by_others(tmp_path: Path, suffix: str) -> None:
    """A plain copy of streams and metadata, into mp4 and into Matroska."""
    clip = clip_at(tmp_path / "clip.mp4")
    tag(clip)
    copy = tmp_path / f"copy.{suffix}"
    with av.open(str(clip)) as source, av.open(str(copy), "w") as target:
        target.metadata.update(source.metadata)
        streams = {s.index: target.add_stream_from_template(s) for s in source.streams}
        for packet in source.demux():
            if packet.size:
                packet.stream = streams[packet.stream.index]
                target.mux(packet)
    assert read_tag(copy) == read_tag(clip)
    assert packets_sha256(copy) == packets_sha256(clip)
    assert copy.read_bytes() != clip.read_bytes()


def test_another_clip_has_other_packets(tmp_path: Path) -> None:
    """The digest is of pictures and sound, and of both."""
    one = packets_sha256(clip_at(tmp_path / "a.mp4"))
    assert packets_sha256(tmp_path / "a.mp4") == one
    assert packets_sha256(clip_at(tmp_path / "c.mp4", level=9)) != one
    write_clip(
        tmp_path / "d.mp4",
        [torch.zeros(9, 48, 64, 3, dtype=torch.uint8)],
        fps=Fraction(24),
        wave=None,
        sample_rate=RATE,
        comment="",
    )
    assert packets_sha256(tmp_path / "d.mp4") != one


def test_the_tag_is_compact_and_holds_digests_only(tmp_path: Path) -> None:
    """Four fields, no path, no prompt, in the standard comment."""
    clip = clip_at(tmp_path / "clip.mp4")
    tag(clip)
    with av.open(str(clip)) as file:
        text = file.metadata["comment"]
    assert set(json.loads(text)) == {"shotclock", "run", "request_sha256", "packets_sha256"}
    assert len(text) < 300 and "/" not in text and "\n" not in text


def test_a_foreign_comment_is_no_tag_and_a_broken_file_is_refused(tmp_path: Path) -> None:
    """A clip of another program, and no clip at all."""
    clip = clip_at(tmp_path / "clip.mp4")
    assert read_tag(clip) is None
    remux(clip, tmp_path / "other.mp4", comment='{"prompt": "a cat"}')
    assert read_tag(tmp_path / "other.mp4") is None
    (tmp_path / "broken.mp4").write_bytes(clip.read_bytes()[:200])
    with pytest.raises(RunDirError):
        packets_sha256(tmp_path / "broken.mp4")
    with pytest.raises(RunDirError):
        tag(tmp_path / "broken.mp4")
    assert (tmp_path / "broken.mp4").stat().st_size == 200
