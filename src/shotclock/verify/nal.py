"""Checks packets of H.264 and HEVC against the one rule that damage breaks and decoders forgive.

Inside a NAL unit no three bytes 00 00 00, 00 00 01 or 00 00 02 may follow each other (ITU-T H.264 section 7.4.1,
H.265 section 7.4.2.1), and the lengths of a packet's units must add up. A hole of zeros in a slice decodes to garbage
without a complaint of the decoder; here it is exact. Knows bytes only.
"""

from __future__ import annotations

LENGTH_BYTE = {"h264": 4, "hevc": 21}  # byte of avcC (ISO/IEC 14496-15 5.3.3) or hvcC (8.3.3) with the length size - 1
CONFIGURATION_VERSION = 1  # first byte of both; another one means start codes, which have no lengths
FORBIDDEN = (b"\x00\x00\x00", b"\x00\x00\x01", b"\x00\x00\x02")


def length_size(codec: str, extradata: bytes | None) -> int | None:
    """Bytes of a unit's length in this stream, 1 to 4; ``None`` when its packets are not of this kind."""
    place = LENGTH_BYTE.get(codec)
    if place is None or extradata is None or len(extradata) <= place or extradata[0] != CONFIGURATION_VERSION:
        return None
    return (extradata[place] & 3) + 1


def is_legal(packet: bytes, size: int) -> bool:
    """Whether a packet is whole units without a forbidden sequence; zeros that pad the end of a unit are forgiven."""
    position = 0
    while position < len(packet):
        begin = position + size
        position = begin + int.from_bytes(packet[position:begin], "big")
        if position > len(packet):
            return False
        unit = packet[begin:position].rstrip(b"\x00")
        if any(sequence in unit for sequence in FORBIDDEN):
            return False
    return True
