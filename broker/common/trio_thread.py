"""The one way from the store's threads to the trio thread."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar, final

import trio

_Key = TypeVar("_Key", bound=Hashable)


@final
class TrioThread:
    """The thread of the broker's trio run, as other threads reach it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None

    def attach(self) -> None:
        """Take the present trio run. Called on its thread."""
        self._token = trio.lowlevel.current_trio_token()

    def detach(self) -> None:
        """Ignore all calls from now on, before the trio run ends."""
        with self._lock:
            self._token = None

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function soon on the trio thread, once for all requests until then.

        From any thread; ignored while no run is attached. To wake the trio thread takes 50 us of
        it: look first whether anybody waits.
        """
        with self._lock:
            if self._token is not None:
                self._token.run_sync_soon(function, idempotent=True)


@final
class ArrivedKeys(Generic[_Key]):
    """Keys that other threads add and the trio thread takes, all at once."""

    def __init__(self, trio_thread: TrioThread, take: Callable[[Mapping[_Key, int]], None]) -> None:
        """Call `take` on the trio thread with the keys, and how often each was added."""
        self._trio_thread, self._take = trio_thread, take
        self._lock = threading.Lock()
        self._counts = Counter[_Key]()

    def add(self, keys: Iterable[_Key] | Mapping[_Key, int]) -> None:
        """Add keys, or counts by key. From any thread."""
        with self._lock:
            self._counts.update(keys)
            is_any = bool(self._counts)
        if is_any:
            self._trio_thread.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        self._take(counts)
