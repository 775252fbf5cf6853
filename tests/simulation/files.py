"""The file system that the store sees: a simulated disk, with faults, one process long."""

from __future__ import annotations

import errno
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final, final

from tests.simulation.disk import PAGE_BYTES, Directory, Disk, Inode, Node
from tests.simulation.scheduler import Scheduler, SimulationError

PLENTY: Final = 1 << 40
MAPPED_BY_THE_WRITER: Final = "commitlog"
"""The directory of the files that may be mapped; of all others bytes are read and written."""


@final
@dataclass
class Faults:
    """What goes wrong, from now on. Changed while a simulation runs."""

    sync_failure_probability: float = 0.0
    """Of each sync of a file or directory: pages of it never reach the disk, and no later sync
    writes them, because the kernel takes them for clean."""
    unsyncable: str | None = None
    """Name of a directory of which every sync fails."""
    capacity_pages: int = PLENTY
    """Blocks of the whole disk."""
    short_write_probability: float = 0.0
    """Of each `pwrite`: half of it is written, then the disk is full."""
    sync_s: tuple[float, float] = (0.0, 0.002)
    """Shortest and longest time of a sync."""
    operation_s: float = 0.0
    """Longest time of any other operation: what it finds may change before it is done."""
    descriptors_max: int = PLENTY
    """Files, directories, mappings and locks that may be open at a time; one more is EMFILE."""
    memory_failure_probability: float = 0.0
    """Of each mapping, and each reservation of blocks: ENOMEM, nothing is done."""
    may_populate_memory: bool = True
    """Whether pages of a mapping stay in memory when that is asked for."""
    cold_probability: float = 0.0
    """Of each read that is not to wait: a disk would have to be waited for."""
    reads_fail: bool = True
    """Whether pages of files that are `unreadable` are. False while a test looks at the files."""


@final
class SimulatedFileSystem:
    """A `FileSystem`. Each operation begins with a point of the scheduler; a sync takes time."""

    only_the_log_is_mapped = True
    """Whether a mapping of any other file is a mistake."""

    def __init__(self, disk: Disk, scheduler: Scheduler, faults: Faults | None = None) -> None:
        self.disk, self.scheduler = disk, scheduler
        self.faults = faults or Faults()
        self.sync_failures = 0
        self.read_failures = 0
        """Reads that ended in EIO."""
        self.shortages = 0
        """How often descriptors or memory were not enough."""
        self.descriptors: Counter[Path] = Counter()
        """What is open, and how often."""
        self._locked: set[PurePosixPath] = set()

    def point(self, operation: str, path: PurePosixPath) -> None:
        """Note what the mapped files are, then let the scheduler decide."""
        if not self.scheduler.is_dead:
            self.disk.observe()
        self.scheduler.point(f"{operation} {path}")
        longest_s = self.faults.operation_s
        if longest_s:
            self.scheduler.sleep(self.scheduler.rng.uniform(0.0, longest_s))

    def take_descriptor(self, path: Path) -> None:
        """Open something. EMFILE."""
        if self.descriptors.total() >= self.faults.descriptors_max:
            self.shortages += 1
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        self.descriptors[path] += 1

    def give_descriptor(self, path: Path) -> None:
        """Close something."""
        self.descriptors[path] -= 1
        if not self.descriptors[path]:
            del self.descriptors[path]

    def take_memory(self) -> None:
        """Need memory of the kernel. ENOMEM."""
        if 0 < self.faults.memory_failure_probability > self.scheduler.rng.random():
            self.shortages += 1
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> SimulatedFile:
        where = _relative(path)
        self.point("open", where)
        # As the kernel does: the descriptor first, then the file.
        self.take_descriptor(path)
        try:
            return SimulatedFile(self, self._inode_to_open(path, where, create), path, writable)
        except OSError:
            self.give_descriptor(path)
            raise

    def _inode_to_open(self, path: Path, where: PurePosixPath, create: bool) -> Inode:  # noqa: FBT001 - one caller
        node = self.disk.find(where)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            parent = self.disk.directory(where.parent)
            node = Inode(self.disk.page_bytes)
            self.disk.change((parent, where.name, node))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        return node

    def lock(self, path: Path) -> SimulatedFileLock | None:
        where = _relative(path)
        self.open(path, create=True).close()
        if where in self._locked:
            return None
        self.take_descriptor(path)
        self._locked.add(where)
        return SimulatedFileLock(self, path)

    def unlock(self, path: Path) -> None:
        """Let somebody else take the lock."""
        self._locked.discard(_relative(path))
        self.give_descriptor(path)

    def exists(self, path: Path) -> bool:
        return self.disk.find(_relative(path)) is not None

    def list_names(self, directory: Path) -> list[str]:
        node = self.disk.find(_relative(directory))
        return sorted(node.entries) if isinstance(node, Directory) else []

    def is_directory(self, path: Path) -> bool:
        return isinstance(self.disk.find(_relative(path)), Directory)

    def names_mark(self, directory: Path) -> int:
        return zlib.crc32(
            "/".join(sorted(self.disk.directory(_relative(directory)).entries)).encode()
        )

    def directories(self, directory: Path) -> dict[str, int]:
        return {
            name: self.names_mark(directory / name)
            for name in self.list_names(directory)
            if self.is_directory(directory / name)
        }

    def make_directories(self, path: Path) -> None:
        where = _relative(path)
        self.point("mkdir", where)
        for ancestor in (*reversed(where.parents), where):
            if self.disk.find(ancestor) is None:
                parent = self.disk.directory(ancestor.parent)
                self.disk.change((parent, ancestor.name, Directory()))
        self.disk.directory(where)

    def rename(self, source: Path, target: Path) -> None:
        self.point("rename", _relative(source))
        node = self._node(source)
        old = self.disk.directory(_relative(source.parent))
        new = self.disk.directory(_relative(target.parent))
        self.disk.change((old, source.name, None), (new, target.name, node))

    def remove(self, path: Path) -> None:
        self.point("remove", _relative(path))
        node = self._node(path)
        if isinstance(node, Directory) and node.entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        self.disk.change((self.disk.directory(_relative(path.parent)), path.name, None))

    def sync_directory(self, path: Path) -> None:
        where = _relative(path)
        self.point("sync names", where)
        directory = self.disk.directory(where)
        self.take_descriptor(path)
        self.give_descriptor(path)
        if self.sync_fails() or path.name == self.faults.unsyncable:
            raise OSError(errno.EIO, "Input/output error")
        self.disk.sync_names(directory)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        capacity = self.faults.capacity_pages
        free = max(capacity - self.disk.used_pages(), 0)
        return capacity * self.disk.page_bytes, free * self.disk.page_bytes

    def sync_fails(self) -> bool:
        """Decide about a sync."""
        probability = self.faults.sync_failure_probability
        fails = probability > 0 and self.scheduler.rng.random() < probability
        self.sync_failures += fails
        return fails

    def take_pages(self, inode: Inode, numbers: range) -> None:
        """Allocate blocks, as many as there are."""
        missing = [number for number in numbers if number not in inode.allocated]
        if self.faults.capacity_pages == PLENTY:
            inode.allocated.update(missing)
        elif missing:
            room = self.faults.capacity_pages - self.disk.used_pages()
            inode.allocated.update(missing[: max(room, 0)])
            if len(missing) > room:
                raise OSError(errno.ENOSPC, "No space left on device")

    def _node(self, path: Path) -> Node:
        node = self.disk.find(_relative(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return node


@final
class SimulatedFile:
    """A `File`. As with the kernel's, its errors name no path: who knows it must say it."""

    def __init__(
        self,
        owner: SimulatedFileSystem,
        inode: Inode,
        path: Path,
        writable: bool,  # noqa: FBT001 - one caller
    ) -> None:
        self._owner, self.inode, self.path, self._writable = owner, inode, path, writable
        self._is_open = True

    def size(self) -> int:
        self._use()
        return len(self.inode.cache)

    def pread(self, length: int, position: int) -> bytes:
        self._use()
        if self._touches_unreadable(length, position):
            self._owner.read_failures += 1
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self.inode.cache[position : position + length])

    def pread_cached(self, length: int, position: int) -> bytes | None:
        self._use()
        if self._touches_unreadable(length, position):
            return None
        owner = self._owner
        if 0 < owner.faults.cold_probability > owner.scheduler.rng.random():
            return None
        return self.pread(length, position)

    def _touches_unreadable(self, length: int, position: int) -> bool:
        unreadable = self.inode.unreadable
        if not unreadable or not self._owner.faults.reads_fail:
            return False
        end = min(position + length, len(self.inode.cache))
        return not unreadable.isdisjoint(range(position // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def _write_over_unreadable(self, length: int, position: int) -> None:
        """Let the disk put whole pages to another place; a part of one must be read first. EIO."""
        for page in self.inode.unreadable.intersection(
            range(position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES))
        ):
            if page * PAGE_BYTES < position or (page + 1) * PAGE_BYTES > position + length:
                raise OSError(errno.EIO, "Input/output error")
            self.inode.unreadable.discard(page)

    def _use(self) -> None:
        """See that the descriptor was not given up: by now it may be another file's."""
        if not self._is_open:
            self._owner.scheduler.fail(SimulationError(f"{self.path} is used after it was closed"))

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._change("pwrite")
        data = bytes(data)
        if self.inode.unreadable:
            self._write_over_unreadable(len(data), position)
        faults = self._owner.faults
        if faults.short_write_probability > self._owner.scheduler.rng.random():
            self._store(data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        self._store(data, position)

    def truncate(self, size: int) -> None:
        self._change("truncate")
        cache = self.inode.cache
        if size < len(cache):
            del cache[size:]
            pages = range(-(-size // self.inode.page_bytes))
            self.inode.allocated.intersection_update(pages)
        elif size > len(cache):
            cache.extend(bytes(size - len(cache)))
        self._changed()

    def allocate(self, position: int, length: int) -> None:
        self._change("allocate")
        self._owner.take_memory()
        cache, end = self.inode.cache, position + length
        try:
            self._owner.take_pages(self.inode, self._pages(position, end))
        except OSError:
            # As ext4 does: some blocks are taken before the disk turns out to be full.
            end = position + length // 2
            raise
        finally:
            if end > len(cache):
                cache.extend(bytes(end - len(cache)))
            self._changed()

    def next_data(self, position: int) -> int:
        rest = self.inode.cache[position:]
        return position + len(rest) - len(rest.lstrip(b"\0"))

    def next_hole(self, position: int) -> int:
        return position + len(self.inode.cache[position:].rstrip(b"\0"))

    def map(self, length: int) -> SimulatedMapping:
        assert length <= len(self.inode.cache), "a store beyond the end of a file is SIGBUS"
        self._use()
        owner = self._owner
        if owner.only_the_log_is_mapped and not (
            self._writable and self.path.parent.name == MAPPED_BY_THE_WRITER
        ):
            raise SimulationError(f"{self.path} is mapped: a page that fails is SIGBUS")
        owner.take_memory()
        # Python's mmap holds a copy of the descriptor.
        owner.take_descriptor(self.path)
        return SimulatedMapping(owner, self.inode, self.path, length, writable=self._writable)

    def sync_data(self) -> None:
        self._use()
        owner, inode = self._owner, self.inode
        owner.point("sync", _relative(self.path))
        marks = inode.marks()
        owner.scheduler.sleep(owner.scheduler.rng.uniform(*owner.faults.sync_s))
        owner.point("synced", _relative(self.path))
        if owner.sync_fails():
            inode.lose(marks, owner.scheduler.rng)
            raise OSError(errno.EIO, "Input/output error")
        inode.settle(marks)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._owner.give_descriptor(self.path)

    def __del__(self) -> None:
        self.close()

    def _pages(self, start: int, end: int) -> range:
        page_bytes = self.inode.page_bytes
        return range(start // page_bytes, -(-end // page_bytes))

    def _store(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self._owner.take_pages(self.inode, self._pages(position, end))
        cache = self.inode.cache
        if end > len(cache):
            cache.extend(bytes(end - len(cache)))
        cache[position:end] = data
        self._changed()
        # The kernel notes a write even if it changes no byte.
        for number in self._pages(position, end):
            self.inode.add_version(number, self.inode.page_of(cache, number))

    def _change(self, operation: str) -> None:
        assert self._writable, "opened for reading"
        self._use()
        self._owner.point(operation, _relative(self.path))

    def _changed(self) -> None:
        self.inode.observe(mapped=False)
        self.inode.note_meta()


@final
class SimulatedMapping:
    """A `Mapping`."""

    def __init__(
        self, owner: SimulatedFileSystem, inode: Inode, path: Path, length: int, *, writable: bool
    ) -> None:
        self._owner, self._path = owner, path
        self._disk, self._inode = owner.disk, inode
        disk = owner.disk
        view = memoryview(inode.cache)[:length]
        self._view = view if writable else view.toreadonly()
        disk.mapped[inode] = disk.mapped.get(inode, 0) + 1

    @property
    def buffer(self) -> memoryview:
        return self._view

    def advise_random(self) -> None:
        """Nothing reads ahead."""

    def is_resident(self, position: int, length: int) -> bool:
        """Nothing is evicted, unless it is unreadable or memory cannot be populated."""
        return self._can_be_held(position, length)

    def populate(self, position: int, length: int) -> bool:
        """As `is_resident`."""
        return self._can_be_held(position, length)

    def _can_be_held(self, position: int, length: int) -> bool:
        if not self._owner.faults.may_populate_memory:
            return False
        first, last = position // PAGE_BYTES, -(-(position + length) // PAGE_BYTES)
        return self._inode.unreadable.isdisjoint(range(first, last))

    def close(self) -> None:
        self._view.release()
        self._owner.give_descriptor(self._path)
        # What was stored before must not be forgotten with the mapping.
        self._inode.observe()
        mapped = self._disk.mapped
        if self._inode in mapped:
            mapped[self._inode] -= 1
            if not mapped[self._inode]:
                del mapped[self._inode]


@final
class SimulatedFileLock:
    """A `Lock`."""

    def __init__(self, owner: SimulatedFileSystem, path: Path) -> None:
        self._owner, self._path = owner, path

    def release(self) -> None:
        self._owner.unlock(self._path)


@lru_cache(1000)
def _relative(path: Path) -> PurePosixPath:
    return PurePosixPath(path).relative_to("/")
