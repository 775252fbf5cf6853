"""What happens between a start of the store and an end: producers, consumers, operators, faults."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, final

from commitbus.broker.store.message_store import Arrival, MessageStore
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StoreDamagedError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.policy import FlushMode
from tests.simulation.oracle import Fate, QueueKey, Sent
from tests.simulation.process import Process, check_watermark, found_in, message
from tests.simulation.scheduler import SimulationError
from tests.simulation.themes import Theme
from tests.simulation.threads import SimulatedThread
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.workload import Simulation

_PATIENCE_S: Final = 15.0
"""How soon after a shortage the store takes messages again."""
AGES_KNOWN_S: Final = 660.0
"""After this time of a process nothing keeps retention from deleting what is old."""
_TOPICS: Final = ("TopicA", "TopicB")


@final
class Life:
    """One process, from the opening of the store to its closing, if it comes to that."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self.simulation, self.process = simulation, process
        self.oracle, self.rng = simulation.oracle, process.scheduler.rng
        self.world = World(process, simulation.themes)
        self.failed = False
        """Whether the store has failed, or was not opened, as it must with these faults."""
        self._failures = 0
        self._producers_are_done = False
        self._arrived: dict[QueueKey, int] = {}
        self._durable_end = 0
        self._has_long_pauses = simulation.config.retention is not None and not simulation.is_traced
        self._is_sync = simulation.config.flush.mode is FlushMode.SYNC_FLUSH

    def run(self) -> None:
        """Open, work, close."""
        self.world.before_the_start()
        store = self._open()
        if store is None:
            self.failed = True
            return
        if not self.failed:
            self.simulation.check_recovered(self.process, store)
        self._durable_end = store.durable_watermark.offset
        self._arrived = {key: store.max_offset(*key) for key in store.queues()}
        store.durable_watermark.listen(self._on_durable)
        store.add_arrival_listener(self._on_arrival)
        store.add_failure_listener(self._on_failure)
        producers = [self._start(f"producer-{n}", self._produce, store) for n in range(2)]
        others = [
            self._start(f"consumer-{n}", self._consume, store)
            for n in range(self.rng.randint(1, 2))
        ]
        others.append(self._start("world", self._run_world, store))
        if {Theme.DELETED_TOPICS, Theme.RETENTION, Theme.CLOCK_YEARS} & self.simulation.themes:
            others.append(self._start("operator", self._operate, store))
        for task in producers:
            task.join()
        self._producers_are_done = True
        for task in others:
            task.join()
        self._finish(store)

    def _open(self) -> MessageStore | None:
        process = self.process
        try:
            return process.open(self.simulation.config)
        except (StoreError, OSError) as error:
            if not self._is_excused(error, may_be_raw=True):
                raise
            if not isinstance(error, StoreError) and error.filename is None:
                raise SimulationError(f"nobody knows which file {error!r} is about") from error
        process.check_descriptors("a failed start")
        return None

    def _start(
        self, name: str, function: Callable[[MessageStore], None], store: MessageStore
    ) -> SimulatedThread:
        thread = SimulatedThread(self.process.scheduler, lambda: function(store), name)
        thread.start()
        return thread

    def _run_world(self, store: MessageStore) -> None:
        self.world.run(store, lambda: self._producers_are_done)

    # Which errors are in order

    def _is_excused(self, error: BaseException, *, may_be_raw: bool = False) -> bool:
        """Return whether a fault that was made explains an error.

        `may_be_raw`: of the disk an `OSError` may come, too, as the called method says.
        """
        files = self.process.files
        is_struck = self.failed or self.process.scheduler.was_short_in is not None
        if isinstance(error, StoreError) and is_struck:
            return True
        # A failed flush makes the store read-only a moment before it says so.
        if isinstance(error, FlushFailedError | StoreReadOnlyError):
            return files.sync_failures > 0
        if isinstance(error, ReadFailedError | StoreDamagedError):
            return files.read_failures > 0
        cause = error if isinstance(error, OSError) else error.__cause__
        number = cause.errno if isinstance(cause, OSError) else None
        if number in (errno.EMFILE, errno.ENOMEM):
            return files.shortages > 0
        # There may be room again by the time that this is looked at.
        is_full = isinstance(error, DiskFullError) or (may_be_raw and number == errno.ENOSPC)
        return is_full or (may_be_raw and number == errno.EIO and files.sync_failures > 0)

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
        self._failures += 1
        if self._failures > 1:
            self.process.scheduler.fail(SimulationError("the store fails twice"))
        is_struck = self.process.scheduler.was_short_in is not None
        if not self.process.files.sync_failures and not is_struck:
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
            if self._has_long_pauses and self.rng.random() < 0.02:
                self.process.scheduler.sleep(AGES_KNOWN_S)

    def _put(self, store: MessageStore) -> bool:
        """Put a message or a batch, and perhaps wait for it; return whether to go on."""
        queue = (self.rng.choice(_TOPICS), self.rng.randrange(2))
        bodies = self._bodies()
        sent = self.oracle.sending(queue, bodies, now_ms=self.process.clock.true_ms())
        messages = [message(queue, body, f"k{body[:6].decode()}") for body in bodies]
        try:
            results = store.put_batch(messages) if len(messages) > 1 else [store.put(messages[0])]
        except StoreError as error:
            self.oracle.refused(sent)
            if isinstance(error, StoreReadOnlyError) and self._is_excused(error):
                return False
            if not self._is_excused(error) or isinstance(error, ReadFailedError):
                raise
            # A new file that could not be made durable is no reason to take no more messages.
            if not isinstance(error, FlushFailedError):
                self._be_patient()
            return True
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
            store.durable_watermark.wait(result.end_offset)
        except StoreError as error:
            if not self._is_excused(error):
                raise
            return False
        for message_sent in sent:
            message_sent.is_durable = True
        return True

    def _be_patient(self) -> None:
        """Wait for what is short; when it is there again, the store must see it soon."""
        scheduler = self.process.scheduler
        if self.world.is_calm and scheduler.now_s - self.world.calm_since_s > _PATIENCE_S:
            raise SimulationError("nothing is short any more, but messages are refused for good")
        scheduler.sleep(0.5)

    # Consumers

    def _consume(self, store: MessageStore) -> None:
        offsets: dict[QueueKey, int] = {}
        while not self._producers_are_done:
            self._look(store, offsets)
            self.process.scheduler.sleep(self.rng.choice((0.0, 0.02, 0.3)))
        self._look(store, offsets)

    def _look(self, store: MessageStore, offsets: dict[QueueKey, int]) -> None:
        oracle = self.oracle
        for key in store.queues():
            arrived, asked_at = self._arrived.get(key, 0), oracle.now
            # Now and then from the beginning.
            offset = offsets.get(key, 0) if self.rng.random() < 0.9 else 0
            try:
                found, following = found_in(store, key, offset, self._cannot_read)
            except (StoreError, OSError) as error:
                # The queue itself cannot be read: the next look may.
                if not self._is_excused(error):
                    raise
                continue
            for item in found:
                oracle.shown(key, item, asked_at=asked_at)
                end = item.physical_offset + item.size_bytes
                if self._is_sync and end > store.durable_watermark.offset:
                    raise SimulationError("a consumer sees what a power cut could take back")
            first = found[0].queue_offset if found else following
            log_begin, now_ms = store.min_physical_offset, self.process.clock.true_ms()
            if not self.process.files.read_failures:
                oracle.passed_over(key, offset, first, log_begin, now_ms)
            offsets[key] = following
            if following < arrived and store.min_offset(*key) < arrived:
                raise SimulationError(f"{key} arrived up to {arrived}, found up to {following}")

    def _cannot_read(self, error: ReadFailedError) -> None:
        """A message cannot be read: its page must be one of those."""
        if not self.process.files.read_failures:
            raise error

    # Operators

    def _operate(self, store: MessageStore) -> None:
        scheduler, rng, themes = self.process.scheduler, self.rng, self.simulation.themes
        while not self._producers_are_done:
            scheduler.sleep(rng.choice((0.0, 0.01, 0.1, 0.6)))
            if Theme.DELETED_TOPICS in themes and rng.random() < 0.4:
                self._delete_topic(store)
            if {Theme.RETENTION, Theme.CLOCK_YEARS} & themes and rng.random() < 0.3:
                self._retain(store)

    def _delete_topic(self, store: MessageStore) -> None:
        topic = self.rng.choice(_TOPICS)
        deletion = self.oracle.deleting(topic)
        try:
            store.delete_topic(topic)
        except (StoreError, OSError) as error:
            self.oracle.not_deleted(deletion, is_undone=isinstance(error, DiskFullError))
            if not self._is_excused(error, may_be_raw=True):
                raise
        else:
            self.oracle.deleted(deletion)

    def _retain(self, store: MessageStore) -> None:
        try:
            store.seal_segment()
        except (StoreError, OSError) as error:
            if not self._is_excused(error, may_be_raw=True):
                raise
        store.keep_house()

    # The end

    def _finish(self, store: MessageStore) -> None:
        scheduler, process = self.process.scheduler, self.process
        if not self.failed:
            self._settle(store)
        if self.failed:
            self._check_failed(store)
        if scheduler.dead_threads() and store.failure is None:
            raise SimulationError(f"{scheduler.dead_threads()} died, and nobody was told")
        scheduler.shortage = None
        try:
            store.close()
        except StoreError:
            if not self.failed and not process.files.sync_failures:
                raise
            self.failed = True
        if not self.failed:
            process.check_descriptors("closing")
            process.check(self.simulation.config)

    def _settle(self, store: MessageStore) -> None:
        """All that was put becomes durable and visible without anyone asking again."""
        self.process.scheduler.sleep(2.0)
        end = store.end_offset
        try:
            store.durable_watermark.wait(end)
            store.dispatched.wait(end)
        except StoreError as error:
            if not self._is_excused(error):
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
            if not queue or (sent := self.rng.choice(queue)) is None or sent.result is None:
                continue
            name = f"u-k{sent.body[:6].decode()}"
            try:
                found = [record.body for record in store.query_by_unique_key(key[0], name)]
            except OffsetOutOfRangeError as error:
                raise SimulationError(f"{name} leads out of the log") from error
            except ReadFailedError:
                if not self.process.files.read_failures:
                    raise
                continue
            is_there = sent.result.physical_offset >= store.min_physical_offset
            is_there &= not self.process.may_lack_entries
            is_there &= not self.process.files.read_failures
            # The store fails with a failed flush, and the index may have been behind.
            is_there &= not self.process.files.sync_failures
            if sent.body not in found and is_there and sent.fate is Fate.STAYS:
                raise SimulationError(f"{name} of {key} is not found by its key")

    def _check_failed(self, store: MessageStore) -> None:
        """After a failure nothing is acknowledged any more."""
        try:
            store.durable_watermark.wait(PhysicalOffset(store.end_offset), 5.0)
        except StoreError:
            durable = store.durable_watermark.offset
            self.process.scheduler.sleep(1.0)
            if store.durable_watermark.offset != durable:
                raise SimulationError("a flush succeeded after one had failed") from None
            sent = self.oracle.sending(("TopicA", 0), [b"999999"])
            try:
                store.put(message(("TopicA", 0), b"999999", "k999999"))
            except (StoreReadOnlyError, DiskFullError):
                self.oracle.refused(sent)
                return
            raise SimulationError("a message was taken after a failed flush") from None
