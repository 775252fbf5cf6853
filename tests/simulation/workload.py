"""One seed: a store that lives, dies and recovers a few times under a random workload.

Everything is drawn from the seed: sizes, flush mode, who runs when, what goes wrong and when the
process dies. `simulate(seed)` returns what it did, or raises what went wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, final

from commitbus.broker.store import checkpoint_service, message_store, reput
from commitbus.broker.store.message_store import Arrival, MessageStore
from commitbus.commitlog import commit_log, file_preparer
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush import doorbell, flush_service
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.simulation.disk import Disk
from tests.simulation.files import PLENTY_OF_PAGES, Faults
from tests.simulation.images import rebuild
from tests.simulation.oracle import Oracle, QueueKey, Sent
from tests.simulation.process import (
    Process,
    all_found,
    check_watermark,
    found_in,
    message,
    store_config,
)
from tests.simulation.scheduler import (
    START_MS,
    Scheduler,
    SimulationError,
    repeatable,
)
from tests.simulation.threads import SimulatedThread

_TRACED_MODULES: Final[tuple[ModuleType, ...]] = (
    doorbell, flush_service, reput, checkpoint_service, message_store, commit_log, file_preparer,
)  # fmt: skip
TRACED_FILES: Final = frozenset(inspect.getfile(module) for module in _TRACED_MODULES)
"""Where, in every fourth seed, threads may be switched between any two lines."""
_FULL_DISK_PATIENCE_S: Final = 10.0


@final
@dataclass
class Outcome:
    """What a seed did: the same each time."""

    seed: int
    lives: int = 0
    points: int = 0
    digest: int = 0
    messages: int = 0
    ends: list[str] = field(default_factory=list)
    """Of each life: closed, kill, power cut, failed."""


def simulate(seed: int) -> Outcome:
    """Run a seed.

    Raises:
        SimulationError: A promise was broken, with the seed in its text.
    """
    simulation = Simulation(seed)
    try:
        simulation.run()
    except Exception as error:
        trail = "\n  ".join(simulation.trail())
        raise SimulationError(
            f"seed {seed}, life {simulation.outcome.lives} ({simulation.config.flush}, "
            f"{simulation.outcome.ends}): {error!r}\n  {trail}"
        ) from error
    return simulation.outcome


@final
class Simulation:
    """The lives of one store."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = repeatable(f"simulation {seed}")
        mode = rng.choice((FlushMode.SYNC_FLUSH, FlushMode.ASYNC_FLUSH))
        self.config = store_config(
            mode,
            log_file_bytes=rng.choice((1 << 13, 1 << 14, 1 << 15)),
            flush=FlushPolicy(mode, interval_ms=rng.choice((10, 100, 500)), pending_bytes_max=8192),
            checkpoint_interval_ms=rng.choice((50, 300, 1000)),
        )
        self.is_traced = seed % 4 == 3
        self.outcome = Outcome(seed)
        self.oracle = Oracle(is_sync=mode is FlushMode.SYNC_FLUSH)
        self.disk = Disk(rng.choice((512, 4096)))
        self.start_ms = START_MS
        self.body_number = 0
        self._power_cut = False
        self._scheduler: Scheduler | None = None

    def trail(self) -> list[str]:
        """Return the last points."""
        return list(self._scheduler.trail)[-25:] if self._scheduler else []

    def run(self) -> None:
        """Let the store live, die and recover; at last close it and look at it closely."""
        for _ in range(self.rng.randint(2, 4)):
            self._live(Faults(sync_s=self.rng.choice(((0.0, 0.001), (0.0, 0.05), (0.2, 1.0)))))
        self._last_life()

    def _live(self, faults: Faults) -> None:
        process = self._process(faults)
        life = Life(self, process)
        horizon = self.rng.choice((100, 500, 2000, 6000)) * (6 if self.is_traced else 1)
        if self.rng.random() < 0.8:
            process.scheduler.dies_at = self.rng.randrange(1, horizon)
        ended = process.run(life.run)
        self._bury(process, "closed" if ended else "died", life)

    def _process(self, faults: Faults) -> Process:
        self.outcome.lives += 1
        scheduler = Scheduler(
            f"{self.seed} life {self.outcome.lives}",
            switch_probability=self.rng.choice((0.02, 0.1, 0.3)),
            traced_files=TRACED_FILES if self.is_traced else frozenset(),
        )
        self._scheduler = scheduler
        return Process(self.disk, scheduler, faults, self.start_ms)

    def _bury(self, process: Process, end: str, life: Life) -> None:
        outcome, scheduler = self.outcome, process.scheduler
        outcome.points += scheduler.points
        outcome.digest = outcome.digest * 31 + scheduler.digest & 0xFFFF_FFFF
        outcome.messages = sum(map(len, self.oracle.queues.values()))
        self.start_ms = max(process.clock.now_ms(), START_MS) + self.rng.choice((5, 500, 60_000))
        if life.failed:
            end = "failed"
        # A machine may lose power after a process was closed or killed, too.
        if self.rng.random() < 0.6:
            self._power_cut = True
            self.disk = self.disk.state().sample(self.rng)
            end += ", power cut"
        outcome.ends.append(end)

    def check_recovered(self, store: MessageStore) -> None:
        """Hold a store that was just opened against the oracle."""
        self.oracle.recovered(all_found(store), store.end_offset, power_cut=self._power_cut)
        self._power_cut = False

    def _last_life(self) -> None:
        """Recover twice, close, check, and derive queues and index anew."""
        process = self._process(Faults())

        def recover() -> None:
            store = process.open(self.config)
            self.check_recovered(store)
            process.scheduler.die()

        process.run(recover)
        process = self._process(Faults())

        def close() -> None:
            store = process.open(self.config)
            self.check_recovered(store)
            store.close()
            process.check(self.config)

        assert process.run(close)
        self.outcome.digest ^= process.scheduler.digest
        rebuild(self.disk, self.config)


@final
class Life:
    """What happens between a start and an end: producers, consumers, and the world's malice."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self.simulation, self.process = simulation, process
        self.oracle, self.rng = simulation.oracle, process.scheduler.rng
        self.failed = False
        self._room_since_s = 0.0
        self._producers_are_done = False
        self._arrived: dict[QueueKey, int] = {}
        self._durable_end = 0
        self._is_sync = simulation.config.flush.mode is FlushMode.SYNC_FLUSH

    def run(self) -> None:
        """Open, work, close."""
        try:
            store = self.process.open(self.simulation.config)
        except (FlushFailedError, OSError, DiskFullError):
            if not self.process.files.sync_failures:
                raise
            self.failed = True
            return
        self.simulation.check_recovered(store)
        self._durable_end = store.durable_watermark
        self._arrived = {key: store.max_offset(*key) for key in store.queues()}
        store.add_durable_listener(self._on_durable)
        store.add_arrival_listener(self._on_arrival)
        store.add_failure_listener(self._on_failure)
        producers = [self._start(f"producer-{n}", self._produce, store) for n in range(2)]
        others = [
            self._start(f"consumer-{n}", self._consume, store)
            for n in range(self.rng.randint(1, 2))
        ]
        others.append(self._start("malice", self._be_malicious, store))
        for task in producers:
            task.join()
        self._producers_are_done = True
        for task in others:
            task.join()
        self._finish(store)

    def _start(
        self, name: str, function: Callable[[MessageStore], None], store: MessageStore
    ) -> SimulatedThread:
        thread = SimulatedThread(self.process.scheduler, lambda: function(store), name)
        thread.start()
        return thread

    # What the store says by itself

    def _on_durable(self, watermark: PhysicalOffset) -> None:
        disk, file_bytes = self.process.disk, self.simulation.config.log_file_bytes
        try:
            check_watermark(disk, file_bytes, self._durable_end, watermark)
        except SimulationError as error:
            self.process.scheduler.fail(error)
        self._durable_end = watermark
        self.oracle.durable(watermark)

    def _on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        for topic, queue_id, max_offset in arrivals:
            if max_offset <= self._arrived.get((topic, queue_id), 0):
                self.process.scheduler.fail(SimulationError(f"{topic}/{queue_id} arrives twice"))
            self._arrived[topic, queue_id] = max_offset

    def _on_failure(self, error: StoreError) -> None:
        if not self.process.files.sync_failures:
            self.process.scheduler.fail(error)
        self.failed = True

    # Producers

    def _produce(self, store: MessageStore) -> None:
        for _ in range(self.rng.randint(5, 25)):
            if self.failed:
                return
            if not self._put(store):
                return
            if self.rng.random() < 0.3:
                self.process.scheduler.sleep(self.rng.choice((0.001, 0.05, 2.0)))

    def _put(self, store: MessageStore) -> bool:
        """Put a message or a batch, and perhaps wait for it; return whether to go on."""
        queue = (self.rng.choice(("TopicA", "TopicB")), self.rng.randrange(2))
        bodies = self._bodies()
        sent = self.oracle.sending(queue, bodies)
        messages = [message(queue, body, f"k{body[:6].decode()}") for body in bodies]
        try:
            results = store.put_batch(messages) if len(messages) > 1 else [store.put(messages[0])]
        except DiskFullError:
            self.oracle.refused(sent)
            self._be_patient()
            return True
        except (StoreReadOnlyError, FlushFailedError) as error:
            self.oracle.refused(sent)
            if not self.process.files.sync_failures:
                raise
            # A new file that could not be made durable is no reason to take no more messages.
            return isinstance(error, FlushFailedError)
        self.oracle.appended(sent, results)
        return self._await_durable(store, sent)

    def _bodies(self) -> list[bytes]:
        count = self.rng.choice((1, 1, 1, 1, 2, 3, 6))
        size_max = self.simulation.config.max_body_bytes // (2 * count)
        bodies = []
        for _ in range(count):
            self.simulation.body_number += 1
            size = self.rng.choice((10, 100, 600, size_max))
            filler = self.rng.choice((b"\0", b"x"))
            bodies.append(b"%06d" % self.simulation.body_number + filler * min(size, size_max))
        return bodies

    def _await_durable(self, store: MessageStore, sent: list[Sent]) -> bool:
        if not self._is_sync and self.rng.random() < 0.7:
            return True
        result = sent[-1].result
        assert result is not None
        try:
            store.wait_durable(result.end_offset)
        except FlushFailedError:
            if not self.process.files.sync_failures:
                raise
            return False
        for message_sent in sent:
            message_sent.is_durable = True
        return True

    def _be_patient(self) -> None:
        """Wait for room on the disk; when there is some, the store must see it soon."""
        scheduler = self.process.scheduler
        is_full = self.process.faults.capacity_pages < PLENTY_OF_PAGES
        if not is_full and scheduler.now_s - self._room_since_s > _FULL_DISK_PATIENCE_S:
            raise SimulationError("there is room again, but messages are refused for good")
        scheduler.sleep(0.5)

    # Consumers

    def _consume(self, store: MessageStore) -> None:
        offsets: dict[QueueKey, int] = {}
        while not self._producers_are_done:
            self._look(store, offsets)
            self.process.scheduler.sleep(self.rng.choice((0.0, 0.02, 0.3)))
        self._look(store, offsets)

    def _look(self, store: MessageStore, offsets: dict[QueueKey, int]) -> None:
        for key in store.queues():
            arrived = self._arrived.get(key, 0)
            offset = offsets.get(key, 0)
            found = found_in(store, key, offset)
            for item in found:
                self.oracle.shown(key, item)
                end = item.physical_offset + item.size_bytes
                if self._is_sync and end > store.durable_watermark:
                    raise SimulationError("a consumer sees what a power cut could take back")
            offsets[key] = offset + len(found)
            if offsets[key] < arrived:
                raise SimulationError(f"{key} arrived up to {arrived}, found up to {offsets[key]}")

    # The world

    def _be_malicious(self, store: MessageStore) -> None:
        scheduler, faults, rng = self.process.scheduler, self.process.faults, self.rng
        while not self._producers_are_done:
            scheduler.sleep(rng.uniform(0.0, 0.5))
            kind = rng.random()
            if kind < 0.2:
                self.process.clock.error_ms += rng.choice((-10_000, -50, 30, 5_000))
            elif kind < 0.35:
                faults.capacity_pages = self.process.disk.used_pages() + rng.randrange(6)
                scheduler.sleep(rng.uniform(0.1, 3.0))
                self._make_room()
            elif kind < 0.4:
                faults.sync_failure_probability = 0.5
        self._make_room()

    def _make_room(self) -> None:
        self.process.faults.capacity_pages = PLENTY_OF_PAGES
        self._room_since_s = self.process.scheduler.now_s

    # The end

    def _finish(self, store: MessageStore) -> None:
        if not self.failed:
            self._settle(store)
        if self.failed:
            self._check_failed(store)
        try:
            store.close()
        except StoreError:
            if not self.process.files.sync_failures:
                raise
            self.failed = True
        if not self.failed:
            self.process.check(self.simulation.config)

    def _settle(self, store: MessageStore) -> None:
        """All that was put becomes durable and visible without anyone asking again."""
        self.process.scheduler.sleep(2.0)
        end = store.end_offset
        try:
            store.wait_durable(end)
            store.wait_dispatched(end)
        except StoreError:
            if not self.process.files.sync_failures:
                raise
            self.failed = True
            return
        for key in store.queues():
            if self._arrived.get(key, 0) != store.max_offset(*key):
                raise SimulationError(f"nobody was told of the last messages of {key}")
        self._query(store)

    def _query(self, store: MessageStore) -> None:
        """A message is found by its key."""
        for key, queue in self.oracle.queues.items():
            if queue and (sent := self.rng.choice(queue)) is not None:
                name = f"u-k{sent.body[:6].decode()}"
                try:
                    found = [record.body for record in store.query_by_unique_key(key[0], name)]
                except OffsetOutOfRangeError as error:
                    raise SimulationError(f"{name} leads out of the log") from error
                if sent.body not in found:
                    raise SimulationError(f"{name} of {key} is not found by its key")

    def _check_failed(self, store: MessageStore) -> None:
        """After a failed flush of the log nothing is acknowledged any more."""
        try:
            store.wait_durable(PhysicalOffset(store.end_offset), 5.0)
        except FlushFailedError:
            durable = store.durable_watermark
            self.process.scheduler.sleep(1.0)
            if store.durable_watermark != durable:
                raise SimulationError("a flush succeeded after one had failed") from None
            sent = self.oracle.sending(("TopicA", 0), [b"999999"])
            try:
                store.put(message(("TopicA", 0), b"999999", "k999999"))
            except (StoreReadOnlyError, DiskFullError):
                self.oracle.refused(sent)
                return
            raise SimulationError("a message was taken after a failed flush") from None
