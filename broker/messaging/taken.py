"""Messages that a receive call took: their records read, and encoded for the consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.messaging.delivered import Delivered, encode_delivered, encode_run
from commitbus.broker.messaging.receipt_handle import handle_text, run_text
from commitbus.broker.messaging.store_reads import NotRead, Place, read_records, takes_long
from commitbus.broker.metadata.progress import QueueProgress
from commitbus.broker.store.store_reader import StoreReader
from commitbus.commitlog.errors import CorruptRecordError, StoreError


@final
class Run(NamedTuple):
    """Messages of one queue that were put in flight together, for this batch."""

    progress: QueueProgress
    queue_id: int
    pop_time_ms: int
    delivery_attempt: int
    places: Sequence[Place]


@final
class Handles(NamedTuple):
    """Fields that all receipt handles of a batch share."""

    invisible_ms: int
    broker_name: str
    fifo: bool


Outcome = tuple[Run, Place, Delivered | StoreError | None]
"""A taken message after its read; None: only its tag's hash matched the filter."""


def encode_taken(
    store: StoreReader,
    runs: Sequence[Run],
    handles: Handles,
    wanted: MessageFilter,
    *,
    only_cached: bool,
) -> list[Outcome] | None:
    """Return each message, in order, or why it cannot be read.

    With `only_cached` None, if a disk would have to be waited for, or it takes long.
    """
    outcomes: list[Outcome] = []
    places = [place for run in runs for place in run.places]
    if only_cached and takes_long(places):
        return None
    records = read_records(store, places, only_cached=only_cached)
    for run in runs:
        common = encode_run(run.queue_id, run.delivery_attempt)
        handle = run_text(
            run.pop_time_ms,
            handles.invisible_ms,
            handles.broker_name,
            run.queue_id,
            fifo=handles.fifo,
        )
        for place, record in zip(run.places, records, strict=False):
            if record is None:
                return None
            if isinstance(record, NotRead):
                outcomes.append((run, place, record))
                continue
            queue_offset, physical_offset = place[0], place.physical_offset
            text = handle_text(handle, queue_offset, physical_offset)
            try:
                delivered = encode_delivered(record, physical_offset, common, text, wanted)
            except CorruptRecordError as error:
                outcomes.append((run, place, error))
            else:
                outcomes.append((run, place, delivered))
    return outcomes
