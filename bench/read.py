"""Reading a store: recovery, rebuilding what follows from the log, looking up, fetching."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Row
from bench.store import BATCH, QUEUES, message, seconds_until_dispatched
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import Arrival, MessageStore
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.kernels import ready_kernels
from commitbus.commitlog.recovery import recover_abnormally
from commitbus.commitlog.types import QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.flush.policy import FlushMode, FlushPolicy
from commitbus.indexfile.index_service import IndexService

MESSAGES = 200_000
LOG_MESSAGES = 800_000
"""Nearly a GiB, one log file: what a recovery does once for each file would count four times in
s/GiB of the smaller store."""
DISPATCH_BATCH = 2048
LOOKUPS = 5000
FETCHES = 5000
PER_SECOND = 1000
SECONDS = 3
GIB = 1 << 30
END_OF_TIME_MS = 1 << 62
CONFIG = StoreConfig(flush=FlushPolicy(mode=FlushMode.ASYNC_FLUSH))


@contextmanager
def filled_store(messages: int) -> Iterator[Path]:
    """A store of so many 1 KB messages that was closed cleanly."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory:
        path = Path(directory) / "store"
        with MessageStore.open(path, CONFIG) as store:
            for start in range(0, messages, BATCH):
                store.put_batch([message(number) for number in range(start, start + BATCH)])
            seconds_until_dispatched(store, 0)
        yield path


@contextmanager
def opened_log(store: Path) -> Iterator[CommitLog]:
    """The log alone, for reading, its end not looked for yet."""
    log = CommitLog(
        store / "commitlog",
        CONFIG.log_file_bytes,
        store_host=CONFIG.store_host,
        max_body_bytes=CONFIG.max_body_bytes,
        clock=SystemClock(),
        file_system=RealFileSystem(),
        writable=False,
    )
    try:
        yield log
    finally:
        log.close()


@contextmanager
def opened_index(directory: Path) -> Iterator[IndexService]:
    """An index of the default size."""
    index = IndexService(
        directory,
        slot_count=CONFIG.index_slots,
        entry_count=CONFIG.index_entries,
        clock=SystemClock(),
        file_system=RealFileSystem(),
    )
    try:
        index.load()
        yield index
    finally:
        index.close()


def recover_and_rebuild() -> list[Row]:
    """Check every record of a log, then derive all queues and the whole index from it."""
    note = f"CPU, 1 KB messages, pages in memory; kernels: {ready_kernels().name}"
    with filled_store(LOG_MESSAGES) as path, opened_log(path) as log:
        recover_abnormally(log, durable_watermark=None, trusted_timestamp=0)
        start = time.thread_time()
        end = recover_abnormally(log, durable_watermark=None, trusted_timestamp=0).end
        recovery = time.thread_time() - start
        queues = ConsumeQueueStore(
            path / "again" / "queues", CONFIG.queue_file_bytes, file_system=RealFileSystem()
        )
        queues.load()
        with opened_index(path / "again" / "index") as index:
            reader, position = DispatchReader(log), log.min_offset
            start = time.thread_time()
            while position < end:
                batch, position = reader.read(position, end, DISPATCH_BATCH)
                queues.put(batch)
                index.put(batch)
            rebuild = time.thread_time() - start
        queues.close()
    return [
        ("recovery scan with checksums", "s/GiB", recovery / end * GIB, note),
        ("full rebuild of queues and index", "s/GiB", rebuild / end * GIB, note),
    ]


def look_up() -> list[Row]:
    """Find single messages by key, and fetch runs of 32 from a queue."""
    with filled_store(MESSAGES) as path:
        with opened_index(path / "index") as index:
            keys = [f"key-{number * 97 % MESSAGES}" for number in range(LOOKUPS)]
            start = time.perf_counter()
            for key in keys:
                assert index.query("Bench", key, 0, END_OF_TIME_MS, 1)
            lookup = (time.perf_counter() - start) / LOOKUPS
        with MessageStore.open(path, CONFIG) as store:
            start = time.perf_counter()
            for number in range(FETCHES):
                assert len(store.fetch("Bench", number % QUEUES, QueueOffset(number), 32).units)
            fetch = (time.perf_counter() - start) / FETCHES
    return [
        ("key lookup", "us", lookup * 1e6, "in the index, one message has the key"),
        ("fetch of 32", "us", fetch * 1e6, "where they lie, of one queue"),
    ]


def append_to_visible() -> list[Row]:
    """Append at a fixed rate; measure until each message's arrival is told."""
    ready_kernels()
    sent: list[float] = []
    latencies: list[float] = []
    ends = [0] * QUEUES

    def on_arrival(arrivals: Sequence[Arrival]) -> None:
        now = time.perf_counter()
        for _, queue_id, end in arrivals:
            numbers = range(ends[queue_id] * QUEUES + queue_id, end * QUEUES, QUEUES)
            latencies.extend(now - sent[number] for number in numbers)
            ends[queue_id] = end

    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
        MessageStore.open(Path(directory) / "store", CONFIG) as store,
    ):
        store.add_arrival_listener(on_arrival)
        begin = time.perf_counter()
        for number in range(PER_SECOND * SECONDS):
            time.sleep(max(0.0, begin + number / PER_SECOND - time.perf_counter()))
            one = message(number)
            sent.append(time.perf_counter())
            store.put(one)
        seconds_until_dispatched(store, 0)
    assert len(latencies) == PER_SECOND * SECONDS
    latencies.sort()
    note = f"{PER_SECOND} msg/s one by one, ASYNC_FLUSH"
    return [
        (f"append to visible, {name}", "ms", latencies[int(len(latencies) * share)] * 1000, note)
        for name, share in (("p50", 0.5), ("p99", 0.99))
    ]
