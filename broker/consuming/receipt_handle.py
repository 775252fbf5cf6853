"""The text by which a consumer names one delivery of one message.

Nine fields, separated by one blank each, as RocketMQ writes them:

    0  startOffset     first queue offset of a batch; ours are batches of one
    1  popTimeMs       when it was delivered
    2  invisibleMs     for how long nobody else gets it
    3  reviveQueueId   0, and 999 for a FIFO group
    4  topicKind       0: not a retry topic
    5  brokerName
    6  queueId
    7  queueOffset
    8  commitLogOffset

RocketMQ also issues handles of eight fields (no log offset) and, by a slip of 5.5.0, of ten (one
too many before it).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, final

from commitbus.broker.common.errors import InvalidReceiptHandleError
from commitbus.broker.common.shown import shown
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

_LENGTH_MAX: Final = 1024
_FIFO_REVIVE_QUEUE: Final = 999
_HANDLE: Final = re.compile(
    r"[^ ]+ (\d{1,19}) (\d{1,19}) [^ ]+ [^ ]+ ([^ ]+) (\d{1,19}) (\d{1,19})"
    r"(?:(?: [^ ]+)?? (\d{1,19}))?",
    re.ASCII,
)
"""A signed 64-bit number has at most 19 digits; int() alone would also take other scripts' ones."""
_I64_MAX: Final = 2**63 - 1


def run_text(
    pop_time_ms: int, invisible_ms: int, broker_name: str, queue_id: int, *, fifo: bool
) -> str:
    """Return what the handles of messages that are delivered together have in common."""
    revive_queue = _FIFO_REVIVE_QUEUE if fifo else 0
    return f" {pop_time_ms} {invisible_ms} {revive_queue} 0 {broker_name} {queue_id} "


def handle_text(run: str, queue_offset: int, physical_offset: int) -> str:
    """Return a whole handle."""
    return f"{queue_offset}{run}{queue_offset} {physical_offset}"


@final
class ReceiptHandle(NamedTuple):
    """One delivery of one message."""

    pop_time_ms: int
    invisible_ms: int
    broker_name: str
    queue_id: int
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    """-1 in a handle of eight fields."""

    @property
    def expires_at_ms(self) -> int:
        """When the message becomes visible again, unless it was renewed."""
        return self.pop_time_ms + self.invisible_ms

    def encode(self, *, fifo: bool = False) -> str:
        """Return the text for a client. The broker's name must not contain a blank."""
        pop_time_ms, invisible_ms, broker_name, queue_id, queue_offset, physical_offset = self
        return handle_text(
            run_text(pop_time_ms, invisible_ms, broker_name, queue_id, fifo=fifo),
            queue_offset,
            physical_offset,
        )

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Return the delivery that a client's text names.

        Raises:
            InvalidReceiptHandleError: `text` is not a handle.
        """
        if len(text) > _LENGTH_MAX:
            raise InvalidReceiptHandleError(f"receipt handle of {len(text)} characters")
        match = _HANDLE.fullmatch(text)
        if match is None:
            raise InvalidReceiptHandleError(f"receipt handle {shown(text)} is malformed")
        pop_time, invisible, broker_name, queue_id, queue_offset, log_offset = match.groups("-1")
        fields = int(pop_time), int(invisible), broker_name, int(queue_id), int(queue_offset)
        # Calling the class, whose `__new__` is written in Python, takes five times as long.
        return tuple.__new__(cls, (*fields, int(log_offset)))
