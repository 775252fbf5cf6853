"""What the response of a call looks like in HTTP/2."""

from __future__ import annotations

from typing import Final

from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.exchange import Outcome
from commitbus.broker.rpc.http2.engine import Engine, Headers
from commitbus.broker.rpc.http2.grpc_wire import encode_message, status_fields

RESPONSE_FIELDS: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK_FIELDS: Final = ((b"grpc-status", b"0"),)

_GZIP_FIELDS: Final = (*RESPONSE_FIELDS, (b"grpc-encoding", b"gzip"))


def response_fields(*, is_gzip: bool) -> Headers:
    """Return what a response with messages begins with; `is_gzip`: they may be compressed."""
    return _GZIP_FIELDS if is_gzip else RESPONSE_FIELDS


def respond(engine: Engine, stream_id: int, outcome: Outcome, *, is_gzip: bool) -> None:
    """Queue all of a response: one message, or a status without any."""
    if isinstance(outcome, bytes):
        data = encode_message(outcome, gzip=is_gzip)
        engine.submit_response(stream_id, response_fields(is_gzip=is_gzip), data, _OK_FIELDS)
    else:
        fields = (*RESPONSE_FIELDS, *status_of(outcome))
        engine.submit_headers(stream_id, fields, end_stream=True)


def status_of(error: RpcError | None) -> Headers:
    """Return the header fields that end a call: with an error, or without one."""
    return _OK_FIELDS if error is None else status_fields(error)
