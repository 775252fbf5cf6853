"""Storing once what a producer sends twice.

The last record of each batch gets the unique key `<producer id><sequence>`, so the index finds a
batch that is stored, after any time and after any restart, and nothing is remembered here but which
stream speaks for a producer now. See adr/0001.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, final

import trio

from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.consuming.store_reads import Unreadable, read_or_wait, read_places
from commitbus.broker.core.durability import Durability
from commitbus.broker.core.properties import UNIQUE_KEY
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.wire.frames import Frames
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import AppendResult, PhysicalOffset, QueueOffset, Record

PRODUCER_ID_BYTES: Final = 16
INDEX_WAIT_S: Final = 60.0
_INDEX_POLL_S: Final = 0.002


@final
class Stored(NamedTuple):
    """Where a batch lies."""

    queue_id: int
    record_count: int
    first: AppendResult
    """Where its first record lies; the others follow it in its queue, and in the log."""
    end_offset: PhysicalOffset
    """Where the last one ends."""


@final
class Producers:
    """The producers that have a stream open."""

    def __init__(self, store: MessageStore, durability: Durability) -> None:
        self.store, self.durability = store, durability
        self._speaking: dict[tuple[str, bytes], Producer] = {}

    @contextmanager
    def speak(self, topic: str, producer_id: bytes, *, resumes: bool) -> Iterator[Producer]:
        """Let a stream speak for a producer; one that did so until now may store nothing more."""
        key = topic, producer_id
        producer = Producer(self, topic, producer_id, resumes=resumes)
        self._speaking[key] = producer
        try:
            yield producer
        finally:
            if self.is_speaking(producer):
                del self._speaking[key]

    def is_speaking(self, producer: Producer) -> bool:
        """Return whether no other stream has taken a producer over."""
        return self._speaking.get((producer.topic, producer.producer_id)) is producer


@final
class Producer:
    """One stream of a producer: tells batches that are new from those that are stored."""

    def __init__(
        self, producers: Producers, topic: str, producer_id: bytes, *, resumes: bool
    ) -> None:
        self._producers = producers
        self.topic, self.producer_id = topic, producer_id
        self._expected = 0
        self._may_be_stored = resumes
        """Whether batches may come that an earlier stream has stored."""
        self._is_first = True
        self._looks_up_to = producers.store.end_offset

    def key_property(self, sequence: int) -> bytes:
        """Return the property by which a batch is found."""
        return encode_properties({UNIQUE_KEY: self._unique_key(sequence)})

    def _unique_key(self, sequence: int) -> str:
        return f"{self.producer_id.hex()}{sequence:016x}".upper()

    async def stored_before(self, sequence: int, frames: Frames) -> Stored | None:
        """Return where the batch lies if it is stored, None if it is the next to be.

        Raises:
            RpcError: it is neither, or another batch was stored under this sequence.
            ReadFailedError: the disk does not give back what tells.
        """
        if self._may_be_stored:
            last = await self._find(sequence)
            if last is not None:
                self._expected, self._is_first = sequence + 1, False
                return await self._as_stored(last, frames)
            if self._is_first and sequence > 0 and await self._find(sequence - 1) is not None:
                self._expected = sequence
            # It was not stored, and they were sent in order: nor were those behind it.
            self._may_be_stored = False
        self._is_first = False
        if sequence != self._expected:
            raise RpcError(
                StatusCode.FAILED_PRECONDITION,
                f"batch {sequence}: the next one of this producer is {self._expected}",
            )
        return None

    def begin(self) -> None:
        """Count a batch that is stored next, with nothing awaited in between.

        Raises:
            RpcError: another stream speaks for the producer now.
        """
        if not self._producers.is_speaking(self):
            raise RpcError(StatusCode.ABORTED, "another stream has taken this producer over")
        self._expected += 1

    async def _find(self, sequence: int) -> Record | None:
        store = self._producers.store
        await self._until_indexed()
        records = await run_in_worker(
            store.query_by_unique_key, self.topic, self._unique_key(sequence), 1
        )
        return records[0] if records else None

    async def _until_indexed(self) -> None:
        """Wait until the index knows everything that was appended before this stream began.

        Raises:
            RpcError: it takes too long.
        """
        store, end = self._producers.store, self._looks_up_to
        if store.indexed_to >= end:
            return
        with trio.move_on_after(INDEX_WAIT_S) as scope:
            await self._producers.durability.wait(end)
            while store.indexed_to < end:  # noqa: ASYNC110 - nobody is told of it, and it is rare
                await trio.sleep(_INDEX_POLL_S)
        if scope.cancelled_caught:
            raise RpcError(
                StatusCode.UNAVAILABLE, "the index is not up to date yet: try again later"
            )

    async def _as_stored(self, last: Record, frames: Frames) -> Stored:
        first_offset = QueueOffset(last.queue_offset - len(frames) + 1)
        place = None
        if first_offset >= 0 and last.body == frames.bodies()[-1]:
            store, offsets = self._producers.store, (first_offset,)
            places = await read_or_wait(read_places, store, self.topic, last.queue_id, offsets)
            place = places[first_offset]
        if place is None:
            raise RpcError(
                StatusCode.FAILED_PRECONDITION,
                "another batch was stored under this sequence, or it is not stored any more",
            )
        if isinstance(place, Unreadable):
            raise place.error
        first = AppendResult(
            place.physical_offset, place.size_bytes, place.queue_offset, last.store_timestamp
        )
        end_offset = PhysicalOffset(last.physical_offset + last.size_bytes)
        return Stored(last.queue_id, len(frames), first, end_offset)
