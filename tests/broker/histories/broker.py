"""A broker on virtual time that is stopped, killed and started again within one trio run."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

import trio
import trio.testing

from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.methods import run_messaging
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.commitlog.types import QueueOffset
from commitbus.flush.policy import FlushMode
from tests.broker.messaging.bus import Bus, TrioClock, copy_as_killed, open_context

JOURNAL_BYTES: Final = 1 << 20


@final
class VirtualBroker:
    """The real store and the real handlers, opened as often as a history wants."""

    def __init__(
        self,
        directory: Path,
        clock: trio.testing.MockClock,
        *,
        flush_mode: FlushMode,
        in_flight_max: int,
        retry_percent: int,
    ) -> None:
        self.wall: Final = TrioClock(clock)
        self._directory, self._clock = directory, clock
        self._in_flight_max = in_flight_max
        self._config = BrokerConfig().with_changes(
            {
                "max_body_bytes": 1 << 16,
                "log_file_bytes": 1 << 20,
                "flush_mode": flush_mode,
                "retry_percent": retry_percent,
            }
        )
        self._life = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bus]:
        """Run the broker, then stop it as SIGTERM does."""
        with open_context(
            self._path(self._life),
            self._config,
            self.wall,
            journal_bytes=JOURNAL_BYTES,
            in_flight_max=self._in_flight_max,
        ) as context:
            async with trio.open_nursery() as nursery:
                await nursery.start(run_messaging, context)
                yield Bus(context, self._clock)
                nursery.cancel_scope.cancel()

    def kill(self) -> Callable[[], None]:
        """Copy the files as `kill -9` would leave them now, while nothing is being written.

        Returns:
            What makes the copy the broker's directory, to be called once this one is closed.
        """
        killed, copy = self._path(self._life), self._path(self._life + 1)
        copy_as_killed(killed, copy)

        def take_copy() -> None:
            shutil.rmtree(killed)
            self._life += 1

        return take_copy

    def _path(self, life: int) -> Path:
        return self._directory / str(life)


def dead_letters(bus: Bus, group: str) -> list[bytes]:
    """Return the bodies of a group's dead letters."""
    bus.settle()
    store, topic = bus.context.store, dead_letter_topic(group)
    end = store.max_offset(topic, 0)
    units = store.fetch(topic, 0, QueueOffset(0), end).units if end else ()
    assert len(units) == end
    return [store.read(unit.physical_offset).body for unit in units]
