"""The CRC-32 that compiled kernels call: ISA-L's if its library shows it, else one of our own.

Importing this gives it the name by which the kernels are linked with it.
"""

from __future__ import annotations

import ctypes
import zlib
from typing import Any, Final

import numpy as np
from isal import isal_zlib
from llvmlite import binding
from numba import cfunc, types

CRC_SYMBOL: Final = "commitbus_crc32"

_POLYNOMIAL: Final = 0xEDB8_8320
_WORD: Final = 0xFFFF_FFFF


def _table() -> Any:
    """Return the tables for eight bytes at a time, shape (8, 256)."""
    table = np.zeros((8, 256), np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table[0, byte] = value
    for row in range(1, 8):
        table[row] = table[row - 1] >> 8 ^ table[0][table[row - 1] & 0xFF]
    return table


_TABLE: Final = _table()


def _by_table(_seed: int, data: Any, size: int) -> int:
    """Return the CRC-32 (IEEE) of bytes: a ninth of ISA-L's speed, on any machine."""
    crc = types.int64(_WORD)
    length = types.int64(size)
    at = 0
    while at + 8 <= length:
        low = crc ^ (
            types.int64(data[at])
            | types.int64(data[at + 1]) << 8
            | types.int64(data[at + 2]) << 16
            | types.int64(data[at + 3]) << 24
        )
        crc = (
            _TABLE[7, low & 0xFF]
            ^ _TABLE[6, low >> 8 & 0xFF]
            ^ _TABLE[5, low >> 16 & 0xFF]
            ^ _TABLE[4, low >> 24]
            ^ _TABLE[3, data[at + 4]]
            ^ _TABLE[2, data[at + 5]]
            ^ _TABLE[1, data[at + 6]]
            ^ _TABLE[0, data[at + 7]]
        )
        at += 8
    while at < length:
        crc = crc >> 8 ^ _TABLE[0, (crc ^ types.int64(data[at])) & 0xFF]
        at += 1
    return int(crc ^ _WORD)


def compile_by_table() -> Any:
    """Return a C function of ISA-L's signature; its seed is taken to be 0."""
    return cfunc(types.uint32(types.uint32, types.CPointer(types.uint8), types.uint64))(_by_table)


def _isal_address() -> int | None:
    """Return the address of ISA-L's function, None if the library does not show it.

    The isal package exports it without promising to, so what it does is tried as well.
    """
    try:
        function = ctypes.CDLL(isal_zlib.__file__).crc32_gzip_refl
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_uint32
    function.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    sample = bytes(range(256)) * 5
    if any(function(0, sample, n) != zlib.crc32(sample[:n]) for n in (0, 1, 17, len(sample))):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


_isal = _isal_address()
# Compiled, and kept, only where it is needed: that takes half a second.
_stand_in = compile_by_table() if _isal is None else None
binding.add_symbol(CRC_SYMBOL, _isal if _stand_in is None else _stand_in.address)
