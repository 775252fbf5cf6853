"""The end of consumer groups that clients made by naming them.

Any client makes a group by naming it. A group that nobody uses any more and that holds nothing is
forgotten: if it is named again it begins where it would have gone on. What an operator made or
changed, and what RocketMQ's files named, stays.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import trio

from commitbus.broker.consuming.state import beginning_of
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.names import RETRY_TOPIC_PREFIX, dead_letter_topic
from commitbus.broker.progress.queue_progress import QueueProgress

IDLE_S: Final = 600.0
"""An unused group is forgotten after once to twice as long. Clients send heartbeats every 10 s."""
LOOK_INTERVAL_S: Final = 60.0
LOOKED_AT: Final = 2_000
"""Groups at each look."""
STEP_GROUPS: Final = 50
"""Looked at, or forgotten with one write to the disk, until others are served."""

_log: Final = logging.getLogger(__name__)


async def run(context: MessagingContext) -> None:
    """Forget idle groups; never returns."""
    waiting, turn_at_s = deque[str](), context.clock.monotonic_s() + IDLE_S
    while True:
        await trio.sleep(LOOK_INTERVAL_S)
        if context.clock.monotonic_s() >= turn_at_s:
            context.client_groups.turn()
            turn_at_s = context.clock.monotonic_s() + IDLE_S
        if not waiting:
            waiting.extend(group.name for group in context.metadata.groups())
        try:
            await _look(context, [waiting.popleft() for _ in range(min(len(waiting), LOOKED_AT))])
        except StateWriteError as error:
            # They are forgotten later then.
            _log.warning("idle groups not forgotten", extra={"reason": str(error)})


async def _look(context: MessagingContext, groups: list[str]) -> None:
    count = 0
    for start in range(0, len(groups), STEP_GROUPS):
        step = groups[start : start + STEP_GROUPS]
        count += await forget_idle(context, [group for group in step if may_forget(context, group)])
        await trio.lowlevel.checkpoint()
    if count:
        _log.info("idle groups forgotten", extra={"count": count})


def may_forget(context: MessagingContext, name: str) -> bool:
    """Return whether a client made a group, nobody uses it, and it holds nothing."""
    group = context.metadata.group(name)
    if group is None or not group.created_by_client or not _is_unused(context, name):
        return False
    return not any(map(context.has_messages, _own_topics(name))) and all(
        _is_as_new(context, topic, queue_id, progress)
        for topic in context.progress.topics_of(name)
        for queue_id, progress in context.progress.queues_of(name, topic)
    )


def _is_unused(context: MessagingContext, name: str) -> bool:
    # A client whose stream is open may be silent for longer, at work on what it has.
    return context.client_groups.is_idle(name) and not context.clients.consumers(name)


def _own_topics(group: str) -> tuple[str, str]:
    return RETRY_TOPIC_PREFIX + group, dead_letter_topic(group)


def _is_as_new(
    context: MessagingContext, topic: str, queue_id: int, progress: QueueProgress
) -> bool:
    """Return whether a new group would get all that this one has not acknowledged, and no more."""
    begin = progress.committed_offset
    if progress.in_flight_count < progress.next_offset - begin:
        return False  # Something behind the first one in flight is acknowledged.
    now_ms = context.clock.now_ms()
    if any(entry.invisible_until_ms > now_ms for entry in progress.first_and_last()):
        return False  # A consumer may still be at work.
    return begin == beginning_of(context.store, topic, queue_id)


async def forget_idle(context: MessagingContext, names: list[str]) -> int:
    """Forget groups, but for those that are used meanwhile; return how many were forgotten.

    Raises:
        StateWriteError: the database or the journal cannot be written.
    """
    if names:
        await context.metadata.delete_groups(names)
    count = 0
    for name in names:
        if not _is_unused(context, name) or context.metadata.group(name) is not None:
            await context.metadata.add_group(GroupConfig(name, created_by_client=True))
            continue
        # Nothing is awaited here: nobody can use half a group. It takes 5 us for each queue.
        context.progress.delete_group(name)
        context.broker.forget_group(name)
        count += 1
        for topic in _own_topics(name):
            if context.metadata.topic(topic) is not None and not context.has_messages(topic):
                async with context.metadata.topic_deleted(topic):
                    context.broker.forget_topic(topic)
                    context.progress.delete_topic(topic)
    return count
