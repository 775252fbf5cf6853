"""The table of gRPC statuses of the operator's own service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitbus.broker.common import errors as e
from commitbus.broker.core.error_codes import STORE_FAILURES, code_of
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.commitlog import errors as store

CODES: Final[Mapping[type[Exception], StatusCode]] = {
    e.IllegalRequestError: StatusCode.INVALID_ARGUMENT,
    e.MissingError: StatusCode.NOT_FOUND,
    e.NotPermittedError: StatusCode.FAILED_PRECONDITION,
    e.MessageTypeConflictError: StatusCode.INVALID_ARGUMENT,
    e.PreconditionFailedError: StatusCode.FAILED_PRECONDITION,
    e.UnsupportedFeatureError: StatusCode.INVALID_ARGUMENT,
    e.TooManyRequestsError: StatusCode.RESOURCE_EXHAUSTED,
    e.ClientSilentError: StatusCode.INVALID_ARGUMENT,
    **dict.fromkeys(STORE_FAILURES, StatusCode.FAILED_PRECONDITION),
    store.MessageRefusedError: StatusCode.FAILED_PRECONDITION,
    store.DiskFullError: StatusCode.FAILED_PRECONDITION,
    store.DiskRatioError: StatusCode.FAILED_PRECONDITION,
    store.ReadFailedError: StatusCode.DATA_LOSS,
    store.CorruptRecordError: StatusCode.FAILED_PRECONDITION,
    store.OffsetOutOfRangeError: StatusCode.FAILED_PRECONDITION,
    store.QueryTooWideError: StatusCode.FAILED_PRECONDITION,
    StateWriteError: StatusCode.UNAVAILABLE,
}


def refusal(error: Exception) -> RpcError:
    """Return the status for an error of `REFUSALS`."""
    return RpcError(code_of(CODES, error), str(error))
