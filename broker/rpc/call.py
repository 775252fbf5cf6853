"""What a handler learns about the call that it serves, and how it refuses one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, final

from google.protobuf.message import Message

from commitbus.broker.common.shown import shortened

CLIENT_ID_HEADER = "x-mq-client-id"
LANGUAGE_HEADER = "x-mq-language"

Response = Message | bytes
"""A response, or its bytes where a handler encodes by itself: only what has succeeded."""


Pieces = tuple[bytes, ...]
"""The bytes of one large response, in pieces that need not be joined."""


class Send(Protocol):
    """Gives the next responses of a stream to the transport."""

    def __call__(self, *responses: Response | Pieces) -> Awaitable[None]:
        """Queue them, to be written together; wait while the client is slow."""


@final
class StatusCode(IntEnum):
    """The gRPC status codes, numbered as on the wire."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@final
class RpcError(Exception):
    """Ends the call with this gRPC status. Raised by handlers; the client sees both fields.

    A long message is shortened: it may hold what the client sent.
    """

    def __init__(self, code: StatusCode, message: str) -> None:
        assert code is not StatusCode.OK, "a call that succeeds returns its response"
        self.code, self.message = code, shortened(message)
        super().__init__(f"{code.name}: {self.message}")


class CallWatch:
    """Follows one call for an interceptor. Each step does nothing unless it is overridden.

    `received` may raise what a handler may raise: the call then ends as if its handler had raised
    it. The other steps must not raise.
    """

    __slots__ = ()

    def received(self, request: Message | bytes) -> None:
        """Look at a request before the handler does; `bytes` where the handler takes bytes."""

    def responding(self, responses: tuple[Response | Pieces, ...]) -> None:
        """Look at the one response, or at those that a handler sends together."""

    def ended(self, error: RpcError | None, *, was_cancelled: bool) -> None:
        """Take note of the end, which comes once.

        Args:
            error: the status that the client is told; None if the call was answered.
            was_cancelled: whether the handler was stopped: by the deadline, because the client has
                gone, or because the server stops.
        """


@final
@dataclass(slots=True, eq=False)
class Call:
    """One call, as its transport saw it arrive. A handler changes nothing but `when_unfinished`.

    Not frozen, because that makes one four times as dear, and each request needs one.
    """

    method: str
    """The path, e.g. `/apache.rocketmq.v2.MessagingService/SendMessage`."""
    metadata: Mapping[str, str]
    """The request's headers by lower-case name; binary ones (`-bin`) are left out. Of a header
    that came twice this is the last."""
    peer: str
    """Where the client is: `127.0.0.1:5000` or `[::1]:5000`."""
    authority: str | None
    """The `:authority` header, if the transport can tell."""
    deadline_s: float | None
    """When the client stops waiting, on the scale of `trio.current_time()`."""
    when_unfinished: Callable[[], None] | None = None
    """Set by a handler before it ends, if it has to know that its response did not leave in full:
    called once if the stream or the connection ends before the network has taken all of it."""
    watches: tuple[CallWatch, ...] = ()
    """What interceptors follow the call with. Set before the handler is called."""
    send: Send | None = None
    """Gives responses of a stream to the transport, past the watches; for refusals."""

    @property
    def client_id(self) -> str:
        """Return the id that official clients send with every call; empty without one."""
        return self.metadata.get(CLIENT_ID_HEADER, "")
