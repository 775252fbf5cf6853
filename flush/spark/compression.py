"""Bodies that their producer compressed: bit 0x1 of the system flag.

The flag's bits 0x700 name the method, but what gRPC clients send as GZIP is stored without them
and may be gzip or zlib. The first bytes of the body tell the four methods apart reliably.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types

COMPRESSED_FLAG: Final = 0x1
PLAIN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one body: 16 times what a broker accepts. A few KB can be made to unpack to gigabytes."""

_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_LZ4_FRAME_MAGIC: Final = bytes.fromhex("04224d18")
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


def plain_body(body: bytes) -> bytes:
    """Return a compressed body as it was before; as stored if that cannot be done.

    A producer may set the flag on anything, so a body that does not unpack, or unpacks to more than
    `PLAIN_BYTES_MAX`, is no damage: it is handed out as it is.
    """
    magic = body[:4]
    try:
        if magic in (_ZSTD_MAGIC, _LZ4_FRAME_MAGIC):
            method = "zstd" if magic == _ZSTD_MAGIC else "lz4"
            with pa.CompressedInputStream(pa.BufferReader(body), method) as stream:
                plain: bytes = stream.read(PLAIN_BYTES_MAX + 1)
        else:
            stream = zlib.decompressobj(_ZLIB_OR_GZIP)
            plain = stream.decompress(body, PLAIN_BYTES_MAX + 1)
            if not stream.eof and len(plain) <= PLAIN_BYTES_MAX:
                return body
    except (zlib.error, OSError):
        return body
    return plain if len(plain) <= PLAIN_BYTES_MAX else body
