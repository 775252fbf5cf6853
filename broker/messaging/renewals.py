"""Keeping messages invisible for push consumers that work on them longer than a minute.

A consumer that asks for automatic renewal gets its messages for 60 s at first; while it lives, the
broker prolongs that. The receipt handle stays the same, because its pop time does.

A consumer that lives need not have what it was given: that may have been on its way when the
connection broke or the broker was killed. Of what it was given before, only what was renewed
already is renewed: by then a connection that was broken would have been noticed.

Only what is due, or what the client that is gone holds, is looked at, and others are served after
every few hundred messages. What a client holds in a queue and is due in the same step is renewed
together, and from then on with one entry of the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, final

import trio

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.leavers import Held
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.fifo_lock import client_of
from commitbus.broker.metadata.groups import DEFAULT_BACKOFF
from commitbus.broker.metadata.progress import RENEWED_OFFSETS_MAX, InFlight, QueueProgress
from commitbus.broker.metadata.progress_holdings import Holding
from commitbus.broker.metadata.progress_store import Key

INTERVAL_S: Final = 5
AHEAD_MS: Final = 10_000
"""What expires within this is prolonged: twice the interval, so that one late scan does no harm."""
RENEWED_MS: Final = 60_000
RENEWED_FOR_MS_MAX: Final = 3 * 3600 * 1000
"""After this long the consumer is taken to hang."""
RELEASED_INVISIBLE_MS: Final = 1_000
STEP_MESSAGES: Final = 512
"""Looked at until others are served: 1 ms. One holding more at most."""

_log: Final = logging.getLogger(__name__)


async def run(context: MessagingContext) -> None:
    """Renew and release every few seconds, and release for clients that leave; never returns."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_release_for_leavers, context)
        while True:
            await trio.sleep(INTERVAL_S)
            for gone in context.clients.dropping_idle():
                for client in gone:
                    leave(context, client.client_id)
                await trio.lowlevel.checkpoint()
            try:
                await _in_steps(renew(context))
            except StateWriteError as error:
                # Messages become visible early, that is all: no reason to stop serving.
                _log.warning("renewal not saved", extra={"reason": str(error)})


def leave(context: MessagingContext, client_id: str) -> None:
    """Have what a client holds with automatic renewal released: it is gone."""
    context.leavers.add(context.progress.holdings.taken_from(client_id))


async def _release_for_leavers(context: MessagingContext) -> None:
    while True:
        held = await context.leavers.next()
        try:
            await _in_steps(release(context, held))
        except StateWriteError as error:
            _log.warning("release not saved", extra={"reason": str(error)})


async def _in_steps(steps: Iterator[None]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()


def renew(context: MessagingContext) -> Iterator[None]:
    """Prolong what expires soon and belongs to a client that is alive; not for ever.

    Yields between two steps.

    Raises:
        StateWriteError: It cannot be saved; the rest is not renewed now.
    """
    due = context.progress.holdings.due(context.clock.now_ms() + AHEAD_MS)
    for step in _steps(due):
        renewed = _Together(context)
        now_ms = context.clock.now_ms()
        for holding in step:
            _renew(context, holding, now_ms, renewed)
        renewed.extend(lambda entries: max(e.invisible_until_ms for e in entries) + RENEWED_MS)
        yield


def _renew(context: MessagingContext, holding: Holding, now_ms: int, renewed: _Together) -> None:
    key = context.progress.key_of(holding.progress)
    entries = [entry for entry in holding.entries() if entry.invisible_until_ms > now_ms]
    if key is None or not entries:
        # Deleted, reset, or visible again: it is held no more.
        context.progress.holdings.drop(holding)
        return
    for entry in entries:
        if not _has_arrived(context, entry):
            continue
        if now_ms - entry.pop_time_ms < RENEWED_FOR_MS_MAX:
            renewed.add(holding, entry)
        else:
            _give_up(context, key, holding.progress, entry)


def release(context: MessagingContext, held: Held) -> Iterator[None]:
    """Make what a client that is gone holds with automatic renewal visible after a second.

    Yields between two steps.

    Raises:
        StateWriteError: It cannot be saved; the rest becomes visible at the end of its time.
    """
    until_ms = context.clock.now_ms() + RELEASED_INVISIBLE_MS
    for step in _steps(_draining(held)):
        released = _Together(context)
        for holding in step:
            key = context.progress.key_of(holding.progress)
            if key is None:
                continue
            for entry in holding.entries():
                if entry.invisible_until_ms > until_ms:
                    released.add(holding, entry)
            context.polls.note_expiry(key[0], key[1], until_ms)
        released.extend(lambda _: until_ms)
        yield


def _draining(holdings: Held) -> Iterator[Holding]:
    # Others take out what is acknowledged meanwhile.
    while holdings:
        holding = next(iter(holdings))
        del holdings[holding]
        yield holding


def _steps(holdings: Iterable[Holding]) -> Iterator[list[Holding]]:
    """Yield the holdings of one step after the other."""
    step, looks = list[Holding](), 0
    for holding in holdings:
        step.append(holding)
        looks += len(holding.offsets)
        if looks >= STEP_MESSAGES:
            yield step
            step, looks = [], 0
    if step:
        yield step


def _has_arrived(context: MessagingContext, entry: InFlight) -> bool:
    """Return whether a client that is alive has a message, as far as can be told."""
    client_id = client_of(entry.client_id)
    client = context.clients.get(client_id)
    if client is None or not context.clients.is_alive(client_id):
        return False
    was_renewed = entry.invisible_until_ms - entry.pop_time_ms > RENEWED_MS
    return was_renewed or entry.pop_time_ms >= client.since_ms


def _give_up(context: MessagingContext, key: Key, progress: QueueProgress, entry: InFlight) -> None:
    """Have a message delivered again after the delay of its group's retry policy."""
    group, topic, _ = key
    config, now_ms = context.metadata.group(group), context.clock.now_ms()
    backoff = config.backoff if config else DEFAULT_BACKOFF
    until_ms = now_ms + backoff.delay_ms(entry.delivery_attempt - 1)
    context.progress.change_invisible(
        progress,
        entry.offset,
        # Another than it had: that ends the automatic renewal.
        pop_time_ms=now_ms,
        invisible_until_ms=until_ms,
        suspend=False,
    )
    context.polls.note_expiry(group, topic, until_ms)


@final
class _Together:
    """Messages of one step that are extended together: of a client in a queue."""

    def __init__(self, context: MessagingContext) -> None:
        self._context = context
        self._entries: dict[tuple[QueueProgress, str], list[InFlight]] = {}

    def add(self, holding: Holding, entry: InFlight) -> None:
        """Add a message of a holding."""
        self._entries.setdefault((holding.progress, holding.receiver), []).append(entry)

    def extend(self, until_ms_of: Callable[[Sequence[InFlight]], int]) -> None:
        """Make them visible at the time that is returned for those that belong together.

        Raises:
            StateWriteError: It cannot be saved; some may be extended.
        """
        for (progress, _), entries in self._entries.items():
            until_ms = until_ms_of(entries)
            offsets = sorted(entry.offset for entry in entries)
            for start in range(0, len(offsets), RENEWED_OFFSETS_MAX):
                part = offsets[start : start + RENEWED_OFFSETS_MAX]
                self._context.progress.extend(progress, part, until_ms)
