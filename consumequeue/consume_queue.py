"""One consume queue: the units of one topic and queue id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.errors import DispatchError
from commitbus.consumequeue.queue_reader import QueueReader, gallop
from commitbus.consumequeue.queue_states import NO_UNIT, QueueState
from commitbus.consumequeue.unit_format import (
    PADDING,
    PADDING_BYTES,
    UNIT,
    UNIT_BYTES,
    decode_unit,
)


@final
class ConsumeQueue(QueueReader):
    """The units of a queue, in files of a fixed size.

    One thread at a time writes (`ConsumeQueueStore` sees to it); any number read meanwhile. A unit
    never changes once `max_offset` is beyond it.
    """

    __slots__ = ()

    def put(self, queue_offset: int, physical_offset: int, size_bytes: int, tags_code: int) -> None:
        """Enter a message. One that is there already, or was deleted, is passed over.

        Raises:
            DispatchError: It would leave a gap, or another message has its place.
            DiskFullError: There is no room; nothing changed.
        """
        if queue_offset != self._max_offset or physical_offset < self.dispatched_to:
            if not self._begins_anew(queue_offset, physical_offset, size_bytes, tags_code):
                return
            self._begin_at(queue_offset)
        position = queue_offset * UNIT_BYTES
        tail = self._tail
        if tail is None or position == tail.base_offset + tail.size_bytes:
            tail = self._tail_at(position)
        unit = UNIT.pack(physical_offset, size_bytes, tags_code)
        tail.write(position - tail.base_offset, unit)
        self.dispatched_to = PhysicalOffset(physical_offset + size_bytes)
        # Last: a reader that sees it must find the bytes.
        self._max_offset = QueueOffset(queue_offset + 1)

    def put_many(self, queue_offsets: Sequence[int], units: memoryview) -> None:
        """Enter messages in log order: their queue offsets, and their units as a file has them.

        As `put` for each, and to the same effect; of those that fit, some may not be entered. Fast
        for a `range`, which says that each queue offset follows the one before.
        """
        first = queue_offsets[0]
        is_next = first == self._max_offset and UNIT.unpack_from(units)[0] >= self.dispatched_to
        if not is_next or not isinstance(queue_offsets, range):
            for queue_offset, unit in zip(queue_offsets, UNIT.iter_unpack(units), strict=True):
                self.put(queue_offset, *unit)
            return
        position = first * UNIT_BYTES
        while units:
            tail = self._tail
            if tail is None or position == tail.base_offset + tail.size_bytes:
                tail = self._tail_at(position)
            start = position - tail.base_offset
            part = units[: tail.size_bytes - start]
            units = units[len(part) :]
            tail.write(start, part)
            position += len(part)
            self.dispatched_to = decode_unit(part, len(part) - UNIT_BYTES).end_offset
            # Last: a reader that sees it must find the bytes.
            self._max_offset = QueueOffset(position // UNIT_BYTES)

    def truncate(self, end: PhysicalOffset) -> None:
        """Drop the units from the first one on that is no message lying wholly before `end`.

        That includes everything behind a gap which a power cut left. The file bytes are zeroed.
        """
        if not self._is_loaded:
            self.load()
        self._cut(self.search(lambda unit: not unit.is_written or unit.end_offset > end))

    def delete_before(self, min_physical_offset: PhysicalOffset) -> bool:
        """Hide the units of messages before an offset, and remove files that hold only such.

        Return whether there was anything to hide.
        """
        first, end = self._min_offset, self._max_offset
        is_first_left = self._begin_physical >= min_physical_offset
        if not is_first_left:
            self.open_files()
        if not is_first_left and not self.is_empty:
            begin = gallop(
                self._min_offset,
                end,
                lambda i: self._unit_at(i).physical_offset >= min_physical_offset,
            )
            self._min_offset = QueueOffset(begin)
            if begin < end:
                self._begin_physical = self._unit_at(begin).physical_offset
            else:
                self._begin_physical = NO_UNIT
                # The next unit becomes the first visible one: `_tail_at` notes it.
                self._tail = None
        if self._files.policy.writable:
            self._files.delete_before(self._min_offset * UNIT_BYTES)
        return self._min_offset != first

    def hide_before(self, min_physical_offset: PhysicalOffset, first_left: QueueOffset) -> bool:
        """Hide the units of messages before an offset of the log, without a look at them.

        Their files stay until `delete_before`, which then looks at no unit either. Return whether
        there was anything to hide.

        Args:
            min_physical_offset: Where the log ended at some moment.
            first_left: Where the queue ended then. Messages have followed since.
        """
        first = self._min_offset
        if first <= first_left < self._max_offset:
            self._min_offset, self._begin_physical = first_left, min_physical_offset
        return self._min_offset != first

    def delete(self) -> None:
        """Remove the files, and the directory if nothing else is in it.

        Raises:
            OSError: One cannot be removed. The next call goes on with it.
            FlushFailedError: That one is gone could not be made durable. Never try again.
            StoreError: The files, which were not opened yet, are not as they should be.
        """
        with self._load_lock:
            if not self._is_loaded:
                self._files.load()
            self._is_loaded, self._is_doubtful = True, False
        self._tail = None
        self._files.delete()
        self._max_offset = self._min_offset = QueueOffset(0)
        self._flushed_offset = self._begin_physical = 0
        self.dispatched_to = PhysicalOffset(0)

    def flush(self, state: QueueState | None = None) -> None:
        """Make the units put before the call durable, and the cutting of others.

        Args:
            state: As `state()` returned it while nothing was put; what is durable then. None if
                nothing is put meanwhile.

        Raises:
            FlushFailedError: It failed. Never try again.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """
        state = state or self.state()
        end, flushed = state.max_offset, self._flushed_offset
        if end != flushed:
            self._files.flush(min(end, flushed) * UNIT_BYTES, self._files.end_of_files)
            self._flushed_offset = end
        self.saved = self._marked(state)

    def has_stray_units(self) -> bool:
        """Return whether bytes may lie behind the last unit that a lost message left."""
        if not self._is_doubtful:
            return False
        self.open_files()
        return self.stray_bytes() is not None

    def cut_stray_units(self) -> None:
        """Remove what lies behind the last unit, if that is in doubt."""
        if self._is_doubtful:
            self.open_files()
            end = self._max_offset * UNIT_BYTES
            try:
                self._files.truncate(end)
            except ReadFailedError:
                # The next unit must not wait for a page to come back.
                if (file := self._files.find(end)) is not None:
                    file.blank_from(end - file.base_offset)
            self._flushed_offset = min(self._flushed_offset, self._max_offset) - 1
            self._is_doubtful = False

    def _tail_at(self, position: int) -> MappedFile:
        """Return the file in which the unit at a position goes, the next one."""
        if not self._is_loaded:
            self.open_files()
        self.cut_stray_units()
        if self._min_offset == self._max_offset:
            self._begin_physical = 0
        self._tail = self._file_for_append(position)
        return self._tail

    def _file_for_append(self, position: int) -> MappedFile:
        is_first = not self._files.files
        file = self._files.file_for_append(position)
        if is_first:
            self._note_begun(self.topic)
        return file

    def _set_bounds(self, begin: int, end: int) -> None:
        self._min_offset, self._max_offset = QueueOffset(begin), QueueOffset(end)
        last = self.unit(QueueOffset(end - 1)) if end > begin else None
        self.dispatched_to = last.end_offset if last else PhysicalOffset(0)

    def _cut(self, end: int) -> None:
        """Keep the units below `end`, those of messages that are gone too; without any, nothing."""
        self.saved = None
        if end <= self._min_offset and not self._hides_units():
            self.delete()
            return
        self._tail = None
        self._is_doubtful = False
        self._files.truncate(end * UNIT_BYTES)
        # One unit less than what is left, so that the next flush takes the zeros to the disk: also
        # those that a start stored which was killed, and which are no news to this one.
        self._flushed_offset = min(self._flushed_offset, end) - 1
        if end < self._max_offset:
            self._set_bounds(self._min_offset, end)

    def _hides_units(self) -> bool:
        """Return whether the last unit is there that lies before the first visible one.

        Retention has hidden it, and it alone may tell where the queue ends. Padding tells nothing.
        """
        self.open_files()
        hidden = self._min_offset - 1
        return hidden >= self._first_stored() and self._unit_at(hidden) != PADDING

    def _begin_at(self, queue_offset: int) -> None:
        """Make the files of a queue without a message such that the first is at `queue_offset`.

        Files that a process left behind when it died between their creation and the first unit
        are replaced.
        """
        if self.saved is not None:
            self._forget_states()
            self.saved = None
        self.delete()
        file = self._file_for_append(queue_offset * UNIT_BYTES)
        padding_count = queue_offset - file.base_offset // UNIT_BYTES
        file.write(0, PADDING_BYTES * padding_count)
        self._min_offset = self._max_offset = QueueOffset(queue_offset)

    def _begins_anew(
        self, queue_offset: int, physical_offset: int, size_bytes: int, tags_code: int
    ) -> bool:
        """Whether a message that is not the next one is the first. Else it is there, or was.

        After RocketMQ has deleted a topic, one of the same name begins at 0 again. Then the log
        has two messages for an offset, of which the queue holds the later one.
        """
        is_newest = physical_offset >= self.dispatched_to
        if not 0 <= queue_offset < self._max_offset:
            if queue_offset < 0 or (is_newest and self._min_offset < self._max_offset):
                raise self._dispatch_error(
                    physical_offset,
                    f"its queue offset is {queue_offset}, the next one is {self._max_offset}",
                )
            return is_newest
        if queue_offset < self._min_offset:
            return False
        try:
            known = self.unit(QueueOffset(queue_offset))
        except ReadFailedError:
            if is_newest:
                raise
            # It lies before the last one: a batch is put once more, after there was no room.
            return False
        if known == (physical_offset, size_bytes, tags_code):
            return False
        if is_newest and queue_offset == 0:
            return True
        if known.physical_offset <= physical_offset:
            raise self._dispatch_error(
                physical_offset, f"another message has its queue offset {queue_offset}"
            )
        return False

    def _dispatch_error(self, physical_offset: int, reason: str) -> DispatchError:
        return DispatchError(self.topic, self.queue_id, physical_offset, reason)
