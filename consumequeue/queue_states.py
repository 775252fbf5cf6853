"""Where each queue began and ended at the last checkpoint: a start needs no look at its files.

```
STORE/commitbus/queue_states, big-endian: frames, the first one full
   0       4        8        12            20       24
   +-------+--------+--------+-------------+--------+----------------------------------------------
   | magic | flags  | bytes  | queues_end  | CRC-32 | topics
   | CBQS  | u32    | u32    | i64         | u32    |
   +-------+--------+--------+-------------+--------+----------------------------------------------
topic: bytes of the name u16, count of queues u32, name in UTF-8, the queues
queue: id i32, min_offset i64, max_offset i64, begin_physical i64, dispatched_to i64, names_mark i64
```
A full frame (flag 1) has every queue, others those that changed since the frame before; a queue
that was removed has the max_offset -1. `bytes` counts the topics, the CRC covers them and the
fields before it.

What a frame says is durable: it is written after the flush of its queues, with the offset up to
which the checkpoint then vouches for them. A start takes the frames up to that of the checkpoint's
offset. Where there is none, because another program has used the store since, the checkpoint was
lowered, or the file is damaged or was removed, the start looks at the files of every queue.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, final

from isal import isal_zlib

from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.file_system import File, FileSystem, replace_file
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

QUEUE_STATES_PATH: Final = Path("commitbus", "queue_states")
"""Relative to the store."""
NO_UNIT: Final = (1 << 63) - 1
"""As `begin_physical` of a queue without a visible unit."""
_MAGIC: Final = b"CBQS"
_FULL: Final = 1
_FRAME: Final = struct.Struct(">4sIIq")
_CRC: Final = struct.Struct(">I")
_TOPIC: Final = struct.Struct(">HI")
_QUEUE: Final = struct.Struct(">iqqqqq")
_REMOVED: Final = (0, -1, 0, 0, 0)
_GROWTH_BYTES: Final = 1 << 20
"""Changes of so many bytes are kept even if all queues take less."""

_logger = logging.getLogger(__name__)


@final
class QueueState(NamedTuple):
    """Where a queue begins and ends."""

    min_offset: QueueOffset
    max_offset: QueueOffset
    begin_physical: int
    """Physical offset of the message at `min_offset`, or any lower one; `NO_UNIT` without one."""
    dispatched_to: PhysicalOffset
    """First physical offset after the message of the last unit, visible or not."""
    names_mark: int = 0
    """Of its directory: another one says that somebody has added or removed files."""


SavedState: TypeAlias = tuple[QueueOffset, QueueOffset, int, PhysicalOffset, int]
States: TypeAlias = dict[str, dict[int, SavedState]]
"""The fields of a `QueueState` by topic and queue id. Plain tuples: 80,000 are read at a start."""
Changes: TypeAlias = Mapping[tuple[str, int], SavedState | None]
"""None: the queue was removed."""


@final
class QueueStatesFile:
    """Reads and appends frames. One thread at a time."""

    __slots__ = (
        *("_changed_bytes", "_end", "_file_system", "_full_bytes", "_is_removal_durable", "_path"),
        "needs_full",
    )

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Name the file; nothing is touched."""
        self._path, self._file_system = store / QUEUE_STATES_PATH, file_system
        self._end = self._full_bytes = self._changed_bytes = 0
        self._is_removal_durable = True
        self.needs_full = True
        """Whether the next frame must be a full one."""

    def read(self, queues_end: PhysicalOffset) -> States | None:
        """Return the states of the checkpoint that vouches for the queues up to an offset.

        None if the file does not have them, for whatever reason. OSError: it cannot be read.
        """
        if not self._file_system.exists(self._path):
            return None
        file = self._file_system.open(self._path, writable=False)
        try:
            data = memoryview(file.pread(file.size(), 0))
        finally:
            file.close()
        states, position, found = States(), 0, False
        while (frame := _frame_at(data, position)) is not None:
            flags, frame_end, topics = frame
            if frame_end > queues_end or (not flags & _FULL and not position):
                break
            if flags & _FULL:
                states.clear()
            _apply(topics, states)
            size = _FRAME.size + _CRC.size + len(topics)
            if flags & _FULL:
                self._full_bytes, self._changed_bytes = size, 0
            else:
                self._changed_bytes += size
            position += size
            found = frame_end == queues_end
        if not found:
            return None
        self._end = position
        # What follows was not vouched for, and must not come between these frames and the next.
        self.needs_full = position != len(data)
        return states

    @property
    def is_long(self) -> bool:
        """Whether the changes since the last full frame take more room than that does."""
        return self._changed_bytes > max(self._full_bytes, _GROWTH_BYTES)

    def append(self, queues_end: PhysicalOffset, changes: Changes) -> None:
        """Append what changed, durably. Without room it is not, and a full frame is needed.

        Raises:
            FlushFailedError: It could not be made durable.
        """
        frame = _frame(queues_end, 0, changes.items())
        self.needs_full = True
        try:
            file = self._file_system.open(self._path)
        except OSError as error:
            _not_saved(error)
            return
        try:
            if self._write(file, frame):
                self._end += len(frame)
                self._changed_bytes += len(frame)
                self.needs_full = False
        finally:
            file.close()

    def _write(self, file: File, frame: bytes) -> bool:
        try:
            file.pwrite(frame, self._end)
        except OSError as error:
            _not_saved(error)
            return False
        try:
            file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._path, error) from error
        return True

    def replace(
        self, queues_end: PhysicalOffset, states: Iterable[tuple[tuple[str, int], SavedState]]
    ) -> None:
        """Make a full frame all of the file, durably, or leave it as it is.

        Raises:
            FlushFailedError: It could not be made durable.
        """
        frame = _frame(queues_end, _FULL, states)
        self.needs_full = True
        try:
            replace_file(self._path, frame, self._file_system)
        except OSError as error:
            if error.errno == errno.EIO:
                raise FlushFailedError(self._path, error) from error
            _not_saved(error)
            return
        self._end = self._full_bytes = len(frame)
        self._changed_bytes, self.needs_full = 0, False

    def remove(self) -> None:
        """Remove the file: what it says is not what the queues are.

        Raises:
            OSError: It could not be removed, durably. The next call goes on with it.
        """
        self.needs_full = True
        if self._file_system.exists(self._path):
            self._file_system.remove(self._path)
            self._is_removal_durable = False
        if not self._is_removal_durable:
            self._file_system.sync_directory(self._path.parent)
            self._is_removal_durable = True


def _not_saved(error: OSError) -> None:
    # No harm: without it, the next start looks at all queues.
    _logger.warning("the states of queues are not saved", extra={"reason": str(error)})


def _frame(
    queues_end: int, flags: int, states: Iterable[tuple[tuple[str, int], SavedState | None]]
) -> bytes:
    by_topic: dict[str, list[bytes]] = {}
    for (topic, queue_id), state in states:
        queue = _QUEUE.pack(queue_id, *(state or _REMOVED))
        by_topic.setdefault(topic, []).append(queue)
    parts: list[bytes] = []
    for topic, queues in by_topic.items():
        name = topic.encode("utf-8", "surrogatepass")
        parts += (_TOPIC.pack(len(name), len(queues)), name, *queues)
    topics = b"".join(parts)
    head = _FRAME.pack(_MAGIC, flags, len(topics), queues_end)
    return head + _CRC.pack(isal_zlib.crc32(topics, isal_zlib.crc32(head))) + topics


def _frame_at(data: memoryview, position: int) -> tuple[int, int, memoryview] | None:
    """Return flags, offset and topics of the frame at a position, None if none is whole there."""
    start = position + _FRAME.size + _CRC.size
    if start > len(data):
        return None
    magic, flags, length, queues_end = _FRAME.unpack_from(data, position)
    topics = data[start : start + length]
    if magic != _MAGIC or len(topics) < length:
        return None
    head = data[position : position + _FRAME.size]
    (crc,) = _CRC.unpack_from(data, position + _FRAME.size)
    if crc != isal_zlib.crc32(topics, isal_zlib.crc32(head)):
        return None
    return flags, queues_end, topics


def _apply(topics: memoryview, states: States) -> None:
    position = 0
    while position < len(topics):
        name_bytes, count = _TOPIC.unpack_from(topics, position)
        position += _TOPIC.size
        topic = str(topics[position : position + name_bytes], "utf-8", "surrogatepass")
        position += name_bytes
        queues = states.setdefault(topic, {})
        end = position + count * _QUEUE.size
        for queue_id, *state in _QUEUE.iter_unpack(topics[position:end]):
            if state[1] < 0:
                queues.pop(queue_id, None)
            else:
                queues[queue_id] = tuple(state)
        position = end
        if not queues:
            del states[topic]
