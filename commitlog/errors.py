"""Everything that can go wrong in the store, grouped by when it occurs.

The world's mistakes are these exceptions, with the facts as fields. Our own are assertions.
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """The base of every error that a store raises on purpose."""


# Opening a store


class NotAStoreError(StoreError):
    """The directory does not hold a store, or holds files that are none of a store's."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} is not a store: {reason}")


class StoreLockedError(StoreError):
    """Another process has the store open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} is held by another process: stop it first, or open another store")


class StoreDamagedError(StoreError):
    """Bytes that were promised durable are not as they were written."""

    def __init__(self, path: Path, physical_offset: int, reason: str) -> None:
        self.path, self.physical_offset, self.reason = path, physical_offset, reason
        super().__init__(
            f"{path}: damaged at physical offset {physical_offset}: {reason}. These bytes lie "
            "below the durable watermark, so this is not a torn write: the store is not opened "
            "for writing. `commitbus salvage` copies what is intact to a new one"
        )


# Appending


class MessageRefusedError(StoreError):
    """The message breaks a limit of the record format; nothing was appended."""

    def __init__(self, what: str, got: int, maximum: int) -> None:
        self.what, self.got, self.maximum = what, got, maximum
        super().__init__(f"{what} is {got} bytes, at most {maximum} are allowed")


class DiskFullError(StoreError):
    """There is no room for the next file; appending works again once there is."""

    def __init__(self, path: Path, needed_bytes: int) -> None:
        self.path, self.needed_bytes = path, needed_bytes
        super().__init__(f"no room on the disk of {path}: {needed_bytes} bytes are needed")


class DiskRatioError(StoreError):
    """The disk is fuller than messages may make it; appending works again once it is not."""

    def __init__(self, path: Path, used_percent: float, refuse_percent: int) -> None:
        self.path, self.used_percent, self.refuse_percent = path, used_percent, refuse_percent
        super().__init__(
            f"the disk of {path} is {used_percent:.1f} % full; from {refuse_percent} % on messages "
            "are refused until there is room"
        )


class OutOfResourcesError(StoreError):
    """The process may open no more files, or has no more memory; the work can be tried again."""

    def __init__(self, path: Path, cause: OSError) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"{path} cannot be opened: {cause.strerror or cause}")


class WriteFailedError(StoreError):
    """The disk refuses bytes of a file, for another reason than that it is full."""

    def __init__(self, path: Path, position: int, cause: OSError) -> None:
        self.path, self.position, self.cause = path, position, cause
        super().__init__(f"writing {path} at position {position} failed: {cause.strerror or cause}")


class FlushFailedError(StoreError):
    """An fsync failed. It is never retried: the kernel may have dropped the dirty pages."""

    def __init__(self, path: Path, cause: OSError) -> None:
        self.path, self.cause = path, cause
        super().__init__(f"flushing {path} failed: {cause.strerror or cause}")


class ThreadDiedError(StoreError):
    """A thread of the store ended by an unexpected exception: the store has failed."""

    def __init__(self, thread: str, cause: BaseException) -> None:
        self.thread, self.cause = thread, cause
        super().__init__(f"the thread {thread} died: {cause!r}")


class StoreReadOnlyError(StoreError):
    """The store takes no more messages, because a flush failed or it was opened for reading."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the store is read-only: {reason}")


class StoreClosedError(StoreError):
    """The store was closed."""

    def __init__(self) -> None:
        super().__init__("the store is closed")


# Reading


class ReadFailedError(StoreError):
    """The disk does not give back bytes of a file. Other places may still be readable."""

    def __init__(self, path: Path, position: int, cause: OSError) -> None:
        self.path, self.position, self.cause = path, position, cause
        super().__init__(f"reading {path} at position {position} failed: {cause.strerror or cause}")


class CorruptRecordError(StoreError):
    """The bytes at this place are not a whole, intact record."""

    def __init__(self, physical_offset: int, reason: str) -> None:
        self.physical_offset, self.reason = physical_offset, reason
        super().__init__(f"no intact record at physical offset {physical_offset}: {reason}")


class OffsetOutOfRangeError(StoreError):
    """The offset lies before the first or at or after the end of what is stored."""

    def __init__(self, what: str, got: int, minimum: int, end: int) -> None:
        self.what, self.got, self.minimum, self.end = what, got, minimum, end
        super().__init__(f"{what} {got} is outside [{minimum}, {end})")


class QueryTooWideError(StoreError):
    """A search would pass over more entries of the index than one search may."""

    def __init__(self) -> None:
        super().__init__("the search passes over too many entries of the index: narrow its times")
