"""Counters of messages in and out: plain integers that the trio thread changes and metrics read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeVar, final

COUNTED_MAX: Final = 100_000
"""Pairs of group and topic that are counted for themselves. Clients name both."""
OTHERS: Final = ("(others)", "(others)")
"""Group and topic under which further ones are counted. No name has a parenthesis."""

_V = TypeVar("_V")


@final
@dataclass(slots=True)
class Traffic:
    """Messages and their bodies' bytes since the process started."""

    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, size_bytes: int) -> None:
        """Count more of them."""
        self.messages += messages
        self.bytes += size_bytes


@final
class Pairs(dict[tuple[str, str], _V]):
    """Values by (group, topic); those of one group or topic are forgotten without a walk."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[str, set[str]] = {}
        """By group."""
        self._groups: dict[str, set[str]] = {}
        """By topic."""

    def key(self, group: str, topic: str) -> tuple[str, str]:
        """Return under what a pair is counted."""
        key = group, topic
        return OTHERS if len(self) >= COUNTED_MAX and key not in self else key

    def begin(self, group: str, topic: str, value: _V) -> _V:
        """Set the value of a pair that has none, and return it."""
        self._topics.setdefault(group, set()).add(topic)
        self._groups.setdefault(topic, set()).add(group)
        self[group, topic] = value
        return value

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the values of a group or of a topic."""
        if group is not None:
            for name in self._topics.pop(group, ()):
                _discard(self._groups, name, group)
                del self[group, name]
        if topic is not None:
            for name in self._groups.pop(topic, ()):
                _discard(self._topics, name, topic)
                del self[name, topic]


def _discard(tree: dict[str, set[str]], outer: str, inner: str) -> None:
    inners = tree[outer]
    inners.discard(inner)
    if not inners:
        del tree[outer]


@final
@dataclass(slots=True)
class Counters:
    """All traffic of the messaging service."""

    sent: dict[str, Traffic] = field(default_factory=dict)
    """By topic: messages that were stored."""
    received: Pairs[Traffic] = field(default_factory=Pairs)
    """By (group, topic): messages that were handed out, redeliveries included."""
    acknowledged: Pairs[int] = field(default_factory=Pairs)
    """By (group, topic): messages that were acknowledged."""
    dead_letters: Pairs[int] = field(default_factory=Pairs)
    """By (group, topic): messages that were moved to the group's dead letter queue."""

    messages_in: int = 0
    """The sum over all topics, deleted ones too."""
    messages_out: int = 0
    sent_lately: dict[str, int] = field(default_factory=dict)
    """By topic: messages since `Rates` last took it."""
    received_lately: dict[str, int] = field(default_factory=dict)
    """By group: the same."""

    def count_sent(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count stored messages."""
        traffic = self.sent.get(topic)
        if traffic is None:
            traffic = self.sent[topic] = Traffic()
        traffic.messages += messages
        traffic.bytes += size_bytes
        self.messages_in += messages
        self.sent_lately[topic] = self.sent_lately.get(topic, 0) + messages

    def count_received(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages that were handed out."""
        traffic = self.received.get((group, topic))
        if traffic is None:
            key = self.received.key(group, topic)
            traffic = self.received.get(key) or self.received.begin(*key, Traffic())
        traffic.add(messages, size_bytes)
        self.messages_out += messages
        self.received_lately[group] = self.received_lately.get(group, 0) + messages

    def count_acknowledged(self, group: str, topic: str, messages: int) -> None:
        """Count acknowledgements."""
        _add(self.acknowledged, group, topic, messages)

    def count_dead_letter(self, group: str, topic: str) -> None:
        """Count a message that was moved to a dead letter queue."""
        _add(self.dead_letters, group, topic, 1)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the counters of a group or of a topic that was deleted."""
        if topic is not None:
            self.sent.pop(topic, None)
        self.received.forget(group=group, topic=topic)
        self.acknowledged.forget(group=group, topic=topic)
        self.dead_letters.forget(group=group, topic=topic)


def _add(counters: Pairs[int], group: str, topic: str, count: int) -> None:
    key = counters.key(group, topic)
    if key in counters:
        counters[key] += count
    else:
        counters.begin(*key, count)
