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

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, TypeAlias, final

from isal.isal_zlib import crc32

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import (
    CorruptRecordError,
    FlushFailedError,
    MessageRefusedError,
    OffsetOutOfRangeError,
    StoreClosedError,
    StoreReadOnlyError,
)
from commitbus.commitlog.file_preparer import FilePreparer
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    BORN_HOST_IPV6_FLAG,
    CRC_MASK,
    HEADER_FORMATS,
    HOST_FLAGS,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    PROPERTIES_LENGTH,
    SIZE,
    SIZE_AND_MAGIC,
    STORE_HOST_IPV6_FLAG,
    TRANSACTION_PREPARED,
    ZERO_RUN,
    ZERO_RUN_BYTES,
    EncodedTopic,
    decode_record,
    decode_store_timestamp,
    dispatch_request,
    encode_topic,
)
from commitbus.commitlog.record_scanner import RecordScanner, StopKind
from commitbus.commitlog.types import (
    AppendResult,
    DispatchRequest,
    Host,
    OutgoingMessage,
    PhysicalOffset,
    QueueOffset,
    Record,
)

_TOPICS_MAX: Final = 10_000
_NOT_WRITABLE: Final = -1

_Encoded: TypeAlias = tuple[
    tuple[str, int] | None, int, Struct, EncodedTopic, bytes, int, int, OutgoingMessage
]
"""Queue (None if the message is in none), size, header layout, topic, the properties' length, body
CRC, system flag, message. A bare tuple, because it is made for every append."""

_concatenate = b"".join
_pack_properties_length = PROPERTIES_LENGTH.pack
_new_result = partial(tuple.__new__, AppendResult)
"""Half the cost of calling the class, as it bypasses a `__new__` written in Python."""


@final
class CommitLog:
    """A directory of log files.

    Opening maps the files and assumes that all of their bytes may be records; recovery then finds
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
            writable: False to read a log that somebody else may be writing.

        Raises:
            NotAStoreError: The directory holds something that is no log file of this size.
            StoreDamagedError: A file between two others is missing.
        """
        self._files = MappedFileQueue(
            directory, file_size, file_system=file_system, policy=FilePolicy(writable=writable)
        )
        self._files.load()
        self._clock = clock
        self._writable = writable
        self._store_address, self._store_port = store_host
        self._store_flag = STORE_HOST_IPV6_FLAG if store_host.is_ipv6 else 0
        self._max_body_bytes = max_body_bytes
        self._max_record_bytes = file_size - BLANK_RECORD_BYTES
        self._topics: dict[str, EncodedTopic] = {}
        self._preparer = FilePreparer(self._files)

        # Below: changed under the writer lock only.
        self._lock = threading.Lock()
        self._queue_ends: dict[tuple[str, int], int] = {}
        self._last_store_timestamp = 0
        self._file: MappedFile | None = None
        self._buffer = memoryview(b"")
        self._base_offset = 0
        self._position = 0
        self._limit = _NOT_WRITABLE
        self._closed = False
        # Read by everyone, written under the writer lock, after the bytes below it.
        self._end_offset = self._files.end_of_files

        self._flush_lock = threading.Lock()
        self._flushed_where = self._files.min_offset
        self._flush_error: FlushFailedError | None = None

    @property
    def files(self) -> MappedFileQueue:
        """The log's files, for recovery, retention and checks."""
        return self._files

    @property
    def writable(self) -> bool:
        """Whether the log was opened for writing."""
        return self._writable

    @property
    def min_offset(self) -> PhysicalOffset:
        """First physical offset that is stored."""
        return PhysicalOffset(self._files.min_offset)

    @property
    def end_offset(self) -> PhysicalOffset:
        """Physical offset behind the last record that was appended."""
        return PhysicalOffset(self._end_offset)

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
            StoreReadOnlyError: A flush failed, or the log was opened for reading.
            StoreClosedError: The log was closed.
        """
        encoded = self._encode(message)
        key, size = encoded[0], encoded[1]
        with self._lock:
            if self._position + size > self._limit:
                self._make_room(size)
            buffer, position = self._buffer, self._position
            timestamp = self._now()
            queue_offset = self._queue_ends.get(key, 0) if key is not None else 0
            physical_offset = self._base_offset + position
            buffer[position : position + size] = _concatenate(
                self._parts(encoded, 0, queue_offset, physical_offset, timestamp)
            )
            SIZE.pack_into(buffer, position, size)
            if key is not None:
                self._queue_ends[key] = queue_offset + 1
            self._position = position + size
            self._end_offset = physical_offset + size
        return _new_result((physical_offset, size, queue_offset, timestamp))

    def append_batch(self, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
        """Append all of the messages next to each other in one file, or none of them.

        Readers see all at once; so does a recovery after the process was killed. Raises as
        `append`, and `MessageRefusedError` for a batch that no file can hold.
        """
        encoded = [self._encode(message) for message in messages]
        total = sum(item[1] for item in encoded)
        if total > self._max_record_bytes:
            raise MessageRefusedError("the batch", total, self._max_record_bytes)
        if not encoded:
            return []
        parts: list[bytes] = []
        results: list[AppendResult] = []
        ends: dict[tuple[str, int], int] = {}
        with self._lock:
            if self._position + total > self._limit:
                self._make_room(total)
            first, timestamp = self._position, self._now()
            physical_offset = self._base_offset + first
            for item in encoded:
                key, size = item[0], item[1]
                queue_offset = 0
                if key is not None:
                    queue_offset = ends[key] if key in ends else self._queue_ends.get(key, 0)
                    ends[key] = queue_offset + 1
                stored_size = size if results else 0
                parts += self._parts(item, stored_size, queue_offset, physical_offset, timestamp)
                results.append(_new_result((physical_offset, size, queue_offset, timestamp)))
                physical_offset += size
            self._buffer[first : first + total] = _concatenate(parts)
            # The first size word last: until then the log ends before the batch.
            SIZE.pack_into(self._buffer, first, encoded[0][1])
            self._queue_ends.update(ends)
            self._position = first + total
            self._end_offset = physical_offset
        return results

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

    def _encode(self, message: OutgoingMessage) -> _Encoded:
        """Check a message and do all that needs no lock."""
        topic = self._topics.get(message.topic) or self._encode_topic(message.topic)
        body, properties = message.body, message.properties
        if len(body) > self._max_body_bytes or len(properties) >= ZERO_RUN_BYTES:
            self._check_sizes(body, properties)
        assert not properties or properties[-1] == 2, "properties end with a separator"
        sys_flag = message.sys_flag & ~HOST_FLAGS | self._store_flag
        if len(message.born_host.address) == 16:
            sys_flag |= BORN_HOST_IPV6_FLAG
        header = HEADER_FORMATS[sys_flag & HOST_FLAGS]
        size = header.size + len(body) + len(topic.prefixed) + 2 + len(properties)
        if size > self._max_record_bytes:
            raise MessageRefusedError("the record", size, self._max_record_bytes)
        # RocketMQ gives no queue offset to what no consume queue will hold.
        key = None if sys_flag & TRANSACTION_PREPARED else (message.topic, message.queue_id)
        return (
            key,
            size,
            header,
            topic,
            _pack_properties_length(len(properties)),
            crc32(body) & CRC_MASK,
            sys_flag,
            message,
        )

    def _parts(
        self,
        encoded: _Encoded,
        stored_size: int,
        queue_offset: int,
        physical_offset: int,
        timestamp: int,
    ) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Return the parts of a record. A stored size of 0 hides it until that is replaced."""
        _, _, header, topic, properties_length, crc, sys_flag, message = encoded
        body = message.body
        born_address, born_port = message.born_host
        return (
            header.pack(
                stored_size, topic.magic_code, crc, message.queue_id, message.flag, queue_offset,
                physical_offset, sys_flag, message.born_timestamp, born_address, born_port,
                timestamp, self._store_address, self._store_port, message.reconsume_times,
                message.prepared_transaction_offset, len(body),
            ),
            body,
            topic.prefixed,
            properties_length,
            message.properties,
        )  # fmt: skip

    def _encode_topic(self, topic: str) -> EncodedTopic:
        data = topic.encode()
        assert data, "a topic has a name"
        if len(data) > MAX_TOPIC_BYTES:
            raise MessageRefusedError("the topic", len(data), MAX_TOPIC_BYTES)
        if len(self._topics) >= _TOPICS_MAX:
            self._topics.clear()
        encoded = self._topics[topic] = encode_topic(data)
        return encoded

    def _check_sizes(self, body: bytes, properties: bytes) -> None:
        if len(body) > self._max_body_bytes:
            raise MessageRefusedError("the body", len(body), self._max_body_bytes)
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise MessageRefusedError("the properties", len(properties), MAX_PROPERTIES_BYTES)
        if ZERO_RUN in properties:
            # Recovery would take such a record for one whose pages were only partly written.
            raise MessageRefusedError(
                "a run of zeros in the properties", ZERO_RUN_BYTES, ZERO_RUN_BYTES - 1
            )

    def _now(self) -> int:
        timestamp = self._clock.now_ms()
        if timestamp < self._last_store_timestamp:
            return self._last_store_timestamp
        self._last_store_timestamp = timestamp
        return timestamp

    def _make_room(self, size: int) -> None:
        """Under the lock: make `size` bytes at the position writable, or say why that cannot be."""
        self._check_appendable()
        if self._file is None or self._position + size > self._max_record_bytes:
            self._roll()
        limit = self._preparer.advance(self._position + size)
        self._limit = min(limit, self._max_record_bytes)

    def _check_appendable(self) -> None:
        if self._closed:
            raise StoreClosedError
        if self._flush_error is not None:
            raise StoreReadOnlyError(str(self._flush_error))
        if not self._writable:
            raise StoreReadOnlyError("it was opened for reading")

    def _roll(self) -> None:
        """Under the lock: go on in the next file, after closing the current one with a blank."""
        # First what can fail; until the next file is there the current one is as it was.
        following = self._preparer.next_file(self._files.end_of_files)
        if self._file is not None:
            rest = self._files.file_size - self._position
            SIZE_AND_MAGIC.pack_into(self._buffer, self._position, 0, BLANK_MAGIC_CODE)
            SIZE.pack_into(self._buffer, self._position, rest)
        self._files.add(following)
        self._write_to(following, 0)

    def _write_to(self, file: MappedFile, position: int) -> None:
        self._file, self._buffer = file, file.buffer
        self._base_offset, self._position = file.base_offset, position
        self._preparer.begin(file, position)

    # Queue offsets

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the queue offset that the queue's next message gets; 0 for an unknown queue."""
        return QueueOffset(self._queue_ends.get((topic, queue_id), 0))

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return the next queue offset of each known queue."""
        with self._lock:
            return {key: QueueOffset(end) for key, end in self._queue_ends.items()}

    def topic_ends(self, topic: str) -> tuple[PhysicalOffset, dict[int, QueueOffset]]:
        """Return the log's end, and by queue id the queue ends of a topic at that moment."""
        with self._lock:
            ends = {
                queue_id: QueueOffset(end)
                for (name, queue_id), end in self._queue_ends.items()
                if name == topic
            }
            return self.end_offset, ends

    def set_queue_ends(self, ends: Mapping[tuple[str, int], QueueOffset]) -> None:
        """Set the next queue offsets of these queues, as recovery or a deleted topic demands."""
        with self._lock:
            self._queue_ends.update(ends)

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
                    with self._lock:
                        self._flush_error = error
                        self._limit = _NOT_WRITABLE
                    raise
                self._flushed_where = end
        return PhysicalOffset(end)

    # Reading

    def pin(
        self, physical_offset: PhysicalOffset, size_bytes: int
    ) -> AbstractContextManager[memoryview]:
        """Return a context that yields stored bytes without a copy, valid inside it only.

        Raises:
            OffsetOutOfRangeError: They do not lie in what is stored, in one file.
            StoreClosedError: The log was closed.
        """
        file = self._file_at(physical_offset)
        position = physical_offset - file.base_offset
        if position + size_bytes > min(file.size_bytes, self._end_offset - file.base_offset):
            raise self._out_of_range(physical_offset + size_bytes)
        return file.pin(position, size_bytes)

    def read(self, physical_offset: PhysicalOffset) -> Record:
        """Return the record at an offset, its checksum verified.

        Raises:
            CorruptRecordError: No intact record begins there.
            OffsetOutOfRangeError: Nothing is stored there.
            StoreClosedError: The log was closed.
        """
        with self._pin_rest(physical_offset) as view:
            return decode_record(view, physical_offset)

    def store_timestamp(self, physical_offset: PhysicalOffset) -> int:
        """Return when the record at an offset was stored, looking at nothing else. As `read`."""
        with self._pin_rest(physical_offset) as view:
            return decode_store_timestamp(view, physical_offset)

    def dispatch_requests(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[list[DispatchRequest], PhysicalOffset]:
        """Return what reput needs of up to `max_count` records in [start, end), and where to go on.

        Blank records are passed over. The second value is `end` once everything was returned.

        Raises:
            CorruptRecordError: The first record from `start` on is not whole.
            OffsetOutOfRangeError: Nothing is stored at `start`.
            StoreClosedError: The log was closed.
        """
        requests: list[DispatchRequest] = []
        end = min(end, self.end_offset)
        while start < end and len(requests) < max_count:
            file = self._file_at(start)
            base, position = file.base_offset, start - file.base_offset
            length = min(file.size_bytes, end - base)
            with file.pin(0, length) as view:
                scanner = RecordScanner(view, base, position, verify_crc=False)
                for checked in scanner:
                    offset = PhysicalOffset(base + checked[-1] - checked[0])
                    requests.append(dispatch_request(view, offset, checked))
                    if len(requests) == max_count:
                        return requests, requests[-1].end_offset
            stop = scanner.stop
            assert stop is not None, "the scanner ran to its end"
            if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
                if requests:
                    return requests, requests[-1].end_offset
                raise CorruptRecordError(base + stop.position, stop.reason)
            start = PhysicalOffset(base + length)
        return requests, start

    def _file_at(self, physical_offset: int) -> MappedFile:
        if self._closed:
            raise StoreClosedError
        file = self._files.find(physical_offset)
        if file is None or physical_offset >= self._end_offset:
            raise self._out_of_range(physical_offset)
        return file

    def _pin_rest(self, physical_offset: int) -> AbstractContextManager[memoryview]:
        """Return a context that yields what is stored from an offset to the end of its file."""
        file = self._file_at(physical_offset)
        position = physical_offset - file.base_offset
        length = min(file.size_bytes, self._end_offset - file.base_offset) - position
        return file.pin(position, length)

    def _out_of_range(self, physical_offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            "physical offset", physical_offset, self._files.min_offset, self._end_offset
        )

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
            self._preparer = FilePreparer(self._files)
            self._files.truncate(end)
            file = self._files.find(end)
            if file is not None:
                # RocketMQ leaves its last file sparse.
                file.reserve(file.size_bytes)
                self._write_to(file, end - file.base_offset)

    def delete_before(self, physical_offset: PhysicalOffset) -> int:
        """Remove files whose records all lie below the offset; return how many.

        Only what is durable goes, and never the file that is written.
        """
        return self._files.delete_before(min(physical_offset, self._flushed_where))

    def close(self) -> None:
        """Stop appending and give the files up. Does not flush. Pinned bytes stay readable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._limit = _NOT_WRITABLE
        self._preparer.stop()
        with self._flush_lock:
            self._files.close()
