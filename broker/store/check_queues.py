"""Consume queues held against the log: every message has its unit, every unit its message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, final

import numpy as np
import numpy.typing as npt

from commitbus.broker.store.check_report import CheckReport
from commitbus.broker.store.layout import QUEUES
from commitbus.commitlog.errors import ReadFailedError, StoreError
from commitbus.commitlog.file_system import FileSystem, data_chunks, read_at
from commitbus.commitlog.mapped_file import file_name
from commitbus.commitlog.mapped_file_queue import list_files
from commitbus.commitlog.record_format import (
    TRANSACTION_FLAGS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLED_BACK,
)
from commitbus.commitlog.types import DispatchRequest
from commitbus.consumequeue.deleted_topics import DELETED_TOPICS_PATH, DeletedTopics
from commitbus.consumequeue.queue_ends import QUEUE_ENDS_PATH, Ends, QueueEnds
from commitbus.consumequeue.unit_format import PADDING, UNIT, UNIT_BYTES, UNIT_DTYPE

_BLOCK_BYTES: Final = 200 * UNIT_BYTES
_BLOCKS_MAX: Final = 1 << 14
"""Kept in memory, 64 MB: the walk goes through 10,000 queues side by side."""
_PADDING: Final = np.array(tuple(PADDING), dtype=UNIT_DTYPE)

_Units = npt.NDArray[np.void]


@final
@dataclass(slots=True)
class _Queue:
    directory: Path
    file_bytes: int
    begin: int
    """First queue offset that has a unit, padding not counted."""
    end: int
    """One more than the last."""
    confirmed: bytearray = field(default_factory=bytearray)
    """A bit per unit, set once its message was seen."""

    def place(self, queue_offset: int) -> tuple[Path, int]:
        """Return the file and the position in it of a unit."""
        position = queue_offset * UNIT_BYTES % self.file_bytes
        return self.directory / file_name(queue_offset * UNIT_BYTES - position), position


@final
class QueueCheck:
    """Checks the units while the log is walked: each message once, in log order."""

    def __init__(self, store: Path, file_system: FileSystem, report: CheckReport) -> None:
        """Open the queues; report files of wrong names and sizes."""
        self._file_system, self._report = file_system, report
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._topics: set[str] = set()
        self._deleted: DeletedTopics | None = None
        try:
            self._deleted = DeletedTopics(store, file_system)
        except StoreError as error:
            report.add(store / DELETED_TOPICS_PATH, 0, str(error))
        self._ends: Ends = {}
        try:
            self._ends = QueueEnds(store, file_system).ends
        except StoreError as error:
            report.add(store / QUEUE_ENDS_PATH, 0, str(error))
        self._unreadable: set[tuple[str, int]] = set()
        self._block = lru_cache(maxsize=_BLOCKS_MAX)(self._read_block)
        directory = store / QUEUES
        for topic in file_system.list_names(directory):
            if not file_system.is_directory(directory / topic):
                continue
            for name in file_system.list_names(directory / topic):
                if name.isascii() and name.isdecimal():
                    self._load(topic, int(name), directory / topic / name)

    def see(self, request: DispatchRequest, *, is_vouched: bool) -> None:
        """Compare a message of the log with its unit.

        Args:
            request: The message.
            is_vouched: Whether its unit must be right by now, or may still be to be recovered.
        """
        if request.sys_flag & TRANSACTION_FLAGS in (TRANSACTION_PREPARED, TRANSACTION_ROLLED_BACK):
            return
        if self._is_of_deleted_topic(request):
            self._report.of_deleted_topics += 1
            return
        key = request.topic, request.queue_id
        queue = self._queues.get(key)
        queue_offset = request.queue_offset
        expected = (request.physical_offset, request.size_bytes, request.tags_code)
        found = None
        if key in self._unreadable:
            return  # It cannot be told.
        if queue is not None and queue.begin <= queue_offset < queue.end:
            path, position = queue.place(queue_offset)
            found = self._unit(path, position)
            if found == expected:
                bit = queue_offset - queue.begin
                queue.confirmed[bit >> 3] |= 0x80 >> (bit & 7)
                return
            if found[0] > request.physical_offset:
                return  # The topic was deleted and made anew: a later message has this offset.
        if not is_vouched:
            self._report.to_be_recovered += 1
            return
        self._report.not_in_queue += 1
        name = Path(self._report.directory, QUEUES, request.topic, str(request.queue_id))
        path, position = (name, 0) if queue is None else queue.place(queue_offset)
        have = "no unit" if found is None else f"unit {found}"
        self._report.add(
            path, position, f"{have} at queue offset {queue_offset}, the message needs {expected}"
        )

    def check_ends(self) -> None:
        """Report queues that end before offsets which messages had that retention let go."""
        for (topic, queue_id), end in self._ends.items():
            queue = self._queues.get((topic, queue_id))
            # One that was removed goes on where the note says; one with messages has its own end.
            if queue is not None and queue.end < end and not any(queue.confirmed):
                self._report.add(
                    *queue.place(queue.end),
                    f"the queue ends at {queue.end}, but messages that are gone had the queue "
                    f"offsets below {end}",
                )

    def finish(self, log_begin: int) -> None:
        """Report the units of a cleanly closed store that no message confirmed.

        Units of messages whose log file or topic was deleted stay until their own file is.
        """
        for (topic, _), queue in self._queues.items():
            before = self._deleted.before(topic) if self._deleted else 0
            confirmed = np.unpackbits(np.frombuffer(queue.confirmed, dtype=np.uint8))
            for offset, units in self._units(queue):
                bits = confirmed[offset - queue.begin :][: len(units)]
                alien = (bits == 0) & (units["physical_offset"] >= max(log_begin, before))
                for index in np.flatnonzero(alien):
                    self._report.add(
                        *queue.place(offset + int(index)),
                        f"unit {units[index].item()} at queue offset {offset + int(index)} "
                        "points to no message of this queue",
                    )

    def _is_of_deleted_topic(self, request: DispatchRequest) -> bool:
        if self._deleted is None:
            return request.topic not in self._topics
        # RocketMQ deletes topics without a note, so in its stores a topic may just be missing.
        is_gone = self._deleted.is_new and request.topic not in self._topics
        return is_gone or self._deleted.hides(request)

    def _load(self, topic: str, queue_id: int, directory: Path) -> None:
        try:
            paths = list_files(directory, self._file_system)
        except StoreError as error:
            self._report.add(directory, 0, str(error))
            return
        if not paths:
            return
        begin = expected = int(paths[0].name)
        file_bytes = self._size(paths[0])
        for path in paths:
            size = self._size(path)
            if size != file_bytes or size == 0 or size % UNIT_BYTES or int(path.name) != expected:
                self._report.add(
                    path, 0, f"{size} bytes where a file of {file_bytes} at {expected} is expected"
                )
                return
            expected += size
        queue = _Queue(directory, file_bytes, begin // UNIT_BYTES, expected // UNIT_BYTES)
        try:
            self._find_bounds(queue)
        except ReadFailedError as error:
            self._report.add(error.path, error.position, str(error))
            self._topics.add(topic)
            self._unreadable.add((topic, queue_id))
            return
        if queue.end > queue.begin:
            queue.confirmed = bytearray((queue.end - queue.begin + 7) // 8)
            self._topics.add(topic)
            self._queues[topic, queue_id] = queue
            self._report.queues += 1
            self._report.queue_units += queue.end - queue.begin

    def _find_bounds(self, queue: _Queue) -> None:
        """Set where the units begin and end: behind the padding, behind the last written one."""
        end = queue.begin
        for offset, units in self._units(queue):
            if offset == queue.begin:
                padding = units == _PADDING
                queue.begin += len(units) if padding.all() else int(np.argmin(padding))
            written = np.flatnonzero(units["size_bytes"] > 0)
            if len(written):
                end = offset + int(written[-1]) + 1
        queue.end = max(end, queue.begin)

    def _units(self, queue: _Queue) -> Iterator[tuple[int, _Units]]:
        """Yield (first queue offset, units) of each file, from the queue's begin to its end.

        The zeros at the end of a file are left out. ReadFailedError.
        """
        offset = queue.begin
        while offset < queue.end:
            path, position = queue.place(offset)
            units = self._file_units(path)[position // UNIT_BYTES :][: queue.end - offset]
            yield offset, units
            offset += (queue.file_bytes - position) // UNIT_BYTES

    def _file_units(self, path: Path) -> _Units:
        """Return the units of a file up to the last that is not zero. ReadFailedError."""
        file = self._file_system.open(path, writable=False)
        try:
            data = bytearray()
            for position, chunk in data_chunks(file, 0, file.size()):
                data.extend(bytes(position - len(data)))
                data += chunk
        finally:
            file.close()
        end = len(data.rstrip(b"\0"))
        data.extend(bytes(-len(data) % UNIT_BYTES))
        return np.frombuffer(data, dtype=UNIT_DTYPE, count=-(-end // UNIT_BYTES))

    def _unit(self, path: Path, position: int) -> tuple[int, int, int]:
        """Return the unit at a position of a file; zeros if the disk does not give it back."""
        block, at = divmod(position, _BLOCK_BYTES)
        unit: tuple[int, int, int] = UNIT.unpack_from(self._block(path, block), at)
        return unit

    def _read_block(self, path: Path, number: int) -> bytes:
        file = self._file_system.open(path, writable=False)
        try:
            data = read_at(file, _BLOCK_BYTES, number * _BLOCK_BYTES)
        except ReadFailedError as error:
            self._report.add(error.path, error.position, str(error))
            data = b""
        finally:
            file.close()
        return data.ljust(_BLOCK_BYTES, b"\0")

    def _size(self, path: Path) -> int:
        file = self._file_system.open(path, writable=False)
        try:
            return file.size()
        finally:
            file.close()
