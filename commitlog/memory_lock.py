"""Keeping pages of a mapping in memory: mlock(2).

Python has no binding for it. The calls release the GIL.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np


def address_of(view: memoryview) -> int:
    """Return where the bytes of a view lie in memory."""
    interface: dict[str, Any] = np.frombuffer(view, np.uint8).__array_interface__
    address: int = interface["data"][0]
    return address


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
        function.restype = ctypes.c_int
    return library
