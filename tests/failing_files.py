"""A file system whose operations fail on request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from commitbus.commitlog.file_system import RealFileSystem


class FailingFileSystem:
    """A real file system, one of whose operations can be made to fail."""

    def __init__(self) -> None:
        self.real = RealFileSystem()
        self.fails: dict[str, int] = {}
        self.calls: list[str] = []
        """Names of the operations in their order, those of files too."""

    def __getattr__(self, name: str) -> Any:
        self.check(name)
        return getattr(self.real, name)

    def check(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise OSError(self.fails[name], os.strerror(self.fails[name]))

    def open(self, path: Path, **options: Any) -> Any:
        return FailingFile(self.real.open(path, **options), self)


class FailingFile:
    """A file of it."""

    def __init__(self, real: Any, owner: FailingFileSystem) -> None:
        self.real, self.owner = real, owner

    @property
    def path(self) -> Path:
        return Path(self.real.path)

    def __getattr__(self, name: str) -> Any:
        self.owner.check(name)
        return getattr(self.real, name)
