"""The limits that SendMessage has, for the records of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np

from commitbus.broker.common.errors import (
    BadRequestError,
    BodyEmptyError,
    BodyTooLargeError,
    MessageCorruptedError,
    RequestError,
)
from commitbus.broker.core.stored_properties import (
    PLAIN_BYTES_MAX,
    are_plain,
    check_properties,
)
from commitbus.broker.wire.frames import LENGTHS_BYTES, RECORDS_MAX, Frames
from commitbus.broker.wire.record_refusal import refusal_text
from commitbus.commitlog.record_format import MAX_PROPERTIES_BYTES


@final
class RecordRefusedError(RequestError):
    """A record of a batch breaks a limit; nothing of the batch was stored."""

    def __init__(self, index: int, cause: RequestError) -> None:
        self.index, self.cause = index, cause
        super().__init__(refusal_text(index, cause))


def batch_bytes_max(max_body_bytes: int) -> int:
    """Return how many bytes of bodies and properties a batch may have: those of any one message."""
    return max_body_bytes + MAX_PROPERTIES_BYTES


def request_bytes_max(max_body_bytes: int) -> int:
    """Return how large a request may be that is looked at.

    Twice the largest that can be right: a batch that is a little too large is told so by name.
    """
    return 2 * (batch_bytes_max(max_body_bytes) + RECORDS_MAX * LENGTHS_BYTES)


def check_size(lengths: bytes, records: bytes | memoryview, *, max_body_bytes: int) -> None:
    """Check how large a batch is, before anything is made of it.

    Raises:
        MessageCorruptedError: It has no record.
        BadRequestError: It has too many.
        BodyTooLargeError: It has too many bytes.
    """
    count = len(lengths) // LENGTHS_BYTES
    if count == 0:
        raise MessageCorruptedError("the batch has no record")
    if count > RECORDS_MAX:
        raise BadRequestError(f"{count} records in one batch, at most {RECORDS_MAX} are allowed")
    if len(records) > batch_bytes_max(max_body_bytes):
        raise BodyTooLargeError(len(records), batch_bytes_max(max_body_bytes))


def check_records(frames: Frames, *, max_body_bytes: int, has_unique_keys: bool) -> None:
    """Check the records of a batch.

    Args:
        frames: The records.
        max_body_bytes: Longest body.
        has_unique_keys: Whether the producer may set UNIQ_KEY; else the broker sets it.

    Raises:
        RecordRefusedError: The first limit that a record breaks.
    """
    sizes = frames.body_bytes
    if not sizes.all():
        raise RecordRefusedError(int(sizes.argmin()), BodyEmptyError())
    longest_bytes = int(sizes.max())
    if longest_bytes > max_body_bytes:
        # Not asked for before: it lets go of the GIL, and getting that back takes longer than all.
        index = int(sizes.argmax())
        raise RecordRefusedError(index, BodyTooLargeError(longest_bytes, max_body_bytes))
    if not frames.properties_bytes.any():
        return
    each = frames.properties()
    doubtful: Sequence[int] = range(len(each))
    if are_plain(each, has_unique_keys=has_unique_keys):
        doubtful = np.flatnonzero(frames.properties_bytes > PLAIN_BYTES_MAX).tolist()
    for index in doubtful:
        try:
            check_properties(each[index], has_unique_keys=has_unique_keys)
        except RequestError as error:
            raise RecordRefusedError(index, error) from None
