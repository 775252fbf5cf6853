"""Every change of progress, in a ring of entries in a file: answered calls survive `kill -9`.

A write to the page cache survives the process, not a power cut, and costs a microsecond where one
to SQLite costs a hundred. Once `ProgressTable` has saved what the entries led to, it gives their
room back; after a kill the entries that were not saved are applied to the saved rows again.

The file, all integers big-endian:

    0        4         8                  16 ........................................ file size
    | magic  | version | size of the file | ring of entries                                   |
    |  u32   |  u32    |  u64             |                                                   |

An entry never crosses the end of the ring. A WRAP entry sends the reader back to its start, as
do fewer than 20 bytes before its end.

    0        4        6      7      8           16       20 ................. length
    | CRC-32 | length | kind | 0    | sequence  | key id | payload (progress_entries) |
    |  u32   |  u16   |  u8  |  u8  |  u64      |  u32   |                            |

The CRC covers everything after itself and starts from the epoch, a number that every session
chooses anew: entries that an earlier session left in the ring never pass for new ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, final

from commitbus.broker.metadata.errors import StateVersionError, StateWriteError
from commitbus.broker.progress.changes import PAYLOAD_BYTES_MAX, EntryKind
from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import File, FileSystem, read_at

JOURNAL_BYTES_DEFAULT: Final = 16 * 1024 * 1024
"""600,000 acknowledgements between two saves."""
JOURNAL_BYTES_MIN: Final = 128 * 1024
"""An empty ring takes the longest entry wherever it starts: 64 KiB skipped and 64 KiB used."""
JOURNAL_BYTES_MAX: Final = 1024 * 1024 * 1024

_WINDOW_BYTES: Final = 256 * 1024
"""Bytes that a replay reads at once."""

_MAGIC: Final = int.from_bytes(b"CBpj")
_VERSION: Final = 1
_FILE_HEADER: Final = Struct(">IIQ")
_EPOCH: Final = Struct(">Q")
_CRC: Final = Struct(">I")
_HEAD: Final = Struct(">HBBQI")
_ENTRY_BYTES_MIN: Final = _CRC.size + _HEAD.size
assert PAYLOAD_BYTES_MAX + _ENTRY_BYTES_MIN == 0xFFFF


@final
class JournalMark(NamedTuple):
    """A place in the journal: everything before it is saved."""

    epoch: int
    sequence: int
    """The last entry before the place."""
    position: int
    """Where the next entry begins, in bytes written since the session began."""


@final
class JournalEntry(NamedTuple):
    """An intact entry."""

    sequence: int
    kind: int
    """An `EntryKind`, unless a newer commitbus wrote it."""
    key_id: int
    payload: bytes


@final
class ProgressJournal:
    """The journal of one session: `replay` what the last one left, `start`, then `append`.

    `append` is for one thread; `release` may be called from another.

    Args:
        path: The file, made by `start` when missing.
        size_bytes: Its size from `start` on.
        file_system: Writes it.
    """

    __slots__ = (
        "_end",
        "_epoch",
        "_file",
        "_file_system",
        "_ring_bytes",
        "_seed",
        "_sequence",
        "_size_bytes",
        "_start",
        "path",
    )

    def __init__(self, path: Path, size_bytes: int, *, file_system: FileSystem) -> None:
        assert JOURNAL_BYTES_MIN <= size_bytes <= JOURNAL_BYTES_MAX
        self.path, self._size_bytes, self._file_system = path, size_bytes, file_system
        self._ring_bytes = size_bytes - _FILE_HEADER.size
        self._file: File | None = None
        self._epoch = self._seed = self._sequence = 0
        # Positions count on and on; modulo the ring they are places in it.
        self._start = self._end = 0

    def replay(self, mark: JournalMark) -> Iterator[JournalEntry]:
        """Yield the intact entries from `mark` on, up to the first that is missing or damaged.

        A file that is no journal has none.

        Raises:
            StateVersionError: A newer commitbus wrote the file.
            ReadFailedError: The disk does not give back a place where an entry may lie.
            OSError: The file cannot be opened.
        """
        if not self._file_system.exists(self.path):
            return
        file = self._file_system.open(self.path, writable=False)
        try:
            size_bytes = self._stored_size(file)
            if size_bytes is not None:
                window = _Window(file, min(size_bytes, file.size()))
                yield from _entries(window, size_bytes - _FILE_HEADER.size, mark)
        finally:
            file.close()

    def start(self, mark: JournalMark) -> None:
        """Begin a session at `mark`, which has been saved; what is in the ring is forgotten.

        Raises:
            OSError: The file cannot be made, or there is no room for it.
        """
        self._epoch, self._sequence = mark.epoch, mark.sequence
        self._seed = zlib.crc32(_EPOCH.pack(mark.epoch))
        self._start = self._end = mark.position
        is_new = not self._file_system.exists(self.path)
        self._file = self._file_system.open(self.path, create=True)
        if is_new:
            # Else a power cut could take the file from under what `sync` made durable.
            self._file_system.sync_directory(self.path.parent)
        if self._file.size() > self._size_bytes:
            self._file.truncate(self._size_bytes)
        # Later, no entry finds the disk full.
        self._file.allocate(0, self._size_bytes)
        self._file.pwrite(_FILE_HEADER.pack(_MAGIC, _VERSION, self._size_bytes), 0)

    @property
    def mark(self) -> JournalMark:
        """The place after the last entry."""
        return JournalMark(self._epoch, self._sequence, self._end)

    @property
    def sequence(self) -> int:
        """The number of the last entry."""
        return self._sequence

    def has_half_free(self, payload_bytes: int) -> bool:
        """Return whether half of the ring is free with such a payload in it; then it has room."""
        # Before an entry less than its length may be skipped, at the end of the ring.
        length = _ENTRY_BYTES_MIN + payload_bytes
        return 2 * (self._end - self._start + 2 * length) <= self._ring_bytes

    def has_room(self, payload_bytes: int) -> bool:
        """Return whether `append` may be called with a payload of this length."""
        length = _ENTRY_BYTES_MIN + payload_bytes
        to_end = self._ring_bytes - self._end % self._ring_bytes
        needed = length if length <= to_end else to_end + length
        return self._end + needed - self._start <= self._ring_bytes

    def append(self, kind: EntryKind, key_id: int, payload: bytes) -> int:
        """Write an entry, for which there is room; return its sequence number.

        From the return on the entry survives the process.

        Raises:
            StateWriteError: The disk does not take it; there is no such entry.
        """
        length = _ENTRY_BYTES_MIN + len(payload)
        to_end = self._ring_bytes - self._end % self._ring_bytes
        if length > to_end:
            if to_end >= _ENTRY_BYTES_MIN:
                self._write(_ENTRY_BYTES_MIN, EntryKind.WRAP, 0, b"")
                to_end -= _ENTRY_BYTES_MIN
            self._end += to_end
        self._write(length, kind, key_id, payload)
        return self._sequence

    def _write(self, length: int, kind: EntryKind, key_id: int, payload: bytes) -> None:
        assert self._end + length - self._start <= self._ring_bytes
        sequence = self._sequence + 1
        body = _HEAD.pack(length, kind, 0, sequence, key_id) + payload
        place = _FILE_HEADER.size + self._end % self._ring_bytes
        assert self._file is not None, "append comes after start"
        try:
            self._file.pwrite(_CRC.pack(zlib.crc32(body, self._seed)) + body, place)
        except OSError as error:
            # The part that was written has no valid CRC, and the next entry overwrites it.
            raise StateWriteError(self.path, error.strerror or str(error)) from error
        self._sequence = sequence
        self._end += length

    def sync(self) -> None:
        """Return when every entry before the call survives a power cut. For any thread.

        Raises:
            OSError: The disk does not take them. Some may be lost, and a later call may not say so.
        """
        assert self._file is not None, "sync comes after start"
        self._file.sync_data()

    def release(self, mark: JournalMark) -> None:
        """Give back the room of the entries before `mark`: they are saved."""
        assert self._start <= mark.position <= self._end
        self._start = mark.position

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stored_size(self, file: File) -> int | None:
        header = read_at(file, _FILE_HEADER.size, 0)
        if len(header) < _FILE_HEADER.size:
            return None
        magic, version, size_bytes = _FILE_HEADER.unpack(header)
        if magic != _MAGIC or not JOURNAL_BYTES_MIN <= size_bytes <= JOURNAL_BYTES_MAX:
            return None
        if version > _VERSION:
            raise StateVersionError(self.path, version, _VERSION)
        return int(size_bytes)


@final
class _Window:
    """Reads a file up to `end` in large pieces, and in small ones where the disk refuses that."""

    def __init__(self, file: File, end: int) -> None:
        self._file, self._end = file, end
        self._data, self._start = b"", 0

    def read(self, length: int, place: int) -> bytes:
        """Return up to `length` bytes, fewer at the end. ReadFailedError."""
        at = place - self._start
        if not 0 <= at <= len(self._data) - length:
            rest = max(self._end - place, 0)
            try:
                self._data = read_at(self._file, min(max(length, _WINDOW_BYTES), rest), place)
            except ReadFailedError:
                # Perhaps the unreadable page lies behind the last entry.
                self._data = read_at(self._file, min(length, rest), place)
            self._start, at = place, 0
        return self._data[at : at + length]


def _entries(window: _Window, ring_bytes: int, mark: JournalMark) -> Iterator[JournalEntry]:
    seed, sequence, position = zlib.crc32(_EPOCH.pack(mark.epoch)), mark.sequence, mark.position
    while True:
        to_end = ring_bytes - position % ring_bytes
        if to_end < _ENTRY_BYTES_MIN:
            position += to_end
            continue
        entry = _entry_at(window, _FILE_HEADER.size + position % ring_bytes, to_end, seed)
        if entry is None or entry.sequence != sequence + 1:
            return
        sequence = entry.sequence
        if entry.kind == EntryKind.WRAP:
            position += to_end
        else:
            position += _ENTRY_BYTES_MIN + len(entry.payload)
            yield entry


def _entry_at(window: _Window, place: int, room: int, seed: int) -> JournalEntry | None:
    head = window.read(_ENTRY_BYTES_MIN, place)
    if len(head) < _ENTRY_BYTES_MIN:
        return None
    (crc,) = _CRC.unpack_from(head)
    length, kind, _, sequence, key_id = _HEAD.unpack_from(head, _CRC.size)
    if not _ENTRY_BYTES_MIN <= length <= room:
        return None
    body = window.read(length - _CRC.size, place + _CRC.size)
    if zlib.crc32(body, seed) != crc:
        return None
    return JournalEntry(sequence, kind, key_id, body[_HEAD.size :])
