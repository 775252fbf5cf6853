"""HTTP/2 frames and header blocks: what is sent need not be right, of what comes little is read."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
WINDOW_UPDATE, CONTINUATION = 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 4, 5
CANCEL: Final = 8
FRAME_BYTES: Final = 16384
WINDOW_DEFAULT: Final = 65535
WINDOW_MAX: Final = (1 << 31) - 1

# Servers write the name as it is, or in the Huffman code of RFC 7541. The value, two digits at
# most, is never shorter in that code, so it is always as it is.
_STATUS_NAMES: Final = (b"grpc-status", bytes.fromhex("9acac8b21234da8f"))


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    def ends_stream(self) -> bool:
        """Return whether it is the last one of its stream, from this side."""
        return self.kind == RST_STREAM or (
            self.kind in {DATA, HEADERS} and bool(self.flags & END_STREAM)
        )


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    """Encode a frame."""
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    """Encode a SETTINGS frame."""
    return frame(SETTINGS, b"".join(struct.pack(">HI", name, value) for name, value in values))


def window_update(stream_id: int, size: int) -> bytes:
    """Encode a WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, struct.pack(">I", size), stream_id=stream_id)


def reset(stream_id: int) -> bytes:
    """Encode a RST_STREAM frame."""
    return frame(RST_STREAM, struct.pack(">I", CANCEL), stream_id=stream_id)


def take_frames(buffer: bytearray) -> list[Frame]:
    """Remove the complete frames from the beginning of a buffer, and return them."""
    found, position = [], 0
    while len(buffer) - position >= 9:
        high, low, kind, flags, stream_id = struct.unpack_from(">BHBBI", buffer, position)
        end = position + 9 + (high << 16 | low)
        if end > len(buffer):
            break
        found.append(Frame(kind, flags, stream_id & WINDOW_MAX, bytes(buffer[position + 9 : end])))
        position = end
    del buffer[:position]
    return found


# Header blocks: every field is a literal that no table keeps (RFC 7541, 6.2.2).


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode a header block."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def grpc_status(block: bytes) -> int | None:
    """Return the gRPC status in a header block; None where there is none that can be read.

    The sender has been told that its table has no room, so nothing refers to earlier blocks.
    """
    position = 0
    while position < len(block):
        byte = block[position]
        if byte & 0x80:
            _, position = _read_int(block, position, 7)
        elif byte & 0xE0 == 0x20:
            _, position = _read_int(block, position, 5)
        else:
            index, position = _read_int(block, position, 6 if byte & 0x40 else 4)
            name = b""
            if not index:
                name, position = _read_string(block, position)
            value, position = _read_string(block, position)
            if name in _STATUS_NAMES and value.isdigit():
                return int(value)
    return None


def headers_of(received: Frame) -> bytes:
    """Return the header block of a HEADERS frame."""
    start, end = 0, len(received.payload)
    if received.flags & PADDED:
        start, end = 1, end - received.payload[0]
    if received.flags & PRIORITY:
        start += 5
    return received.payload[start:end]


def _string(text: str) -> bytes:
    data = text.encode()
    size = len(data)
    if size < 127:
        return bytes([size]) + data
    encoded, size = bytearray([127]), size - 127
    while size > 127:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded) + data


def _read_int(block: bytes, position: int, prefix_bits: int) -> tuple[int, int]:
    mask = (1 << prefix_bits) - 1
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _read_string(block: bytes, position: int) -> tuple[bytes, int]:
    size, position = _read_int(block, position, 7)
    return block[position : position + size], position + size
