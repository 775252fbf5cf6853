"""Whether pages of a mapping are in memory, and bringing them there: mincore(2) and madvise(2).

Python has no binding for the first, and one for the second that holds the GIL. These release it.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

import numpy as np

_MADV_POPULATE_WRITE: Final = 23
"""Of Linux 5.14 and newer; from include/uapi/asm-generic/mman-common.h."""


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


def populate_memory(start: int, length: int) -> bool:
    """Bring the pages from an address on into memory, dirty; return whether they are there.

    A dirty page cannot be evicted before it was written back. False if a page cannot be read, where
    a store would be a SIGBUS, and on a kernel that cannot do this.
    """
    first = start - start % mmap.PAGESIZE
    return bool(_libc().madvise(first, start + length - first, _MADV_POPULATE_WRITE) == 0)


@cache
def _libc() -> Any:  # noqa: ANN401 - a library that ctypes loads
    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return library
