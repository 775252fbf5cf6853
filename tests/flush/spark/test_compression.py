"""Compressed bodies come out plain, and nothing a producer sends can do harm."""

from __future__ import annotations

import gzip
import zlib

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
import pytest

from commitbus.flush.spark import compression
from commitbus.flush.spark.compression import plain_body

PLAIN = b"the same words again and again " * 50


def arrow_compressed(method: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, method) as stream:
        stream.write(PLAIN)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    "compressed",
    [zlib.compress(PLAIN), gzip.compress(PLAIN), arrow_compressed("zstd"), arrow_compressed("lz4")],
    ids=["zlib", "gzip", "zstd", "lz4"],
)
def test_every_method_of_rocketmq_is_undone(compressed: bytes) -> None:
    """The first bytes tell the method."""
    assert plain_body(compressed) == PLAIN


@pytest.mark.parametrize("method", ["zlib", "zstd", "lz4"])
def test_a_body_that_does_not_unpack_stays(method: str) -> None:
    """A cut or wrong stream is what the producer sent, so it is handed out."""
    whole = zlib.compress(PLAIN) if method == "zlib" else arrow_compressed(method)
    for length in (0, 1, 4, 10):
        assert plain_body(whole[:length]) == whole[:length]
    assert plain_body(b"no stream at all") == b"no stream at all"


def test_a_body_that_unpacks_to_too_much_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body can hold gigabytes of zeros."""
    monkeypatch.setattr(compression, "PLAIN_BYTES_MAX", len(PLAIN) - 1)
    for bomb in (zlib.compress(PLAIN), gzip.compress(PLAIN), arrow_compressed("zstd")):
        assert plain_body(bomb) == bomb
    monkeypatch.setattr(compression, "PLAIN_BYTES_MAX", len(PLAIN))
    assert plain_body(zlib.compress(PLAIN)) == PLAIN
