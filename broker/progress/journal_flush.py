"""The progress journal on stable storage: one sync for all the changes that wait for it.

    change --> journal (page cache) --> request() --> sync on a thread --> listener(sequence)

Used where an acknowledgement must survive a power cut before it is answered. The rows that are
saved to SQLite must be on stable storage then, too: a save gives the journal's room back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, final

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal import ProgressJournal
from commitbus.commitlog.errors import StoreError, ThreadDiedError
from commitbus.commitlog.service_thread import ServiceThread

_log: Final = logging.getLogger(__name__)

FlushListener = Callable[[int, StoreError | None], None]
"""Gets a sequence number and, if the entries up to there may be lost, why."""


@final
class ProgressFlush:
    """Makes the journal's entries durable, on a thread of its own that runs until `stop`.

    Args:
        journal: What is made durable; it has been started.
        save: Saves all changes durably to SQLite, where the journal cannot be synced. Raises
            StateWriteError.
    """

    __slots__ = (
        *("_failure", "_failure_listeners", "_fails", "_journal", "_listener", "_requested"),
        *("_save", "_stopping", "_thread", "durable_sequence"),
    )

    def __init__(self, journal: ProgressJournal, save: Callable[[], None]) -> None:
        self._journal, self._save = journal, save
        self.durable_sequence = journal.sequence
        """The last journal entry that is known to be on stable storage. Any thread may ask."""
        self._listener: FlushListener | None = None
        self._failure: ThreadDiedError | None = None
        self._failure_listeners: list[Callable[[StoreError], None]] = []
        self._requested = threading.Event()
        self._stopping = self._fails = False
        self._thread = ServiceThread("progress flush", self._serve, self._die)
        self._thread.start()

    def listen(self, listener: FlushListener) -> None:
        """Call `listener` after each sync, on the thread. There is one."""
        self._listener = listener

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on the thread, should it die."""
        self._failure_listeners.append(listener)
        if self._failure is not None:
            listener(self._failure)

    def request(self) -> None:
        """Have everything in the journal synced, soon; the listener is told."""
        if self._failure is not None:
            self._tell(self._journal.sequence, self._failure)
        self._requested.set()

    def stop(self) -> None:
        """End the thread. A second call does nothing."""
        self._stopping = True
        self._requested.set()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            self._requested.wait()
            # Before the journal's end is read: a request for what comes later is another one.
            self._requested.clear()
            if self._stopping:
                return
            self._sync()

    def _sync(self) -> None:
        sequence, error = self._journal.sequence, None
        try:
            self._journal.sync()
        except OSError as cause:
            # The kernel may have dropped what it could not write, and reports that once.
            sequence, error = self._save_instead(cause)
        if error is None:
            self._fails = False
            self.durable_sequence = sequence
        self._tell(sequence, error)

    def _save_instead(self, cause: OSError) -> tuple[int, StoreError | None]:
        sequence = self._journal.sequence
        try:
            self._save()
        except StoreError as failure:
            if not self._fails:  # once, not for every acknowledgement
                _log.error("progress not durable", extra={"reason": str(cause)})
            self._fails = True
            path, reason = self._journal.path, cause.strerror or str(cause)
            error = StateWriteError(path, f"whether it survives a power cut is unknown: {reason}")
            error.__cause__ = failure
            return sequence, error
        return sequence, None

    def _die(self, error: ThreadDiedError) -> None:
        self._failure = error
        self._tell(self._journal.sequence, error)
        for listener in self._failure_listeners:
            listener(error)

    def _tell(self, sequence: int, error: StoreError | None) -> None:
        if self._listener is not None:
            self._listener(sequence, error)
