"""Copying the files of a store that is in use."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_running(store: Path, target: Path) -> Path:
    """Copy a store in use as a kill would leave it: the files as they are in the page cache.

    Files that are renamed or deleted while the copy is made are left out. SQLite rebuilds the
    shared-memory index of its write-ahead log (`*.db-shm`), so it is left out as well.
    """

    def copy_if_there(source: str, destination: str) -> None:
        try:
            shutil.copy2(source, destination)
        except FileNotFoundError:
            Path(destination).unlink(missing_ok=True)

    ignored = shutil.ignore_patterns("*.db-shm", "*.tmp")
    shutil.copytree(store, target, ignore=ignored, copy_function=copy_if_there)
    return target
