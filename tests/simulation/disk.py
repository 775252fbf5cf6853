"""A disk in memory that knows what a power cut may leave of it.

For each file the bytes of the page cache are kept, and beside them what is durable and every
version of each page that was seen since. A *page* is what reaches the platter whole: 4096 bytes,
or 512 where a sector is all that is trusted. Pages, sizes and names become durable by a sync only;
until then each may or may not be on the disk, each in any version since the last sync:

```
    page   durable ──> version ──> version ──> what the process sees
              └───────────┴───────────┴──────────────┘
                 a power cut leaves one of these, independently for each page,
                 each file's size, and each change of a name
```

Stores to mapped memory are not intercepted: `observe` compares the bytes with those it saw last.
"""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeAlias, final

PAGE_BYTES: Final = 4096


class HoleStoreError(Exception):
    """A store to mapped memory where the file has no block: SIGBUS when the disk is full."""


class Meta(NamedTuple):
    """Size in bytes and numbers of the pages that have a block."""

    size: int
    allocated: frozenset[int]


@final
class PageHistory:
    """What a page was, from its durable version on."""

    __slots__ = ("durable", "lost_number", "number", "versions")

    def __init__(self, durable: bytes) -> None:
        self.durable = durable
        self.number = 0
        """Number of the durable version; those in `versions` follow."""
        self.versions: list[bytes] = []
        self.lost_number = 0
        """A sync of this version failed: the kernel takes it for clean, no later sync writes it."""

    @property
    def newest_number(self) -> int:
        return self.number + len(self.versions)

    def settle(self, number: int) -> None:
        """Make the version with this number the durable one."""
        keep = number - self.number
        if keep > 0 and number > self.lost_number:
            self.durable = self.versions[keep - 1]
            del self.versions[:keep]
            self.number = number


@final
class Inode:
    """A file."""

    def __init__(
        self, page_bytes: int, content: bytes = b"", allocated: frozenset[int] = frozenset()
    ) -> None:
        self.page_bytes = page_bytes
        self.cache = bytearray(content)
        self.seen = bytes(content)
        self.allocated = set(allocated)
        self.durable_meta = Meta(len(content), allocated)
        self.metas: list[Meta] = []
        """Sizes and blocks since the durable ones."""
        self._meta_number = 0
        self.pages: dict[int, PageHistory] = {}
        self.durable_content = bytes(content)
        self.unreadable: set[int] = set()
        """Numbers of the pages of 4 KiB that the disk does not give back."""

    def is_at_rest(self, start: int, end: int) -> bool:
        """Return whether bytes are on the disk as they are: the kernel may forget its copy."""
        if end > self.durable_meta.size:
            return False
        for number in range(start // self.page_bytes, -(-end // self.page_bytes)):
            history = self.pages.get(number)
            if history is not None and history.versions:
                return False
        return True

    def page_of(self, content: bytes | bytearray, number: int) -> bytes:
        page = bytes(content[number * self.page_bytes : (number + 1) * self.page_bytes])
        return page.ljust(self.page_bytes, b"\0")

    def observe(self, *, mapped: bool = True) -> bool:
        """Note what changed since the last look; return whether anything did.

        Raises:
            HoleStoreError: Mapped bytes without a block were stored to.
        """
        if self.cache == self.seen:
            return False
        now = bytes(self.cache)
        for number in range(-(-max(len(now), len(self.seen)) // self.page_bytes)):
            page = self.page_of(now, number)
            if page == self.page_of(self.seen, number):
                continue
            if mapped and number not in self.allocated:
                raise HoleStoreError(f"page {number}")
            self.add_version(number, page)
        self.seen = now
        return True

    def add_version(self, number: int, page: bytes) -> None:
        """Note that a page was stored to, even if its bytes are the same."""
        history = self.pages.get(number)
        if history is None:
            history = self.pages[number] = PageHistory(self.page_of(self.durable_content, number))
        history.versions.append(page)
        # The kernel notes stores by pages of 4 KiB, also where a power cut is finer.
        sectors = PAGE_BYTES // self.page_bytes
        first = number - number % sectors
        for sibling in range(first, first + sectors):
            if sibling in self.pages:
                self.pages[sibling].lost_number = 0

    def note_meta(self) -> None:
        """Note a change of the size or the blocks."""
        self.metas.append(Meta(len(self.cache), frozenset(self.allocated)))

    def marks(self) -> tuple[dict[int, int], int]:
        """Return what a sync that begins now will have made durable when it ends."""
        self.observe()
        marks = {n: page.newest_number for n, page in self.pages.items()}
        return marks, self._meta_number + len(self.metas)

    def settle(self, marks: tuple[dict[int, int], int]) -> None:
        """A sync has ended."""
        pages, meta_number = marks
        for number, mark in pages.items():
            self.pages[number].settle(mark)
        if (keep := meta_number - self._meta_number) > 0:
            self.durable_meta = self.metas[keep - 1]
            del self.metas[:keep]
            self._meta_number = meta_number

    def lose(self, marks: tuple[dict[int, int], int], rng: random.Random) -> None:
        """A sync has failed: some pages were written, the others are taken for clean now."""
        lost: dict[int, bool] = {}
        for number, mark in marks[0].items():
            page = number * self.page_bytes // PAGE_BYTES
            if lost.setdefault(page, rng.random() < 0.7):
                self.pages[number].lost_number = mark
            else:
                self.pages[number].settle(mark)


@final
@dataclass(eq=False)
class Directory:
    """Names, as they are and as they are durable."""

    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)


Node: TypeAlias = Inode | Directory


@final
@dataclass(eq=False)
class Change:
    """Names that change together, in one or two directories; None removes."""

    names: list[tuple[Directory, str, Node | None]]
    is_durable: bool = False


@final
class Disk:
    """Files and directories below one root."""

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self.page_bytes = page_bytes
        self.root = Directory()
        self.mapped: dict[Inode, int] = {}
        """Files with mappings, and how many."""

    def find(self, path: PurePosixPath) -> Node | None:
        node: Node = self.root
        for part in path.parts:
            if not isinstance(node, Directory) or part not in node.entries:
                return None
            node = node.entries[part]
        return node

    def directory(self, path: PurePosixPath) -> Directory:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
        return node

    def change(self, *names: tuple[Directory, str, Node | None]) -> None:
        """Change names in one atomic step, durable once each directory is synced."""
        change = Change(list(names))
        for directory, name, node in names:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
            directory.pending.append(change)

    def sync_names(self, directory: Directory) -> None:
        """Make the names in a directory durable, and what changed together with them."""
        for change in directory.pending:
            change.is_durable = True
            for other, name, node in change.names:
                if node is None:
                    other.durable.pop(name, None)
                else:
                    other.durable[name] = node
                if other is not directory:
                    other.pending.remove(change)
        directory.pending.clear()

    def observe(self) -> bool:
        """Look at every mapped file; return whether any changed."""
        changed = [inode.observe() for inode in self.mapped]
        return any(changed)

    def files(self) -> Iterator[tuple[PurePosixPath, Inode]]:
        """Yield every file, by path."""
        yield from _walk(PurePosixPath(), self.root)

    def checksum(self) -> int:
        """Return a number that tells disks with other files or other bytes apart."""
        total = 0
        for path, inode in self.files():
            total = zlib.crc32(inode.cache, zlib.crc32(str(path).encode(), total))
        return total

    def used_pages(self) -> int:
        """Return how many blocks are taken."""
        return sum(len(inode.allocated) for _, inode in self.files())

    def detach(self) -> None:
        """Let the process die: what its threads still do to their mappings touches nothing here.

        The page cache lives on, and so do the doubts about what is durable.
        """
        self.observe()
        for inode in self.mapped:
            inode.cache = bytearray(inode.cache)
        self.mapped.clear()

    def state(self) -> CrashState:
        """Return what a power cut at this moment may leave."""
        self.observe()
        return CrashState.of(self)


def _walk(path: PurePosixPath, directory: Directory) -> Iterator[tuple[PurePosixPath, Inode]]:
    for name in sorted(directory.entries):
        node = directory.entries[name]
        if isinstance(node, Directory):
            yield from _walk(path / name, node)
        else:
            yield path / name, node


@final
class Axis(NamedTuple):
    """Something that a power cut may leave in several ways, the durable one first."""

    key: tuple[int, int]
    """(number of the file in its state, page), page -1 for size and blocks; (-1, number) for
    changes of names."""
    values: int


@final
class FileState(NamedTuple):
    """A file and what it may become. The lists are copies of references, never changed."""

    inode: Inode
    part: str
    """What of the store it belongs to: commitlog, consumequeue, index, commitbus, checkpoint, …"""
    content: bytes
    pages: dict[int, tuple[bytes, ...]]
    metas: tuple[Meta, ...]


@final
class CrashState:
    """Every disk that a power cut at one moment may leave."""

    def __init__(
        self, page_bytes: int, root: Directory, files: list[FileState], changes: list[Change],
        durable_names: dict[Directory, dict[str, Node]],
    ) -> None:  # fmt: skip
        self._page_bytes, self._root = page_bytes, root
        self._files, self._changes, self._durable_names = files, changes, durable_names
        self.axes = [Axis((-1, n), 2) for n in range(len(changes))]
        for number, file in enumerate(files):
            if len(file.metas) > 1:
                self.axes.append(Axis((number, -1), len(file.metas)))
            self.axes += [
                Axis((number, page), len(versions))
                for page, versions in sorted(file.pages.items())
                if len(versions) > 1
            ]

    @classmethod
    def of(cls, disk: Disk) -> CrashState:
        """Return the state of a disk that was just observed."""
        inodes: dict[Inode, str] = {}
        directories: dict[Directory, None] = {}
        _collect(disk.root, (), inodes, directories)
        files = []
        for inode, part in inodes.items():
            pages = {
                number: (history.durable, *_distinct(history))
                for number, history in inode.pages.items()
            }
            metas = (inode.durable_meta, *(m for m in inode.metas if m != inode.durable_meta))
            distinct = tuple(dict.fromkeys(metas))
            files.append(FileState(inode, part, inode.durable_content, pages, distinct))
        changes: dict[int, Change] = {}
        for directory in directories:
            for change in directory.pending:
                changes[id(change)] = change
        return cls(
            disk.page_bytes,
            disk.root,
            files,
            list(changes.values()),
            {directory: dict(directory.durable) for directory in directories},
        )

    @property
    def subset_count(self) -> int:
        """How many subsets there are of what is not durable."""
        return 1 << len(self.axes)

    def disks(self, rng: random.Random, count_max: int) -> Iterator[Disk]:
        """Yield every disk on which each axis is as durable or as new as can be.

        If there are too many, a sample with the extremes, and with versions in between.
        """
        if self.subset_count <= count_max:
            for subset in product(*((0, axis.values - 1) for axis in self.axes)):
                yield self.disk(subset)
            return
        yield self.disk([0] * len(self.axes))
        yield self.disk([axis.values - 1 for axis in self.axes])
        for choice in islice(self._samples(rng), max(count_max - 2, 0)):
            yield self.disk(choice)

    def sample(self, rng: random.Random) -> Disk:
        """Return one of the disks, the extremes more often than their share."""
        kind = rng.random()
        if kind < 0.2:
            return self.disk([0] * len(self.axes))
        if kind < 0.25:
            return self.disk([axis.values - 1 for axis in self.axes])
        if kind < 0.5:
            part = rng.choice(sorted({file.part for file in self._files}) or [""])
            return self.disk(self.one_part(part, survives=kind < 0.4))
        return self.disk(next(self._samples(rng)))

    def one_part(self, part: str, *, survives: bool) -> list[int]:
        """Return the choice by which one part of the store is as new as can be, the rest as old.

        Or the other way round. Names survive in any case.
        """
        return [
            axis.values - 1
            if axis.key[0] < 0 or (self._files[axis.key[0]].part == part) is survives
            else 0
            for axis in self.axes
        ]

    def _samples(self, rng: random.Random) -> Iterator[list[int]]:
        while True:
            survives = rng.choice((0.1, 0.5, 0.9))
            # Often all pages of a file share a fate: a whole file is written back, or none of it.
            of_file = {
                n: rng.choice((0.0, survives, survives, 1.0)) for n in range(-1, len(self._files))
            }
            choice = []
            for axis in self.axes:
                if rng.random() >= of_file[axis.key[0]]:
                    choice.append(0)
                else:
                    choice.append(rng.choice((axis.values - 1, rng.randrange(1, axis.values))))
            yield choice

    def disk(self, choice: list[int] | tuple[int, ...]) -> Disk:
        """Return the disk on which each axis has the chosen value."""
        chosen = {axis.key: value for axis, value in zip(self.axes, choice, strict=True)}
        nodes: dict[Node, Node] = {}
        for number, file in enumerate(self._files):
            nodes[file.inode] = self._file(number, file, chosen)
        names = {directory: dict(entries) for directory, entries in self._durable_names.items()}
        for number, change in enumerate(self._changes):
            if chosen[-1, number]:
                for directory, name, node in change.names:
                    if node is None:
                        names[directory].pop(name, None)
                    else:
                        names[directory][name] = node
        disk = Disk(self._page_bytes)
        disk.root = _rebuild(self._root, names, nodes)
        return disk

    def _file(self, number: int, file: FileState, chosen: dict[tuple[int, int], int]) -> Inode:
        size, allocated = file.metas[chosen.get((number, -1), 0)]
        content = bytearray(file.content[:size].ljust(size, b"\0"))
        for page, versions in file.pages.items():
            start = page * self._page_bytes
            length = min(self._page_bytes, size - start)
            if length > 0:
                version = versions[chosen.get((number, page), 0)]
                content[start : start + length] = version[:length]
        inode = Inode(self._page_bytes, bytes(content), allocated)
        inode.unreadable = set(file.inode.unreadable)
        return inode


def _distinct(history: PageHistory) -> Iterator[bytes]:
    """Yield the versions that differ from those before, in order."""
    seen = {history.durable}
    for version in history.versions:
        if version not in seen:
            seen.add(version)
            yield version


def _collect(
    directory: Directory,
    path: tuple[str, ...],
    inodes: dict[Inode, str],
    directories: dict[Directory, None],
) -> None:
    """Note every file and directory that has a name, durably or not."""
    if directory in directories:
        return
    directories[directory] = None
    names = [*directory.entries.items(), *directory.durable.items()]
    names += [
        (name, node)
        for change in directory.pending
        for owner, name, node in change.names
        if node is not None and owner is directory
    ]
    for name, node in names:
        if isinstance(node, Directory):
            _collect(node, (*path, name), inodes, directories)
        else:
            inodes.setdefault(node, (*path, name)[2] if len(path) > 1 else name)


def _rebuild(
    old: Directory, names: dict[Directory, dict[str, Node]], nodes: dict[Node, Node]
) -> Directory:
    """Return a directory with all that lies in it, durable."""
    new = Directory()
    nodes[old] = new
    for name, node in names[old].items():
        if node not in nodes and isinstance(node, Directory):
            _rebuild(node, names, nodes)
        new.entries[name] = new.durable[name] = nodes[node]
    return new
