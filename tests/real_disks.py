"""Small real file systems that fail as real disks do: a cut loop device, and no room left."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PAGE_BYTES = 4096
_FIBMAP = 1
_TOOLS = ("mkfs.ext4", "mount", "umount", "losetup")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _run(*command: str | Path) -> None:
    subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": _PATH}
    )


class Disk:
    """An ext4 file system in a file."""

    def __init__(self, image: Path, directory: Path) -> None:
        self._image, self.path = image, directory
        self._filler = directory / "filler"

    def mount(self) -> None:
        _run("mount", "-o", "loop,noatime", self._image, self.path)

    def unmount(self) -> None:
        _run("umount", self.path)

    # Blocks that cannot be read

    def take(self, path: Path) -> None:
        """Move a file of another file system to this one; a link takes its place."""
        target = self.path / path.name
        target.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(target)

    def cut(self, path: Path, position: int) -> None:
        """Make the pages unreadable from `position` of a file that was taken on."""
        target = path.resolve()
        blocks = _blocks(target)
        page = position // PAGE_BYTES
        first = min(blocks[page:])
        assert max(blocks[:page], default=0) < first, "the file's blocks are not in order"
        # A new mount drops the page cache, so that reads come from the image.
        self.unmount()
        self.mount()
        os.truncate(self._image, first * PAGE_BYTES)

    # No room

    def fill(self) -> Path:
        """Take all room; return the file to be removed for it to be there again."""
        fd = os.open(self._filler, os.O_CREAT | os.O_WRONLY)
        try:
            step, position = 1 << 22, 0
            while step >= PAGE_BYTES:
                try:
                    os.posix_fallocate(fd, position, step)
                    position += step
                except OSError:
                    step //= 2
        finally:
            os.close(fd)
        return self._filler


def _blocks(path: Path) -> list[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        pages = -(-os.fstat(fd).st_size // PAGE_BYTES)
        numbers = [fcntl.ioctl(fd, _FIBMAP, struct.pack("i", page)) for page in range(pages)]
    finally:
        os.close(fd)
    blocks: list[int] = [struct.unpack("i", number)[0] for number in numbers]
    assert all(blocks), "the file has holes"
    return blocks


@contextmanager
def make_disk(directory: Path, size_bytes: int) -> Iterator[Disk]:
    """Make and mount a file system; skip the test where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    image, mounted = directory / "disk.img", directory / "disk"
    mounted.mkdir()
    image.touch()
    os.truncate(image, size_bytes)
    # Without a journal: it would lie among the blocks of the files.
    _run("mkfs.ext4", "-q", "-F", "-b", str(PAGE_BYTES), "-O", "^has_journal", "-m", "0", image)
    disk = Disk(image, mounted)
    try:
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device can be mounted here: {error.stderr.strip()}")
    try:
        yield disk
    finally:
        with suppress(subprocess.CalledProcessError):
            disk.unmount()
