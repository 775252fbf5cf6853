"""How long a call waits for messages."""

from __future__ import annotations

from typing import Final

import trio

from commitbus.broker.common.errors import BadRequestError, IllegalPollingTimeError
from commitbus.broker.messaging.validate import duration_ms
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

POLLING_MS_MIN: Final = 5_000
POLLING_MS_MAX: Final = 20_000

_REQUEST_TIMEOUT_MS: Final = 3_000
"""What the official clients add to a long poll for their deadline."""
_TRANSIT_MS: Final = 500
"""A call may have taken this long to get here: the Rust client's deadline is its polling time."""
_ANSWER_MARGIN_MS: Final = 200
"""An empty answer leaves this long before the deadline, or the client sees a timeout instead."""
_ILLEGAL_POLLING_TIME_SINCE: Final = "5.0.3"
"""Older clients do not know the code. Versions are compared as texts, as RocketMQ does."""


def polling_ms(request: pb.ReceiveMessageRequest | pb.PullMessageRequest, call: Call) -> int:
    """Return how long to wait for messages.

    Raises:
        IllegalPollingTimeError: the deadline is sooner than the shortest wait allows.
        BadRequestError: the same, for a client that does not know that code.
    """
    remaining_ms: int | None = None
    wanted_ms = POLLING_MS_MAX
    if call.deadline_s is not None:
        remaining_ms = max(0, int((call.deadline_s - trio.current_time()) * 1000))
        wanted_ms = remaining_ms - _REQUEST_TIMEOUT_MS // 2
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    wanted_ms = min(max(wanted_ms, POLLING_MS_MIN), POLLING_MS_MAX)
    if remaining_ms is None or wanted_ms <= remaining_ms - _ANSWER_MARGIN_MS:
        return wanted_ms
    if remaining_ms < POLLING_MS_MIN - _TRANSIT_MS:
        text = f"the deadline leaves {remaining_ms} ms, polling needs at least {POLLING_MS_MIN} ms"
        if call.metadata.get("x-mq-client-version", "") < _ILLEGAL_POLLING_TIME_SINCE:
            raise BadRequestError(text)
        raise IllegalPollingTimeError(text)
    return remaining_ms - _ANSWER_MARGIN_MS
