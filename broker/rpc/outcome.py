"""What an exception in a handler tells the client, and what it tells the operator."""

from __future__ import annotations

import logging

from commitbus.broker.common.errors import REFUSALS
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.method import Method, Refusal

_log = logging.getLogger(__name__)


def refusal(error: Exception, method: Method, call: Call) -> Refusal:
    """Return what a client is told; an error that no handler raises on purpose is logged, once.

    A handler with a nursery of its own raises groups. A group of nothing but refusals is as good
    as its first.
    """
    if isinstance(error, RpcError):
        return error
    if isinstance(error, REFUSALS) and method.refusal is not None:
        return method.refusal(error)
    if isinstance(error, ExceptionGroup):
        refusals, others = error.split((RpcError, *REFUSALS))
        if others is None and refusals is not None:
            return refusal(refusals.exceptions[0], method, call)
    _log.error(
        "a handler failed",
        exc_info=error,
        extra={"method": call.method, "peer": call.peer, "client_id": call.client_id},
    )
    return RpcError(StatusCode.INTERNAL, "internal error")


def shutting_down() -> RpcError:
    """Return the status of calls that a stopping server does not finish."""
    return RpcError(StatusCode.UNAVAILABLE, "the server is shutting down")


def too_large(size: int, max_bytes: int) -> RpcError:
    """Return the status of a call whose request message has `size` bytes or more."""
    return RpcError(
        StatusCode.RESOURCE_EXHAUSTED,
        f"a message of {size} bytes or more is over the limit of {max_bytes}",
    )


def too_many_fields(size: int, max_fields: int) -> RpcError:
    """Return the status of a call whose request of `size` bytes has more fields than that."""
    return RpcError(
        StatusCode.RESOURCE_EXHAUSTED,
        f"a message of {size} bytes has more than {max_fields} fields",
    )


def deadline_exceeded() -> RpcError:
    """Return the status of calls that took longer than the client waits."""
    return RpcError(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded")
