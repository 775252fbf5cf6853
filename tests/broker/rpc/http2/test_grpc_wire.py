"""gRPC's own layer: messages, timeouts, statuses, compression."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.grpc_wire import (
    COMPRESS_FROM_BYTES,
    MessageReader,
    decompress,
    encode_message,
    format_timeout,
    parse_timeout_s,
    percent_decode,
    percent_encode,
    status_fields,
)

LIMIT = 1 << 20


def refused(error: pytest.ExceptionInfo[RpcError]) -> StatusCode:
    return error.value.code


@given(st.lists(st.binary(max_size=3000)), st.lists(st.integers(1, 500)), st.booleans())
def test_messages_are_found_however_their_bytes_are_cut(
    messages: list[bytes],
    cuts: list[int],
    gzip: bool,  # noqa: FBT001 - hypothesis's
) -> None:
    """Byte by byte, several at once, compressed or not."""
    body = b"".join(encode_message(message, gzip=gzip) for message in messages)
    reader = MessageReader(LIMIT, is_gzip=gzip)
    found = []
    while body:
        size = cuts.pop() if cuts else 200
        reader.feed(body[:size])
        body = body[size:]
        while (message := reader.take()) is not None:
            found.append(message)
    assert found == messages
    assert reader.is_between_messages
    assert reader.buffered_bytes == 0


def test_a_message_in_tiny_pieces_takes_little_more_than_its_bytes() -> None:
    """A client that sends two bytes in each frame must not make them fifty."""
    body = encode_message(bytes(range(250)) * 400)
    reader = MessageReader(LIMIT)
    tracemalloc.start()
    for start in range(0, len(body) - 2, 2):
        reader.feed(body[start : start + 2])
        assert reader.take() is None
    # Threads of other tests may be at work, loading the kernels for example.
    here = [
        tracemalloc.Filter(inclusive=True, filename_pattern=name)
        for name in ("*/grpc_wire.py", __file__)
    ]
    traces = tracemalloc.take_snapshot().filter_traces(here)
    tracemalloc.stop()
    taken_bytes = sum(trace.size for trace in traces.traces)
    assert taken_bytes < 1.5 * len(body)
    reader.feed(body[-1:])
    assert reader.take() == body[5:]


def test_a_body_may_not_end_inside_a_message() -> None:
    """Nor inside the prefix of one."""
    for size in range(1, 8):
        reader = MessageReader(LIMIT)
        reader.feed(encode_message(b"abc")[:size])
        assert (reader.take() is None) == (size < 8)
        assert reader.is_between_messages == (size == 8)


def test_a_message_that_is_too_large_is_refused_by_its_prefix() -> None:
    """Before any of it has arrived; one of exactly the limit is not."""
    reader = MessageReader(100)
    reader.feed(encode_message(bytes(100)))
    assert reader.take() == bytes(100)
    reader.feed(encode_message(bytes(101))[:5])
    with pytest.raises(RpcError) as error:
        reader.take()
    assert refused(error) is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compression_that_was_not_announced_is_refused(flag: int) -> None:
    """And flags that mean nothing."""
    reader = MessageReader(LIMIT)
    reader.feed(bytes([flag, 0, 0, 0, 0]))
    with pytest.raises(RpcError) as error:
        reader.take()
    assert refused(error) is StatusCode.INTERNAL


def test_gzip_is_unpacked_up_to_the_limit_and_no_further() -> None:
    """A megabyte of zeros takes a kilobyte: what counts is what comes out."""
    packed = zlib.compress(bytes(LIMIT), 9, 31)
    assert decompress(packed, LIMIT) == bytes(LIMIT)
    with pytest.raises(RpcError) as error:
        decompress(packed, LIMIT - 1)
    assert refused(error) is StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("data", [b"", b"rubbish", zlib.compress(b"abc" * 99, 9, 31)[:-3]])
def test_what_is_no_gzip_is_refused(data: bytes) -> None:
    """Also one that is cut off."""
    with pytest.raises(RpcError) as error:
        decompress(data, LIMIT)
    assert refused(error) is StatusCode.INTERNAL


def test_small_messages_are_not_compressed() -> None:
    """Though they might be."""
    small, large = bytes(COMPRESS_FROM_BYTES - 1), bytes(COMPRESS_FROM_BYTES)
    assert encode_message(small, gzip=True) == encode_message(small)
    assert len(encode_message(large, gzip=True)) < 100


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"30S", 30),
        (b"250m", 0.25),
        (b"99999999u", 99.999999),
        (b"5n", 5e-9),
        (b"0S", 0),
    ],
)
def test_a_timeout_has_a_unit(value: bytes, seconds: float) -> None:
    """Six of them."""
    assert parse_timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"123456789S", b"-1S", b"1s", b"1.5S", b"1S "])
def test_a_malformed_timeout_is_refused(value: bytes) -> None:
    """At most eight digits, one unit, nothing else."""
    with pytest.raises(RpcError) as error:
        parse_timeout_s(value)
    assert refused(error) is StatusCode.INTERNAL


@given(st.floats(0, 3e11))
def test_a_timeout_that_was_formatted_is_at_least_as_long(seconds: float) -> None:
    """And hardly longer: the finest unit that has room is taken."""
    parsed = parse_timeout_s(format_timeout(seconds))
    assert parsed == pytest.approx(seconds, rel=1e-4, abs=1e-8)
    assert parsed >= seconds * (1 - 1e-9)


def test_a_timeout_beyond_all_units_is_the_longest() -> None:
    """11,000 years."""
    assert format_timeout(1e15) == b"99999999H"


@given(st.text())
def test_a_message_of_a_status_survives(message: str) -> None:
    """In printable ASCII, whatever is in it."""
    encoded = percent_encode(message)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    surrogates = any(0xD800 <= ord(character) <= 0xDFFF for character in message)
    assert surrogates or percent_decode(encoded) == message


def test_malformed_percent_encoding_stays_as_it_is() -> None:
    """The protocol says: do not lose what cannot be decoded."""
    assert percent_decode(b"100%") == "100%"
    assert percent_decode(b"%zz") == "%zz"
    assert percent_decode(b"%ff") == "\N{REPLACEMENT CHARACTER}"


def test_a_status_is_two_fields() -> None:
    """Or one, when there is nothing to say."""
    assert status_fields(RpcError(StatusCode.ABORTED, "50 %\n")) == [
        (b"grpc-status", b"10"),
        (b"grpc-message", b"50 %25%0A"),
    ]
    assert status_fields(RpcError(StatusCode.ABORTED, "")) == [(b"grpc-status", b"10")]
