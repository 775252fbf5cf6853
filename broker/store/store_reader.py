"""Reading a store: by queue offset, by physical offset, by key and by time.

Everything here is safe to call from any thread and never waits for a lock that is held while a
disk is: log, queues and index publish snapshots. Methods wait for bytes that are not in memory,
unless their name says `cached`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, final

import numpy as np

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import check_directory
from commitbus.broker.store.slices import UNITS_MAX, LogSlices, Slice, WantedTags, queue_slice
from commitbus.broker.store.start import find_end, open_parts
from commitbus.commitlog.clock import Clock, SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    QueryTooWideError,
)
from commitbus.commitlog.file_system import FileSystem, RealFileSystem
from commitbus.commitlog.record_format import parse_offset_message_id
from commitbus.commitlog.types import PhysicalOffset, QueueOffset, Record
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.unit_format import UNIT, UNIT_DTYPE
from commitbus.indexfile.index_format import KeyKind
from commitbus.indexfile.index_service import IndexService

DEFAULT_CONFIG: Final = StoreConfig()
SCAN_UNITS_MAX: Final = 4096
"""A fetch by tags codes examines at most this many units, in 50 us: a filter that nothing passes
must not hold up the thread that serves everybody."""
END_OF_TIME_MS: Final = (1 << 63) - 1
END_OF_LOG: Final = (1 << 63) - 1
_OTHERS_MAX: Final = 1 << 14
"""Messages that are read in vain for one search, 10 us each, for their key has the wanted hash."""


@final
class FetchedUnit(NamedTuple):
    """Where a message of a queue lies."""

    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    size_bytes: int


_new_fetched_unit = partial(tuple.__new__, FetchedUnit)
"""A fifth of the cost of calling the class, whose `__new__` is written in Python."""


@final
class FetchResult(NamedTuple):
    """What a fetch found."""

    units: list[FetchedUnit]
    """In queue order; their offsets have gaps where a filter left messages out."""
    next_offset: QueueOffset
    """First offset not examined: where the next fetch starts."""


class StoreReader:
    """The messages of a store. `MessageStore` adds writing to it."""

    def __init__(self, log: CommitLog, queues: ConsumeQueueStore, index: IndexService) -> None:
        self._log, self._queues, self._index = log, queues, index

    @staticmethod
    def open_read_only(
        directory: Path,
        config: StoreConfig = DEFAULT_CONFIG,
        *,
        clock: Clock | None = None,
        file_system: FileSystem | None = None,
    ) -> StoreReader:
        """Open any store, RocketMQ's too, to read what it holds now: no lock, nothing written.

        Of a store that is being written to, what the durable watermark covers is seen. Queues and
        index are taken as they are.

        Raises:
            NotAStoreError: It is none.
            OSError: A file cannot be read.
        """
        clock, file_system = clock or SystemClock(), file_system or RealFileSystem()
        check_directory(directory, file_system, may_be_new=False)
        with ExitStack() as undo:
            parts = open_parts(
                directory, config, clock=clock, file_system=file_system, clean=None, undo=undo
            )
            find_end(parts.log, directory, file_system)
            parts.queues.delete_before(parts.log.min_offset)
            parts.queues.settle_deleted(parts.log.min_offset, parts.log.end_offset)
            undo.pop_all()
        return StoreReader(parts.log, parts.queues, parts.index)

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the store."""
        self.close()

    def close(self) -> None:
        """Unmap and close every file."""
        self._index.close()
        self._queues.close()
        self._log.close()

    # The log

    @property
    def min_physical_offset(self) -> PhysicalOffset:
        """First byte that is stored."""
        return self._log.min_offset

    @property
    def end_offset(self) -> PhysicalOffset:
        """End of what is appended."""
        return self._log.end_offset

    @property
    def confirm_offset(self) -> PhysicalOffset:
        """End of what may be shown."""
        return self._log.end_offset

    def read_bytes(self, physical_offset: PhysicalOffset, size_bytes: int) -> bytes:
        """Return stored bytes of one log file, such as those of a record. May wait for a disk.

        Raises:
            OffsetOutOfRangeError: They are not all stored.
            ReadFailedError: The disk does not give them back.
        """
        return self._log.read_bytes(physical_offset, size_bytes)

    def read_cached(self, physical_offset: PhysicalOffset, size_bytes: int) -> bytes | None:
        """Return as `read_bytes` if no disk has to be waited for, else None. Raises likewise."""
        return self._log.read_cached(physical_offset, size_bytes)

    def read(self, physical_offset: PhysicalOffset) -> Record:
        """Return the record at a physical offset.

        Raises:
            OffsetOutOfRangeError: It lies outside the log.
            CorruptRecordError: No intact record begins there.
            ReadFailedError: The disk does not give it back.
        """
        return self._log.read(physical_offset)

    def store_timestamp(self, physical_offset: PhysicalOffset) -> int:
        """Return when the record at a physical offset was stored, in ms. May wait for a disk.

        Raises as `read`.
        """
        return self._log.store_timestamp(physical_offset)

    def read_by_offset_id(self, text: str) -> Record:
        """Return the message that an offset message id names.

        The broker's address in it is not compared: it may have changed since.

        Raises:
            ValueError: The text is no such id.
            OffsetOutOfRangeError: It points outside of what may be shown.
            CorruptRecordError: No record begins where it points.
            ReadFailedError: The disk does not give it back.
        """
        _, physical_offset = parse_offset_message_id(text)
        if not self.min_physical_offset <= physical_offset < self.confirm_offset:
            raise OffsetOutOfRangeError(
                "physical offset", physical_offset, self.min_physical_offset, self.confirm_offset
            )
        return self._log.read(physical_offset)

    # The queues

    def queues(self) -> list[tuple[str, int]]:
        """Return every (topic, queue id) that has a consume queue."""
        return self._queues.queues()

    def min_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the first queue offset that is stored.

        Of a queue without a message the one that its first will have: 0, unless it had messages
        before that are deleted.
        """
        bounds = self._queues.bounds(topic, queue_id)
        if bounds is None or not bounds[1]:
            # Without a unit it may be in the making: its first queue offset is not 0 for certain.
            return self._queues.noted_end(topic, queue_id)
        return bounds[0]

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the first queue offset after the last message that may be shown.

        Of a queue without a message as `min_offset`.
        """
        queue = self._queues.queue(topic, queue_id)
        if queue is None or not queue.max_offset:
            return self._queues.noted_end(topic, queue_id)
        return self._visible_end(queue)

    def fetch(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        max_count: int,
        tags_codes: frozenset[int] | None = None,
    ) -> FetchResult:
        """Return up to `max_count` units of a queue from `queue_offset` on.

        Below the first stored offset it starts there; at or beyond the end, and for a queue that
        does not exist, nothing is found. With `tags_codes` only units with one of these hashes
        are returned, of the next `SCAN_UNITS_MAX`: different tags may share one, so the caller
        compares the tags themselves. May wait for a disk.

        Raises:
            ReadFailedError: The disk does not give the units back.
        """
        found = self._fetch(topic, queue_id, queue_offset, max_count, tags_codes, only_cached=False)
        assert found is not None, "it waits for the disk"
        return found

    def fetch_cached(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        max_count: int,
        tags_codes: frozenset[int] | None = None,
    ) -> FetchResult | None:
        """Return as `fetch` if no disk has to be waited for, else None. Raises likewise."""
        return self._fetch(topic, queue_id, queue_offset, max_count, tags_codes, only_cached=True)

    def _fetch(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        max_count: int,
        tags_codes: frozenset[int] | None,
        *,
        only_cached: bool,
    ) -> FetchResult | None:
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return FetchResult([], queue_offset)
        start: int = max(queue_offset, queue.min_offset)
        end = self._visible_end(queue)
        if start >= end or max_count <= 0:
            return FetchResult([], QueueOffset(start))
        count = min(max_count if tags_codes is None else SCAN_UNITS_MAX, end - start)
        read = queue.read_cached if only_cached else queue.read
        try:
            data = read(QueueOffset(start), count)
        except OffsetOutOfRangeError:
            is_there = self._queues.queue(topic, queue_id) is queue
            if is_there and queue.min_offset <= start:
                raise
            # Retention has moved the beginning since it was looked at, or the topic was deleted.
            return self._fetch(
                topic, queue_id, queue_offset, max_count, tags_codes, only_cached=only_cached
            )
        if data is None:
            return None
        if tags_codes is not None:
            return _chosen_by_tags(data, start, max_count, tags_codes)
        found = [
            _new_fetched_unit((offset, physical_offset, size_bytes))
            for offset, (physical_offset, size_bytes, _) in enumerate(UNIT.iter_unpack(data), start)
        ]
        return FetchResult(found, QueueOffset(start + len(found)))

    def queue_slice(
        self,
        topic: str,
        queue_id: int,
        queue_offset: QueueOffset,
        max_bytes: int,
        wanted: WantedTags | None = None,
        *,
        max_units: int = UNITS_MAX,
        only_cached: bool = False,
    ) -> Slice | None:
        """Return the bytes of records of a queue from `queue_offset` on.

        Begins and ends as `fetch`: `max_bytes` of records, or a single longer one, of the next
        `max_units`. With `only_cached` None, if a disk would have to be waited for.

        Raises:
            ReadFailedError: The disk does not give all of them back.
        """
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return Slice(queue_offset, 0, queue_offset, b"", b"")
        start = QueueOffset(max(queue_offset, queue.min_offset))
        end = self._visible_end(queue)
        if start >= end:
            return Slice(start, 0, start, b"", b"")
        try:
            return queue_slice(
                self._log, queue, start, end,
                max_bytes=max_bytes, wanted=wanted, max_units=max_units, only_cached=only_cached,
            )  # fmt: skip
        except OffsetOutOfRangeError:
            if self._queues.queue(topic, queue_id) is not queue:
                # The topic was deleted meanwhile.
                return self.queue_slice(
                    topic, queue_id, queue_offset, max_bytes, wanted,
                    max_units=max_units, only_cached=only_cached,
                )  # fmt: skip
            # Retention deletes files of the log first, then hides what led into them.
            log_start = self.min_physical_offset
            first = queue.search(lambda unit: unit.physical_offset >= log_start)
            if first <= start:
                raise
            return self.queue_slice(
                topic, queue_id, first, max_bytes, wanted,
                max_units=max_units, only_cached=only_cached,
            )  # fmt: skip

    def log_slices(self) -> LogSlices:
        """Return a reader of whole log files, for one thread at a time."""
        return LogSlices(self._log)

    def offset_by_timestamp(self, topic: str, queue_id: int, timestamp_ms: int) -> QueueOffset:
        """Return the first queue offset whose message was stored at or after a time.

        The queue's end when there is none. Messages whose log file is gone count as older. May wait
        for a disk.

        Raises:
            ReadFailedError: The disk does not give back a unit or a record that tells.
        """
        queue = self._queues.queue(topic, queue_id)
        if queue is None:
            return self._queues.deleted.queue_end(topic, queue_id)
        low, high = queue.min_offset, self._visible_end(queue)
        while low < high:
            middle = QueueOffset((low + high) // 2)
            if self._is_stored_before(queue, middle, timestamp_ms):
                low = QueueOffset(middle + 1)
            else:
                high = middle
        return low

    def _visible_end(self, queue: ConsumeQueue) -> QueueOffset:
        """Return the first queue offset that may not be shown.

        The queues of a store that somebody else writes may be ahead of the log as it is read here.
        """
        end = self.confirm_offset
        return queue.search(lambda unit: unit.end_offset > end)

    def _is_stored_before(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, timestamp_ms: int
    ) -> bool:
        try:
            (unit,) = queue.units(queue_offset, 1)
            return self._log.store_timestamp(unit.physical_offset) < timestamp_ms
        except OffsetOutOfRangeError:
            # Retention has deleted it, maybe just now.
            return True

    # The index

    def query_by_key(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_count: int,
        *,
        kind: KeyKind = KeyKind.KEY,
        before: int = END_OF_LOG,
        with_bodies: bool = True,
    ) -> list[Record]:
        """Return up to `max_count` messages of a topic that have a key, newest first.

        `KeyKind.KEY` compares with the words of KEYS and with the unique key, `KeyKind.TAG` with
        the tags. Only messages count that were stored in [`begin_ms`, `end_ms`] and begin before
        the physical offset `before`. Without bodies they take little memory, however many they are.
        May wait for a disk.

        Raises:
            QueryTooWideError: Too many others would have to be passed over.
            ReadFailedError: The disk does not give back what is needed to find or read them.
        """

        def matches(record: Record) -> bool:
            return (
                record.topic == topic
                and begin_ms <= record.store_timestamp <= end_ms
                and key in names_of(record, kind)
            )

        offsets = self._index.candidates(topic, key, begin_ms, end_ms, before=before, kind=kind)
        return self._query(offsets, matches, max_count, with_bodies=with_bodies)

    def query_by_unique_key(
        self,
        topic: str,
        unique_key: str,
        max_count: int = SCAN_UNITS_MAX,
        *,
        with_bodies: bool = True,
    ) -> list[Record]:
        """Return the messages with a unique key, newest first; more than one after a resend.

        Any producer may send thousands with the same: ask for one, or for no bodies. Waits and
        raises as `query_by_key`.
        """

        def matches(record: Record) -> bool:
            return record.topic == topic and record.properties.get("UNIQ_KEY") == unique_key

        offsets = self._index.candidates(topic, unique_key, 0, END_OF_TIME_MS)
        return self._query(offsets, matches, max_count, with_bodies=with_bodies)

    def _query(
        self,
        candidates: Generator[PhysicalOffset, None, None],
        matches: Callable[[Record], bool],
        max_count: int,
        *,
        with_bodies: bool,
    ) -> list[Record]:
        """Return the first `max_count` candidates that match.

        The index knows hashes only, so some of them may be others' messages. Texts with any hash
        can be made: a search that finds too many of others is given up.
        """
        found: list[Record] = []
        if max_count <= 0:
            return found
        begin = self.min_physical_offset
        with closing(candidates):
            for others, offset in enumerate(candidates):
                if offset < begin:
                    break  # Its log file was deleted, and those of all that follow.
                record = self._read_candidate(offset)
                if record is not None and matches(record):
                    found.append(record if with_bodies else record._replace(body=b""))
                    if len(found) >= max_count:
                        break
                elif others - len(found) >= _OTHERS_MAX:
                    raise QueryTooWideError
        return found

    def _read_candidate(self, physical_offset: PhysicalOffset) -> Record | None:
        """Return the record, None if it is gone or, in a damaged index, never was."""
        try:
            return self._log.read(physical_offset)
        except (OffsetOutOfRangeError, CorruptRecordError):
            return None


def _chosen_by_tags(
    data: bytes, start: int, max_count: int, tags_codes: frozenset[int]
) -> FetchResult:
    units = np.frombuffer(data, dtype=UNIT_DTYPE)
    chosen = np.flatnonzero(np.isin(units["tags_code"], list(tags_codes)))[:max_count]
    found = [
        _new_fetched_unit((offset, physical_offset, size_bytes))
        for offset, (physical_offset, size_bytes, _) in zip(
            (start + chosen).tolist(), units[chosen].tolist(), strict=True
        )
    ]
    if len(found) < max_count:
        return FetchResult(found, QueueOffset(start + len(units)))
    return FetchResult(found, QueueOffset(found[-1].queue_offset + 1))


def names_of(record: Record, kind: KeyKind) -> list[str]:
    """Return what a record can be found by."""
    properties = record.properties
    if kind is KeyKind.TAG:
        return [properties.get("TAGS", "")]
    return [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
