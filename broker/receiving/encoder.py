"""Records of the log, checked and filtered, and encoded as the consumer's protocol wants them.

The core knows no protocol: an adapter hands in an `Encoder`. It gets each record where it was read
and makes the message of it, so a body is copied once on its way to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from commitbus.broker.consuming.receipt_handle import handle_text
from commitbus.broker.consuming.store_reads import NotRead, Place
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.commitlog.errors import CorruptRecordError, StoreError
from commitbus.commitlog.record_format import CheckedRecord, check_record, decode_properties
from commitbus.commitlog.types import PhysicalOffset

M = TypeVar("M")
"""A message as an adapter's encoder makes it."""
M_co = TypeVar("M_co", covariant=True)


class Encode(Protocol[M_co]):
    """Makes a message of a record. It runs on any thread and changes nothing."""

    def __call__(
        self,
        view: memoryview,
        parts: CheckedRecord,
        properties: Mapping[str, str],
        receipt_handle: str,
        /,
    ) -> M_co:
        """Return the message.

        Args:
            view: From the record's first byte on, intact. It is borrowed until the call returns.
            parts: The offsets of its parts in `view`, from `check_record`.
            properties: All that are stored with it, decoded.
            receipt_handle: The text by which the consumer names this delivery; empty for none.
        """


Encoder = Callable[[int, int | None], Encode[M]]
"""Returns the function for messages of one queue that are delivered together: of a queue id and
the delivery attempt. Deliveries of pulled messages are not counted: None."""

Encoded = tuple[M, int]
"""A message, and the size of the body in it."""
Outcome = Encoded[M] | StoreError | None
"""A message, the reason why it cannot be read, or None: the filter does not want it."""


def encode_message(
    encode: Encode[M],
    view: memoryview,
    physical_offset: PhysicalOffset,
    receipt_handle: str,
    wanted: MessageFilter,
) -> Encoded[M] | None:
    """Return a record's message; None if the filter does not want it.

    Raises:
        CorruptRecordError: The bytes are not a whole, intact record.
    """
    parts = check_record(view, 0, physical_offset, verify_crc=True)
    properties = decode_properties(view[parts[8] : parts[9]].tobytes())
    if not wanted.accepts(properties):
        return None
    message = encode(view, parts, properties, receipt_handle)
    return message, parts[7] - parts[6]


def encode_messages(
    encode: Encode[M],
    places: Sequence[Place],
    records: Iterable[memoryview | NotRead | None],
    handle: str | None,
    wanted: MessageFilter,
) -> list[Outcome[M]] | None:
    """Return the outcome for each record, in order; None if a disk would have to be waited for.

    Args:
        encode: From an `Encoder`.
        places: Where the messages lie.
        records: From `read_records`; where they end early, so does the result.
        handle: The common part of the receipt handles, from `run_text`; None for no handles.
        wanted: Decides by the properties.
    """
    outcomes: list[Outcome[M]] = []
    for place, record in zip(places, records, strict=False):
        if record is None:
            return None
        if isinstance(record, memoryview):
            queue_offset, physical_offset = place.queue_offset, place.physical_offset
            text = "" if handle is None else handle_text(handle, queue_offset, physical_offset)
            try:
                outcomes.append(encode_message(encode, record, physical_offset, text, wanted))
            except CorruptRecordError as error:
                outcomes.append(error)
        else:
            outcomes.append(record)
    return outcomes
