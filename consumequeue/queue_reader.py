"""Reading a consume queue: where its units begin and end, and their bytes."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import (
    OffsetOutOfRangeError,
    ReadFailedError,
    StoreDamagedError,
)
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile, raise_refusal
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.queue_states import NO_UNIT, QueueState
from commitbus.consumequeue.unit_format import (
    PADDING,
    UNIT_BYTES,
    UNIT_DTYPE,
    CqUnit,
    decode_unit,
    decode_units,
)

_WARM_BYTES = 1 << 20


def _forget_nothing() -> None:
    """Nothing is saved."""


def _note_nothing(_topic: str) -> None:
    """Nobody makes names durable."""


class QueueReader:
    """The units of a queue, in files of a fixed size. `ConsumeQueue` adds writing to it."""

    __slots__ = (
        "_begin_physical",
        "_files",
        "_flushed_offset",
        "_forget_states",
        "_is_doubtful",
        "_is_loaded",
        "_load_lock",
        "_max_offset",
        "_min_offset",
        "_note_begun",
        "_tail",
        "dispatched_to",
        "is_changed",
        "queue_id",
        "saved",
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
        forget_states: Callable[[], None] = _forget_nothing,
        note_begun: Callable[[str], None] = _note_nothing,
    ) -> None:
        """Name a queue; nothing is touched before `load` or the first unit.

        Args:
            topic: Whose queue this is.
            queue_id: Which of the topic's queues.
            directory: Where its files lie.
            file_size: Of each of them, in bytes; a multiple of 20.
            file_system: What holds the directory.
            policy: How its files are held, shared with the other queues.
            forget_states: Called before `saved` ceases to be true, so that no start relies on it.
            note_begun: Called with the topic when the queue has made its first file, perhaps in a
                new directory: the names that lead there are not durable.
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
        # At most the physical offset of the first visible unit, `NO_UNIT` if there is none.
        self._begin_physical = 0
        # Of a queue whose bounds are known from a checkpoint the files are opened when needed.
        self._is_loaded, self._is_doubtful = True, False
        self._load_lock = policy.threads.lock()
        self._forget_states, self._note_begun = forget_states, note_begun
        self.is_changed = False
        """Whether it is among those that the next flush of the store looks at. The store's."""
        self.saved: QueueState | None = None
        """Its state as of the last flush, None while a start has cut it and nothing flushed it."""

    def rest(self, state: QueueState, *, is_doubtful: bool) -> None:
        """Take the bounds from a checkpoint instead of the files; before any other use.

        Args:
            state: Where the queue began and ended. The units up to there are durable.
            is_doubtful: Whether units may follow in the files that belong to no message.
        """
        self.saved = state
        self._min_offset, self._max_offset, self._begin_physical, self.dispatched_to, _ = state
        self._flushed_offset = self._max_offset
        self._is_loaded, self._is_doubtful = False, is_doubtful

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
        return self._is_loaded and not self._files.files

    def load(self) -> None:
        """Open the files and find where the units begin and end.

        Raises:
            NotAStoreError: A file has an alien name or another size.
            StoreDamagedError: A file between two others is missing.
        """
        self._files.load()
        self._is_loaded = True
        units_per_file = self._files.file_size // UNIT_BYTES
        begin = end = self._first_stored()
        for file in reversed(self._files.files):
            start = file.base_offset // UNIT_BYTES
            end = gallop(start, start + units_per_file, lambda i: not self._unit_at(i).is_written)
            if end > start:
                self.dispatched_to = self._unit_at(end - 1).end_offset
                break
        last = min(begin + units_per_file, end)
        begin = gallop(begin, last, lambda i: self._unit_at(i) != PADDING)
        self._min_offset, self._max_offset = QueueOffset(begin), QueueOffset(end)
        if begin == end:
            self.dispatched_to = PhysicalOffset(0)
        self._begin_physical = self._unit_at(begin).physical_offset if begin < end else NO_UNIT
        # What was found is taken as durable: after an unclean stop the doubtful part is cut.
        self._flushed_offset = end
        self.saved = self._marked(self.state())

    def state(self) -> QueueState:
        """Return where it begins and ends. Of use while nothing is put."""
        return QueueState(
            self._min_offset, self._max_offset, self._begin_physical, self.dispatched_to
        )

    def _marked(self, state: QueueState) -> QueueState:
        try:
            return state._replace(names_mark=self._files.names_mark())
        except FileNotFoundError:
            # Its topic was deleted meanwhile.
            return state

    def open_files(self) -> None:
        """Open the files of a queue whose bounds were taken from a checkpoint.

        Raises:
            NotAStoreError: As `load`.
            StoreDamagedError: As `load`; or the files do not end as the checkpoint says.
            OutOfResourcesError: The process may open no more files. Trying again is right.
            ReadFailedError: The disk does not give them back.
        """
        with self._load_lock:
            if self._is_loaded:
                return
            try:
                self._files.load()
            except OSError as error:
                raise_refusal(error, self._files.directory, self._files.file_size)
                raise ReadFailedError(self._files.directory, 0, error) from error
            if not self._ends_as_known():
                self._files.close()
                self.saved = None
                self._forget_states()
                raise StoreDamagedError(
                    self._files.directory,
                    self._max_offset * UNIT_BYTES,
                    "it does not end as the last checkpoint saw it: something else has changed it; "
                    "the next start looks at all queues",
                )
            # Files of the beginning may have been removed after the checkpoint.
            self._min_offset = QueueOffset(max(self._min_offset, self._first_stored()))
            self._is_loaded = True

    def _ends_as_known(self) -> bool:
        last = (self._max_offset - 1) * UNIT_BYTES
        file = self._files.find(last)
        if file is None:
            return False
        try:
            unit = decode_unit(file.read(last - file.base_offset, UNIT_BYTES))
        except ReadFailedError:
            # It cannot be told. Whoever reads the unit gets the error, and the next is written.
            return True
        return unit.end_offset == self.dispatched_to

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
        if not self._is_loaded:
            return None
        parts: list[bytes] = []
        for file, *place in self._places(start, max_count):
            part = file.read_cached(*place)
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

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

    def warm(self) -> None:
        """Read what is written of the newest file, so that fetching it later meets no disk."""
        self.open_files()
        files = self._files.files
        if not files:
            return
        newest = files[-1]
        end = self._max_offset * UNIT_BYTES - newest.base_offset
        for position in range(0, end, _WARM_BYTES):
            newest.read(position, min(_WARM_BYTES, end - position))

    def close(self) -> None:
        """Close the files. Does not flush."""
        with self._load_lock:
            self._is_loaded = True
        self._tail = None
        self._files.close()

    def _first_stored(self) -> int:
        """Return the offset of the first unit, padding included, that the files have room for."""
        return self._files.min_offset // UNIT_BYTES

    def _file_with(self, position: int) -> MappedFile | None:
        """Return the file that holds a position of the queue, None when there is none."""
        file = self._files.find(position)
        if file is None and not self._is_loaded:
            self.open_files()
            file = self._files.find(position)
        return file

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
            file = self._file_with(position)
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
        file = self._file_with(queue_offset * UNIT_BYTES)
        if file is None:
            raise self._out_of_range(queue_offset)
        return decode_unit(file.read(queue_offset * UNIT_BYTES - file.base_offset, UNIT_BYTES))


def gallop(first: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in [first, end) for which it holds, and for all behind; else `end`.

    Looks near `first` to begin with: it reads one page of a queue file that is almost empty, where
    bisecting would read one at every power of two.
    """
    width = 1
    while first + width < end and not holds(first + width - 1):
        first += width
        width *= 2
    return bisect.bisect_left(range(min(first + width, end)), 1, lo=first, key=holds)
