"""The file system that the store sees: a simulated disk, with faults, one process long."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final, final

from tests.simulation.disk import Directory, Disk, Inode, Node
from tests.simulation.scheduler import Scheduler

PLENTY_OF_PAGES: Final = 1 << 40


@final
@dataclass
class Faults:
    """What goes wrong, from now on. Changed while a simulation runs."""

    sync_failure_probability: float = 0.0
    """Of each sync of a file or directory: pages of it never reach the disk, and no later sync
    writes them, because the kernel takes them for clean."""
    capacity_pages: int = PLENTY_OF_PAGES
    """Blocks of the whole disk."""
    short_write_probability: float = 0.0
    """Of each `pwrite`: half of it is written, then the disk is full."""
    sync_s: tuple[float, float] = (0.0, 0.002)
    """Shortest and longest time of a sync."""


@final
class SimulatedFileSystem:
    """A `FileSystem`. Each operation begins with a point of the scheduler; a sync takes time."""

    def __init__(self, disk: Disk, scheduler: Scheduler, faults: Faults | None = None) -> None:
        self.disk, self.scheduler = disk, scheduler
        self.faults = faults or Faults()
        self.sync_failures = 0
        self._locked: set[PurePosixPath] = set()

    def point(self, operation: str, path: PurePosixPath) -> None:
        """Note what the mapped files are, then let the scheduler decide."""
        if not self.scheduler.is_dead:
            self.disk.observe()
        self.scheduler.point(f"{operation} {path}")

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> SimulatedFile:
        where = _relative(path)
        self.point("open", where)
        node = self.disk.find(where)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            parent = self.disk.directory(where.parent)
            node = Inode(self.disk.page_bytes)
            self.disk.change((parent, where.name, node))
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        return SimulatedFile(self, node, path, writable=writable)

    def lock(self, path: Path) -> SimulatedFileLock | None:
        where = _relative(path)
        self.open(path, create=True).close()
        if where in self._locked:
            return None
        self._locked.add(where)
        return SimulatedFileLock(self._locked, where)

    def exists(self, path: Path) -> bool:
        return self.disk.find(_relative(path)) is not None

    def list_names(self, directory: Path) -> list[str]:
        node = self.disk.find(_relative(directory))
        return sorted(node.entries) if isinstance(node, Directory) else []

    def is_directory(self, path: Path) -> bool:
        return isinstance(self.disk.find(_relative(path)), Directory)

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
        if self.sync_fails():
            raise OSError(errno.EIO, "Input/output error", str(path))
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

    def take_pages(self, inode: Inode, numbers: range, path: Path) -> None:
        """Allocate blocks, as many as there are."""
        missing = [number for number in numbers if number not in inode.allocated]
        if self.faults.capacity_pages == PLENTY_OF_PAGES:
            inode.allocated.update(missing)
        elif missing:
            room = self.faults.capacity_pages - self.disk.used_pages()
            inode.allocated.update(missing[: max(room, 0)])
            if len(missing) > room:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def _node(self, path: Path) -> Node:
        node = self.disk.find(_relative(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return node


@final
class SimulatedFile:
    """A `File`."""

    def __init__(
        self, owner: SimulatedFileSystem, inode: Inode, path: Path, *, writable: bool
    ) -> None:
        self._owner, self.inode, self.path, self._writable = owner, inode, path, writable

    def size(self) -> int:
        return len(self.inode.cache)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self.inode.cache[position : position + length])

    def pread_cached(self, length: int, position: int) -> bytes | None:
        return self.pread(length, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._change("pwrite")
        data = bytes(data)
        faults = self._owner.faults
        if faults.short_write_probability > self._owner.scheduler.rng.random():
            self._store(data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))
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
        cache, end = self.inode.cache, position + length
        try:
            self._owner.take_pages(self.inode, self._pages(position, end), self.path)
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
        return SimulatedMapping(self._owner.disk, self.inode, length, writable=self._writable)

    def sync_data(self) -> None:
        owner, inode = self._owner, self.inode
        owner.point("sync", _relative(self.path))
        marks = inode.marks()
        owner.scheduler.sleep(owner.scheduler.rng.uniform(*owner.faults.sync_s))
        owner.point("synced", _relative(self.path))
        if owner.sync_fails():
            inode.lose(marks, owner.scheduler.rng)
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        inode.settle(marks)

    def close(self) -> None:
        """Nothing is held."""

    def _pages(self, start: int, end: int) -> range:
        page_bytes = self.inode.page_bytes
        return range(start // page_bytes, -(-end // page_bytes))

    def _store(self, data: bytes, position: int) -> None:
        end = position + len(data)
        self._owner.take_pages(self.inode, self._pages(position, end), self.path)
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
        self._owner.point(operation, _relative(self.path))

    def _changed(self) -> None:
        self.inode.observe(mapped=False)
        self.inode.note_meta()


@final
class SimulatedMapping:
    """A `Mapping`."""

    def __init__(self, disk: Disk, inode: Inode, length: int, *, writable: bool) -> None:
        self._disk, self._inode = disk, inode
        view = memoryview(inode.cache)[:length]
        self._view = view if writable else view.toreadonly()
        disk.mapped[inode] = disk.mapped.get(inode, 0) + 1

    @property
    def buffer(self) -> memoryview:
        return self._view

    def advise_random(self) -> None:
        """Nothing reads ahead."""

    def is_resident(self, position: int, length: int) -> bool:
        """Nothing is evicted."""
        return True

    def lock(self, position: int, length: int) -> bool:
        """Nothing is evicted."""
        return True

    def close(self) -> None:
        self._view.release()
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

    def __init__(self, locked: set[PurePosixPath], path: PurePosixPath) -> None:
        self._locked, self._path = locked, path

    def release(self) -> None:
        self._locked.discard(self._path)


@lru_cache(1000)
def _relative(path: Path) -> PurePosixPath:
    return PurePosixPath(path).relative_to("/")
