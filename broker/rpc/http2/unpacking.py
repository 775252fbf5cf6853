"""Compressed requests: unpacked and parsed by a worker, since a small one may be 64 MiB large."""

from __future__ import annotations

import threading
from typing import Any, Final

import trio
from google.protobuf.message import Message

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.worker_lines import compute_in_worker
from commitbus.broker.rpc.call import Call, Response, RpcError, StatusCode
from commitbus.broker.rpc.exchange import begin, parse
from commitbus.broker.rpc.http2.grpc_wire import decompress
from commitbus.broker.rpc.method import Later, Method, Parked, Result

UNPACKED_HERE_BYTES: Final = 1024
"""Compressed requests up to here are unpacked at once: they hold 1 MB at most, a millisecond."""
_ONE_AT_A_TIME: Final = threading.Lock()
"""Two requests of 64 MiB each, unpacked and parsed, would stand in memory at once."""


def is_for_worker(data: bytes, compressed_bytes: int | None) -> bool:
    """Return whether a request as it was sent is to be unpacked by a worker."""
    return compressed_bytes is not None and len(data) > UNPACKED_HERE_BYTES


def unpack(method: Method, packed: bytes) -> Message | bytes | RpcError:
    """Return the request that a gzip member holds, or the status for one that holds none."""
    try:
        data = decompress(packed, method.max_request_bytes)
    except RpcError as error:
        return error
    return parse(method, data, len(packed))


def _unpack_alone(method: Method, packed: bytes) -> Message | bytes | RpcError:
    with _ONE_AT_A_TIME:
        return unpack(method, packed)


async def unpack_in_worker(method: Method, packed: bytes) -> Message | bytes:
    """Return the request that a gzip member holds.

    Raises:
        RpcError: it holds none; or too many of the caller's wait to be unpacked.
    """
    try:
        request = await compute_in_worker(_unpack_alone, method, packed)
    except TooManyRequestsError as error:
        raise RpcError(StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
    if isinstance(request, RpcError):
        raise request
    return request


async def answer_of(method: Method, call: Call, arguments: tuple[Any, ...]) -> object:
    """Call a handler and return what it answers, however it does.

    Raises:
        RpcError: the call has ended with this status.
        Exception: whatever the handler raises, or whoever settles its answer.
    """
    answer = begin(method, call, arguments)
    if isinstance(answer, RpcError):
        raise answer
    if isinstance(answer, Later):
        return await _settled(answer)
    return answer if isinstance(answer, bytes | Parked) else await answer


async def _settled(later: Later) -> Response:
    event, results = trio.Event(), list[Result]()

    def settle(result: Result) -> None:
        results.append(result)
        event.set()

    later.when_settled(settle)
    await event.wait()
    return results[0]()
