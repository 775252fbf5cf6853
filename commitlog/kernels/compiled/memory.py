"""How a kernel is compiled, and how it reads and writes memory: big-endian, at any alignment.

A function that is to do something else gets another name: see the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from commitbus.commitlog.kernels.linked_crc32 import CRC_SYMBOL

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(signature: str, *, nogil: bool = True) -> Callable[[_Function], _Function]:
    """Compile, to run with the GIL released; cached on disk where there is a place to write to."""

    def compile_(function: _Function) -> _Function:
        try:
            compiled: _Function = njit(signature, nogil=nogil, cache=True)(function)
        except RuntimeError:
            # No writable place for the cache, nor NUMBA_CACHE_DIR: each start compiles.
            compiled = njit(signature, nogil=nogil)(function)
        return compiled

    return compile_


def _loader(bits: int, *, signed: bool = False) -> Any:
    """Return a function that gives the integer at an address as int64."""

    def load(_context: Any, _address: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            value = builder.load(pointer, align=1)
            value = builder.bswap(value) if bits > 8 else value
            extend = builder.sext if signed else builder.zext
            return extend(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(types.int64), generate

    return intrinsic(load)


def _storer(bits: int) -> Any:
    """Return a function that stores the low bits of an int64 at an address."""

    def store(_context: Any, _address: Any, _value: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            value = builder.trunc(arguments[1], kind) if bits < 64 else arguments[1]
            value = builder.bswap(value) if bits > 8 else value
            builder.store(value, pointer, align=1)
            return arguments[1]

        return types.int64(types.int64, types.int64), generate

    return intrinsic(store)


load_u8, load_u16, load_u32 = _loader(8), _loader(16), _loader(32)
load_i32, load_i64 = _loader(32, signed=True), _loader(64)
store_u8, store_i16, store_i32, store_i64 = map(_storer, (8, 16, 32, 64))
# Of the C library, which every process has.
copy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))


# CRC-32. By name, so that code from the cache works with whichever function this start linked.
crc32 = types.ExternalFunction(CRC_SYMBOL, types.uint32(types.uint32, types.intp, types.uint64))
