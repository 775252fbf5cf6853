"""Store directories for one run of an embedded broker, removed when it ends.

A process that is killed cannot remove its own; the next broker of the same user does. A lock on the
directory, which ends with its process, tells which ones are left over.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

PREFIX: Final = "commitbus-broker-"
MARK: Final = "temporary"
"""Name of the file without which a directory is never taken for one that is left over."""
_STORE: Final = "store"


@contextlib.contextmanager
def temporary_store() -> Iterator[Path]:
    """Make a directory for a store; remove it at the end of the block, or of the process.

    A forked child does not remove it.

    Raises:
        OSError: there is no room or no place for temporary files.
    """
    remove_left_over()
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    remove = partial(_remove_in, os.getpid(), directory)
    atexit.register(remove)
    try:
        with _locked(directory, fcntl.LOCK_EX):
            # Not before the lock is held: marked and not locked means left over.
            (directory / MARK).touch()
            store = directory / _STORE
            store.mkdir()
            yield store
    finally:
        remove()
        atexit.unregister(remove)


def remove_left_over() -> None:
    """Remove the directories of this user's brokers that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # It is in use, another user's, or being removed by another process.
        with contextlib.suppress(OSError), _locked(directory, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if directory.stat().st_uid == os.geteuid() and (directory / MARK).exists():
                _remove(directory)


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _remove_in(process: int, directory: Path) -> None:
    if os.getpid() == process:
        _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a directory, the mark last: whatever goes wrong, it can be removed later.

    At the end of a process threads of its broker may still be making files.
    """
    shutil.rmtree(directory / _STORE, ignore_errors=True)
    if not (directory / _STORE).exists():
        shutil.rmtree(directory, ignore_errors=True)
