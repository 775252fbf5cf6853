"""What is in memory and what is not, as the kernel says."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from commitbus.commitlog.page_cache import is_cached

SIZE = 64 * mmap.PAGESIZE


def test_bytes_are_cached_until_the_kernel_lets_them_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), SIZE) as mapping, memoryview(mapping) as view:
            for bounds in (slice(None), slice(10, 11), slice(5000, 9000), slice(0)):
                with view[bounds] as part:
                    assert is_cached(part)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with view[5000:9000] as part:
                if is_cached(part):
                    return  # A file system that lives in memory has nowhere to put them.
                assert part[0] == ord("x")
            with view[5000:5001] as part:
                assert is_cached(part)
