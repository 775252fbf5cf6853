"""An index on a disk that gives some bytes not back or takes none; a process out of descriptors."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import (
    DiskFullError,
    OutOfResourcesError,
    ReadFailedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile import IndexService
from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_format import entry_position
from tests.failing_files import FailingFile, FailingFileSystem
from tests.indexfile.small_indexes import (
    END_OF_TIME,
    ENTRIES,
    FILE_BYTES,
    SLOTS,
    contents,
    message,
    messages,
    open_service,
    rebuilt,
)

ENTRIES_AT = entry_position(SLOTS, 0)


class BadDisk(FailingFileSystem):
    """A file system with unreadable places, which remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[tuple[str, int, int]] = []
        """Names of files, and positions from where and up to where they are unreadable."""
        self.written: list[tuple[str, int, int]] = []
        """Likewise, of what was written."""

    def open(self, path: Path, **options: Any) -> Any:
        self.check("open")
        return _BadFile(self.real.open(path, **options), self)


class _BadFile(FailingFile):
    owner: Any

    def pread(self, length: int, position: int) -> bytes:
        for name, start, end in self.owner.bad:
            if self.path.name == name and position < end and start < position + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        data: bytes = self.real.pread(length, position)
        return data

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self.owner.check("pwrite")
        self.owner.written.append((self.path.name, position, position + len(data)))
        self.real.pwrite(data, position)


def filled(directory: Path, count: int, disk: BadDisk | None = None) -> list[Path]:
    """Make an index of so many messages, and return its files."""
    service = open_service(directory, disk)
    service.put(messages(count))
    paths = service.paths()
    service.close()
    return paths


# Reading


def test_an_unreadable_entry_is_an_error_of_the_query_that_wants_it(tmp_path: Path) -> None:
    """It names file and place; other keys are found and puts go on."""
    disk = BadDisk()
    service = open_service(tmp_path / "index", disk)
    service.put([message(n) for n in range(120)])
    first = service.paths()[0]
    place = entry_position(SLOTS, 8)  # of message 7, entry 0 is none
    disk.bad = [(first.name, place, place + 20)]
    with pytest.raises(ReadFailedError) as caught:
        service.query("T", "U7", 0, END_OF_TIME, 9)
    assert (caught.value.path, caught.value.position) == (first, place)
    assert service.query("T", "U8", 0, END_OF_TIME, 1) == [800]
    assert service.query("T", "U110", 0, END_OF_TIME, 9) == [11_000]
    service.put([message(120)])
    assert service.query("T", "U120", 0, END_OF_TIME, 9) == [12_000]
    service.flush()
    service.close()


def test_unreadable_slots_of_an_old_file_are_an_error_of_queries_that_get_there(
    tmp_path: Path,
) -> None:
    """Newer messages are found without them."""
    disk = BadDisk()
    service = open_service(tmp_path / "index", disk)
    service.put([message(n) for n in range(120)])
    service.flush()
    first = service.paths()[0]
    disk.bad = [(first.name, 40, 40 + 4 * SLOTS)]
    with pytest.raises(ReadFailedError, match=f"{first} at position"):
        service.query("T", "U7", 0, END_OF_TIME, 9)
    assert service.query("T", "U110", 0, END_OF_TIME, 1) == [11_000]
    service.close()


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("start", [0, 40, ENTRIES_AT + 20, ENTRIES_AT + 180])
def test_what_a_start_cannot_read_is_made_anew(tmp_path: Path, number: int, start: int) -> None:
    """After an unclean stop: the index is derived, so a start is not refused for its sake."""
    disk = BadDisk()
    paths = filled(tmp_path / "index", 50)
    disk.bad = [(paths[number].name, start, start + 20)]
    service = open_service(tmp_path / "index", disk)
    service.discard_after(0)
    service.truncate(PhysicalOffset(5000))
    # The disk maps a bad block elsewhere when something new is written.
    disk.bad = []
    service.put([m for m in messages(50) if m.physical_offset >= service.dispatched_to])
    assert contents(service) == rebuilt(tmp_path / "other", messages(50))
    service.close()


def test_a_reader_that_may_change_nothing_leaves_an_unreadable_file_out(tmp_path: Path) -> None:
    """And says so to the queries that find nothing elsewhere."""
    disk = BadDisk()
    paths = filled(tmp_path / "index", 50)
    disk.bad = [(paths[0].name, 0, 40)]
    reader = open_service(tmp_path / "index", disk, writable=False)
    assert reader.query("T", "U49", 0, END_OF_TIME, 1) == [4900]
    with pytest.raises(ReadFailedError, match=paths[0].name):
        reader.query("T", "U1", 0, END_OF_TIME, 1)
    assert paths[0].exists()
    reader.close()


def test_a_put_that_cannot_read_the_newest_file_goes_back(tmp_path: Path) -> None:
    """The file is removed; who puts the messages from `dispatched_to` on has all of them."""
    disk = BadDisk()
    paths = filled(tmp_path / "index", 50)
    service = open_service(tmp_path / "index", disk)
    disk.bad = [(paths[-1].name, 40, 44)]
    before = service.dispatched_to
    with pytest.raises(ReadFailedError):
        service.put(messages(10, start=50))
    assert not paths[-1].exists()
    assert service.dispatched_to < before
    service.put([m for m in messages(60) if m.physical_offset >= service.dispatched_to])
    assert contents(service) == rebuilt(tmp_path / "other", messages(60))
    service.close()


# Writing


def test_what_an_unclean_stop_left_is_written_again(tmp_path: Path) -> None:
    """After a failed sync it may be in memory only, in pages that the kernel takes for clean."""
    disk = BadDisk()
    paths = filled(tmp_path / "index", 10)
    service = open_service(tmp_path / "index", disk)
    service.discard_after(0)
    service.flush_cuts()
    service.flush()
    service.close()
    written: set[int] = set()
    for name, start, end in disk.written:
        assert name == paths[0].name
        written |= set(range(start, end))
    data = paths[0].read_bytes()
    assert int.from_bytes(data[36:40], "big") > 10
    in_use = {position for position, byte in enumerate(data) if byte}
    assert in_use <= written


def test_a_file_that_a_put_loses_while_it_is_flushed_is_no_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush has chosen it, and finds it removed; any other error would end the store."""
    (path,) = filled(tmp_path / "index", 3)
    service = open_service(tmp_path / "index")
    service.discard_after(0)
    write_again = IndexFile.write_again

    def lose_and_write(file: IndexFile) -> None:
        cause = OSError(errno.EIO, os.strerror(errno.EIO))
        service._index.drop_from(0, ReadFailedError(path, 0, cause))
        service._find_where_to_resume()
        write_again(file)

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "write_again", lose_and_write)
        service.flush()
    assert not path.exists()
    assert service.last_full_offset == 0
    service.put(messages(3))
    assert contents(service) == rebuilt(tmp_path / "other", messages(3))
    service.close()


def test_a_sparse_file_is_refused_on_a_full_disk_and_loses_nothing(tmp_path: Path) -> None:
    """The error names the file; with room the index goes on with the same bytes."""
    disk = BadDisk()
    (path,) = filled(tmp_path / "index", 10)
    make_sparse(path)
    service = open_service(tmp_path / "index", disk)
    disk.fails = {"allocate": errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(DiskFullError, match=path.name):
            service.put([message(10)])
    disk.fails = {}
    more = messages(30, start=10)
    service.put(more)
    assert path.stat().st_blocks * 512 >= FILE_BYTES
    assert contents(service) == rebuilt(tmp_path / "other", messages(10) + more)
    service.close()


def make_sparse(path: Path) -> None:
    """Make holes of a file's zeros, as copying tools do."""
    data = path.read_bytes()
    path.unlink()
    with path.open("wb") as file:
        file.write(data.rstrip(b"\0"))
        file.truncate(len(data))


@pytest.mark.parametrize("operation", ["flush", "put"])
def test_a_disk_without_room_for_a_write_loses_nothing(tmp_path: Path, operation: str) -> None:
    """Even allocated blocks may need room: on file systems that copy on write."""
    disk = BadDisk()
    service = open_service(tmp_path / "index", disk)
    service.put(messages(30))
    disk.fails = {"pwrite": errno.ENOSPC}
    for _ in range(3):
        with pytest.raises(DiskFullError):
            service.flush() if operation == "flush" else service.put(messages(30, start=30))
    assert service.query("T", "U29", 0, END_OF_TIME, 9) == [2900]
    disk.fails = {}
    service.put(messages(30, start=30))
    assert contents(service) == rebuilt(tmp_path / "other", messages(60))
    service.close()


FILL = """
import sys
from pathlib import Path
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import DiskFullError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.indexfile import IndexService
from tests.indexfile.small_indexes import messages

service = IndexService(
    Path(sys.argv[1]), slot_count=100_000, entry_count=400_000,
    clock=SystemClock(), file_system=RealFileSystem(),
)
service.load()
Path(sys.argv[1], "..", "others").write_bytes(bytes(int(sys.argv[2])))
try:
    for start in range(10, 100_000, 1000):
        service.put(messages(1000, start=start))
except DiskFullError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_copied_index_on_a_disk_that_others_fill_ends_no_process(tmp_path: Path) -> None:
    """A real full disk: with a mapping this was a SIGBUS."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    mount = subprocess.run(command, capture_output=True, check=False)
    if mount.returncode:
        pytest.skip(f"nothing can be mounted here: {mount.stderr.decode()}")
    try:
        service = IndexService(
            tmp_path / "index",
            slot_count=100_000,
            entry_count=400_000,
            clock=SystemClock(),
            file_system=RealFileSystem(),
        )
        service.load()
        service.put(messages(10))
        (path,) = service.paths()
        service.close()
        (disk / "index").mkdir()
        copy = disk / "index" / path.name
        copy.write_bytes(path.read_bytes().rstrip(b"\0"))
        os.truncate(copy, path.stat().st_size)
        ended = subprocess.run(
            [sys.executable, "-c", FILL, str(disk / "index"), str(3 << 20)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith(f"no room on the disk of {copy}")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Descriptors


def _flush(service: IndexService) -> None:
    service.flush()


def _query(service: IndexService) -> None:
    service.query("T", "U1", 0, END_OF_TIME, 9)


def _put(service: IndexService) -> None:
    service.put(messages(60, start=60))


@pytest.mark.parametrize("work", [_flush, _query, _put])
def test_running_out_of_descriptors_is_refused_work(
    tmp_path: Path, work: Callable[[IndexService], None]
) -> None:
    """Not a failed flush: the next time it succeeds."""
    service = open_service(tmp_path / "index")
    service.put(messages(60))
    service.flush()
    service.put(messages(60))
    service.delete_before(PhysicalOffset(2500))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files(), limits[1]))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        with pytest.raises(OutOfResourcesError):
            work(service)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    work(service)
    service.flush()
    assert service.query("T", "U59", 0, END_OF_TIME, 9) == [5900]
    service.close()


def test_hundreds_of_files_take_no_descriptors(tmp_path: Path) -> None:
    """Only the one that is appended to stays open, and a few full ones until they are flushed."""
    gc.collect()  # What earlier tests left would go meanwhile.
    before = open_files()
    service = open_service(tmp_path / "index")
    service.put(messages(40 * ENTRIES))
    assert len(service.paths()) > 60
    assert open_files() < before + 20
    service.flush()
    assert open_files() <= before + 1
    assert service.query("T", "U1", 0, END_OF_TIME, 9) == [100]
    service.close()
    reader = open_service(tmp_path / "index", writable=False)
    assert reader.query("T", "U1", 0, END_OF_TIME, 9) == [100]
    assert open_files() <= before + 1
    reader.close()
    assert open_files() == before


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))
