"""The messages that one receive call hands over: taken in the group's order, read and encoded.

    Batch ---> Order         which messages are taken: `unordered`, `fifo`
      |          |
      |          v
      |     NewMessages      searches queues for what the group has not seen (`scan`)
      |          |
      v          v
    Taken <------+           puts messages in flight and takes them back; the room left
      |
      v
    encode_messages           reads what was taken, in the bytes of the adapter's protocol

Reads that wait for a disk run on another thread. The messages' places are read before anything is
taken, and the queue is then looked at again, because another receiver may have been quicker; the
records are read afterwards. A message that cannot be read is taken like any other, but without a
receiver: it is tried again when its invisible time is over, and given up after the last attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Generic, Protocol, final

from commitbus.broker.consuming.in_flight_cap import explanation
from commitbus.broker.consuming.receipt_handle import run_text
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import Place, read_or_wait, read_records, takes_long
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.receiving.demand import Demand
from commitbus.broker.receiving.encoder import Encoder, M, Outcome, encode_messages
from commitbus.broker.receiving.fifo import Fifo
from commitbus.broker.receiving.taken import Run, Taken
from commitbus.broker.receiving.undelivered import put_off
from commitbus.broker.receiving.unordered import Unordered
from commitbus.broker.settling.renewals import RELEASED_INVISIBLE_MS
from commitbus.commitlog.errors import OffsetOutOfRangeError, StoreClosedError, StoreError

_log: Final = logging.getLogger(__name__)


class Order(Protocol):
    """Decides which messages a receive call takes, and takes them. Made anew for each call."""

    async def take(self, queue_count: int, group: GroupConfig, until_s: float) -> None:
        """Take messages of the topic's queues until a limit is met or there are none.

        Args:
            queue_count: of the topic.
            group: as it is now.
            until_s: on the scale of `trio.current_time()`: no longer messages are searched that
                the filter wants, but for one step of each queue.

        Raises:
            RequestError: the topic or the group is gone, or is not to be received from or for.
            StoreError: the store failed.
        """

    def holds_up(self, run: Run, place: Place) -> bool:
        """Return whether a message may not be delivered because of an unreadable one before it."""

    def note_unreadable(self, run: Run, place: Place, error: StoreError) -> None:
        """Note a message that cannot be read."""

    def next_visible_ms(self, progress: QueueProgress) -> int | None:
        """Return when a queue has something to take again; None if that is not known."""

    def limit_met(self) -> str:
        """Return which limit of its own keeps new messages back, in words; empty if none does."""


@final
class Batch(Generic[M]):
    """The messages that one receive call hands over.

    A context manager: it releases the messages when its block raises, and forgets them at the end.
    """

    __slots__ = ("_core", "_demand", "_encoder", "_order", "_taken", "messages")

    def __init__(self, core: ConsumingCore, demand: Demand, encoder: Encoder[M]) -> None:
        group = core.metadata.group(demand.group)
        is_fifo = group is not None and group.consume_message_orderly
        self._core, self._demand, self._encoder = core, demand, encoder
        self._taken = Taken(core, demand, is_fifo=is_fifo)
        self._order: Order = Fifo(self._taken) if is_fifo else Unordered(self._taken)
        self.messages: list[M] = []
        """As the encoder made them, until the end of the block."""

    def __enter__(self) -> Batch[M]:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            self._release(self._taken.runs)
        self._taken.clear()
        # `when_unfinished` keeps the batch, but not the bytes.
        self.messages.clear()

    @property
    def has_more(self) -> bool:
        """Whether taking stopped at a limit, so that there may be more."""
        return self._taken.has_more

    async def fill(self, until_s: float) -> None:
        """Take what is there now, once; `messages` stays empty if nothing is.

        Args:
            until_s: as of `Order.take`.

        Raises:
            RequestError: the topic or the group is gone, or is not to be received from or for.
            StoreError: the store failed.
        """
        taken = self._taken
        topic, group = taken.check()
        taken.allowance.check_before()
        await self._order.take(topic.read_queue_nums, group, until_s)
        taken.allowance.check_after()
        taken.has_more = taken.has_more or taken.allowance.room == 0
        if taken.runs:
            await self._read()

    async def _read(self) -> None:
        """Make messages of what was taken; what the filter's hash let in wrongly is dropped."""
        taken, body_bytes = self._taken, 0
        for run, outcomes in await read_or_wait(self._encode):
            for place, outcome in zip(run.places, outcomes, strict=True):
                if isinstance(outcome, tuple):
                    if self._order.holds_up(run, place):
                        # The message before it locks the unit.
                        taken.make_visible(run, place, self._core.clock.now_ms())
                        continue
                    message, size_bytes = outcome
                    self.messages.append(message)
                    body_bytes += size_bytes
                elif outcome is None or isinstance(outcome, OffsetOutOfRangeError):
                    taken.drop(run, place)
                else:
                    self._order.note_unreadable(run, place, outcome)
                    put_off(taken, run, place, outcome)
        self._core.counters.count_received(
            self._demand.group, self._demand.topic, len(self.messages), body_bytes
        )

    def _encode(self, *, only_cached: bool) -> list[tuple[Run, list[Outcome[M]]]] | None:
        runs, demand = self._taken.runs, self._demand
        places = [place for run in runs for place in run.places]
        if only_cached and takes_long(places):
            return None
        records = read_records(self._core.store, places, only_cached=only_cached)
        broker_name, is_fifo = self._core.config.broker_name, self._taken.is_fifo
        found: list[tuple[Run, list[Outcome[M]]]] = []
        for run in runs:
            handle = run_text(
                run.pop_time_ms, demand.invisible_ms, broker_name, run.queue_id, fifo=is_fifo
            )
            encode = self._encoder(run.queue_id, run.delivery_attempt)
            outcomes = encode_messages(encode, run.places, records, handle, demand.wanted)
            if outcomes is None:
                return None
            found.append((run, outcomes))
        return found

    def when_unfinished(self) -> Callable[[], None]:
        """Return a function that releases the messages once they turn out not to have left.

        It was no attempt: a client that never reads to the end would use up all of them.
        """
        return partial(self._release, list(self._taken.runs))

    def _release(self, runs: Sequence[Run]) -> None:
        """Make messages visible again after a second."""
        until_ms = self._core.clock.now_ms() + RELEASED_INVISIBLE_MS
        try:
            for run in runs:
                for place in run.places:
                    self._taken.make_visible(run, place, until_ms)
        except (StateWriteError, StoreClosedError) as error:
            # They become visible later then, at the end of their invisible time.
            _log.warning("release not saved", extra={"reason": str(error)})
        if runs:
            self._note_expiry(until_ms)

    def note_next_expiry(self) -> None:
        """Have one of those who wait woken when the first message in flight is visible again."""
        topic = self._core.metadata.topic(self._demand.topic)
        expiries = [
            at_ms
            for queue_id in range(topic.read_queue_nums if topic else 0)
            if (progress := self._taken.get(queue_id)) is not None
            and (at_ms := self._order.next_visible_ms(progress)) is not None
        ]
        if expiries:
            self._note_expiry(min(expiries))

    def _note_expiry(self, at_ms: int) -> None:
        self._core.polls.note_expiry(self._demand.group, self._demand.topic, at_ms)

    def limit_met(self) -> str:
        """Return which limit keeps the group from new messages, in words; empty if none does."""
        core, demand = self._core, self._demand
        return self._order.limit_met() or explanation(
            core.store, core.metadata, core.progress, demand.group, demand.topic
        )
