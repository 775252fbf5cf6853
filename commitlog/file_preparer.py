"""Getting disk blocks and memory pages ready before the writer arrives.

The file that is written:

```
    0          writer            frontier                    wanted              file end
    | records  |  warmed zeros   |  being warmed, or not yet | not asked for     |
    +----------+-----------------+---------------------------+-------------------+
      the writer's own           ^ the preparer's own
```

Bytes below the frontier belong to the writer, bytes above to the preparer, which stores zeros
there. The frontier moves only under the lock, so neither ever writes the other's bytes. A writer
that catches up waits for at most one step, or takes cold pages: slower (811 against 423 ns for an
append of 1.2 KB here), never wrong. While the next file is being created only a writer that needs
it waits: the fsync of that file may take as long as the disk likes.

Warming begins 4 MiB ahead and doubles that with each step, up to 32 MiB, instead of covering whole
files, because each warmed page is written to the disk by the next flush: a store of three messages
must not cost a gigabyte of zeros. It must be that far ahead of a fast writer because the thread
gets the interpreter only every 5 ms, twice for a step: with steps of 2 MiB it warmed 170 MB/s.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, final

from commitbus.commitlog.errors import StoreError, ThreadDiedError
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.service_thread import ServiceThread

FIRST_AHEAD_BYTES: Final = 4 << 20
AHEAD_MAX_BYTES: Final = 32 << 20

_log = logging.getLogger(__name__)


def _ignore(_: ThreadDiedError) -> None:
    """Leave it to the writer, whose next call raises the error."""


@final
class FilePreparer:
    """A thread that warms the current file ahead of the writer and creates the next one.

    `begin`, `advance` and `next_file` are the writer's, under its lock; `stop` ends the thread.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        on_death: Callable[[ThreadDiedError], None] = _ignore,
    ) -> None:
        """Prepare files of `files`. The thread starts with the first `advance`.

        `on_death` is called on the thread, should it die. From then on the writer's calls raise.
        """
        self._files, self._on_death = files, on_death
        self._threads = files.policy.threads
        self._changed = self._threads.condition()
        self._thread: ServiceThread | None = None
        self._death: ThreadDiedError | None = None
        self._file: MappedFile | None = None
        self._frontier = 0
        self._wanted = 0
        self._ahead = FIRST_AHEAD_BYTES // 2
        self._working = self._creating = False
        self._next: MappedFile | None = None
        self._next_wanted = False
        self._stopping = False

    def begin(self, file: MappedFile, position: int) -> None:
        """Make `file` the one that is written, from `position` on."""
        with self._changed:
            while self._working:
                self._changed.wait()
            assert self._next is None, "only a new file, or the first one, is begun"
            self._file = file
            self._frontier = self._wanted = position
            self._next_wanted = True

    def advance(self, end: int) -> int:
        """Claim the bytes below `end` for the writer; return up to where it need not ask again.

        Raises:
            ThreadDiedError: The thread is gone; nothing was claimed.
        """
        size = self._files.file_size
        with self._changed:
            while self._working and not self._creating and end > self._frontier:
                self._changed.wait()
            self._check_alive()
            self._frontier = max(self._frontier, end)
            if end > self._wanted - self._ahead // 2:
                self._ahead = min(2 * self._ahead, AHEAD_MAX_BYTES)
                self._wanted = min(end + self._ahead, size)
            if self._thread is None and not self._stopping:
                self._start_thread()
            self._changed.notify_all()
            # Asking again well before the frontier gives the thread the time of a step.
            early = self._frontier - self._ahead // 2
            return early if end <= early and self._frontier < size else self._frontier

    def next_file(self, base_offset: int) -> MappedFile:
        """Return the file that begins at `base_offset`, prepared or created now.

        The current file is left alone until `advance` is called again.

        Raises:
            DiskFullError: There is no room. Asking again tries again.
            ThreadDiedError: The thread is gone.
        """
        with self._changed:
            while self._working:
                self._changed.wait()
            self._check_alive()
            prepared, self._next = self._next, None
            # From here on the next file is the writer's to create, if it is not there, and the
            # rest of the current one its own: a blank record will fill it.
            self._next_wanted = False
            self._wanted = self._frontier
        if prepared is not None:
            assert prepared.base_offset == base_offset, "files are prepared in order"
            return prepared
        return self._files.new_file(base_offset)

    def stop(self) -> None:
        """End the thread and remove a file that was prepared in vain."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._next is not None:
            self._next.delete()
            self._next = None

    def _start_thread(self) -> None:
        thread = ServiceThread("commitlog-preparer", self._run, self._die, self._threads)
        try:
            thread.start()
        except RuntimeError as error:
            # The system allows no more threads now. It only costs speed: the writer finds its bytes
            # cold and creates the next file itself. The next call tries again.
            _log.warning("no log file is prepared: %s", error)
        else:
            self._thread = thread

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death.with_traceback(None)

    def _die(self, death: ThreadDiedError) -> None:
        with self._changed:
            self._death = death
            self._working = self._creating = False
            self._changed.notify_all()
        self._on_death(death)

    def _run(self) -> None:
        while (work := self._take_work()) is not None:
            file, start, length = work
            created = None
            try:
                if length:
                    file.warm(start, length)
                else:
                    created = self._files.new_file(file.base_offset + self._files.file_size)
            except (StoreError, OSError) as error:
                # Not tried again for this file: the writer finds its bytes cold, or creates the
                # next file itself and reports what is wrong.
                _log.warning("the log file could not be prepared: %s", error)
            with self._changed:
                self._working = self._creating = False
                # A writer may have gone on meanwhile, but only while a file was being created.
                self._frontier += length
                self._next = created or self._next
                self._changed.notify_all()

    def _take_work(self) -> tuple[MappedFile, int, int] | None:
        """Wait for work: (file, position, bytes to warm), 0 bytes for a new file; None to end."""
        with self._changed:
            while not self._stopping:
                warm = min(self._ahead // 2, self._wanted - self._frontier)
                creates = self._next_wanted and self._frontier * 2 >= self._files.file_size
                if self._file is not None and (warm > 0 or creates):
                    self._working, self._creating = True, warm <= 0
                    self._next_wanted = self._next_wanted and warm > 0
                    return self._file, self._frontier, max(warm, 0)
                self._changed.wait()
            return None
