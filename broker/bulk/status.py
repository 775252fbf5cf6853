"""The table of gRPC statuses of the bulk service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitbus.broker.bulk.validate import RecordRefusedError
from commitbus.broker.common import errors as e
from commitbus.broker.core.error_codes import STORE_FAILURES, code_of
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.commitlog import errors as store

CODES: Final[Mapping[type[Exception], StatusCode]] = {
    e.IllegalRequestError: StatusCode.INVALID_ARGUMENT,
    e.MissingError: StatusCode.NOT_FOUND,
    e.NotPermittedError: StatusCode.PERMISSION_DENIED,
    e.MessageTypeConflictError: StatusCode.FAILED_PRECONDITION,
    e.PreconditionFailedError: StatusCode.FAILED_PRECONDITION,
    e.UnsupportedFeatureError: StatusCode.UNIMPLEMENTED,
    e.TooManyRequestsError: StatusCode.RESOURCE_EXHAUSTED,
    e.ClientSilentError: StatusCode.DEADLINE_EXCEEDED,
    # The outcome of what was not acknowledged is unknown.
    **dict.fromkeys(STORE_FAILURES, StatusCode.UNAVAILABLE),
    store.MessageRefusedError: StatusCode.INVALID_ARGUMENT,
    store.DiskFullError: StatusCode.RESOURCE_EXHAUSTED,
    store.DiskRatioError: StatusCode.RESOURCE_EXHAUSTED,
    store.ReadFailedError: StatusCode.DATA_LOSS,
    store.CorruptRecordError: StatusCode.DATA_LOSS,
    store.OffsetOutOfRangeError: StatusCode.OUT_OF_RANGE,
    store.QueryTooWideError: StatusCode.UNAVAILABLE,
    StateWriteError: StatusCode.UNAVAILABLE,
}


def refusal(error: Exception, where: str = "") -> RpcError:
    """Return the status for an error of `REFUSALS`; `where` names its place in the request."""
    cause = error.cause if isinstance(error, RecordRefusedError) else error
    return RpcError(code_of(CODES, cause), f"{where}: {error}" if where else str(error))
