"""The loops that numba compiles. Imported only where numba is installed, by `numba_kernels`.

What one has to know:

- numba keeps compiled code on disk, one file for each module here, and looks at the change of that
  module only. So everything a kernel calls and every constant it uses is in its own module, but for
  what `memory` has: whoever changes what one of those functions does gives it another name, and so
  changes all modules that use it. Only the CRC-32 is found by its name.
- Memory is passed as an address, not as an array: a read-only and a writable one would each be
  compiled, the second when it is first met. The caller keeps the memory mapped, and nothing is read
  before it is known to lie inside.
- All arithmetic is in int64, which wraps. numba makes int64 of int32 * int32, and a float of int64
  and uint64.
- Signatures are given, so the import compiles everything, or reads it from numba's cache on disk.
"""
