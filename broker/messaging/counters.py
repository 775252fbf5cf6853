"""What went in and out, in plain integers: read for metrics, changed on the trio thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


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
@dataclass(slots=True)
class Counters:
    """All traffic of the messaging service."""

    sent: dict[str, Traffic] = field(default_factory=dict)
    """By topic: messages that were stored."""
    received: dict[tuple[str, str], Traffic] = field(default_factory=dict)
    """By (group, topic): messages that were handed out, redeliveries included."""
    acknowledged: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (group, topic): messages that were acknowledged."""
    dead_letters: dict[tuple[str, str], int] = field(default_factory=dict)
    """By (group, topic): messages that were moved to the group's dead letter queue."""

    messages_in: int = 0
    """Of all topics, deleted ones too."""
    messages_out: int = 0

    def count_sent(self, topic: str, messages: int, size_bytes: int) -> None:
        """Count stored messages."""
        traffic = self.sent.get(topic)
        if traffic is None:
            traffic = self.sent[topic] = Traffic()
        traffic.messages += messages
        traffic.bytes += size_bytes
        self.messages_in += messages

    def count_received(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Count messages that were handed out."""
        self.received.setdefault((group, topic), Traffic()).add(messages, size_bytes)
        self.messages_out += messages

    def count_acknowledged(self, group: str, topic: str, messages: int) -> None:
        """Count acknowledgements."""
        key = group, topic
        self.acknowledged[key] = self.acknowledged.get(key, 0) + messages

    def count_dead_letter(self, group: str, topic: str) -> None:
        """Count a message that was moved to a dead letter queue."""
        key = group, topic
        self.dead_letters[key] = self.dead_letters.get(key, 0) + 1

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop the counters of a group or of a topic that was deleted."""
        if topic is not None:
            self.sent.pop(topic, None)
        for counters in (self.received, self.acknowledged, self.dead_letters):
            for key in [key for key in counters if group == key[0] or topic == key[1]]:
                del counters[key]
