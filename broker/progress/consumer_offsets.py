"""Committed offsets as RocketMQ's `config/consumerOffset.json` says them.

    "offsetTable":{
        "<topic>@<group>":{
            <queue id>:<committed offset>
        }
    }

Beside it `groupTopicMap` lists the topics of each group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from commitbus.broker.metadata.documents import (
    INTEGER_MAX,
    DocumentError,
    Json,
    JsonObject,
    format_member,
    table,
)
from commitbus.broker.metadata.names import (
    IllegalNameError,
    validate_stored_group,
    validate_stored_topic,
)
from commitbus.broker.progress.progress_rows import Key

_QUEUE_ID_MAX: Final = 2**31 - 1


def decode_offsets(document: JsonObject) -> dict[Key, int]:
    """Return the committed offset of each group, topic and queue.

    Negative offsets, RocketMQ's word for "none yet", are left out.

    Raises:
        DocumentError: The document is not as RocketMQ writes it.
    """
    offsets: dict[Key, int] = {}
    for name, queues in table(document, "offsetTable").items():
        topic, at, group = str(name).partition("@")
        if not at or not isinstance(queues, dict):
            raise DocumentError(f"offsetTable: {name!r} is no topic@group with its queues")
        try:
            validate_stored_topic(topic)
            validate_stored_group(group)
        except IllegalNameError as error:
            raise DocumentError(f"offsetTable: {error}") from error
        for queue_id, offset in queues.items():
            _check_queue(name, queue_id, offset)
            if isinstance(queue_id, int) and isinstance(offset, int) and offset >= 0:
                offsets[group, topic, queue_id] = offset
    return offsets


def _check_queue(name: str | int, queue_id: str | int, offset: Json) -> None:
    if not isinstance(queue_id, int) or not 0 <= queue_id <= _QUEUE_ID_MAX:
        raise DocumentError(f"offsetTable: {name!r} has a queue {queue_id!r}")
    if isinstance(offset, bool) or not isinstance(offset, int) or offset > INTEGER_MAX:
        raise DocumentError(f"offsetTable: {name!r} has an offset {offset!r}")


def format_queues(group: str, topic: str, offsets: Iterable[tuple[int, int]]) -> str:
    """Return the text of a group's offsets in a topic, at its place in the file.

    Args:
        group: The group.
        topic: The topic.
        offsets: Queue ids and committed offsets.
    """
    queues: JsonObject = dict(offsets)
    return format_member(f"{topic}@{group}", queues, level=2)


def format_topics(group: str, topics: Iterable[str]) -> str:
    """Return the text of a group's topics, at its place in the file."""
    return format_member(group, list[Json](sorted(topics)), level=2)
