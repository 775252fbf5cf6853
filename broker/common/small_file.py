"""Reading settings, certificates and keys: files that are small, and that must be files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

SMALL_FILE_BYTES_MAX: Final = 1024 * 1024
"""A bundle of all public authorities has 250 KB."""


class SmallFileError(Exception):
    """A file cannot be read, is no regular file, or is too long."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


def read_small_file(path: Path, bytes_max: int = SMALL_FILE_BYTES_MAX) -> bytes:
    """Return the bytes of a regular file of at most `bytes_max`.

    A device or a pipe may have no end, or no beginning: opening it would hang a start.

    Raises:
        SmallFileError: the file is missing, is no regular one, is larger, or cannot be read.
    """
    try:
        # A pipe without a writer would keep open() waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    # ValueError: a NUL in the path.
    except (OSError, ValueError) as error:
        raise SmallFileError(path, f"cannot be read: {_text(error)}") from None
    try:
        _check(path, os.fstat(descriptor), bytes_max)
        data = _read(descriptor, bytes_max + 1)
    except OSError as error:
        raise SmallFileError(path, f"cannot be read: {_text(error)}") from None
    finally:
        os.close(descriptor)
    # Files of /proc say 0 and have more.
    if len(data) > bytes_max:
        raise SmallFileError(path, f"cannot be read: more than {bytes_max} bytes")
    return data


def _check(path: Path, status: os.stat_result, bytes_max: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise SmallFileError(path, "cannot be read: Is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise SmallFileError(path, "cannot be read: not a regular file")
    if status.st_size > bytes_max:
        reason = f"cannot be read: {status.st_size} bytes, at most {bytes_max} are"
        raise SmallFileError(path, reason)


def _read(descriptor: int, bytes_max: int) -> bytes:
    pieces = []
    left = bytes_max
    while left and (piece := os.read(descriptor, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _text(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
