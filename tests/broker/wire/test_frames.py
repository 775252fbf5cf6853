"""The records of a batch as they travel."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.wire.frames import FramesError, checksum, decode_frames, encode_frames

PARTS = st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=20)), max_size=20)


@given(PARTS)
def test_what_was_framed_is_taken_apart_again(pairs: list[tuple[bytes, bytes]]) -> None:
    frames = decode_frames(*encode_frames([part for pair in pairs for part in pair]))
    assert len(frames) == len(pairs)
    assert list(zip(frames.bodies(), frames.properties(), strict=True)) == pairs


def test_the_bytes_are_those_of_the_diagram() -> None:
    lengths, records = encode_frames([b"body", b"pp", b"x", b""])
    assert lengths == bytes.fromhex("04000000 02000000 01000000 00000000")
    assert records == b"bodyppx"
    assert checksum(lengths, records) == zlib.crc32(lengths + records)


def test_lengths_that_do_not_fit_the_records_are_refused() -> None:
    lengths, records = encode_frames([b"body", b"pp"])
    for wrong in (lengths[:-1], lengths + lengths, b"", np.full(2, -1, "<i4").tobytes()):
        with pytest.raises(FramesError):
            decode_frames(wrong, records)
    for short in (records[:-1], records + b"x"):
        with pytest.raises(FramesError):
            decode_frames(lengths, short)
