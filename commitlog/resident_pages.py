"""Whether pages of a mapping are in memory, and keeping them there: mincore(2) and mlock(2).

Python has no binding for them. The calls release the GIL.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

import numpy as np


def address_of(view: memoryview) -> int:
    """Return where the bytes of a view lie in memory."""
    interface: dict[str, Any] = np.frombuffer(view, np.uint8).__array_interface__
    address: int = interface["data"][0]
    return address


def is_resident(start: int, length: int) -> bool:
    """Return whether the pages from an address on are in memory now; False if that is unknown."""
    first = start - start % mmap.PAGESIZE
    pages = -(-(start + length - first) // mmap.PAGESIZE)
    in_memory = ctypes.create_string_buffer(pages)
    if _libc().mincore(first, pages * mmap.PAGESIZE, in_memory) != 0:
        return False
    # Only the lowest bit of each byte is defined; Linux leaves the others zero.
    return b"\0" not in in_memory.raw


def lock_memory(start: int, length: int) -> bool:
    """Read the pages from an address on into memory and keep them there; return whether they are.

    They are not if a page cannot be read, or beyond the limit of locked memory (RLIMIT_MEMLOCK,
    often 8 MiB).
    """
    return bool(_libc().mlock(start, length) == 0)


def unlock_memory(start: int, length: int) -> None:
    """Let pages be evicted again."""
    if length:
        _libc().munlock(start, length)


@cache
def _libc() -> Any:  # noqa: ANN401 - a library that ctypes loads
    library = ctypes.CDLL(None, use_errno=True)
    for function in (library.mlock, library.munlock):
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return library
