"""What the headers of a request must say, before anything is done about it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, final

from commitbus.broker.common.shown import shown
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.http2.engine import DataReceived, Engine, Event, Headers, RequestReceived
from commitbus.broker.rpc.http2.grpc_wire import (
    ACCEPTED_ENCODINGS,
    only_message,
    parse_timeout_s,
    status_fields,
)
from commitbus.broker.rpc.http2.metadata import Metadata
from commitbus.broker.rpc.http2.response import RESPONSE_FIELDS
from commitbus.broker.rpc.method import Method, MethodKind

CONTENT_TYPE: Final = b"application/grpc"

_NOT_POST: Final = ((b":status", b"405"), (b"allow", b"POST"), (b"content-type", b"text/plain"))
_NOT_GRPC: Final = ((b":status", b"415"), (b"content-type", b"text/plain"))
_IS_GRPC: Final = re.compile(rb"application/grpc(\Z|[+;])", re.IGNORECASE)
_HINT: Final = b"This port speaks gRPC.\n"
_ACCEPT_ENCODING: Final = (b"grpc-accept-encoding", b",".join(ACCEPTED_ENCODINGS))


@final
class HeadRefusedError(Exception):
    """A request is answered with these fields, and this text for whoever came with a browser."""

    def __init__(self, fields: Headers, text: bytes = b"") -> None:
        self.fields, self.text = fields, text
        super().__init__(fields)


@final
class Heads:
    """Makes the calls of one connection from the headers of their requests."""

    __slots__ = ("_authority", "_peer")

    def __init__(self, peer: str) -> None:
        self._peer = peer
        # As it came last, and as text: it is the same for all calls of nearly all clients.
        self._authority: tuple[bytes | None, str | None] = (None, None)

    def describe(self, path: str, fields: dict[bytes, bytes], now_s: float) -> Call:
        """Return the call of a request that came at a time.

        Raises:
            HeadRefusedError: its timeout cannot be read (INTERNAL).
        """
        timeout = fields.get(b"grpc-timeout")
        try:
            deadline_s = None if timeout is None else now_s + parse_timeout_s(timeout)
        except RpcError as error:
            raise refused_with(error) from None
        authority = fields.get(b":authority")
        if authority != self._authority[0]:
            text = None if authority is None else authority.decode("latin-1")
            self._authority = (authority, text)
        return Call(path, Metadata(fields), self._peer, self._authority[1], deadline_s)


def method_of(fields: Mapping[bytes, bytes], methods: Mapping[bytes, Method]) -> Method:
    """Return the method that a request wants.

    Raises:
        HeadRefusedError: it is no gRPC (HTTP's own statuses 405 and 415), or names a method or an
            encoding that there is not (UNIMPLEMENTED).
    """
    verb = fields.get(b":method")
    if verb != b"POST":
        raise HeadRefusedError(_NOT_POST, b"" if verb == b"HEAD" else _HINT)
    # `application/grpc`, `application/grpc+proto`, `application/grpc;charset=utf-8`; whether it
    # also says `te: trailers` tells no more, and some proxies drop it.
    kind = fields.get(b"content-type", b"")
    if kind != CONTENT_TYPE and not _IS_GRPC.match(kind):
        raise HeadRefusedError(_NOT_GRPC, _HINT)
    method = methods.get(fields.get(b":path", b""))
    if method is None:
        path = fields.get(b":path", b"").decode("latin-1")
        raise refused_with(RpcError(StatusCode.UNIMPLEMENTED, f"there is no method {shown(path)}"))
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding not in ACCEPTED_ENCODINGS:
        named = encoding.decode("latin-1")
        error = RpcError(StatusCode.UNIMPLEMENTED, f"messages cannot be encoded as {shown(named)}")
        raise HeadRefusedError((*refused_with(error).fields, _ACCEPT_ENCODING))
    return method


def refused_with(error: RpcError) -> HeadRefusedError:
    """Return the refusal that tells a client this status."""
    return HeadRefusedError((*RESPONSE_FIELDS, *status_fields(error)))


def refuse(engine: Engine, stream_id: int, error: HeadRefusedError | RpcError) -> None:
    """Queue the answer to a request that its headers forbid."""
    refused = refused_with(error) if isinstance(error, RpcError) else error
    engine.submit_headers(stream_id, refused.fields, end_stream=not refused.text)
    if refused.text:
        engine.submit_data(stream_id, refused.text, end_stream=True)


def whole_request(method: Method, head: RequestReceived, following: Event | None) -> bytes | None:
    """Return the request of a unary call if the event after its headers is all of it.

    It is for 97 of 100 calls of grpc-go with 64 in flight.
    """
    if (
        isinstance(following, DataReceived)
        and following.stream_id == head.stream_id
        and following.end_stream
        and method.kind is MethodKind.UNARY
    ):
        return only_message(following.data, method.max_request_bytes)
    return None
