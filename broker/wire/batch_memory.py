"""Keeping the C library from giving memory back to the kernel between two batches."""

from __future__ import annotations

from functools import cache
from typing import Final

_KEPT_BYTES: Final = 16 << 20
"""Several batches and slices; glibc then keeps up to twice as much at the end of its heap."""


@cache
def keep_freed_memory() -> None:
    """Free a large block once, untouched, so that glibc reuses blocks of its size from then on.

    By default each batch of 256 KB gets new pages from the kernel and gives them back: encoding one
    took 820 us here, and 66 without. glibc raises its thresholds to the size of what it sees freed
    (mallopt(3), M_MMAP_THRESHOLD), as after any large array of the user's own.
    """
    bytes(_KEPT_BYTES)
