"""Who waits for messages, and whom an arrival or an expiry wakes.

A receiver joins the line of its (group, topic) before it looks for messages and leaves it with
what it found, so nothing that arrives while it looks can be missed:

    with polls.join(group, topic, capacity) as receiver:
        while not (messages := look()):
            await receiver.wait()

Waking is by name, not by broadcast: n new messages wake as many receivers of each group as can
take n. A receiver that leaves with a wake-up it did not use hands it to the next in line.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Self, final

import trio

from commitbus.broker.messaging.errors import TooManyRequestsError
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.clock import Clock

WAITING_POLLS_MAX: Final = 1024
"""Receivers of one group and topic; RocketMQ's bound."""


@final
class Receiver:
    """One receive call, in line while its `with` block runs. Made by `LongPolling.join`."""

    __slots__ = ("_line", "_waiting", "capacity", "woken")

    def __init__(self, line: _Line, capacity: int) -> None:
        self._line, self.capacity = line, capacity
        self.woken = False
        """Whether a wake-up is pending."""
        # The task itself, not an event: that would take half a kilobyte of each receiver in line.
        self._waiting: trio.lowlevel.Task | None = None

    def __enter__(self) -> Self:
        self._line.join(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._line.leave(self)

    async def wait(self) -> None:
        """Return when there may be messages, at once if that was so since the last return."""
        if self.woken:
            await trio.lowlevel.checkpoint()
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        self.woken = False
        self._line.idle[self] = None

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is in line."""
        return self._line.joined == 1

    def wake(self) -> None:
        """Let the pending or the next `wait` return."""
        self.woken = True
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED


@final
class _Line:
    """The receivers of one group and topic."""

    __slots__ = ("_forget", "idle", "joined", "next_expiry_ms")

    def __init__(self, forget: Callable[[], None]) -> None:
        self._forget = forget
        """Called when the last one has left."""
        self.idle: dict[Receiver, None] = {}
        """Those without a pending wake-up, in order of arrival."""
        self.joined = 0
        self.next_expiry_ms: int | None = None
        """When the first message in flight becomes visible again, as far as anybody noted."""

    def join(self, receiver: Receiver) -> None:
        """Take a receiver in at the end."""
        self.joined += 1
        self.idle[receiver] = None

    def leave(self, receiver: Receiver) -> None:
        """Let a receiver go, and hand a wake-up that it did not use to the next one."""
        self.joined -= 1
        self.idle.pop(receiver, None)
        if receiver.woken:
            self.wake(1)
        if self.joined == 0:
            self._forget()

    def wake(self, messages: int) -> None:
        """Wake receivers until their capacity is at least `messages`."""
        while messages > 0 and self.idle:
            receiver = next(iter(self.idle))
            del self.idle[receiver]
            receiver.wake()
            messages -= max(receiver.capacity, 1)


@final
class LongPolling:
    """All lines. Lives on the trio thread, but for `on_arrival`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: dict[str, dict[str, _Line]] = {}
        """By topic, then by group: an arrival concerns every group of its topic."""
        self._changed = trio.Event()
        self._timer_due_ms: int | None = None
        self._arrived: dict[tuple[str, int], int] = {}
        self._known_ends: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None

    def attach(self, token: trio.lowlevel.TrioToken) -> None:
        """Name the trio run that arrivals of other threads are to wake."""
        self._token = token

    def detach(self) -> None:
        """Ignore arrivals from now on."""
        with self._lock:
            self._token = None

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Wake those who wait for these messages. Called on the store's reput thread."""
        with self._lock:
            for arrival in arrivals:
                self._arrived[arrival.topic, arrival.queue_id] = arrival.max_offset
            if self._token is not None:
                self._token.run_sync_soon(self._wake_arrived, idempotent=True)

    def _wake_arrived(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        messages: dict[str, int] = {}
        for key, end in arrived.items():
            known = self._known_ends.get(key, 0)
            self._known_ends[key] = end
            # A topic that was deleted and made again begins at 0 again.
            messages[key[0]] = messages.get(key[0], 0) + (end - known if end > known else end)
        for topic, count in messages.items():
            for line in self._lines.get(topic, {}).values():
                line.wake(count)

    def join(self, group: str, topic: str, capacity: int) -> Receiver:
        """Return a receiver that stands in line for messages of a topic while its block runs.

        Args:
            group: the consumer group.
            topic: the topic.
            capacity: how many messages the receiver takes at most.

        Raises:
            TooManyRequestsError: the line is full.
        """
        line = self._line(group, topic)
        if line is None:
            line = _Line(lambda: self._forget_line(group, topic))
            self._lines.setdefault(topic, {})[group] = line
        elif line.joined >= WAITING_POLLS_MAX:
            raise TooManyRequestsError(
                f"polling full: {line.joined} receivers of group {group} wait for topic {topic}"
            )
        return Receiver(line, capacity)

    def _forget_line(self, group: str, topic: str) -> None:
        groups = self._lines[topic]
        del groups[group]
        if not groups:
            del self._lines[topic]

    def wake(self, group: str, topic: str) -> None:
        """Wake one receiver, because there may be more messages than the caller took."""
        if line := self._line(group, topic):
            line.wake(1)

    def forget_topic(self, topic: str) -> None:
        """Wake everybody who waits for messages of a topic that was deleted, so that they learn."""
        with self._lock:
            self._arrived = {key: end for key, end in self._arrived.items() if key[0] != topic}
        self._known_ends = {key: end for key, end in self._known_ends.items() if key[0] != topic}
        for line in self._lines.get(topic, {}).values():
            while line.idle:
                line.wake(1)

    def note_expiry(self, group: str, topic: str, at_ms: int) -> None:
        """Wake one receiver, if any waits, when a message in flight becomes visible again."""
        line = self._line(group, topic)
        if line is None or (line.next_expiry_ms is not None and line.next_expiry_ms <= at_ms):
            return
        line.next_expiry_ms = at_ms
        if self._timer_due_ms is None or at_ms < self._timer_due_ms:
            self._changed.set()

    def _line(self, group: str, topic: str) -> _Line | None:
        return self._lines.get(topic, {}).get(group)

    async def run_timer(self) -> None:
        """Wake the receivers of expired messages, one task for all lines; never returns."""
        while True:
            self._changed = trio.Event()
            self._timer_due_ms = self._wake_expired(self._clock.now_ms())
            with trio.CancelScope() as scope:
                if self._timer_due_ms is not None:
                    wait_s = (self._timer_due_ms - self._clock.now_ms()) / 1000
                    scope.deadline = trio.current_time() + wait_s
                await self._changed.wait()

    def _wake_expired(self, now_ms: int) -> int | None:
        """Wake a receiver of each line that is due; return when the next line is."""
        due_ms: int | None = None
        for groups in self._lines.values():
            for line in groups.values():
                at_ms = line.next_expiry_ms
                if at_ms is None:
                    continue
                if at_ms <= now_ms:
                    # Whoever wakes looks through all queues and notes the next expiry.
                    line.next_expiry_ms = None
                    line.wake(1)
                elif due_ms is None or at_ms < due_ms:
                    due_ms = at_ms
        return due_ms
