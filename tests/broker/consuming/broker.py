"""A broker on virtual time that is stopped, killed and started again within one trio run."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, final

import trio
import trio.testing

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.methods import run_messaging
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.progress_table import ProgressTable
from commitbus.broker.rates import Rates
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.broker.messaging.bus import EPOCH_MS, Bus

NEVER_MS: Final = 3_600_000
"""Nothing is saved in the background, so that a copy of the files is what a kill would leave."""
JOURNAL_BYTES: Final = 1 << 20


@final
class WallClock:
    """Trio's time, and how far the wall clock was set back or forward since the start."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + round(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()


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
    ) -> None:
        self.wall: Final = WallClock()
        self._directory, self._clock = directory, clock
        self._flush_mode, self._in_flight_max = flush_mode, in_flight_max
        self._life = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bus]:
        """Run the broker, then stop it as SIGTERM does."""
        with self._open() as context:
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
        shutil.copytree(killed, copy, ignore=shutil.ignore_patterns("*.db-shm"))

        def take_copy() -> None:
            shutil.rmtree(killed)
            self._life += 1

        return take_copy

    def admin(self, context: MessagingContext) -> AdminContext:
        """Return what operators' handlers work on."""
        return AdminContext(
            messaging=context,
            rates=Rates(context.counters, context.clock),
            version="",
            boot_ms=0,
            file_system=RealFileSystem(),
        )

    def _path(self, life: int) -> Path:
        return self._directory / str(life)

    @contextmanager
    def _open(self) -> Iterator[MessagingContext]:
        directory, clock, file_system = self._path(self._life), SystemClock(), RealFileSystem()
        store_config = StoreConfig(
            log_file_bytes=1 << 20,
            queue_file_bytes=20 * 1000,
            index_slots=100,
            index_entries=10_000,
            max_body_bytes=1 << 16,
            flush=FlushPolicy(self._flush_mode),
        )
        with MessageStore.open(directory, store_config) as store:
            metadata = MetadataStore(directory, clock=clock, file_system=file_system)
            progress = ProgressTable(
                directory,
                clock=clock,
                file_system=file_system,
                save_interval_ms=NEVER_MS,
                mirror_interval_ms=NEVER_MS,
                journal_bytes=JOURNAL_BYTES,
                in_flight_max=self._in_flight_max,
            )
            progress.open()
            try:
                progress.clamp(store.max_offset)
                yield MessagingContext(
                    store=store,
                    metadata=metadata,
                    progress=progress,
                    config=BrokerConfig(),
                    clock=self.wall,
                )
            finally:
                progress.close()
                metadata.close()
