"""What a request must say of itself."""

from __future__ import annotations

import pytest

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.http2.request_head import HeadRefusedError, method_of
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

METHOD = Method(
    "/a.B/C",
    MethodKind.UNARY,
    pb.RecallMessageRequest,
    pb.RecallMessageResponse,
    lambda *_: pb.RecallMessageResponse(),
    access=NOTHING,
)
METHODS = {b"/a.B/C": METHOD}
GOOD = {b":method": b"POST", b":path": b"/a.B/C", b"content-type": b"application/grpc"}


def refusal(**changes: bytes) -> dict[bytes, bytes]:
    """The fields that a request with these changes is answered with."""
    names = {name.replace("_", "-").encode(): value for name, value in changes.items()}
    fields = {**GOOD, **{b":" + n if b":" + n in GOOD else n: v for n, v in names.items()}}
    with pytest.raises(HeadRefusedError) as error:
        method_of(fields, METHODS)
    return dict(error.value.fields)


@pytest.mark.parametrize(
    "content_type",
    [b"application/grpc", b"application/grpc+proto", b"application/grpc;charset=utf-8"],
)
@pytest.mark.parametrize("extra", [{}, {b"te": b"trailers"}, {b"grpc-encoding": b"gzip"}])
def test_a_grpc_request_is_taken(content_type: bytes, extra: dict[bytes, bytes]) -> None:
    """With and without `te`."""
    assert method_of({**GOOD, b"content-type": content_type, **extra}, METHODS) is METHOD


@pytest.mark.parametrize(
    "content_type", [b"", b"text/html", b"application/json", b"application/grpc-web"]
)
def test_another_content_type_is_415(content_type: bytes) -> None:
    """HTTP's own status: whoever asks does not speak gRPC."""
    assert refusal(content_type=content_type)[b":status"] == b"415"


@pytest.mark.parametrize("verb", [b"GET", b"HEAD", b"PUT"])
def test_another_verb_is_405(verb: bytes) -> None:
    """The same."""
    assert refusal(method=verb)[b":status"] == b"405"


def test_an_unknown_method_or_encoding_is_unimplemented() -> None:
    """The client is told which encodings there are."""
    assert refusal(path=b"/a.B/D")[b"grpc-status"] == b"12"
    fields = refusal(grpc_encoding=b"snappy")
    assert fields[b"grpc-status"] == b"12"
    assert fields[b"grpc-accept-encoding"] == b"identity,gzip"
