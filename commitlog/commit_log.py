"""The log: every message of every topic, appended by one writer, read by anyone.

What the log promises:

- Queue offset and physical offset are assigned under one lock, here and nowhere else. Queue offsets
  are dense; store timestamps never decrease.
- `end_offset` moves after the bytes are in place, once per append or batch. Whatever lies below it
  never changes, so readers take no lock.
- The size word of a record, or of a whole batch, is stored last. A process killed at any moment
  leaves the record or batch out, never half of it.
- A file ends with a blank record; at least 8 bytes are kept free for it.
- After a failed flush nothing is appended any more: the kernel may have dropped what it could not
  write, so no later success would mean anything.

What this file must not know: when to flush, what a topic is allowed to do, consume queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, final

from isal.isal_zlib import crc32

from commitbus.commitlog.batch_encoder import check_sizes, encode_batch
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.descriptor_cache import DescriptorCache, quarter_of_descriptors
from commitbus.commitlog.errors import (
    FlushFailedError,
    MessageRefusedError,
    ReadFailedError,
    StoreClosedError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.file_preparer import FilePreparer
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.kernels import kernels
from commitbus.commitlog.log_reader import LogReader
from commitbus.commitlog.mapped_file import OPEN_FILES_MAX_DEFAULT, FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    BORN_HOST_IPV6_FLAG,
    CRC_MASK,
    HEADER_FORMATS,
    HOST_FLAGS,
    PROPERTIES_LENGTH,
    SIZE,
    SIZE_AND_MAGIC,
    STORE_HOST_IPV6_FLAG,
    TRANSACTION_PREPARED,
    ZERO_RUN_BYTES,
)
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.topics import Topics
from commitbus.commitlog.types import (
    AppendResult,
    Host,
    OutgoingMessage,
    PhysicalOffset,
    QueueOffset,
)

_NOT_WRITABLE: Final = -1

_concatenate = b"".join


def _ignore(_: StoreError) -> None:
    """Leave it to the next append, which raises the error."""


_pack_properties_length = PROPERTIES_LENGTH.pack
_new = tuple.__new__
"""Half the cost of calling a `NamedTuple`, as it bypasses a `__new__` written in Python."""


@final
class CommitLog(LogReader):
    """A directory of log files.

    Opening lists the files and assumes that all of their bytes may be records; recovery then finds
    the true end and calls `truncate`. Until then nothing may be appended.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        store_host: Host,
        max_body_bytes: int,
        clock: Clock,
        file_system: FileSystem,
        threads: Threads = SYSTEM_THREADS,
        writable: bool = True,
    ) -> None:
        """Open the log.

        Args:
            directory: Holds the log files and nothing else. Created with the first file.
            file_size: Bytes of each file; must be that of the files that are there.
            store_host: Stored in every record as the broker that stored it.
            max_body_bytes: Longest body that `append` takes.
            clock: For store timestamps.
            file_system: Where the files live.
            threads: For locks, and the thread that prepares files.
            writable: False to read a log that somebody else may be writing.

        Raises:
            NotAStoreError: The directory holds something that is no log file of this size.
            StoreDamagedError: A file between two others is missing.
        """
        descriptors = DescriptorCache(quarter_of_descriptors(OPEN_FILES_MAX_DEFAULT), threads)
        policy = FilePolicy(writable=writable, descriptors=descriptors, threads=threads)
        self._files = MappedFileQueue(directory, file_size, file_system=file_system, policy=policy)
        self._files.load()
        super().__init__(self._files, self._files.end_of_files)
        self._clock = clock
        self._writable = writable
        self._store_host = store_host
        self._store_address, self._store_port = store_host
        self._store_flag = STORE_HOST_IPV6_FLAG if store_host.is_ipv6 else 0
        self._max_body_bytes = max_body_bytes
        self._max_record_bytes = file_size - BLANK_RECORD_BYTES
        self.on_failure: Callable[[StoreError], None] = _ignore
        """Called on the thread that fails, once appending has ended for good: the thread that
        prepares files died, or the page where the log goes on does not come back from the disk."""
        self._failure: StoreError | None = None
        self._preparer = FilePreparer(self._files, self._fail)

        # Below: changed under the writer lock only.
        self._lock = threads.lock()
        self._topics = Topics()
        self._last_store_timestamp = 0
        self._file: MappedFile | None = None
        self._buffer = memoryview(b"")
        self._base_offset = self._position = 0
        self._limit = _NOT_WRITABLE
        self._takes_messages = True

        self._flush_lock = threads.lock()
        self._flushed_where = self._files.min_offset
        self._flush_error: FlushFailedError | None = None

    @property
    def files(self) -> MappedFileQueue:
        """The files with what it takes to cut them. For recovery."""
        return self._files

    @property
    def local_files(self) -> tuple[MappedFile, ...]:
        """The files that are there now, oldest first: a snapshot."""
        return self._files.files

    @property
    def writable(self) -> bool:
        """Whether the log was opened for writing."""
        return self._writable

    @property
    def flushed_where(self) -> PhysicalOffset:
        """Physical offset below which everything is on stable storage, as far as is known."""
        return PhysicalOffset(self._flushed_where)

    # Appending

    def append(self, message: OutgoingMessage) -> AppendResult:
        """Append one message. Safe on any thread. Not durable before a `flush`.

        Integer fields must fit the record's; that is the caller's to check.

        Raises:
            MessageRefusedError: The message breaks a limit. Nothing was appended.
            DiskFullError: The next file could not be created. Later appends try again.
            FlushFailedError: Nor could it be made durable. Likewise: nothing was in it.
            ThreadDiedError: The thread that prepares files died meanwhile. Nothing was appended.
            StoreReadOnlyError: It had died, a flush failed, or the log was opened for reading.
            ReadFailedError: The disk does not give back the page where the log goes on. Likewise.
            OutOfResourcesError: The process may open no more files. Later appends try again.
            StoreClosedError: The log was closed.
        """
        # In one piece, like `encode_batch`: a step that both shared would cost a tenth of it.
        (
            name, queue_id, body, properties, born_timestamp, (born_address, born_port),
            flag, sys_flag, reconsume_times, prepared_transaction_offset,
        ) = message  # fmt: skip
        topic = self._topics[name]
        body_bytes, properties_bytes = len(body), len(properties)
        if body_bytes > self._max_body_bytes or properties_bytes >= ZERO_RUN_BYTES:
            check_sizes(body, properties, self._max_body_bytes)
        assert not properties or properties[-1] == 2, "properties end with a separator"
        sys_flag = sys_flag & ~HOST_FLAGS | self._store_flag
        if len(born_address) == 16:
            sys_flag |= BORN_HOST_IPV6_FLAG
        header = HEADER_FORMATS[sys_flag & HOST_FLAGS]
        size = header.size + body_bytes + len(topic.prefixed) + 2 + properties_bytes
        crc = crc32(body) & CRC_MASK
        with self._lock:
            if self._position + size > self._limit:
                self._make_room("the record", size)
            position = self._position
            end = position + size
            physical_offset = self._base_offset + position
            timestamp = self._now()
            # RocketMQ gives no queue offset to what no consume queue will hold.
            is_queued = not sys_flag & TRANSACTION_PREPARED
            queue_offset = topic.queue_ends.get(queue_id, 0) if is_queued else 0
            self._buffer[position:end] = _concatenate((
                header.pack(
                    0, topic.magic_code, crc, queue_id, flag, queue_offset, physical_offset,
                    sys_flag, born_timestamp, born_address, born_port, timestamp,
                    self._store_address, self._store_port, reconsume_times,
                    prepared_transaction_offset, body_bytes,
                ),
                body,
                topic.prefixed,
                _pack_properties_length(properties_bytes),
                properties,
            ))  # fmt: skip
            # The size word last: until then the log ends before the record.
            SIZE.pack_into(self._buffer, position, size)
            if is_queued:
                topic.queue_ends[queue_id] = queue_offset + 1
            self._position = end
            self._end_offset = physical_offset + size
        return _new(AppendResult, (physical_offset, size, queue_offset, timestamp))

    def append_batch(self, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
        """Append all of the messages next to each other in one file, or none of them.

        Readers see all at once; so does a recovery after the process was killed. Raises as
        `append`, and `MessageRefusedError` for a batch that no file can hold.
        """
        if not messages:
            return []
        with self._lock:
            encode = partial(
                encode_batch, messages, self._topics, self._store_host, self._max_body_bytes,
                timestamp=self._now(),
            )  # fmt: skip
            parts, results, ends = encode(self._base_offset + self._position)
            total = results[-1].end_offset - results[0].physical_offset
            if self._position + total > self._limit:
                self._make_room("the batch", total)
                if self._base_offset + self._position != results[0].physical_offset:
                    # It goes into the next file, and each record says where it lies.
                    parts, results, ends = encode(self._base_offset + self._position)
            position = self._position
            self._buffer[position : position + total] = _concatenate(parts)
            # The first size word last: until then the log ends before the batch.
            SIZE.pack_into(self._buffer, position, results[0].size_bytes)
            for (topic, queue_id), end in ends.items():
                topic.queue_ends[queue_id] = end
            self._position = position + total
            self._end_offset = self._base_offset + self._position
        return results

    def append_framed(self, batch: FramedBatch) -> AppendResult:
        """Append the records of a batch, like `append_batch`; return where they lie together.

        The queue offset is the first record's. Raises as `append_batch`, and `ValueError` for
        lengths that are not the buffer's; of no record, which has no place.
        """
        batch.check(self._max_body_bytes)
        if not len(batch):
            raise ValueError("the batch has no record")
        topic = self._topics[batch.topic]
        total, first_size = batch.stored_bytes(len(topic.prefixed), self._store_host)
        chosen = kernels(len(batch))
        with self._lock:
            if self._position + total > self._limit:
                self._make_room("the batch", total)
            position, timestamp = self._position, self._now()
            physical_offset = self._base_offset + position
            queue_offset = topic.queue_ends.get(batch.queue_id, 0)
            chosen.append_records(
                self._buffer[position : position + total],
                batch.records,
                batch.body_bytes,
                batch.properties_bytes,
                last_properties=batch.last_properties,
                header=batch.header(topic.magic_code, timestamp, self._store_host),
                topic=topic.prefixed,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
            )
            # The first size word last: until then the log ends before the batch.
            SIZE.pack_into(self._buffer, position, first_size)
            topic.queue_ends[batch.queue_id] = queue_offset + len(batch)
            self._position = position + total
            self._end_offset = physical_offset + total
        return _new(AppendResult, (physical_offset, total, queue_offset, timestamp))

    def roll(self) -> PhysicalOffset | None:
        """End the current file with a blank record now; the next message goes into the next file.

        Return where the ended file begins, None if there is none: a file without a record is not
        ended. What `end_offset` then says, the beginning of the next file, is durable after a
        `flush`. Raises as `append`.
        """
        with self._lock:
            self._check_appendable()
            if self._file is None or self._position == 0:
                return None
            ended = PhysicalOffset(self._base_offset)
            self._roll()
            self._limit = _NOT_WRITABLE
            self._end_offset = self._base_offset
        return ended

    def _now(self) -> int:
        timestamp = self._clock.now_ms()
        if timestamp < self._last_store_timestamp:
            return self._last_store_timestamp
        self._last_store_timestamp = timestamp
        return timestamp

    def _make_room(self, what: str, size: int) -> None:
        """Under the lock: make `size` bytes at the position writable, or say why that cannot be."""
        if size > self._max_record_bytes:
            raise MessageRefusedError(what, size, self._max_record_bytes)
        self._check_appendable()
        if self._file is None or self._position + size > self._max_record_bytes:
            self._roll()
        end = self._position + size
        limit = min(self._preparer.advance(end), self._max_record_bytes)
        self._limit = self._hold(end, limit)

    def _check_appendable(self) -> None:
        if self._flush_error is not None:
            raise StoreReadOnlyError(str(self._flush_error))
        if self._failure is not None:
            raise StoreReadOnlyError(str(self._failure))
        if not self._takes_messages:
            raise StoreClosedError
        if not self._writable:
            raise StoreReadOnlyError("it was opened for reading")

    def _roll(self) -> None:
        """Under the lock: go on in the next file, after closing the current one with a blank."""
        # First what can fail; until the next file is there the current one is as it was.
        following = self._preparer.next_file(self._files.end_of_files)
        rest = self._files.file_size - self._position
        try:
            following.map()
            if self._file is not None:
                end = self._position + BLANK_RECORD_BYTES
                self._hold(end, end)
        except BaseException:
            # The new file is not in use yet, and the next attempt creates it again.
            following.delete()
            raise
        if self._file is not None:
            SIZE_AND_MAGIC.pack_into(self._buffer, self._position, 0, BLANK_MAGIC_CODE)
            SIZE.pack_into(self._buffer, self._position, rest)
        self._files.add(following)
        self._write_to(following, 0)

    def _write_to(self, file: MappedFile, position: int) -> None:
        """Append to a mapped file from a position on."""
        buffer = file.buffer
        if self._file is not None:
            self._file.unmap()
        self._file, self._buffer = file, buffer
        self._base_offset, self._position = file.base_offset, position
        # Until the preparer has said how much of this file is the writer's.
        self._limit = _NOT_WRITABLE
        self._preparer.begin(file, position)

    def _hold(self, end: int, limit: int) -> int:
        """Under the lock: make sure that stores up to `end` meet no page that must be read first.

        Return up to where that is so, at most `limit`.

        Raises:
            ReadFailedError: The disk does not give a page back; nothing can be appended any more.
        """
        assert self._file is not None, "there is a file to append to"
        try:
            return self._file.hold(self._position, end, limit)
        except ReadFailedError as error:
            self._fail(error)
            raise

    def _fail(self, failure: StoreError) -> None:
        self._failure = failure
        self.on_failure(failure)

    # Queue offsets

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the queue offset that the queue's next message gets; 0 for an unknown queue."""
        known = self._topics.get(topic)
        return QueueOffset(known.queue_ends.get(queue_id, 0) if known else 0)

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return the next queue offset of each known queue."""
        with self._lock:
            return self._topics.queue_ends()

    def topic_ends(self, topic: str) -> tuple[PhysicalOffset, dict[int, QueueOffset]]:
        """Return the log's end, and by queue id the queue ends of a topic at that moment."""
        with self._lock:
            return self.end_offset, self._topics.queue_ends_of(topic)

    def set_queue_ends(self, ends: Mapping[tuple[str, int], QueueOffset]) -> None:
        """Set the next queue offsets of these queues, as recovery or a deleted topic demands."""
        with self._lock:
            for (topic, queue_id), end in ends.items():
                self._topics[topic].queue_ends[queue_id] = end

    # Durability

    def flush(self) -> PhysicalOffset:
        """Make durable what was appended before the call; return the new `flushed_where`.

        Safe on any thread; two flushes run one after the other.

        Raises:
            FlushFailedError: It failed, now or earlier. It is never tried again, and the log takes
                no more messages.
            StoreClosedError: The log was closed.
        """
        with self._flush_lock:
            if self._closed:
                raise StoreClosedError
            if self._flush_error is not None:
                raise self._flush_error
            end = self._end_offset
            if self._writable and end > self._flushed_where:
                try:
                    self._files.flush(self._flushed_where, end)
                except FlushFailedError as error:
                    self._flush_error = error
                    self.stop_appending()
                    raise
                self._flushed_where = end
                with self._lock:
                    # Pages that are durable may be evicted: the next append looks at them again.
                    self._limit = _NOT_WRITABLE
        return PhysicalOffset(end)

    # The ends

    def truncate(self, end: PhysicalOffset, *, last_store_timestamp: int = 0) -> None:
        """Let the log end at `end`, and append from there on. Only for recovery.

        Zeroes all bytes behind and removes later files, unless the log was opened for reading.

        Args:
            end: Where the next record begins.
            last_store_timestamp: No later record gets an earlier one.
        """
        with self._lock:
            self._last_store_timestamp = max(self._last_store_timestamp, last_store_timestamp)
            self._end_offset = end
            if not self._writable:
                return
            # A file that was prepared for the end before is none of the log's files yet.
            self._preparer.stop()
            self._preparer = FilePreparer(self._files, self._fail)
            self._files.truncate(end)
            file = self._files.find(end)
            if file is not None:
                # Reserves its blocks: RocketMQ, and a copy of the store, leave it sparse.
                file.map()
                self._write_to(file, end - file.base_offset)

    def delete_before(self, physical_offset: PhysicalOffset) -> int:
        """Remove files whose records all lie below the offset; return how many.

        Only what is durable goes, and never the file that is written.
        """
        return self._files.delete_before(min(physical_offset, self._flushed_where))

    def stop_appending(self) -> None:
        """Take no more messages: what the next `flush` makes durable is then everything."""
        with self._lock:
            self._takes_messages = False
            self._limit = _NOT_WRITABLE

    def close(self) -> None:
        """Stop appending and give the files up. Does not flush. Reads under way end well."""
        self.stop_appending()
        self._closed = True
        self._preparer.stop()
        with self._flush_lock:
            self._files.close()
