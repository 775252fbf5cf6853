"""The table of the protocol's codes: of MessagingService, and of its Admin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitbus.broker.common import errors as e
from commitbus.broker.common.shown import shortened
from commitbus.broker.core.error_codes import STORE_FAILURES, code_of
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog import errors as store

CODES: Final[Mapping[type[Exception], pb.Code]] = {
    e.ClientIdRequiredError: pb.CLIENT_ID_REQUIRED,
    e.UnrecognizedClientError: pb.UNRECOGNIZED_CLIENT_TYPE,
    e.InvalidSettingsError: pb.BAD_REQUEST,
    e.IllegalTopicError: pb.ILLEGAL_TOPIC,
    e.IllegalGroupError: pb.ILLEGAL_CONSUMER_GROUP,
    e.TopicNotFoundError: pb.TOPIC_NOT_FOUND,
    e.GroupNotFoundError: pb.CONSUMER_GROUP_NOT_FOUND,
    e.NotPermittedError: pb.FORBIDDEN,
    e.MessageCorruptedError: pb.MESSAGE_CORRUPTED,
    e.BodyEmptyError: pb.MESSAGE_BODY_EMPTY,
    e.BodyTooLargeError: pb.MESSAGE_BODY_TOO_LARGE,
    e.PropertiesTooLargeError: pb.MESSAGE_PROPERTIES_TOO_LARGE,
    e.IllegalPropertyError: pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
    e.IllegalTagError: pb.ILLEGAL_MESSAGE_TAG,
    e.IllegalKeyError: pb.ILLEGAL_MESSAGE_KEY,
    e.IllegalMessageIdError: pb.ILLEGAL_MESSAGE_ID,
    e.IllegalMessageGroupError: pb.ILLEGAL_MESSAGE_GROUP,
    e.IllegalLiteTopicError: pb.ILLEGAL_LITE_TOPIC,
    e.IllegalDeliveryTimeError: pb.ILLEGAL_DELIVERY_TIME,
    e.BadRequestError: pb.BAD_REQUEST,
    e.MessageTypeConflictError: pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    e.UnsupportedFeatureError: pb.NOT_IMPLEMENTED,
    e.TooManyRequestsError: pb.TOO_MANY_REQUESTS,
    e.IllegalFilterError: pb.ILLEGAL_FILTER_EXPRESSION,
    e.IllegalInvisibleTimeError: pb.ILLEGAL_INVISIBLE_TIME,
    e.IllegalPollingTimeError: pb.ILLEGAL_POLLING_TIME,
    e.InvalidReceiptHandleError: pb.INVALID_RECEIPT_HANDLE,
    e.IllegalOffsetError: pb.ILLEGAL_OFFSET,
    e.OffsetNotFoundError: pb.OFFSET_NOT_FOUND,
    e.ClientNotConnectedError: pb.NOT_FOUND,
    e.ClientSilentError: pb.PROXY_TIMEOUT,
    e.MessageNotFoundError: pb.MESSAGE_NOT_FOUND,
    e.PreconditionFailedError: pb.PRECONDITION_FAILED,
    e.NotFoundError: pb.NOT_FOUND,
    **dict.fromkeys(STORE_FAILURES, pb.INTERNAL_SERVER_ERROR),
    # The body is checked before the store sees it: what is left are the stored properties.
    store.MessageRefusedError: pb.MESSAGE_PROPERTIES_TOO_LARGE,
    store.DiskFullError: pb.INTERNAL_SERVER_ERROR,
    store.DiskRatioError: pb.INTERNAL_SERVER_ERROR,
    # The message may be in the log and may survive: the client must treat the outcome as unknown.
    store.FlushFailedError: pb.MASTER_PERSISTENCE_TIMEOUT,
    # Likewise: it may have been the thread that would have made the message durable.
    store.ThreadDiedError: pb.MASTER_PERSISTENCE_TIMEOUT,
    store.ReadFailedError: pb.INTERNAL_SERVER_ERROR,
    store.CorruptRecordError: pb.INTERNAL_SERVER_ERROR,
    store.OffsetOutOfRangeError: pb.MESSAGE_NOT_FOUND,
    store.QueryTooWideError: pb.BAD_REQUEST,
    StateWriteError: pb.INTERNAL_SERVER_ERROR,
}


def status_of(error: Exception) -> pb.Status:
    """Return the status for an error of `REFUSALS`; a long text is shortened."""
    return pb.Status(code=code_of(CODES, error), message=shortened(str(error)))


def ok() -> pb.Status:
    """Return the status of success."""
    return pb.Status(code=pb.OK, message="OK")


def overall(statuses: list[pb.Status]) -> pb.Status:
    """Return the status of a request whose entries each have one: the common one, if any."""
    first = statuses[0]
    if len(statuses) == 1 or len({status.code for status in statuses}) == 1:
        return first
    return pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")
