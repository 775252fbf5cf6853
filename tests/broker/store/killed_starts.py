"""Stores on a simulated disk whose starts, retention and salvage are killed, again and again.

A kill comes at a numbered point: before each operation on a file, and, in the files that are
traced, before each line. What it leaves is a copy of the disk, so that one disk serves many kills.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from commitbus.broker.store import start
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.retention import HOUR_MS, RetentionPolicy
from commitbus.consumequeue import consume_queue, consume_queue_store
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import QueueKey
from tests.simulation.process import Process, derived_files, message, store_config
from tests.simulation.scheduler import START_MS, Scheduler

CONFIG: Final = store_config(
    FlushMode.ASYNC_FLUSH,
    log_file_bytes=1 << 13,
    # Every hour of the day, so that no test depends on the time zone.
    retention=RetentionPolicy(delete_hours=frozenset(range(24))),
)
QUEUES: Final[tuple[QueueKey, ...]] = (("T", 0), ("T", 1), ("U", 0))
TRACED: Final = frozenset(
    inspect.getfile(module) for module in (start, consume_queue, consume_queue_store)
)
LATER_MS: Final = 60_000
EXPIRED_MS: Final = 100 * HOUR_MS

Act = Callable[[Process], None]


def live(
    disk: Disk,
    act: Act,
    *,
    dies_at: int | None = None,
    traced: bool = False,
    later_ms: int = LATER_MS,
) -> int:
    """Run one process on a disk; return how many points it came to."""
    scheduler = Scheduler("life", traced_files=TRACED if traced else frozenset())
    scheduler.dies_at = dies_at
    process = Process(disk, scheduler, Faults(), START_MS + later_ms)
    process.may_lack_units = True
    process.run(partial(act, process))
    return scheduler.points


def copied(disk: Disk) -> Disk:
    """Return a disk of its own with the same files, durable or not."""
    return copy.deepcopy(disk)


def put(process: Process, store: MessageStore, count: int) -> None:
    """Put messages to the queues in turn, slowly enough for a checkpoint that is trusted."""
    for number in range(count):
        if number % 20 == 0:
            process.scheduler.sleep(4.0)
        key = QUEUES[number % len(QUEUES)]
        store.put(message(key, b"%04d" % number + b"x" * 200, f"{number}"))
    store.durable_watermark.wait(store.end_offset)
    store.dispatched.wait(store.end_offset)


def fill(process: Process, *, closes: bool = True) -> None:
    """Make a store of several log, queue and index files."""
    store = process.open(CONFIG)
    put(process, store, 90)
    if closes:
        store.close()
    else:
        process.scheduler.die()


def stay_open(process: Process) -> None:
    """Open a store, and let it be for long enough that a checkpoint is saved; then die."""
    process.open(CONFIG)
    process.scheduler.sleep(1.0)
    process.scheduler.die()


def close(process: Process) -> None:
    """Open a store and close it; it must be sound then."""
    process.open(CONFIG).close()
    process.check(CONFIG)


def without(disk: Disk, *parts: str) -> Disk:
    """Remove directories of a store, as an operator does to have them derived anew."""
    disk = copied(disk)

    def remove(process: Process) -> None:
        for path, _ in list(disk.files()):
            if set(parts) & set(path.parts):
                process.files.remove(Path("/") / path)
                process.files.sync_directory((Path("/") / path).parent)

    live(disk, remove)
    return disk


def settled(disk: Disk) -> dict[str, list[bytes]]:
    """Return queues and index of a disk after an undisturbed start and a close."""
    disk = copied(disk)
    live(disk, close, later_ms=5 * LATER_MS)
    return derived_files(disk)


def killed(
    disk: Disk,
    act: Act,
    *,
    traced: bool = False,
    step: int = 1,
    first: int = 1,
    later_ms: int = LATER_MS,
) -> Iterator[tuple[int, Disk]]:
    """Yield what is left of a disk when `act` is killed at every `step`-th point."""
    point = first
    while True:
        left = copied(disk)
        if live(left, act, dies_at=point, traced=traced, later_ms=later_ms) < point:
            return
        yield point, left
        point += step
