r"""A small file to which lines are appended, each durable and checked by itself.

```
<CRC-32 of the text, 8 hex digits> <text>\n
...
zeros up to a multiple of 4096 bytes
```

The first line is the name of the format. A line's text is ASCII without a line feed, so a zero byte
inside one, or the file's end, is where a power cut has interrupted an append: that line was never
durable and does not count. Anything else that does not fit its CRC is damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError
from commitbus.commitlog.file_system import File, FileSystem, replace_file
from commitbus.commitlog.mapped_file import raise_refusal

BLOCK_BYTES: Final = 4096
FORMAT: Final = "commitbus lines 1"
_CRC_DIGITS: Final = 8


@final
class NoteFile:
    """Reads the file and appends to it. One thread at a time."""

    __slots__ = ("_damaged", "_end", "_file_system", "_path", "_size", "lines", "needs_replace")

    def __init__(self, path: Path, file_system: FileSystem, *, damaged: str) -> None:
        """Name the file; nothing is touched. `damaged` says what is lost where it is damaged."""
        self._path, self._file_system, self._damaged = path, file_system, damaged
        self._end = self._size = 0
        self.lines = 0
        """Lines in the file, the first one not counted."""
        self.needs_replace = True
        """Whether `replace` must come before the next `append`: the file is missing, of an earlier
        format, or ends with what an interrupted append left."""

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self._file_system.exists(self._path)

    def read_bytes(self) -> bytes:
        """Return all bytes of the file. OSError."""
        file = self._file_system.open(self._path, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def read(self) -> list[str] | None:
        """Return the texts of the lines, None if the file is none of this format.

        Raises:
            NotAStoreError: It is damaged.
            OSError: It cannot be read.
        """
        data = self.read_bytes()
        if not data.startswith(_line(FORMAT)):
            return None
        texts, position = list[str](), 0
        while (end := data.find(b"\n", position)) >= 0:
            text = _text_of(data[position:end])
            if text is None:
                break
            texts.append(text)
            position = end + 1
        rest = data[position:]
        is_torn = bool(rest.strip(b"\0"))
        if len(data) % BLOCK_BYTES or (is_torn and not _is_interrupted(rest)):
            raise NotAStoreError(self._path, self._damaged)
        self._end, self._size = position, len(data)
        self.lines, self.needs_replace = len(texts) - 1, is_torn
        return texts[1:]

    def append(self, text: str) -> None:
        """Append a line, durably.

        Raises:
            DiskFullError: There is no room. The line does not count.
            OutOfResourcesError: The process may open no more files. Likewise.
            OSError: The file cannot be opened. Likewise.
            FlushFailedError: It failed otherwise: the line may count at the next start, or not.
                Never try again.
        """
        assert not self.needs_replace, "the file is whole"
        line = _line(text)
        try:
            file = self._file_system.open(self._path)
        except OSError as error:
            raise_refusal(error, self._path, len(line))
            raise
        try:
            self._write(file, line)
        finally:
            file.close()
        self.lines += 1

    def _write(self, file: File, line: bytes) -> None:
        end = self._end + len(line)
        # Until it is done: what an attempt left must not be taken for damage.
        self.needs_replace = True
        try:
            if end > self._size:
                size = _padded(end)
                file.truncate(size)
                self._size = size
            file.pwrite(line, self._end)
        except OSError as error:
            raise_refusal(error, self._path, len(line))
            raise FlushFailedError(self._path, error) from error
        try:
            file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._path, error) from error
        self._end, self.needs_replace = end, False

    def replace(self, texts: Iterable[str]) -> None:
        """Make these all lines of the file, durably. They must say what those there say.

        Raises:
            DiskFullError: There is no room. The file says the same as before.
            OutOfResourcesError: The process may open no more files. Likewise.
            OSError: It cannot be written. Likewise.
        """
        lines = [_line(FORMAT), *map(_line, texts)]
        data = b"".join(lines)
        size = _padded(len(data))
        self.needs_replace = True
        try:
            replace_file(self._path, data.ljust(size, b"\0"), self._file_system)
        except OSError as error:
            raise_refusal(error, self._path, size)
            raise
        self._end, self._size, self.lines = len(data), size, len(lines) - 1
        self.needs_replace = False

    def write_again(self) -> None:
        """Make what the file holds durable, even if an earlier sync of it failed.

        The kernel may have marked a page clean that never reached the disk: writing makes it dirty.

        Raises:
            FlushFailedError: The disk does not take it.
            OSError: The file cannot be opened.
        """
        file = self._file_system.open(self._path)
        try:
            file.pwrite(file.pread(file.size(), 0), 0)
            file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._path, error) from error
        finally:
            file.close()


def _line(text: str) -> bytes:
    data = text.encode("ascii")
    return b"%08x %b\n" % (crc32(data), data)


def _text_of(line: bytes) -> str | None:
    """Return the text of a line without its end, None if it does not fit its CRC."""
    data = line[_CRC_DIGITS + 1 :]
    if line[: _CRC_DIGITS + 1] != b"%08x " % crc32(data) or not data.isascii():
        return None
    return data.decode("ascii")


def _is_interrupted(rest: bytes) -> bool:
    """Return whether the bytes behind the last good line are an append that was interrupted."""
    first, end, behind = rest.partition(b"\n")
    has_hole = b"\0" in first or not end
    is_last = not any(_text_of(line.strip(b"\0")) for line in behind.split(b"\n"))
    return has_hole and is_last


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
