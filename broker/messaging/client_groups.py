"""Consumer groups that clients made by naming them: how many one address makes, and their end.

Any client makes a group by naming it. A group that nobody uses any more and that holds nothing is
forgotten: if it is named again it begins where it would have gone on. What an operator made or
changed, and what RocketMQ's files named, stays.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

import trio

from commitbus.broker.core.errors import TooManyRequestsError
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.names import RETRY_TOPIC_PREFIX, dead_letter_topic
from commitbus.broker.metadata.progress import QueueProgress
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import QueueOffset

if TYPE_CHECKING:
    from commitbus.broker.messaging.context import MessagingContext

IDLE_S: Final = 600.0
"""An unused group is forgotten after once to twice as long. Clients send heartbeats every 10 s."""
LOOK_INTERVAL_S: Final = 60.0
LOOKED_AT: Final = 2_000
"""Groups at each look."""
STEP_GROUPS: Final = 50
"""Looked at, or forgotten with one write to the disk, until others are served."""

_log: Final = logging.getLogger(__name__)


@final
class ClientGroups:
    """Who made which groups, and which of them were used lately. Lives on the trio thread."""

    def __init__(self) -> None:
        self._used, self._used_before = set[str](), set[str]()
        self._turns = 0
        self._making = 0
        # Of groups that were made since the start.
        self._makers: dict[str, str] = {}
        # By address; those that are being made as well.
        self._made = Counter[str]()

    def note_use(self, group: str) -> None:
        """Note that a client uses a group now, which exists."""
        self._used.add(group)

    def is_idle(self, group: str) -> bool:
        """Return whether nobody has used a group for a turn at least; never soon after a start."""
        return self._turns > 1 and group not in self._used and group not in self._used_before

    def turn(self) -> None:
        """Begin the next turn: what was not used in the last one is idle."""
        self._used_before, self._used = self._used, set()
        self._turns += 1

    @contextmanager
    def making(self, group: str, address: str, *, count: int, limit: int) -> Iterator[None]:
        """Note that a client makes a group while the block runs, which creates it or raises.

        Args:
            group: its name.
            address: where the client is; one without an address has no share of its own.
            count: how many groups there are.
            limit: how many there may be. Clients of one address may make half of them.

        Raises:
            TooManyRequestsError: it may not.
        """
        count += self._making
        if count >= limit:
            reason = f"there are {count} already"
        elif address and self._made[address] > limit // 2:
            reason = f"clients of {address} have made {self._made[address]} already"
        else:
            reason = ""
        if reason:
            raise TooManyRequestsError(
                f"group {group} is not created, because {reason}: an operator may create it"
            )
        self._making += 1
        self._made[address] += 1
        is_made = False
        try:
            yield
            is_made = True
        finally:
            self._making -= 1
            if is_made and address and group not in self._makers:
                self._makers[group] = address
            else:
                self._made_less(address)

    def forget(self, group: str) -> None:
        """Note that a group is gone."""
        self._used.discard(group)
        self._used_before.discard(group)
        address = self._makers.pop(group, None)
        if address is not None:
            self._made_less(address)

    def _made_less(self, address: str) -> None:
        self._made[address] -= 1
        if not self._made[address]:
            del self._made[address]


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


def beginning_of(store: MessageStore, topic: str, queue_id: int) -> QueueOffset:
    """Return where a new group begins in a queue.

    RocketMQ lets it see a young queue in full, and only the last message of one whose beginning is
    gone already. One of a topic that was deleted and made anew goes on counting, so a first offset
    above 0 alone does not say that anything is gone.
    """
    first = store.min_offset(topic, queue_id)
    if first == 0 or store.min_physical_offset == 0:
        return first
    return max(first, QueueOffset(store.max_offset(topic, queue_id) - 1))


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
        context.forget_group(name)
        count += 1
        for topic in _own_topics(name):
            if context.metadata.topic(topic) is not None and not context.has_messages(topic):
                async with context.metadata.topic_deleted(topic):
                    context.forget_topic(topic)
                    context.progress.delete_topic(topic)
    return count
