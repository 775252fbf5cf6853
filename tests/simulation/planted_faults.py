"""Mistakes about what may go wrong around the store: each theme of the simulation has its own."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitbus.commitlog import mapped_file
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import DiskFullError, FlushFailedError
from commitbus.commitlog.file_system import File
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from commitbus.consumequeue.deleted_topics import DeletedTopics
from tests.simulation.bugs import bug, with_themes
from tests.simulation.hunts import topics_come_and_go
from tests.simulation.themes import Theme

# Topics that are deleted


@bug("the names of a deleted topic's files count as a failed flush", hunt=topics_come_and_go)
def _deletion_fails_the_flush(patch: pytest.MonkeyPatch) -> None:
    def sync_names(self: MappedFileQueue) -> None:
        if self._directory_dirty:
            self._directory_dirty = False
            try:
                self.file_system.sync_directory(self.directory)
            except OSError as error:
                raise FlushFailedError(self.directory, error) from error

    patch.setattr(MappedFileQueue, "_sync_names", sync_names)


@bug("the deletion of a topic is not noted", hunt=with_themes(Theme.DELETED_TOPICS))
def _deletion_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedTopics, "note", lambda *_: None)


# Pages that cannot be read


@bug("an unreadable block is taken for zeros", hunt=with_themes(Theme.FAILING_READS))
def _unreadable_is_zero(patch: pytest.MonkeyPatch) -> None:
    def read_at(file: File, length: int, position: int) -> bytes:
        try:
            return file.pread(length, position)
        except OSError:
            return bytes(length)

    patch.setattr(mapped_file, "read_at", read_at)


@bug("a failed read is no error of the store's own", hunt=with_themes(Theme.FAILING_READS))
def _bare_read_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mapped_file, "read_at", lambda file, length, at: file.pread(length, at))


@bug("the log is read through a mapping", hunt=with_themes(Theme.FAILING_READS))
def _mapped_read(patch: pytest.MonkeyPatch) -> None:
    def read(self: MappedFile, position: int, length: int) -> bytes:
        file = self._file_system.open(self.path, writable=False)
        mapping = file.map(self.size_bytes)
        data = bytes(mapping.buffer[position : position + length])
        mapping.close()
        file.close()
        return data

    patch.setattr(MappedFile, "read", read)


# Descriptors and memory


@bug("too few descriptors are a failed flush", hunt=with_themes(Theme.SHORTAGES))
def _shortage_fails_the_flush(patch: pytest.MonkeyPatch) -> None:
    def raise_refusal(error: OSError, path: Path, needed_bytes: int) -> None:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(path, needed_bytes) from error

    patch.setattr(mapped_file, "raise_refusal", raise_refusal)


@bug("the next log file is one of the log before it is mapped", hunt=with_themes(Theme.SHORTAGES))
def _mapped_too_late(patch: pytest.MonkeyPatch) -> None:
    def roll(self: CommitLog) -> None:
        following = self._preparer.next_file(self._files.end_of_files)
        if self._file is not None:
            rest = self._files.file_size - self._position
            SIZE_AND_MAGIC.pack_into(self._buffer, self._position, rest, BLANK_MAGIC_CODE)
        self._files.add(following)
        following.map()
        self._write_to(following, 0)

    patch.setattr(CommitLog, "_roll", roll)


@bug("a file that is closed keeps its descriptor", hunt=with_themes(Theme.SHORTAGES))
def _descriptor_leak(patch: pytest.MonkeyPatch) -> None:
    original = MappedFile.close
    kept: list[File | None] = []

    def close(self: MappedFile) -> None:
        kept.append(self._file)
        original(self)

    patch.setattr(MappedFile, "close", close)
