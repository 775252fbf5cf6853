"""Waking those who follow a topic, or the whole log, when it has news."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

import trio

from commitbus.broker.common.trio_thread import ArrivedKeys, TrioThread
from commitbus.broker.store.reput import Arrival

ANY_TOPIC: Final = ""


@final
class Arrivals:
    """Who waits for what. Lives on the trio thread, but for `on_arrival`."""

    def __init__(self, trio_thread: TrioThread) -> None:
        self._arrived = ArrivedKeys[str](trio_thread, self._wake)
        self._waiting: dict[str, trio.Event] = {}

    def next(self, topic: str = ANY_TOPIC) -> trio.Event:
        """Return what is set at the next arrival. Take it, look, and wait only then."""
        event = self._waiting.get(topic)
        if event is None:
            event = self._waiting[topic] = trio.Event()
        return event

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Note arrivals. Called on the store's reput thread."""
        # Nearly always nobody follows. A reader that waits from now on looks, and finds these.
        waiting = self._waiting
        news = [topic for topic, _, _ in arrivals if topic in waiting]
        if ANY_TOPIC in waiting:
            news.append(ANY_TOPIC)
        self._arrived.add(news)

    def _wake(self, topics: Mapping[str, int]) -> None:
        for topic in topics:
            event = self._waiting.pop(topic, None)
            if event is not None:
                event.set()
