"""gRPC's own layer on HTTP/2, as pure functions over bytes.

A body is a sequence of messages, each

    +------------+----------------+=========+
    | compressed | length         | message |
    | 1 byte     | 4, big-endian  | length  |
    +------------+----------------+=========+

and a response ends with a status in its trailers. Source: the protocol description in the gRPC
project (doc/PROTOCOL-HTTP2.md and doc/compression.md).
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections import deque
from typing import Final, final
from urllib.parse import unquote_to_bytes

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.outcome import too_large

PREFIX: Final = struct.Struct(">BI")
PREFIX_BYTES: Final = PREFIX.size

ACCEPTED_ENCODINGS: Final = (b"identity", b"gzip")
COMPRESS_FROM_BYTES: Final = 1024
"""Smaller messages are sent as they are: gzip would cost more than it saves."""
_GZIP_LEVEL: Final = 1
_GZIP_WBITS: Final = 31

_JOINED_BYTES: Final = 1024
"""Pieces of a message are joined up to here: each takes 40 bytes and more beside its own."""

_TIMEOUT_DIGITS_MAX: Final = 8
_TIMEOUT_UNIT_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

# Everything but printable ASCII, and the percent sign itself.
_NOT_PLAIN: Final = re.compile(rb"[^ -$&-~]")


def parse_timeout_s(value: bytes) -> float:
    """Return the seconds that a `grpc-timeout` header says.

    Raises:
        RpcError: INTERNAL, it is none.
    """
    digits, unit_s = value[:-1], _TIMEOUT_UNIT_S.get(value[-1:])
    if unit_s is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        raise RpcError(StatusCode.INTERNAL, "malformed grpc-timeout")
    return int(digits) * unit_s


def format_timeout(seconds: float) -> bytes:
    """Return the `grpc-timeout` of at least so many seconds, in the finest unit that fits."""
    for unit, unit_s in reversed(_TIMEOUT_UNIT_S.items()):
        count = math.ceil(max(seconds, 0.0) / unit_s)
        if count < 10**_TIMEOUT_DIGITS_MAX:
            return b"%d%s" % (count, unit)
    return b"99999999H"


def percent_encode(message: str) -> bytes:
    """Return a `grpc-message`: UTF-8, with everything but printable ASCII as `%XX`."""
    data = message.encode("utf-8", "replace")
    return _NOT_PLAIN.sub(lambda match: b"%%%02X" % match[0][0], data)


def percent_decode(value: bytes) -> str:
    """Return the message that a `grpc-message` carries; what is malformed in it stays as it is."""
    return unquote_to_bytes(value).decode("utf-8", "replace")


def status_fields(error: RpcError) -> list[tuple[bytes, bytes]]:
    """Return the header fields that carry a status."""
    fields = [(b"grpc-status", b"%d" % error.code)]
    if error.message:
        fields.append((b"grpc-message", percent_encode(error.message)))
    return fields


def encode_message(data: bytes, *, gzip: bool = False) -> bytes:
    """Return a message with its prefix, compressed if that is wanted and worth it."""
    if gzip and len(data) >= COMPRESS_FROM_BYTES:
        data = zlib.compress(data, _GZIP_LEVEL, _GZIP_WBITS)
        return PREFIX.pack(1, len(data)) + data
    return PREFIX.pack(0, len(data)) + data


def only_message(body: bytes, max_bytes: int) -> bytes | None:
    """Return the message that makes up a whole body, as nearly every request does.

    None if it is anything else: a `MessageReader` then tells what.
    """
    if len(body) < PREFIX_BYTES:
        return None
    flag, length = PREFIX.unpack_from(body)
    is_plain_and_whole = not flag and length == len(body) - PREFIX_BYTES <= max_bytes
    return body[PREFIX_BYTES:] if is_plain_and_whole else None


def decompress(data: bytes | memoryview, max_bytes: int) -> bytes:
    """Return what a gzip member holds.

    Raises:
        RpcError: RESOURCE_EXHAUSTED, it holds more than `max_bytes`; found out before more than
            that is unpacked. INTERNAL, it is no gzip.
    """
    unpacker = zlib.decompressobj(_GZIP_WBITS)
    try:
        plain = unpacker.decompress(data, max_bytes + 1)
    except zlib.error:
        raise RpcError(StatusCode.INTERNAL, "a message is not gzip, though it says so") from None
    if len(plain) > max_bytes:
        raise too_large(len(plain), max_bytes)
    if not unpacker.eof:
        raise RpcError(StatusCode.INTERNAL, "a message is cut off inside its gzip")
    return plain


@final
class MessageReader:
    """Cuts the bytes of a body, however they arrive, into messages.

    Its memory is what was fed and not yet taken, in however small pieces: a length that is
    announced reserves nothing.
    """

    __slots__ = (
        *("_chunks", "_compressed", "_is_gzip", "_length", "_max_bytes", "_taken"),
        *("buffered_bytes", "compressed_bytes"),
    )

    def __init__(self, max_bytes: int, *, is_gzip: bool = False) -> None:
        """A message over `max_bytes`, packed or unpacked, is refused; `is_gzip`: may be packed."""
        self._max_bytes, self._is_gzip = max_bytes, is_gzip
        self._chunks: deque[bytes] = deque()
        self._taken = 0  # bytes of the first chunk that were taken already
        self.buffered_bytes = 0
        self.compressed_bytes: int | None = None
        """The size on the wire of the message that was taken last; None if it was plain."""
        self._length: int | None = None
        self._compressed = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        chunks = self._chunks
        if chunks and len(chunks[-1]) < _JOINED_BYTES:
            chunks[-1] += data
        elif data:
            chunks.append(data)
        self.buffered_bytes += len(data)

    def take(self) -> bytes | None:
        """Return the next message, unpacked, or None until it is complete.

        Raises:
            RpcError: the message is too large, or is compressed and should not be, or cannot be
                unpacked. Nothing can be taken after that.
        """
        data = self.take_as_sent()
        if data is None or self.compressed_bytes is None:
            return data
        return decompress(data, self._max_bytes)

    def take_as_sent(self) -> bytes | None:
        """Return the next message, packed if `compressed_bytes` is set then; see `take`."""
        if self._length is None:
            if self.buffered_bytes < PREFIX_BYTES:
                return None
            flag, length = PREFIX.unpack(self._cut(PREFIX_BYTES))
            check_prefix(flag, length, self._max_bytes, is_gzip=self._is_gzip)
            self._length, self._compressed = length, bool(flag)
        if self.buffered_bytes < self._length:
            return None
        data = self._cut(self._length)
        self._length = None
        self.compressed_bytes = len(data) if self._compressed else None
        return data

    def drop(self) -> None:
        """Forget what was fed; nothing can be taken after that."""
        self._chunks.clear()
        self._taken = self.buffered_bytes = 0

    @property
    def is_between_messages(self) -> bool:
        """Return whether the body may end here."""
        return self._length is None and not self.buffered_bytes

    def _cut(self, size: int) -> bytes:
        """Return the first bytes, of which there are enough."""
        self.buffered_bytes -= size
        pieces = []
        while size:
            piece = self._chunks[0][self._taken : self._taken + size]
            self._taken += len(piece)
            size -= len(piece)
            pieces.append(piece)
            if self._taken == len(self._chunks[0]):
                self._chunks.popleft()
                self._taken = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def check_prefix(flag: int, length: int, max_bytes: int, *, is_gzip: bool) -> None:
    """Check what a message says of itself, before anything is done about it.

    Raises:
        RpcError: RESOURCE_EXHAUSTED, it is too large; INTERNAL, it is compressed although the call
            did not name an encoding, or the flag is neither.
    """
    if length > max_bytes:
        raise too_large(length, max_bytes)
    if flag > 1 or (flag and not is_gzip):
        raise RpcError(StatusCode.INTERNAL, "a message is compressed in no encoding that was named")
