"""Who waits for the next message of one queue, to be woken by it: all of them, as each wants it.

That is what those need who pull: they keep their own place. Receivers share the messages, and of
them `LongPolling` wakes only as many as there is something for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, final

from commitbus.broker.common.trio_thread import ArrivedKeys, TrioThread
from commitbus.broker.store.reput import Arrival

WATCHERS_MAX: Final = 10_000
"""Of one queue: to wake so many takes half a second."""

_Queue = tuple[str, int]


class Watcher(Protocol):
    """Somebody who waits."""

    @property
    def group(self) -> str:
        """The consumer group that he waits for."""

    def wake(self) -> None:
        """There may be something new. The watcher is forgotten already."""


@final
class QueueWatch:
    """The watchers of all queues. Lives on the trio thread, but for `on_arrival`."""

    def __init__(self, trio_thread: TrioThread) -> None:
        self._watchers: dict[_Queue, dict[Watcher, None]] = {}
        self._arrived = ArrivedKeys[_Queue](trio_thread, self._wake_arrived)

    def __len__(self) -> int:
        """Return how many wait."""
        return sum(map(len, self._watchers.values()))

    def is_full(self, topic: str, queue_id: int) -> bool:
        """Return whether no more may watch a queue."""
        return len(self._watchers.get((topic, queue_id), ())) >= WATCHERS_MAX

    def add(self, topic: str, queue_id: int, watcher: Watcher) -> None:
        """Have somebody woken by a queue's next message.

        Only then he may look whether it is there already, and not wait.
        """
        self._watchers.setdefault((topic, queue_id), {})[watcher] = None

    def discard(self, topic: str, queue_id: int, watcher: Watcher) -> None:
        """Forget somebody, if he waits."""
        if watchers := self._watchers.get((topic, queue_id)):
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[topic, queue_id]

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Wake those who wait for these messages. Called on the store's reput thread."""
        # Nearly always nobody does. A watcher that is added from now on looks, and finds these.
        watchers = self._watchers
        self._arrived.add(
            [(topic, queue_id) for topic, queue_id, _ in arrivals if (topic, queue_id) in watchers]
        )

    def _wake_arrived(self, queues: Mapping[_Queue, int]) -> None:
        for queue in queues.keys() & self._watchers.keys():
            self._wake(queue)

    def forget_topic(self, topic: str) -> None:
        """Wake everybody who waits for messages of a topic that was deleted, so that they learn."""
        for queue in [queue for queue in self._watchers if queue[0] == topic]:
            self._wake(queue)

    def forget_group(self, group: str) -> None:
        """Wake everybody who waits for a group that was deleted, so that they learn."""
        for (topic, queue_id), watchers in list(self._watchers.items()):
            for watcher in [watcher for watcher in watchers if watcher.group == group]:
                self.discard(topic, queue_id, watcher)
                watcher.wake()

    def _wake(self, queue: _Queue) -> None:
        for watcher in self._watchers.pop(queue):
            watcher.wake()
