"""Keeping messages invisible for push consumers that work on them longer than a minute.

A consumer that asks for automatic renewal gets its messages for 60 s at first; while it lives, the
broker prolongs that. The receipt handle stays the same, because its pop time does.

A consumer that lives need not have what it was given: that may have been on its way when the
connection broke or the broker was killed. Of what it was given before, only what was renewed
already is renewed: by then a connection that was broken would have been noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import trio

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.fifo_lock import client_of
from commitbus.broker.metadata.groups import DEFAULT_BACKOFF
from commitbus.broker.metadata.progress import InFlight, QueueProgress

INTERVAL_S: Final = 5
AHEAD_MS: Final = 10_000
"""What expires within this is prolonged: twice the interval, so that one late scan does no harm."""
RENEWED_MS: Final = 60_000
RENEWED_FOR_MS_MAX: Final = 3 * 3600 * 1000
"""After this long the consumer is taken to hang."""
RELEASED_INVISIBLE_MS: Final = 1_000

_log: Final = logging.getLogger(__name__)


async def run(context: MessagingContext) -> None:
    """Renew and release every few seconds; never returns."""
    while True:
        await trio.sleep(INTERVAL_S)
        gone = context.clients.drop_idle()
        try:
            if gone:
                release(context, {client.client_id for client in gone})
            renew(context)
        except StateWriteError as error:
            # Messages become visible early, that is all: no reason to stop serving.
            _log.warning("renewal not saved", extra={"reason": str(error)})


def renew(context: MessagingContext) -> None:
    """Prolong what expires soon and belongs to a client that is alive; not for ever."""
    now_ms = context.clock.now_ms()
    for (group, topic, _), progress in context.progress.items():
        next_expiry_ms = progress.next_expiry_ms
        if next_expiry_ms is None or next_expiry_ms > now_ms + AHEAD_MS:
            continue
        for entry in progress.expired(now_ms + AHEAD_MS, progress.in_flight_count):
            if (
                not entry.auto_renew
                or entry.invisible_until_ms <= now_ms
                or not _has_arrived(context, entry)
            ):
                continue
            if now_ms - entry.pop_time_ms < RENEWED_FOR_MS_MAX:
                context.progress.change_invisible(
                    progress,
                    entry.offset,
                    pop_time_ms=entry.pop_time_ms,
                    invisible_until_ms=entry.invisible_until_ms + RENEWED_MS,
                    suspend=entry.suspended,
                )
            else:
                _give_up(context, group, topic, progress, entry)


def _has_arrived(context: MessagingContext, entry: InFlight) -> bool:
    """Return whether a client that is alive has a message, as far as can be told."""
    client_id = client_of(entry.client_id)
    client = context.clients.get(client_id)
    if client is None or not context.clients.is_alive(client_id):
        return False
    was_renewed = entry.invisible_until_ms - entry.pop_time_ms > RENEWED_MS
    return was_renewed or entry.pop_time_ms >= client.since_ms


def _give_up(
    context: MessagingContext, group: str, topic: str, progress: QueueProgress, entry: InFlight
) -> None:
    """Have a message delivered again after the delay of its group's retry policy."""
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


def release(context: MessagingContext, client_ids: Collection[str]) -> None:
    """Make what clients that are gone hold with automatic renewal visible after a second."""
    until_ms = context.clock.now_ms() + RELEASED_INVISIBLE_MS
    for (group, topic, _), progress in context.progress.items():
        for entry in progress.in_flight.values():
            if (
                entry.auto_renew
                and client_of(entry.client_id) in client_ids
                and entry.invisible_until_ms > until_ms
            ):
                context.progress.change_invisible(
                    progress,
                    entry.offset,
                    pop_time_ms=entry.pop_time_ms,
                    invisible_until_ms=until_ms,
                    suspend=entry.suspended,
                )
                context.polls.note_expiry(group, topic, until_ms)
