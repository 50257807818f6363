"""Units of packets: what an encoder writes is legal, holes and wrong lengths are not."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from shotclock.verify.nal import is_legal, length_size


def _unit(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("packet", "legal"),
    [
        (_unit(b"\x65abc") + _unit(b"\x41d"), True),
        (_unit(b"\x65a\x00\x00\x03\x00b"), True),
        (_unit(b"\x65ab\x00\x00\x00\x00"), True),
        (b"", True),
        (_unit(b"\x65a\x00\x00\x00b"), False),
        (_unit(b"\x65a\x00\x00\x01b"), False),
        (_unit(b"\x65a\x00\x00\x02b"), False),
        (_unit(b"\x65abc")[:-1], False),
        (_unit(b"\x65abc") + b"\x00\x00", False),
        (_unit(b"\x65abc") + b"\x00\x09", False),
    ],
)
def test_forbidden_sequences_and_wrong_lengths_are_illegal(packet: bytes, legal: bool) -> None:
    """Emulation prevention (00 00 03) and padding are legal."""
    assert is_legal(packet, 4) == legal


def test_packets_of_an_encoder_are_legal_and_a_hole_in_any_of_them_is_not(clip: Path) -> None:
    """Eight zero bytes in the middle of every packet that is long enough."""
    with av.open(str(clip)) as container:
        context = container.streams.video[0].codec_context
        size = length_size(context.name, context.extradata)
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size > 64]
    assert size == 4
    assert len(packets) > 10
    assert all(is_legal(packet, size) for packet in packets)
    middles = [len(packet) // 2 for packet in packets]
    assert not any(is_legal(p[:m] + bytes(8) + p[m + 8 :], size) for p, m in zip(packets, middles, strict=True))


def test_other_codecs_and_start_codes_have_no_lengths() -> None:
    """Not judged, and not guessed."""
    assert length_size("vp9", b"\x01" * 30) is None
    assert length_size("h264", None) is None
    assert length_size("h264", b"\x00\x00\x00\x01gabc") is None
    assert length_size("hevc", b"\x01" * 21 + b"\x03") == 4
