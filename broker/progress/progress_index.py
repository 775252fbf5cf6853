"""An index of all progress: by group, topic and queue, and by id.

The progress of one group or one topic is found without a walk over all others.
"""

from __future__ import annotations

from itertools import chain
from typing import final

from commitbus.broker.progress.progress_rows import Key
from commitbus.broker.progress.queue_progress import QueueProgress

Item = tuple[Key, QueueProgress]


@final
class ProgressIndex:
    """All progress of a store. One thread changes it; others may call the methods that say so."""

    __slots__ = ("_by_group", "_by_id", "_by_topic", "next_key_id")

    def __init__(self) -> None:
        self._by_id: dict[int, Item] = {}
        # Both lead to the same dict of a group and topic, by queue id.
        self._by_group: dict[str, dict[str, dict[int, QueueProgress]]] = {}
        self._by_topic: dict[str, dict[str, dict[int, QueueProgress]]] = {}
        self.next_key_id = 1
        """The id of the next new progress. Read by others, changed here."""

    def __len__(self) -> int:
        """Return how many queues of groups there are."""
        return len(self._by_id)

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return the progress of a group in a queue, None where it has not begun."""
        try:
            return self._by_group[group][topic][queue_id]
        except KeyError:
            return None

    def by_id(self, key_id: int) -> Item | None:
        """Return the progress with an id; None where it was deleted. For any thread."""
        return self._by_id.get(key_id)

    def add(self, key: Key, progress: QueueProgress) -> None:
        """Add a progress that is not there yet."""
        group, topic, queue_id = key
        topics = self._by_group.setdefault(group, {})
        queues = topics.get(topic)
        if queues is None:
            queues = topics[topic] = {}
            self._by_topic.setdefault(topic, {})[group] = queues
        queues[queue_id] = progress
        self._by_id[progress.key_id] = key, progress
        self.skip_to(progress.key_id + 1)

    def skip_to(self, key_id: int) -> None:
        """Give no id below this one to a new progress: a deleted one may have had it."""
        self.next_key_id = max(self.next_key_id, key_id)

    def remove(self, key: Key, progress: QueueProgress) -> None:
        """Remove a progress that is there."""
        group, topic, queue_id = key
        queues = self._by_group[group][topic]
        del queues[queue_id], self._by_id[progress.key_id]
        if not queues:
            _remove(self._by_group, group, topic)
            _remove(self._by_topic, topic, group)

    # Each of these copies one dict, which no other thread can interrupt.

    def items(self) -> list[Item]:
        """Return everything. For any thread."""
        return list(self._by_id.values())

    def groups(self) -> list[str]:
        """Return the groups that have progress. For any thread."""
        return list(self._by_group)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has progress. For any thread."""
        return list(self._by_group.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have progress in a topic. For any thread."""
        return list(self._by_topic.get(topic, ()))

    def queues_of(self, group: str, topic: str) -> list[tuple[int, QueueProgress]]:
        """Return a group's progress in a topic, by queue id. For any thread."""
        return list(self._by_group.get(group, {}).get(topic, {}).items())

    def items_of(self, *, group: str | None = None, topic: str | None = None) -> list[Item]:
        """Return the progress of a group, in a topic, or of a group in a topic."""
        if group is None:
            assert topic is not None
            found = list(self._by_topic.get(topic, {}).values())
        elif topic is None:
            found = list(self._by_group.get(group, {}).values())
        else:
            found = [self._by_group.get(group, {}).get(topic, {})]
        by_id = self._by_id
        queues = chain.from_iterable(queues.values() for queues in found)
        return [by_id[progress.key_id] for progress in queues]


def _remove(tree: dict[str, dict[str, dict[int, QueueProgress]]], outer: str, inner: str) -> None:
    del tree[outer][inner]
    if not tree[outer]:
        del tree[outer]
