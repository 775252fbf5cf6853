"""Errors of the state beside the log: settings, topics, groups, progress."""

from __future__ import annotations

from pathlib import Path
from typing import final

from commitbus.commitlog.errors import StoreError

# Opening


class StateFileError(StoreError):
    """A file of the broker's state is not what it should be, or is damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}")


@final
class StateVersionError(StateFileError):
    """The file was written by a newer commitbus."""

    def __init__(self, path: Path, found: int, supported: int) -> None:
        self.found, self.supported = found, supported
        super().__init__(
            path,
            f"its schema is version {found}, this commitbus knows up to {supported}: "
            "open the store with the newer one",
        )


# Changing


@final
class StateWriteError(StoreError):
    """A change could not be saved; nothing was changed. It may be tried again."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"writing {path} failed: {reason}")
