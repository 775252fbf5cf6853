"""Keeping messages invisible for push consumers that work on them longer than a minute.

A consumer that asks for automatic renewal gets its messages for 60 s at first; while it lives, the
broker prolongs that. The receipt handle stays the same, because its pop time does.

A consumer that is connected may never have received its messages: they may have been on their way
when an earlier connection broke or the broker was killed. Of the messages that were delivered
before the present connection, only those are renewed that were renewed before: by then a broken
connection would have been noticed.

Each step looks only at the messages that are due, or that a client which left holds; other tasks
run after every few hundred messages. Messages that a client holds in one queue, and that are due in
the same step, are renewed together, and from then on with one entry of the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, final

import trio

from commitbus.broker.consuming.leavers import Held
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import DEFAULT_BACKOFF
from commitbus.broker.progress.holdings import Holding
from commitbus.broker.progress.progress_rows import Key
from commitbus.broker.progress.queue_progress import RENEWED_OFFSETS_MAX, InFlight, QueueProgress

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


class Clients(Protocol):
    """The clients of all protocols, as far as they concern renewals."""

    def alive_since_ms(self, client_id: str) -> int | None:
        """Return since when a client is known and connected; None for one that is gone.

        Messages that it was given before may never have reached it.
        """

    def dropping_idle(self) -> Iterator[Sequence[str]]:
        """Forget the clients that are gone, some at a time, and yield their ids."""


async def run(core: ConsumingCore, clients: Clients) -> None:
    """Renew and release every few seconds, and release for clients that leave; never returns."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_release_for_leavers, core)
        while True:
            await trio.sleep(INTERVAL_S)
            for gone in clients.dropping_idle():
                for client_id in gone:
                    leave(core, client_id)
                await trio.lowlevel.checkpoint()
            try:
                await _in_steps(renew(core, clients))
            except StateWriteError as error:
                # Messages become visible early, that is all: no reason to stop serving.
                _log.warning("renewal not saved", extra={"reason": str(error)})


def leave(core: ConsumingCore, client_id: str) -> None:
    """Have what a client holds with automatic renewal released: it is gone."""
    core.leavers.add(core.progress.holdings.taken_from(client_id))


async def _release_for_leavers(core: ConsumingCore) -> None:
    while True:
        held = await core.leavers.next()
        try:
            await _in_steps(release(core, held))
        except StateWriteError as error:
            _log.warning("release not saved", extra={"reason": str(error)})


async def _in_steps(steps: Iterator[None]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()


def renew(core: ConsumingCore, clients: Clients) -> Iterator[None]:
    """Prolong what expires soon and belongs to a client that is alive; not for ever.

    Yields between two steps.

    Raises:
        StateWriteError: It cannot be saved; the rest is not renewed now.
    """
    due = core.progress.holdings.due(core.clock.now_ms() + AHEAD_MS)
    for step in _steps(due):
        renewed = _Together(core)
        now_ms = core.clock.now_ms()
        for holding in step:
            since_ms = clients.alive_since_ms(holding.client_id)
            _renew(core, holding, now_ms, since_ms, renewed)
        renewed.extend(lambda entries: max(e.invisible_until_ms for e in entries) + RENEWED_MS)
        yield


def _renew(
    core: ConsumingCore, holding: Holding, now_ms: int, since_ms: int | None, renewed: _Together
) -> None:
    """Renew the messages of a holding that its client, connected since then, can have."""
    key = core.progress.key_of(holding.progress)
    entries = [entry for entry in holding.entries() if entry.invisible_until_ms > now_ms]
    if key is None or not entries:
        # Deleted, reset, or visible again: it is held no more.
        core.progress.holdings.drop(holding)
        return
    if since_ms is None:
        return
    for entry in entries:
        was_renewed = entry.invisible_until_ms - entry.pop_time_ms > RENEWED_MS
        if not was_renewed and entry.pop_time_ms < since_ms:
            continue
        if now_ms - entry.pop_time_ms < RENEWED_FOR_MS_MAX:
            renewed.add(holding, entry)
        else:
            _give_up(core, key, holding.progress, entry)


def release(core: ConsumingCore, held: Held) -> Iterator[None]:
    """Make what a client that is gone holds with automatic renewal visible after a second.

    Yields between two steps.

    Raises:
        StateWriteError: It cannot be saved; the rest becomes visible at the end of its time.
    """
    until_ms = core.clock.now_ms() + RELEASED_INVISIBLE_MS
    for step in _steps(_draining(held)):
        released = _Together(core)
        for holding in step:
            key = core.progress.key_of(holding.progress)
            if key is None:
                continue
            for entry in holding.entries():
                if entry.invisible_until_ms > until_ms:
                    released.add(holding, entry)
            core.polls.note_expiry(key[0], key[1], until_ms)
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


def _give_up(core: ConsumingCore, key: Key, progress: QueueProgress, entry: InFlight) -> None:
    """Have a message delivered again after the delay of its group's retry policy."""
    group, topic, _ = key
    config, now_ms = core.metadata.group(group), core.clock.now_ms()
    backoff = config.backoff if config else DEFAULT_BACKOFF
    until_ms = now_ms + backoff.delay_ms(entry.delivery_attempt - 1)
    core.progress.change_invisible(
        progress,
        entry.offset,
        # Another than it had: that ends the automatic renewal.
        pop_time_ms=now_ms,
        invisible_until_ms=until_ms,
        suspend=False,
    )
    core.polls.note_expiry(group, topic, until_ms)


@final
class _Together:
    """Messages of one step that are extended together: of a client in a queue."""

    def __init__(self, core: ConsumingCore) -> None:
        self._core = core
        self._entries: dict[tuple[QueueProgress, str], list[InFlight]] = {}

    def add(self, holding: Holding, entry: InFlight) -> None:
        """Add a message of a holding."""
        self._entries.setdefault((holding.progress, holding.client_id), []).append(entry)

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
                self._core.progress.extend(progress, part, until_ms)
