"""Who waits for messages, and whom an arrival or an expiry wakes.

A receiver joins the line of its (group, topic) before it looks for messages and leaves it with
what it found, so nothing that arrives while it looks can be missed:

    receiver = polls.join(group, topic, capacity)
    look:
        receiver.begin_look()
        if there are messages, or the time is over: receiver.leave()
        else: receiver.park(until_s, look)

A parked receiver is no task: ten thousand may wait. Waking is by name, not by broadcast: n new
messages wake as many receivers of each group as can take n. A receiver that leaves with a wake-up
it did not use hands it to the next in line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, final

import trio

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.trio_thread import ArrivedKeys, TrioThread
from commitbus.broker.consuming.deadlines import Deadlines
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.clock import Clock

WAITING_POLLS_MAX: Final = 1024
"""Receivers of one group and topic; RocketMQ's bound."""
EXPIRIES_MIN: Final = 64
CLOCK_LOOK_S: Final = 1.0
"""The wall clock says what is visible again, and it may be set forward while all sleep."""


@final
class Receiver:
    """One receive call, in line until it leaves. Made by `LongPolling.join`."""

    __slots__ = ("_go_on", "_line", "_until_s", "capacity", "woken")

    def __init__(self, line: _Line, capacity: int) -> None:
        self._line, self.capacity = line, capacity
        self.woken = False
        """Whether there is a wake-up since the last look began."""
        self._go_on: Callable[[], None] | None = None
        self._until_s = 0.0
        line.join(self)

    def begin_look(self) -> None:
        """Stand in line anew, at its end, for what comes from now on."""
        self.woken = False
        self._line.idle[self] = None

    def park(self, until_s: float, go_on: Callable[[], None]) -> None:
        """Have `go_on` called when there may be messages, at once if there are, and at `until_s`.

        Args:
            until_s: on the scale of `trio.current_time()`; a `shared_deadline_s`.
            go_on: called once, unless the receiver leaves before.
        """
        if self.woken:
            go_on()
            return
        self._go_on, self._until_s = go_on, until_s
        self._line.deadlines.add(until_s, self)

    def wake(self) -> None:
        """End the present or the next `park`."""
        self.woken = True
        if self._go_on is not None:
            self._line.deadlines.discard(self._until_s, self)
            self.time_over()

    def time_over(self) -> None:
        """End the present `park` without a wake-up."""
        go_on, self._go_on = self._go_on, None
        assert go_on is not None, "only of those who are parked the time is measured"
        go_on()

    def leave(self) -> None:
        """Leave the line, parked or not."""
        if self._go_on is not None:
            self._line.deadlines.discard(self._until_s, self)
            self._go_on = None
        self._line.leave(self)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else is in line."""
        return self._line.joined == 1


@final
class _Line:
    """The receivers of one group and topic."""

    __slots__ = ("_forget", "deadlines", "idle", "joined", "next_expiry_ms")

    def __init__(self, deadlines: Deadlines, forget: Callable[[], None]) -> None:
        self.deadlines, self._forget = deadlines, forget
        """The second is called when the last one has left."""
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

    def wake_all(self) -> None:
        """Wake every receiver."""
        while self.idle:
            self.wake(1)


_Expiry = tuple[int, int, _Line]
"""When a message becomes visible again, a number, and whose line is to be woken then."""


def _counts(expiry: _Expiry) -> bool:
    """Return whether somebody still waits in the line, and for this time."""
    at_ms, _, line = expiry
    return line.joined > 0 and line.next_expiry_ms == at_ms


@final
class LongPolling:
    """All lines. Lives on the trio thread, but for `on_arrival`."""

    def __init__(self, clock: Clock, trio_thread: TrioThread) -> None:
        self._clock = clock
        self.deadlines = Deadlines()
        """When the receivers' time is over; to be run beside `run_timer`."""
        self._lines: dict[str, dict[str, _Line]] = {}
        """By topic, then by group: an arrival concerns every group of its topic."""
        self._changed = trio.Event()
        self._timer_due_ms: int | None = None
        self._arrived = ArrivedKeys[str](trio_thread, self._wake_arrived)
        """New messages by topic, where somebody stands in line."""
        self._known_ends: dict[str, dict[int, int]] = {}
        """By topic and queue id. Written by the reput thread."""
        self._expiries: list[_Expiry] = []
        """A heap."""
        self._expiries_max = EXPIRIES_MIN
        self._numbers = itertools.count()

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Wake those who wait for these messages. Called on the store's reput thread."""
        news = dict[str, int]()
        for topic, queue_id, end in arrivals:
            ends = self._known_ends.setdefault(topic, {})
            known = ends.get(queue_id, 0)
            ends[queue_id] = end
            # A receiver that joins from now on looks for messages before it waits, and finds these.
            if topic in self._lines:
                # A topic that was deleted and made again begins at 0 again.
                count = end - known if end > known else end
                news[topic] = news.get(topic, 0) + count
        self._arrived.add(news)

    def _wake_arrived(self, arrived: Mapping[str, int]) -> None:
        for topic, count in arrived.items():
            for line in self._lines.get(topic, {}).values():
                line.wake(count)

    def join(self, group: str, topic: str, capacity: int) -> Receiver:
        """Return a receiver that stands in line for messages of a topic until it leaves.

        Args:
            group: the consumer group.
            topic: the topic.
            capacity: how many messages the receiver takes at most.

        Raises:
            TooManyRequestsError: the line is full.
        """
        line = self._line(group, topic)
        if line is None:
            line = _Line(self.deadlines, lambda: self._forget_line(group, topic))
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
        self._known_ends.pop(topic, None)
        for line in self._lines.get(topic, {}).values():
            line.wake_all()

    def forget_group(self, group: str) -> None:
        """Wake everybody who waits for a group that was deleted, so that they learn."""
        for groups in self._lines.values():
            if line := groups.get(group):
                line.wake_all()

    def note_expiry(self, group: str, topic: str, at_ms: int) -> None:
        """Wake one receiver, if any waits, when a message in flight becomes visible again."""
        line = self._line(group, topic)
        if line is None or (line.next_expiry_ms is not None and line.next_expiry_ms <= at_ms):
            return
        line.next_expiry_ms = at_ms
        heappush(self._expiries, (at_ms, next(self._numbers), line))
        if len(self._expiries) > self._expiries_max:
            # A line lasts as long as a receive, the time noted in it perhaps for hours.
            self._expiries = [expiry for expiry in self._expiries if _counts(expiry)]
            heapify(self._expiries)
            self._expiries_max = 2 * len(self._expiries) + EXPIRIES_MIN
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
                    scope.deadline = trio.current_time() + min(wait_s, CLOCK_LOOK_S)
                await self._changed.wait()

    def _wake_expired(self, now_ms: int) -> int | None:
        """Wake a receiver of each line that is due; return when the next line is."""
        expiries = self._expiries
        while expiries:
            at_ms, _, line = expiries[0]
            if _counts(expiries[0]):
                if at_ms > now_ms:
                    return at_ms
                # Whoever wakes looks through all queues and notes the next expiry.
                line.next_expiry_ms = None
                line.wake(1)
            heappop(expiries)
        return None
