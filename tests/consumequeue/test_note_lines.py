"""The file of lines: an interrupted append does not count, damage is refused, costs do not grow."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    NotAStoreError,
    OutOfResourcesError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.consumequeue.note_lines import BLOCK_BYTES, NoteFile
from tests.failing_files import FailingFileSystem


def note_file(path: Path, file_system: FailingFileSystem | None = None) -> NoteFile:
    """A file of lines."""
    return NoteFile(path, file_system or RealFileSystem(), damaged="it is damaged")


def filled(path: Path, *texts: str) -> NoteFile:
    """A file with these lines, appended one by one."""
    notes = note_file(path)
    notes.replace(())
    for text in texts:
        notes.append(text)
    return notes


def test_what_was_appended_is_read_again(tmp_path: Path) -> None:
    """Also across blocks, and behind lines that a start has read."""
    path = tmp_path / "notes"
    long = "x" * (BLOCK_BYTES - 20)
    filled(path, "a", long, "")
    notes = note_file(path)
    assert notes.read() == ["a", long, ""]
    assert (notes.lines, notes.needs_replace) == (3, False)
    notes.append("b")
    assert note_file(path).read() == ["a", long, "", "b"]
    assert path.stat().st_size % BLOCK_BYTES == 0


@pytest.mark.parametrize("block_is_new", [False, True])
def test_an_append_that_a_power_cut_interrupted_does_not_count(
    tmp_path: Path,
    block_is_new: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """Any part of the line may be missing; the next start goes on behind the line before."""
    path = tmp_path / "notes"
    filled(path, "a" * (BLOCK_BYTES - 60) if block_is_new else "a")
    before = path.read_bytes()
    notes = note_file(path)
    notes.read()
    notes.append("b" * 40)
    after = path.read_bytes()
    start = len(before.rstrip(b"\0"))
    end = len(after.rstrip(b"\0"))
    for torn in range(start + 1, end):
        path.write_bytes(after[:torn].ljust(len(after), b"\0"))
        read = note_file(path)
        assert len(read.read() or ()) == 1
        assert read.needs_replace
    path.write_bytes(after[: start + 3] + b"\0" * 9 + after[start + 12 :])
    assert len(note_file(path).read() or ()) == 1
    if block_is_new:
        path.write_bytes(after[:BLOCK_BYTES])
        assert len(note_file(path).read() or ()) == 1


def test_damage_is_refused(tmp_path: Path) -> None:
    """A bit that changed anywhere, zeros before other lines, and a file that was cut."""
    path = tmp_path / "notes"
    filled(path, "first", "second", "third")
    sound = path.read_bytes()
    begin = sound.index(b"\n") + 1
    text_end = len(sound.rstrip(b"\0")) - 1
    damages = [
        sound[:i] + bytes([sound[i] ^ 1]) + sound[i + 1 :]
        for i in range(begin, text_end)
        if sound[i] != ord("\n")
    ]
    damages += [sound[:-3], sound.replace(b"first", b"\0" * 5)]
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(NotAStoreError, match="is damaged"):
            note_file(path).read()
    path.write_bytes(b"{}")
    assert note_file(path).read() is None


@pytest.mark.parametrize(
    ("operation", "error_number", "expected"),
    [
        ("pwrite", errno.ENOSPC, DiskFullError),
        ("open", errno.EMFILE, OutOfResourcesError),
        ("pwrite", errno.EIO, FlushFailedError),
        ("sync_data", errno.EIO, FlushFailedError),
    ],
)
def test_an_append_that_fails(
    tmp_path: Path,
    operation: str,
    error_number: int,
    expected: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without room it changes nothing; where nobody knows what is durable, it says so."""
    path, files = tmp_path / "notes", FailingFileSystem()
    filled(path, "a")
    notes = note_file(path, files)
    notes.read()
    files.fails = {operation: error_number}
    with monkeypatch.context() as patch:
        if operation == "open":
            patch.setattr(files, "open", lambda *_, **__: files.check("open"))
        with pytest.raises(expected):
            notes.append("b")
    files.fails = {}
    if expected is not FlushFailedError:
        assert note_file(path).read() == ["a"]
        if notes.needs_replace:
            notes.replace(["a"])
        notes.append("c")
        assert note_file(path).read() == ["a", "c"]


def test_a_replacement_whose_name_is_not_durable_is_made_again(tmp_path: Path) -> None:
    """Else a power cut would bring the file back that lacks what was appended to the new one."""
    path, files = tmp_path / "notes", FailingFileSystem()
    filled(path, "a")
    notes = note_file(path, files)
    files.fails = {"sync_directory": errno.EIO}
    with pytest.raises(OSError, match="Input/output error"):
        notes.replace(["a"])
    assert notes.needs_replace
    assert note_file(path).read() == ["a"]


def test_an_append_writes_its_line_only(tmp_path: Path) -> None:
    """However many there are."""
    path, files = tmp_path / "notes", FailingFileSystem()
    note_file(path).replace(f"line {n}" for n in range(5_000))
    notes = note_file(path, files)
    notes.read()
    files.calls.clear()
    notes.append("one more")
    assert [call for call in files.calls if call not in ("truncate", "close")] == [
        "pwrite",
        "sync_data",
    ]
