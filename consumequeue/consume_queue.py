"""One consume queue: the units of one topic and queue id."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import OffsetOutOfRangeError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.errors import DispatchError
from commitbus.consumequeue.unit_format import (
    PADDING,
    PADDING_BYTES,
    UNIT,
    UNIT_BYTES,
    UNIT_DTYPE,
    CqUnit,
    decode_unit,
    decode_units,
)

_WARM_BYTES = 1 << 20


@final
class ConsumeQueue:
    """The units of a queue, in files of a fixed size.

    One thread at a time writes (`ConsumeQueueStore` sees to it); any number read meanwhile. A unit
    never changes once `max_offset` is beyond it.
    """

    __slots__ = (
        "_files",
        "_flushed_offset",
        "_max_offset",
        "_min_offset",
        "_tail",
        "dispatched_to",
        "queue_id",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        file_size: int,
        *,
        file_system: FileSystem,
        policy: FilePolicy,
    ) -> None:
        """Name a queue; nothing is touched before `load` or the first unit.

        Args:
            topic: Whose queue this is.
            queue_id: Which of the topic's queues.
            directory: Where its files lie.
            file_size: Of each of them, in bytes; a multiple of 20.
            file_system: What holds the directory.
            policy: How its files are held, shared with the other queues.
        """
        assert file_size > 0
        assert file_size % UNIT_BYTES == 0, "a unit must not lie across two files"
        self.topic, self.queue_id = topic, queue_id
        self.dispatched_to = PhysicalOffset(0)
        """First physical offset after the message of the last unit; 0 without any."""
        self._files = MappedFileQueue(directory, file_size, file_system=file_system, policy=policy)
        self._min_offset = self._max_offset = QueueOffset(0)
        self._flushed_offset = 0
        self._tail: MappedFile | None = None

    @property
    def min_offset(self) -> QueueOffset:
        """The first queue offset that is there."""
        return self._min_offset

    @property
    def max_offset(self) -> QueueOffset:
        """One more than the last queue offset that is there: where the next unit goes."""
        return self._max_offset

    @property
    def is_empty(self) -> bool:
        """Whether it has no file, so that the next unit may have any queue offset."""
        return not self._files.files

    def load(self) -> None:
        """Open the files and find where the units begin and end.

        Raises:
            NotAStoreError: A file has an alien name or another size.
            StoreDamagedError: A file between two others is missing.
        """
        self._files.load()
        units_per_file = self._files.file_size // UNIT_BYTES
        begin = end = self._first_stored()
        for file in reversed(self._files.files):
            start = file.base_offset // UNIT_BYTES
            end = _gallop(start, start + units_per_file, lambda i: not self._unit_at(i).is_written)
            if end > start:
                self.dispatched_to = self._unit_at(end - 1).end_offset
                break
        last = min(begin + units_per_file, end)
        begin = _gallop(begin, last, lambda i: self._unit_at(i) != PADDING)
        self._min_offset, self._max_offset = QueueOffset(begin), QueueOffset(end)
        if begin == end:
            self.dispatched_to = PhysicalOffset(0)
        # What was found is taken as durable: after an unclean stop the doubtful part is cut.
        self._flushed_offset = end

    def unit(self, queue_offset: QueueOffset) -> CqUnit:
        """Return one unit. OffsetOutOfRangeError as `units`, also at `max_offset`."""
        found = self.units(queue_offset, 1)
        if not found:
            raise self._out_of_range(queue_offset)
        return found[0]

    def units(self, start: QueueOffset, max_count: int) -> list[CqUnit]:
        """Return up to `max_count` units from `start` on; none at `max_offset`.

        Raises:
            OffsetOutOfRangeError: `start` is below `min_offset` or above `max_offset`.
            ReadFailedError: The disk does not give them back.
        """
        return decode_units(self.read(start, max_count))

    def units_array(self, start: QueueOffset, max_count: int) -> npt.NDArray[np.void]:
        """Return as `units`, but as a read-only array of `UNIT_DTYPE`, shape (count,)."""
        return np.frombuffer(self.read(start, max_count), dtype=UNIT_DTYPE)

    def read(self, start: QueueOffset, max_count: int) -> bytes:
        """Return as `units`, but the bytes of the units. May wait for a disk."""
        parts = [file.read(*place) for file, *place in self._places(start, max_count)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_cached(self, start: QueueOffset, max_count: int) -> bytes | None:
        """Return as `read` if no disk has to be waited for, else None."""
        parts: list[bytes] = []
        for file, *place in self._places(start, max_count):
            part = file.read_cached(*place)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def place_of(self, queue_offset: int) -> tuple[Path, int]:
        """Return the file in which a stored unit lies, and its position there in bytes."""
        file = self._files.find(queue_offset * UNIT_BYTES)
        if file is None:
            raise self._out_of_range(queue_offset)
        return file.path, queue_offset * UNIT_BYTES - file.base_offset

    def stray_bytes(self) -> tuple[Path, int] | None:
        """Return where bytes other than zero lie behind the last unit, None if nowhere."""
        end = self._max_offset * UNIT_BYTES
        for file in self._files.files:
            start = min(max(end - file.base_offset, 0), file.size_bytes)
            stray_end = file.end_of_data(start)
            if stray_end > start:
                return file.path, stray_end - 1
        return None

    def search(self, predicate: Callable[[CqUnit], bool]) -> QueueOffset:
        """Return the first queue offset whose unit satisfies `predicate`, else `max_offset`.

        The predicate must hold for every unit after one for which it holds, as anything about
        the place or the store time of a message does. About 20 units are looked at.
        """
        return QueueOffset(self._bisect(self._min_offset, self._max_offset, predicate))

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
            tail = self._tail = self._files.file_for_append(position)
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
                tail = self._tail = self._files.file_for_append(position)
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
        self._cut(self.search(lambda unit: not unit.is_written or unit.end_offset > end))

    def hides_all_before(self, physical_offset: PhysicalOffset) -> bool:
        """Hide the units of messages before an offset; return whether no other is left."""
        self.delete_before(physical_offset)
        return self._min_offset == self._max_offset

    def delete_before(self, min_physical_offset: PhysicalOffset) -> None:
        """Hide the units of messages before an offset, and remove files that hold only such."""
        if not self.is_empty:
            first, end = self._min_offset, self._max_offset
            self._min_offset = QueueOffset(
                _gallop(
                    first, end, lambda i: self._unit_at(i).physical_offset >= min_physical_offset
                )
            )
        if self._files.policy.writable:
            self._files.delete_before(self._min_offset * UNIT_BYTES)

    def delete(self) -> None:
        """Remove the files, and the directory if nothing else is in it."""
        self._tail = None
        self._files.delete()
        self._max_offset = self._min_offset = QueueOffset(0)
        self._flushed_offset = 0
        self.dispatched_to = PhysicalOffset(0)

    def flush(self) -> None:
        """Make the units put before the call durable, and the cutting of others.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        end, flushed = self._max_offset, self._flushed_offset
        if end != flushed:
            self._files.flush(min(end, flushed) * UNIT_BYTES, self._files.end_of_files)
            self._flushed_offset = end

    def warm(self) -> None:
        """Read what is written of the newest file, so that fetching it later meets no disk."""
        files = self._files.files
        if not files:
            return
        newest = files[-1]
        end = self._max_offset * UNIT_BYTES - newest.base_offset
        for position in range(0, end, _WARM_BYTES):
            newest.read(position, min(_WARM_BYTES, end - position))

    def close(self) -> None:
        """Close the files. Does not flush."""
        self._tail = None
        self._files.close()

    def _first_stored(self) -> int:
        """Return the offset of the first unit, padding included, that the files have room for."""
        return self._files.min_offset // UNIT_BYTES

    def _set_bounds(self, begin: int, end: int) -> None:
        self._min_offset, self._max_offset = QueueOffset(begin), QueueOffset(end)
        last = self.unit(QueueOffset(end - 1)) if end > begin else None
        self.dispatched_to = last.end_offset if last else PhysicalOffset(0)

    def _cut(self, end: int) -> None:
        """Keep the units below `end`, those of messages that are gone too; without any, nothing."""
        if end <= self._min_offset and not self._hides_units():
            self.delete()
            return
        self._tail = None
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
        hidden = self._min_offset - 1
        return hidden >= self._first_stored() and self._unit_at(hidden) != PADDING

    def _begin_at(self, queue_offset: int) -> None:
        """Make the files of a queue without a message such that the first is at `queue_offset`.

        Files that a process left behind when it died between their creation and the first unit
        are replaced.
        """
        self.delete()
        file = self._files.file_for_append(queue_offset * UNIT_BYTES)
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
        known = self.unit(QueueOffset(queue_offset))
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

    def _out_of_range(self, queue_offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"queue offset of {self.topic}/{self.queue_id}",
            queue_offset,
            self._min_offset,
            self._max_offset,
        )

    def _places(self, start: QueueOffset, max_count: int) -> list[tuple[MappedFile, int, int]]:
        """Return (file, position, length) for each file that holds some of these units.

        Raises:
            OffsetOutOfRangeError: As `units`; or their file was deleted since.
        """
        end = self._max_offset
        if not self._min_offset <= start <= end:
            raise self._out_of_range(start)
        position = start * UNIT_BYTES
        stop = position + min(max(max_count, 0), end - start) * UNIT_BYTES
        places: list[tuple[MappedFile, int, int]] = []
        while position < stop:
            file = self._files.find(position)
            if file is None:
                raise self._out_of_range(start)
            at = position - file.base_offset
            length = min(stop - position, file.size_bytes - at)
            places.append((file, at, length))
            position += length
        return places

    def _bisect(self, first: int, end: int, predicate: Callable[[CqUnit], bool]) -> int:
        """Return the first of the stored units [first, end) that satisfies it, else `end`."""
        return bisect.bisect_left(
            range(end), 1, lo=first, key=lambda offset: predicate(self._unit_at(offset))
        )

    def _unit_at(self, queue_offset: int) -> CqUnit:
        file = self._files.find(queue_offset * UNIT_BYTES)
        if file is None:
            raise self._out_of_range(queue_offset)
        return decode_unit(file.read(queue_offset * UNIT_BYTES - file.base_offset, UNIT_BYTES))


def _gallop(first: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in [first, end) for which it holds, and for all behind; else `end`.

    Looks near `first` to begin with: it reads one page of a queue file that is almost empty, where
    bisecting would read one at every power of two.
    """
    width = 1
    while first + width < end and not holds(first + width - 1):
        first += width
        width *= 2
    return bisect.bisect_left(range(min(first + width, end)), 1, lo=first, key=holds)
