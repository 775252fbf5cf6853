"""A long record without its body, for readers that want its properties only.

    record     | header | body | topic | properties |
    result     | header |        topic | properties |      size and body length changed to fit

It passes the same checks as any record, so other modules need not know the layout of a record.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import HEADER_FORMATS, HOST_FLAGS, SIZE

HEAD_BYTES: Final = HEADER_FORMATS[HOST_FLAGS].size
"""The longest header."""
_SYS_FLAG: Final = Struct(">36xi")


def header_without_body(head: bytes, size_bytes: int, physical_offset: int) -> tuple[bytes, int]:
    """Return the header of the same record without its body, and how long the body is.

    Args:
        head: The first `HEAD_BYTES` of the record.
        size_bytes: Size of the record.
        physical_offset: Where it lies.

    Raises:
        CorruptRecordError: The bytes cannot begin such a record.
    """
    layout = HEADER_FORMATS[_SYS_FLAG.unpack_from(head)[0] & HOST_FLAGS]
    header = bytearray(head[: layout.size])
    body_length = layout.size - SIZE.size
    (size,), (body_bytes,) = SIZE.unpack_from(header), SIZE.unpack_from(header, body_length)
    if size != size_bytes or body_bytes > size - layout.size:
        raise CorruptRecordError(
            physical_offset, f"size {size}, body {body_bytes}: its queue says {size_bytes} bytes"
        )
    SIZE.pack_into(header, 0, size - body_bytes)
    SIZE.pack_into(header, body_length, 0)
    return bytes(header), body_bytes
