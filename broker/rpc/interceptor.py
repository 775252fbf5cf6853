"""What is true of every call, whatever its shape and its transport, is written here once.

An interceptor is asked about each method when a server starts, and returns what begins a call of
that method. What begins a call may refuse it by raising, as a handler does, and may return a
`CallWatch` that follows the call to its end:

    interceptor(method)  once, at the start; None: calls of this method do not concern it
      begin(call)        before the handler is called
        received         before the handler sees a request, each one of a stream
        responding       before responses are encoded
        ended            once, whatever the end is: an answer, an error, a client that has gone

Interceptors are called in the order in which the server was given them, before the first request
of a call is looked at. Latency is measured by one (`observe/rpc_latency.py`), the registry of
clients is kept by one (`messaging/clients.py`), and permissions can be asked by one (`access.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, final

from commitbus.broker.rpc.call import Call, CallWatch, Pieces, Response, Send
from commitbus.broker.rpc.method import Begin, Method

Interceptor = Callable[[Method], Begin | None]


def intercepted(methods: Iterable[Method], interceptors: Sequence[Interceptor]) -> list[Method]:
    """Return the methods with these interceptors, after those that they have."""
    return [
        replace(
            method,
            begins=(*method.begins, *(begin for ask in interceptors if (begin := ask(method)))),
        )
        for method in methods
    ]


def begin_watches(method: Method, call: Call, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Begin a call for its interceptors; return the arguments that its handler is to be given.

    Raises:
        Exception: whatever an interceptor refuses the call with.
    """
    watches = call.watches
    for begin in method.begins:
        watch = begin(call)
        if watch is not None:
            # At once: the next one may refuse, and this one must be told the end.
            call.watches = watches = watches + (watch,)  # noqa: RUF005 - 0.1 us less
    if not watches:
        return arguments
    kind, requests = method.kind, arguments[0]
    if kind.streams_requests:
        requests = _WatchedRequests(watches, requests)
    else:
        for watch in watches:
            watch.received(requests)
    if kind.streams_responses:
        return (requests, call, _WatchedSend(watches, arguments[2]))
    return (requests, call)


@final
class _WatchedRequests:
    __slots__ = ("_requests", "_watches")

    def __init__(self, watches: tuple[CallWatch, ...], requests: AsyncIterator[Any]) -> None:
        self._watches, self._requests = watches, requests

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401 - the handler knows its requests
        request = await anext(self._requests)
        for watch in self._watches:
            watch.received(request)
        return request


@final
class _WatchedSend:
    __slots__ = ("_send", "_watches")

    def __init__(self, watches: tuple[CallWatch, ...], send: Send) -> None:
        self._watches, self._send = watches, send

    def __call__(self, *responses: Response | Pieces) -> Awaitable[None]:
        for watch in self._watches:
            watch.responding(responses)
        return self._send(*responses)
