"""The one table that turns an error into a gRPC status of the bulk service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitbus.broker.bulk.validate import RecordRefusedError
from commitbus.broker.messaging import errors as e
from commitbus.broker.messaging.status import REFUSALS
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.commitlog import errors as store

__all__ = ["REFUSALS", "refusal"]

_CODES: Final[Mapping[type[Exception], StatusCode]] = {
    e.TopicNotFoundError: StatusCode.NOT_FOUND,
    e.NotPermittedError: StatusCode.PERMISSION_DENIED,
    e.MessageTypeConflictError: StatusCode.FAILED_PRECONDITION,
    e.UnsupportedFeatureError: StatusCode.UNIMPLEMENTED,
    e.TooManyRequestsError: StatusCode.RESOURCE_EXHAUSTED,
    store.MessageRefusedError: StatusCode.INVALID_ARGUMENT,
    store.DiskFullError: StatusCode.RESOURCE_EXHAUSTED,
    store.DiskRatioError: StatusCode.RESOURCE_EXHAUSTED,
    store.ReadFailedError: StatusCode.DATA_LOSS,
    store.CorruptRecordError: StatusCode.DATA_LOSS,
    store.OffsetOutOfRangeError: StatusCode.OUT_OF_RANGE,
}
"""Other requests are wrong in themselves (INVALID_ARGUMENT), other stores cannot go on
(UNAVAILABLE): then the outcome of what was not acknowledged is unknown."""


def refusal(error: Exception, where: str = "") -> RpcError:
    """Return the status for an error of `REFUSALS`; `where` is what it is about."""
    cause = error.cause if isinstance(error, RecordRefusedError) else error
    others = (
        StatusCode.INVALID_ARGUMENT if isinstance(cause, e.RequestError) else StatusCode.UNAVAILABLE
    )
    text = f"{where}: {error}" if where else str(error)
    return RpcError(_CODES.get(type(cause), others), text)
