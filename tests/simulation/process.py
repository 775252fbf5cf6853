"""One life of a broker's store process on a simulated disk, and what is checked about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.record_format import encode_properties, record_size
from commitbus.commitlog.types import (
    AppendResult,
    Host,
    OutgoingMessage,
    QueueOffset,
)
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.simulation.disk import Disk, Inode
from tests.simulation.files import Faults, SimulatedFileSystem
from tests.simulation.oracle import Found, QueueKey
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError
from tests.simulation.threads import SimulatedClock, installed

STORE: Final = Path("/simulated/store")
_HOST: Final = Host.parse("10.1.2.3", 4567)
_FETCH_MAX: Final = 1000


def store_config(mode: FlushMode, *, log_file_bytes: int = 1 << 14, **changes: Any) -> StoreConfig:
    """Files so small that a few messages fill several."""
    settings: dict[str, Any] = {
        "log_file_bytes": log_file_bytes,
        "queue_file_bytes": 400,
        "index_slots": 20,
        "index_entries": 80,
        "max_body_bytes": log_file_bytes // 2,
        "flush": FlushPolicy(mode, interval_ms=200, pending_bytes_max=1 << 14),
        "checkpoint_interval_ms": 300,
    }
    return StoreConfig(**(settings | changes))


def message(queue: QueueKey, body: bytes, key: str) -> OutgoingMessage:
    """Return a message that can be found by `key` and by a tag."""
    properties = {"UNIQ_KEY": f"u-{key}", "KEYS": key, "TAGS": key[-1]}
    return OutgoingMessage(*queue, body, encode_properties(properties), START_MS, _HOST)


def put_framed(store: MessageStore, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
    """Put messages of one queue as a batch of one buffer; return where each came to lie."""
    first = messages[0]
    batch = FramedBatch(
        first.topic,
        first.queue_id,
        b"".join(part for sent in messages for part in (sent.body, sent.properties)),
        np.array([len(sent.body) for sent in messages], np.int64),
        np.array([len(sent.properties) for sent in messages], np.int64),
        first.born_timestamp,
        first.born_host,
    )
    whole = store.put_framed(batch)
    results: list[AppendResult] = []
    offset = whole.physical_offset
    for number, sent in enumerate(messages):
        size = record_size(len(sent.topic.encode()), len(sent.body), len(sent.properties))
        queue_offset = QueueOffset(whole.queue_offset + number)
        results.append(AppendResult(offset, size, queue_offset, whole.store_timestamp))
        offset = results[-1].end_offset
    assert offset == whole.end_offset
    return results


@final
class Process:
    """The store's process: a scheduler, a clock, a file system, until it ends or dies."""

    def __init__(self, disk: Disk, scheduler: Scheduler, faults: Faults, start_ms: int) -> None:
        self.disk, self.scheduler, self.faults = disk, scheduler, faults
        self.clock = SimulatedClock(scheduler, start_ms)
        self.files = SimulatedFileSystem(disk, scheduler, faults)
        scheduler.on_death = disk.detach
        self.may_lack_units = False
        """Somebody has removed queues."""

    def run(self, function: Callable[[], None]) -> bool:
        """Run it; return whether it ended by itself. Raises what went wrong."""
        try:
            with _stores_seen(self.disk), installed(self.scheduler):
                return self.scheduler.run(function)
        finally:
            # A dead process holds nothing.
            ownership._held.discard(STORE)

    def open(self, config: StoreConfig) -> MessageStore:
        """Open the store.

        Raises:
            SimulationError: A start made good what a checkpoint or a close had promised wrongly.
        """
        store = MessageStore.open(STORE, config, clock=self.clock, file_system=self.files)
        if "units were missing" in store.recovery_summary and not self.may_lack_units:
            raise SimulationError(store.recovery_summary)
        return store

    def remove_derived(self) -> None:
        """Remove the consume queues and the index, which the log tells all about."""
        for path, _ in list(self.disk.files()):
            if {"consumequeue", "index"} & set(path.parts):
                self.files.remove(Path("/") / path)

    def check(self, config: StoreConfig) -> None:
        """Verify a store that was closed, as `commitbus check` does.

        Raises:
            SimulationError: It has problems.
        """
        report = check_store(STORE, config=config, file_system=self.files)
        if not report.was_closed_cleanly:
            raise SimulationError("the abort file is there after a close")
        if report.problems or report.not_in_index or report.not_in_queue:
            raise SimulationError(f"commitbus check: {report.to_json()}")


def found_in(store: MessageStore, key: QueueKey, start_at: int = 0) -> list[Found]:
    """Return the messages of a queue as a consumer gets them.

    Raises:
        SimulationError: The queue is not dense, or a record is another queue's.
    """
    found: list[Found] = []
    units = store.fetch(*key, QueueOffset(start_at), _FETCH_MAX).units
    for expected, unit in enumerate(units, start_at):
        record = store.read(unit.physical_offset)
        facts = (record.topic, record.queue_id, record.queue_offset, record.size_bytes)
        if facts != (*key, expected, unit.size_bytes) or unit.queue_offset != expected:
            raise SimulationError(f"{key} at queue offset {expected}: {unit} leads to {facts}")
        found.append(Found(record.body, unit.physical_offset, unit.size_bytes, expected))
    return found


def all_found(store: MessageStore) -> dict[QueueKey, list[Found]]:
    """Return the messages of every queue."""
    return {key: found_in(store, key) for key in store.queues()}


def check_watermark(disk: Disk, log_file_bytes: int, start_at: int, end: int) -> None:
    """Hold the watermark against what is durable on the disk.

    Raises:
        SimulationError: A power cut would take bytes below it.
    """
    files = {path.name: inode for path, inode in disk.files() if "commitlog" in path.parts}
    for base in range(start_at - start_at % log_file_bytes, end, log_file_bytes):
        inode = files.get(f"{base:020d}")
        low, high = max(start_at - base, 0), min(end - base, log_file_bytes)
        if inode is not None and not _is_durable(inode, low, high):
            raise SimulationError(f"the watermark is {end}, ahead of the disk in file {base}")


def _is_durable(inode: Inode, low: int, high: int) -> bool:
    if inode.durable_meta.size < high:
        return False
    page_bytes = inode.page_bytes
    for number in range(low // page_bytes, -(-high // page_bytes)):
        history = inode.pages.get(number)
        start = number * page_bytes
        durable = history.durable if history else inode.page_of(inode.durable_content, number)
        first, last = max(low - start, 0), min(high - start, page_bytes)
        if durable[first:last] != inode.cache[start + first : start + last]:
            return False
    return True


def derived_files(disk: Disk) -> dict[str, list[bytes]]:
    """Return the bytes of the consume queues by path, and of the index files in order.

    A queue file without a unit says nothing: one may be there for messages that were lost.
    """
    derived: dict[str, list[bytes]] = {}
    for path, inode in disk.files():
        if "consumequeue" in path.parts:
            if any(inode.cache):
                derived[str(path)] = [bytes(inode.cache)]
        elif "index" in path.parts:
            derived.setdefault("index", []).append(bytes(inode.cache))
    return derived
