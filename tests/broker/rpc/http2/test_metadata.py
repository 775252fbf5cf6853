"""Headers as handlers see them."""

from __future__ import annotations

import pytest

from commitbus.broker.rpc.http2.metadata import Metadata, SharedBytes

FIELDS = {
    b":path": b"/a/b",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
    b"grpc-timeout": b"1S",
    b"trace-bin": b"AAA",
    b"x-mq-client-id": b"me@1",
    b"x-latin": b"\xe9",
}


@pytest.mark.parametrize("is_shrunk", [False, True])
def test_only_the_callers_own_text_is_seen(*, is_shrunk: bool) -> None:
    """Neither HTTP/2's headers nor gRPC's, and no binary ones."""
    metadata = Metadata(dict(FIELDS))
    if is_shrunk:
        metadata.shrink(SharedBytes())
    assert dict(metadata) == {
        "x-mq-client-id": "me@1",
        "x-latin": "\N{LATIN SMALL LETTER E WITH ACUTE}",
    }
    assert len(metadata) == 2
    assert metadata["x-mq-client-id"] == metadata.get("x-mq-client-id") == "me@1"
    for name in (":path", "te", "grpc-timeout", "trace-bin", "nonsense"):
        assert name not in metadata
        assert metadata.get(name) is None
        assert metadata.get(name, "") == ""
        with pytest.raises(KeyError):
            metadata[name]


def test_of_a_parked_call_only_the_client_is_remembered() -> None:
    """It is logged if the call fails."""
    metadata, shared = Metadata(dict(FIELDS)), SharedBytes()
    metadata.shrink_to_client_id(shared)
    assert dict(metadata) == {"x-mq-client-id": "me@1"}
    other = Metadata(dict(FIELDS))
    other.shrink_to_client_id(shared)
    assert other._fields is metadata._fields, "one for all calls of a client"
    nameless = Metadata({b"x-other": b"a"})
    nameless.shrink_to_client_id(shared)
    assert dict(nameless) == {}


def test_equal_values_are_kept_once_and_not_for_ever() -> None:
    """Values that never come again must not pile up."""
    shared = SharedBytes()
    first = shared.of(b"x" * 10)
    assert shared.of(b"x" * 10) is first
    for number in range(100_000):
        shared.of(b"%d" % number)
    assert len(shared._known) <= 4096
    for number in range(1000):
        shared.of(b"%0300d" % number)
        shared.client(b"%0300d" % number)
    for number in range(10_000):
        assert shared.client(b"%d" % number) == {b"x-mq-client-id": b"%d" % number}
    assert sum(map(len, shared._known)) < 100_000
    assert len(shared._clients) <= 4096
    assert max(map(len, shared._clients)) < 300
