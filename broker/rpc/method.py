"""A method that a server offers: its path, its shape, and the handler that answers.

Handlers run on trio, all in one thread, so they need no locks among themselves. The handler's
scope is cancelled when the client cancels or disconnects, when the deadline passes, and when the
server shuts down. An `RpcError` becomes its gRPC status, and an error of `REFUSALS` what the
method's `refusal` makes of it; any other exception becomes INTERNAL and is logged once, and the
client learns nothing of it. An interceptor refuses a call in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, final

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from commitbus.broker.rpc.access import Access
from commitbus.broker.rpc.call import Call, CallWatch, Response, RpcError, Send
from commitbus.broker.rpc.defaults import REQUEST_BYTES_MAX, REQUEST_FIELDS_MAX


@final
class MethodKind(Enum):
    """Which side of the call is a stream."""

    UNARY = (False, False)
    SERVER_STREAM = (False, True)
    CLIENT_STREAM = (True, False)
    BIDI = (True, True)

    def __init__(self, streams_requests: bool, streams_responses: bool) -> None:  # noqa: FBT001 - Enum calls it
        self.streams_requests = streams_requests
        """Whether the client sends any number of messages."""
        self.streams_responses = streams_responses
        """Whether the handler does."""


Result = Callable[[], Response]
"""Returns the response, or raises what the handler would have raised. Called once."""


@final
class Later:
    """The answer of a unary handler that waits for what ends many waits at once, such as a flush.

    It does without a task, which would cost more than the rest of the call. Nothing cancels it: at
    a deadline the client gives up by itself. On trio's thread only.
    """

    __slots__ = ("_finish",)

    def when_settled(self, finish: Callable[[Result], None]) -> None:
        """Name the transport's function that takes the result. It may call it once or never."""
        self._finish = finish

    def settle(self, result: Result) -> None:
        """Give the answer: once, and after the handler has returned."""
        self._finish(result)


class Parked(ABC):
    """What the handler of a response stream returns while it has nothing to say.

    Its call has no task then: that would take more memory than all the rest of it, and ten thousand
    may wait. For the same reason a handler that parks must have taken what it needs of the call's
    metadata: but for the client's id they may be gone. Nothing wakes it at the call's deadline; it
    has to see to that. On trio's thread only.
    """

    __slots__ = ()

    @abstractmethod
    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Name the transport's function to call, once, when there may be something to do."""

    @abstractmethod
    def resume(self) -> Awaitable[Parked | None]:
        """Go on after `go_on` was called; that may end in being parked again."""

    @abstractmethod
    def abandon(self) -> None:
        """End instead, woken or not: the client has gone, or the server stops."""


# The requests are `Any` here: each method has its own, and Python cannot name "of this method".
UnaryHandler = Callable[[Any, Call], Response | Later | Awaitable[Response]]
"""Answers at once, or returns what will have the answer when it must wait. A handler that does not
need an await runs without a task of its own, which is much cheaper."""
ServerStreamHandler = Callable[[Any, Call, Send], Parked | Awaitable[Parked | None]]
ClientStreamHandler = Callable[[AsyncIterator[Any], Call], Awaitable[Response]]
BidiHandler = Callable[[AsyncIterator[Any], Call, Send], Awaitable[None]]
Handler = UnaryHandler | ServerStreamHandler | ClientStreamHandler | BidiHandler
Refusal = RpcError | tuple[Response, ...]
"""What a client is told when its call is refused: a status, or responses in place of the handler's.
The latter are one for a method with one response; in a stream they follow what was sent."""
Begin = Callable[[Call], CallWatch | None]
"""Begins a call for an interceptor (`interceptor.py`)."""


@final
@dataclass(frozen=True, slots=True)
class Method:
    """One method; the kind says which of the handler types the handler is.

    None can be made that does not declare its access.
    """

    path: str
    """`/package.Service/Method`."""
    kind: MethodKind
    request_type: type[Message] | None
    """None: the handler takes the bytes of its requests as they came."""
    response_type: type[Message]
    handler: Handler
    access: Access = field(kw_only=True)
    max_request_bytes: int = REQUEST_BYTES_MAX
    """A request message beyond it, or beyond the transport's own limit, is answered with
    RESOURCE_EXHAUSTED."""
    max_request_fields: int = REQUEST_FIELDS_MAX
    """The same for a request message with more fields (`field_count`), before it is parsed."""
    is_for_operators: bool = False
    """Whether calls are answered when all places but the operators' reserve are taken."""
    lasts: bool = False
    """Whether calls have no end of their own: of these a connection may have fewer."""
    refusal: Callable[[Exception], Refusal] | None = None
    """Makes of an error of `REFUSALS` what the client is told."""
    begins: tuple[Begin, ...] = ()
    """What begins each call before the handler is called; set by `intercepted`."""

    def __post_init__(self) -> None:
        assert self.path.count("/") == 2, f"{self.path} is not /package.Service/Method"
        assert self.path.startswith("/"), f"{self.path} is not /package.Service/Method"

    @property
    def service(self) -> str:
        """Return the full name of the service that the method belongs to."""
        return self.path.split("/")[1]


def unary_methods(
    service: ServiceDescriptor,
    handlers: Mapping[str, tuple[UnaryHandler, Access]],
    refusal_of: Callable[[type[Message]], Callable[[Exception], Refusal]],
    *,
    request_bytes_max: int = REQUEST_BYTES_MAX,
    larger_requests: Mapping[str, int] | None = None,
    request_fields_max: Mapping[str, int] | None = None,
    is_for_operators: bool = False,
) -> list[Method]:
    """Return the methods of a service, whose messages the .proto file knows.

    Args:
        service: from the generated module.
        handlers: by the names of the RPCs, which are all unary; with what their calls do.
        refusal_of: returns the `refusal` of a method with this type of response.
        request_bytes_max: the limit of a request.
        larger_requests: by RPC, where it is another one.
        request_fields_max: by RPC, where it is not the usual one.
        is_for_operators: see `Method`.
    """
    methods = []
    for name, (handler, access) in handlers.items():
        rpc = service.methods_by_name[name]
        response_type = GetMessageClass(rpc.output_type)
        methods.append(
            Method(
                path=f"/{service.full_name}/{name}",
                kind=MethodKind.UNARY,
                request_type=GetMessageClass(rpc.input_type),
                response_type=response_type,
                handler=handler,
                access=access,
                max_request_bytes=(larger_requests or {}).get(name, request_bytes_max),
                max_request_fields=(request_fields_max or {}).get(name, REQUEST_FIELDS_MAX),
                is_for_operators=is_for_operators,
                refusal=refusal_of(response_type),
            )
        )
    return methods
