"""The ring: what was appended is replayed, whatever happened to the rest of the file."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.metadata.errors import StateVersionError, StateWriteError
from commitbus.broker.progress.changes import PAYLOAD_BYTES_MAX, EntryKind
from commitbus.broker.progress.journal import (
    JOURNAL_BYTES_MIN,
    JournalEntry,
    JournalMark,
    ProgressJournal,
)
from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from tests.failing_files import FailingFileSystem
from tests.unreadable_files import PAGE_BYTES, UnreadableFileSystem

START = JournalMark(77, 1000, 0)
Open = Callable[..., ProgressJournal]


@pytest.fixture
def open_journal(tmp_path: Path) -> Iterator[Open]:
    journals: list[ProgressJournal] = []

    def open_(size_bytes: int = JOURNAL_BYTES_MIN) -> ProgressJournal:
        path = tmp_path / "progress.journal"
        journals.append(ProgressJournal(path, size_bytes, file_system=RealFileSystem()))
        return journals[-1]

    yield open_
    for journal in journals:
        journal.close()


def _replayed(journal: ProgressJournal, mark: JournalMark = START) -> list[JournalEntry]:
    return list(journal.replay(mark))


def _filled(journal: ProgressJournal) -> float:
    """How much of the ring holds entries that were not released, from 0 to 1."""
    return (journal._end - journal._start) / journal._ring_bytes


def test_what_was_appended_is_replayed_in_order(open_journal: Open) -> None:
    journal = open_journal()
    journal.start(START)
    assert journal.append(EntryKind.DEFINE, 1, b"abc") == 1001
    assert journal.append(EntryKind.DELETE, 2, b"") == 1002
    expected = [
        JournalEntry(1001, EntryKind.DEFINE, 1, b"abc"),
        JournalEntry(1002, EntryKind.DELETE, 2, b""),
    ]
    assert _replayed(open_journal()) == expected
    assert _replayed(open_journal(), JournalMark(77, 1001, 23)) == expected[1:]
    assert _replayed(open_journal(), journal.mark) == []


def test_no_file_and_no_journal_hold_no_entries(open_journal: Open, tmp_path: Path) -> None:
    assert _replayed(open_journal()) == []
    for content in (b"", b"short", b"x" * 4096, b"CBpj" + bytes(12)):
        (tmp_path / "progress.journal").write_bytes(content)
        assert _replayed(open_journal()) == []


def test_a_newer_journal_is_refused(open_journal: Open, tmp_path: Path) -> None:
    journal = open_journal()
    journal.start(START)
    journal.close()
    path = tmp_path / "progress.journal"
    path.write_bytes(path.read_bytes()[:7] + b"\x02" + path.read_bytes()[8:])
    with pytest.raises(StateVersionError):
        _replayed(open_journal())


def test_what_another_session_wrote_does_not_count(open_journal: Open) -> None:
    journal = open_journal()
    journal.start(START)
    for n in range(5):
        journal.append(EntryKind.ACKNOWLEDGE, n, bytes(8))
    journal.close()
    later = open_journal()
    later.start(START._replace(epoch=78))
    later.append(EntryKind.ACKNOWLEDGE, 9, bytes(8))
    # The old entry 1002 lies right behind the new entry 1001, whole and with the right number.
    assert [entry.key_id for entry in _replayed(open_journal(), START._replace(epoch=78))] == [9]


def test_the_ring_takes_no_more_than_it_can_keep(open_journal: Open) -> None:
    journal = open_journal()
    journal.start(START)
    count = 0
    while journal.has_room(100):
        journal.append(EntryKind.CHANGE, 1, bytes(100))
        count += 1
    assert count == (JOURNAL_BYTES_MIN - 16) // 120
    assert 0.99 < _filled(journal) <= 1
    assert not journal.has_half_free(0)
    assert len(_replayed(open_journal())) == count
    journal.release(journal.mark)
    assert _filled(journal) == 0
    assert journal.has_half_free(100)
    assert journal.has_room(PAYLOAD_BYTES_MAX)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 9000), st.booleans()), min_size=1, max_size=120))
def test_any_lengths_wrap_around_and_are_replayed_from_the_last_release(
    steps: list[tuple[int, bool]],
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "progress.journal"
        journal = ProgressJournal(path, JOURNAL_BYTES_MIN, file_system=RealFileSystem())
        journal.start(START)
        mark, kept = START, list[JournalEntry]()
        for length, release in steps:
            if release or not journal.has_room(length):
                mark, kept = journal.mark, []
                journal.release(mark)
            payload = bytes([length % 251]) * length
            sequence = journal.append(EntryKind.CHANGE, length, payload)
            kept.append(JournalEntry(sequence, EntryKind.CHANGE, length, payload))
        assert _replayed(journal, mark) == kept
        journal.close()


def test_the_longest_entry_fits_wherever_an_empty_ring_stands(open_journal: Open) -> None:
    journal = open_journal()
    journal.start(START)
    for _ in range(7):
        journal.release(journal.mark)
        mark = journal.mark
        assert journal.has_room(PAYLOAD_BYTES_MAX)
        journal.append(EntryKind.CHANGE, 1, bytes(PAYLOAD_BYTES_MAX))
        assert [len(entry.payload) for entry in _replayed(open_journal(), mark)] == [
            PAYLOAD_BYTES_MAX
        ]


def test_every_flipped_byte_ends_the_replay_there_or_changes_nothing(
    open_journal: Open, tmp_path: Path
) -> None:
    journal = open_journal()
    journal.start(START)
    for n in range(3):
        journal.append(EntryKind.ACKNOWLEDGE, n, bytes([n] * 8))
    whole = _replayed(open_journal())
    journal.close()
    path = tmp_path / "progress.journal"
    data = bytearray(path.read_bytes())
    for place in range(16, 16 + 3 * 28):
        data[place] ^= 0xFF
        path.write_bytes(data)
        assert _replayed(open_journal()) == whole[: (place - 16) // 28]
        data[place] ^= 0xFF
    for length in range(16 + 3 * 28):
        path.write_bytes(data[:length])
        assert _replayed(open_journal()) == whole[: max(0, length - 16) // 28]


@pytest.mark.parametrize("size_bytes", [JOURNAL_BYTES_MIN, 3 * JOURNAL_BYTES_MIN])
def test_another_size_reads_the_old_ring_and_makes_the_new_one(
    open_journal: Open, tmp_path: Path, size_bytes: int
) -> None:
    journal = open_journal(2 * JOURNAL_BYTES_MIN)
    journal.start(START)
    journal.append(EntryKind.DELETE, 1, b"")
    journal.close()
    resized = open_journal(size_bytes)
    assert len(_replayed(resized)) == 1
    resized.start(START._replace(epoch=78))
    assert (tmp_path / "progress.journal").stat().st_size == size_bytes
    assert _replayed(open_journal(), START._replace(epoch=78)) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_entry_that_cannot_be_written_is_refused_and_leaves_none(
    open_journal: Open, tmp_path: Path, code: int
) -> None:
    files: Any = FailingFileSystem()
    path = tmp_path / "progress.journal"
    journal = ProgressJournal(path, JOURNAL_BYTES_MIN, file_system=files)
    journal.start(START)
    journal.append(EntryKind.DELETE, 1, b"")
    before = journal.mark
    files.fails["pwrite"] = code
    for _ in range(2):
        with pytest.raises(StateWriteError, match="progress") as caught:
            journal.append(EntryKind.DELETE, 2, b"")
        assert caught.value.path == path
    assert journal.mark == before
    files.fails.clear()
    journal.append(EntryKind.DELETE, 3, b"")
    assert [entry.key_id for entry in _replayed(open_journal())] == [1, 3]
    journal.close()


def test_the_file_is_not_mapped(tmp_path: Path) -> None:
    """An evicted page that the disk does not give back would be a SIGBUS."""
    files: Any = UnreadableFileSystem()
    for _ in range(2):
        journal = ProgressJournal(tmp_path / "journal", JOURNAL_BYTES_MIN, file_system=files)
        assert len(_replayed(journal)) <= 1
        journal.start(START)
        journal.append(EntryKind.DELETE, 1, b"")
        journal.close()
    assert files.mapped == []


def test_an_unreadable_place_is_an_error_where_an_entry_may_lie(tmp_path: Path) -> None:
    """Not behind the last one, and not before the mark."""
    files: Any = UnreadableFileSystem()
    path = tmp_path / "journal"
    journal = ProgressJournal(path, JOURNAL_BYTES_MIN, file_system=files)
    journal.start(START)
    while journal.mark.position < 5 * PAGE_BYTES + 100:
        journal.append(EntryKind.CHANGE, 1, bytes(300))
    middle = journal.mark
    journal.append(EntryKind.DELETE, 1, b"")
    journal.close()
    whole = _replayed(journal)

    files.spoil(path, 6 * PAGE_BYTES, JOURNAL_BYTES_MIN - 6 * PAGE_BYTES)
    assert _replayed(journal) == whole
    files.bad_pages[path] = {1, 2}
    assert _replayed(journal, middle) == whole[-1:]
    replay = journal.replay(START)
    entries: list[JournalEntry] = []
    with pytest.raises(ReadFailedError) as caught:
        entries.extend(replay)
    assert caught.value.path == path
    assert caught.value.position <= PAGE_BYTES <= caught.value.position + 320
    files.bad_pages[path] = {0}
    with pytest.raises(ReadFailedError, match="at position 0"):
        _replayed(journal)
