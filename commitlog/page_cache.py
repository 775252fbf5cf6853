"""Whether reading a mapped file would wait for a disk: mincore(2)."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

import numpy as np

_PAGE_BYTES: Final = mmap.PAGESIZE


def is_cached(view: memoryview) -> bool:
    """Return whether all bytes of a mapping are in memory now; False where that cannot be said."""
    if not view:
        return True
    interface: dict[str, Any] = np.frombuffer(view, np.uint8).__array_interface__
    address: int = interface["data"][0]
    start = address - address % _PAGE_BYTES
    length = address + len(view) - start
    in_memory = ctypes.create_string_buffer(-(-length // _PAGE_BYTES))
    if _mincore()(start, length, in_memory) != 0:
        return False
    # Of each byte only the lowest bit is defined; the others are zero today.
    return b"\x00" not in in_memory.raw


@cache
def _mincore() -> Any:  # noqa: ANN401 - a function that ctypes makes
    function = ctypes.CDLL(None, use_errno=True).mincore
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return function
