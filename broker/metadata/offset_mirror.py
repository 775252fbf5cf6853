"""Committed offsets in `config/consumerOffset.json`, for RocketMQ to go on from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from commitbus.broker.metadata.consumer_offsets import decode_offsets, encode_offsets
from commitbus.broker.metadata.documents import DocumentError
from commitbus.broker.metadata.errors import StateFileError
from commitbus.broker.metadata.progress_store import Key
from commitbus.broker.metadata.rocketmq_config import (
    CONFIG_DIRECTORY,
    ConfigFile,
    ConfigTooLargeError,
)
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import FileSystem

_log: Final = logging.getLogger(__name__)


@final
class OffsetMirror:
    """The file, written again when something has changed. Used on the SQLite thread only.

    Args:
        store_directory: The store.
        clock: For its intervals and the time in the file.
        file_system: Reads and writes it.
        interval_ms: How often it is written at most.
        offsets: Returns the offsets to write.
    """

    def __init__(
        self,
        store_directory: Path,
        *,
        clock: Clock,
        file_system: FileSystem,
        interval_ms: int,
        offsets: Callable[[], Sequence[tuple[Key, int]]],
    ) -> None:
        self._clock, self._interval_s, self._offsets = clock, interval_ms / 1000, offsets
        self._file = ConfigFile(
            store_directory / CONFIG_DIRECTORY / "consumerOffset.json",
            clock=clock,
            file_system=file_system,
        )
        self._sequence = -1
        self._written_at_s = clock.monotonic_s()
        self._fails = False
        self._too_many: int | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def load(self, *, backup_too: bool) -> dict[Key, int] | None:
        """Return the offsets if RocketMQ wrote the file, None if we did or there is none.

        Raises:
            StateFileError: It is no such file.
        """
        document = self._file.load(backup_too=backup_too)
        if document is None:
            return None
        try:
            return decode_offsets(document)
        except DocumentError as error:
            raise StateFileError(self.path, str(error)) from error

    def save(self, sequence: int) -> None:
        """Write the file; `sequence` is the last change that is in it.

        Raises:
            OSError: The old file is still there, whole.
        """
        offsets = self._offsets()
        try:
            self._file.save(encode_offsets(offsets))
        except ConfigTooLargeError:
            self._too_many = len(offsets)
            raise
        self._sequence, self._too_many = sequence, None

    def write(self, sequence: int, count: int, *, at_once: bool = False) -> None:
        """Bring the file up to date when it is due, or at once; log errors.

        Args:
            sequence: The last change.
            count: How many offsets there are.
            at_once: Whether the interval does not matter.
        """
        now_s = self._clock.monotonic_s()
        if not at_once and now_s - self._written_at_s < self._interval_s:
            return
        self._written_at_s = now_s
        if sequence == self._sequence:
            return
        # Making a document of 256 MiB takes seconds: not again before there is less to say.
        if self._too_many is not None and count >= self._too_many:
            return
        try:
            self.save(sequence)
            self._fails = False
        except OSError as error:
            if not self._fails:  # once, not every five seconds
                _log.warning(
                    "mirror not written", extra={"file": str(self.path), "reason": str(error)}
                )
            self._fails = True
