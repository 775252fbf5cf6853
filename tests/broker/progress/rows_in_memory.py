"""Rows of progress in memory: the smallest implementation of the Protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar, final

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal import JournalMark
from commitbus.broker.progress.progress_rows import ProgressRow, SavedRows
from commitbus.commitlog.errors import StoreClosedError, StoreError

T = TypeVar("T")


@final
class Saved:
    """What outlives a process."""

    def __init__(self) -> None:
        self.rows: dict[int, ProgressRow] = {}
        self.mark, self.next_key_id = JournalMark(0, 0, 0), 1


@final
class RowsInMemory:
    """The rows, with a thread."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self.path = Path("memory")

    def start(self, tick: Callable[[], None], interval_s: float, *, sync: bool) -> None:
        del sync
        self._tick, self._is_closed, self._stop = tick, False, Event()
        self._pool = ThreadPoolExecutor(1)
        self._timer = Thread(target=self._tick_again, args=(interval_s,))
        self._timer.start()

    def _tick_again(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            self._pool.submit(self._tick)

    def run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreClosedError
        return self._pool.submit(work).result()

    def wake(self) -> None:
        self._pool.submit(self._tick)

    def load(self) -> SavedRows:
        rows = [row for _, row in sorted(self._saved.rows.items())]
        return SavedRows(rows, self._saved.mark, self._saved.next_key_id)

    def save(
        self,
        rows: Sequence[ProgressRow],
        deleted: Iterable[int],
        *,
        mark: JournalMark,
        next_key_id: int,
    ) -> None:
        if any(value is None for row in rows for value in row):
            raise StateWriteError(self.path, "a row without a value")
        for key_id in deleted:
            self._saved.rows.pop(key_id, None)
        self._saved.rows |= {row.key_id: row for row in rows}
        self._saved.mark, self._saved.next_key_id = mark, next_key_id

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Nothing here dies."""

    def close(self, *, last: Callable[[], object] | None = None) -> None:
        if self._is_closed:
            return
        try:
            if last is not None:
                self.run(last)
        finally:
            self._is_closed = True
            self._stop.set()
            self._timer.join()
            self._pool.shutdown()
