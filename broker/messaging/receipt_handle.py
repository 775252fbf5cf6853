"""The text by which a consumer names one delivery of one message.

Nine fields, separated by one blank each, as RocketMQ writes them:

    0  startOffset     first queue offset of a batch; ours are batches of one
    1  popTimeMs       when it was delivered
    2  invisibleMs     for how long nobody else gets it
    3  reviveQueueId   0
    4  topicKind       0: not a retry topic
    5  brokerName
    6  queueId
    7  queueOffset
    8  commitLogOffset

RocketMQ also issues handles of eight fields (no log offset) and, by a slip of 5.5.0, of ten (one
too many before it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.messaging.errors import InvalidReceiptHandleError
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

_LENGTH_MAX: Final = 1024
_FIELDS_MIN: Final = 8
_DIGITS_MAX: Final = 19
"""Of a signed 64-bit number."""


@final
@dataclass(frozen=True, slots=True)
class ReceiptHandle:
    """One delivery of one message."""

    pop_time_ms: int
    invisible_ms: int
    broker_name: str
    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset

    @property
    def expires_at_ms(self) -> int:
        """When the message becomes visible again, unless it was renewed."""
        return self.pop_time_ms + self.invisible_ms

    def encode(self) -> str:
        """Return the text for a client. The broker's name must not contain a blank."""
        return (
            f"{self.queue_offset} {self.pop_time_ms} {self.invisible_ms} 0 0 "
            f"{self.broker_name} {self.queue_id} {self.queue_offset} {self.physical_offset}"
        )

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Return the delivery that a client's text names.

        Raises:
            InvalidReceiptHandleError: `text` is not a handle.
        """
        if len(text) > _LENGTH_MAX:
            raise InvalidReceiptHandleError(f"receipt handle of {len(text)} characters")
        fields = text.split(" ")
        if len(fields) < _FIELDS_MIN:
            raise InvalidReceiptHandleError(f"receipt handle {text!r} is malformed")
        try:
            return cls(
                pop_time_ms=_number(fields[1]),
                invisible_ms=_number(fields[2]),
                broker_name=fields[5],
                queue_id=_number(fields[6]),
                queue_offset=QueueOffset(_number(fields[7])),
                # The last field: the extra one of 5.5.0 stands before it.
                physical_offset=PhysicalOffset(
                    _number(fields[-1]) if len(fields) > _FIELDS_MIN else -1
                ),
            )
        except ValueError:
            raise InvalidReceiptHandleError(f"receipt handle {text!r} is malformed") from None


def _number(text: str) -> int:
    # int() alone would also take signs, underscores, other scripts' digits, and megabytes of them.
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise ValueError(text)
    return int(text)
