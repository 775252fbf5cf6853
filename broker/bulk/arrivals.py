"""Waking those who follow a topic, or the whole log, when it has news."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, final

import trio

from commitbus.broker.store.reput import Arrival

ANY_TOPIC: Final = ""


@final
class Arrivals:
    """Who waits for what. Lives on the trio thread, but for `on_arrival`."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        """Wake tasks of this trio run."""
        self._token = token
        self._lock = threading.Lock()
        self._arrived: set[str] = set()
        self._waiting: dict[str, trio.Event] = {}

    def next(self, topic: str = ANY_TOPIC) -> trio.Event:
        """Return what is set at the next arrival. Take it, look, and wait only then."""
        event = self._waiting.get(topic)
        if event is None:
            event = self._waiting[topic] = trio.Event()
        return event

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Note arrivals. Called on the store's reput thread."""
        # Most of the time nobody follows. Who begins to wait now finds these when it looks.
        waiting = self._waiting
        news = {topic for topic, _, _ in arrivals if topic in waiting}
        if ANY_TOPIC in waiting:
            news.add(ANY_TOPIC)
        if news:
            with self._lock:
                self._arrived |= news
            self._token.run_sync_soon(self._wake, idempotent=True)

    def _wake(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, set()
        for topic in arrived:
            event = self._waiting.pop(topic, None)
            if event is not None:
                event.set()
