"""One life of a broker's store process on a simulated disk, and what is checked about it."""

from __future__ import annotations

import gc
import importlib.util
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import StoreReader
from commitbus.commitlog.errors import OffsetOutOfRangeError, ReadFailedError
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.kernels import KernelChoice, choice
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import (
    AppendResult,
    Host,
    OutgoingMessage,
    QueueOffset,
)
from commitbus.consumequeue.unit_format import PADDING_BYTES, UNIT_BYTES, decode_unit
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.records import record_size
from tests.simulation.disk import Disk, Inode
from tests.simulation.files import PLENTY, Faults, SimulatedFileSystem
from tests.simulation.oracle import Found, Oracle, QueueKey, Seen
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError
from tests.simulation.threads import SimulatedClock, SimulatedThreads

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
        self.threads = SimulatedThreads(scheduler)
        scheduler.on_death = disk.detach
        self.may_lack_units = False
        """Somebody has removed queues."""
        self.may_lack_entries = False
        """The index may have passed over messages that could not be read, in a life before."""

    def run(self, function: Callable[[], None]) -> bool:
        """Run it; return whether it ended by itself. Raises what went wrong."""
        with _kernels_of(self.scheduler):
            return self.scheduler.run(function)

    def open(self, config: StoreConfig) -> MessageStore:
        """Open the store.

        Raises:
            SimulationError: A start made good what a checkpoint or a close had promised wrongly.
        """
        store = MessageStore.open(
            STORE, config, clock=self.clock, file_system=self.files, threads=self.threads
        )
        if "units were missing" in store.recovery_summary and not self.may_lack_units:
            raise SimulationError(store.recovery_summary)
        return store

    def look_at(self, store: MessageStore, oracle: Oracle) -> Seen:
        """Return what a store shows, of its queues and of those that the oracle knows.

        Retention may run beside: looked at again until nothing changes meanwhile.
        """
        while True:
            found = all_found(store)
            keys = sorted({*oracle.queues, *found})
            seen = Seen(
                found,
                {key: store.min_offset(*key) for key in keys},
                {key: store.queue_end(*key) for key in keys},
                store.min_physical_offset,
                store.end_offset,
                self.clock.true_ms(),
            )
            begins = {key: messages[0].queue_offset for key, messages in found.items() if messages}
            if all(seen.first_offsets[key] == begin for key, begin in begins.items()):
                return seen
            self.scheduler.sleep(0.01)

    @contextmanager
    def everything_readable(self) -> Iterator[None]:
        """Let a test look at files that the store cannot read, or has no descriptors for."""
        faults = self.faults
        before = faults.reads_fail, faults.descriptors_max
        faults.reads_fail, faults.descriptors_max = False, PLENTY
        try:
            yield
        finally:
            faults.reads_fail, faults.descriptors_max = before

    def check_what_is_sound(self, config: StoreConfig, oracle: Oracle) -> None:
        """See that nothing is missing in a store, as it lies there, that the check calls sound.

        Raises:
            SimulationError: Something is.
        """
        if not self.files.is_directory(STORE / "commitlog"):
            return
        with self.everything_readable():
            self._check_what_is_sound(config, oracle)

    def _check_what_is_sound(self, config: StoreConfig, oracle: Oracle) -> None:
        report = check_store(STORE, config=config, file_system=self.files)
        unseen = report.problems or report.not_in_index or report.not_in_queue
        if unseen or not report.was_closed_cleanly:
            return
        with MessageStore.open_read_only(STORE, config, file_system=self.files) as reader:
            oracle.check_complete(all_found(reader), reader.min_physical_offset, reader.end_offset)

    def check_descriptors(self, when: str) -> None:
        """See that nothing of the store is open any more.

        Raises:
            SimulationError: Something is.
        """
        if self.files.descriptors:
            # An error that was caught may keep the frames that it went through, and their files.
            gc.collect()
        if self.files.descriptors:
            raise SimulationError(f"open after {when}: {sorted(self.files.descriptors)}")

    def remove(self, names: Collection[str]) -> None:
        """Remove, durably, files and directories of the store with what is in them."""
        self.may_lack_units |= "consumequeue" in names
        directories: set[Path] = set()
        for path, _ in list(self.disk.files()):
            if path.is_relative_to(STORE.relative_to("/")) and set(names) & set(path.parts):
                self.files.remove(Path("/") / path)
                directories.add(Path("/") / path.parent)
        for directory in sorted(directories):
            self.files.sync_directory(directory)

    def remove_tree(self, directory: Path) -> None:
        """Remove a directory and all that is in it, durably."""
        files = self.files
        for name in files.list_names(directory):
            path = directory / name
            if files.is_directory(path):
                self.remove_tree(path)
            else:
                files.remove(path)
        if files.is_directory(directory):
            files.remove(directory)
            files.sync_directory(directory.parent)

    def remove_derived(self) -> None:
        """Remove the consume queues and the index, which the log tells all about."""
        self.remove(("consumequeue", "index"))

    def check(self, config: StoreConfig) -> None:
        """Verify a store that was closed, as `commitbus check` does.

        Unreadable pages are problems, or an error that says so, and all is well without them.

        Raises:
            SimulationError: It has problems.
        """
        if any(inode.unreadable for _, inode in self.disk.files()):
            with suppress(ReadFailedError):
                check_store(STORE, config=config, file_system=self.files)
        with self.everything_readable():
            self._check(config)

    def _check(self, config: StoreConfig) -> None:
        report = check_store(STORE, config=config, file_system=self.files)
        if not report.was_closed_cleanly:
            raise SimulationError("the abort file is there after a close")
        problems, not_in_index = report.problems, report.not_in_index
        if self.may_lack_entries or self.files.read_failures:
            # The check says so, and that is right: whoever removes the index has it made anew.
            problems = [problem for problem in problems if "no entry for" not in problem.what]
            not_in_index = 0
        if problems or not_in_index or report.not_in_queue:
            raise SimulationError(f"commitbus check: {report.to_json()}")


def found_in(
    store: StoreReader,
    key: QueueKey,
    start_at: int = 0,
    on_unreadable: Callable[[ReadFailedError], None] | None = None,
) -> tuple[list[Found], int]:
    """Return the messages of a queue as a consumer gets them, and where it goes on.

    Raises:
        SimulationError: The queue is not dense, or a record is another queue's.
        ReadFailedError: A message cannot be read; with `on_unreadable`, that is told and the next
            one is read.
    """
    found: list[Found] = []
    result = store.fetch(*key, QueueOffset(start_at), _FETCH_MAX)
    units = result.units
    for expected, unit in enumerate(units, units[0].queue_offset if units else 0):
        try:
            record = store.read(unit.physical_offset)
        except ReadFailedError as error:
            if on_unreadable is None:
                raise
            on_unreadable(error)
            continue
        except OffsetOutOfRangeError:
            if unit.physical_offset >= store.min_physical_offset:
                raise
            # Retention was faster, and has deleted those before as well.
            found.clear()
            continue
        facts = (record.topic, record.queue_id, record.queue_offset, record.size_bytes)
        if facts != (*key, expected, unit.size_bytes) or unit.queue_offset != expected:
            raise SimulationError(f"{key} at queue offset {expected}: {unit} leads to {facts}")
        found.append(Found(record.body, unit.physical_offset, unit.size_bytes, expected))
    return found, result.next_offset


def all_found(store: StoreReader) -> dict[QueueKey, list[Found]]:
    """Return the messages of every queue."""
    return {key: found_in(store, key)[0] for key in store.queues()}


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


def with_padding(
    files: Mapping[str, list[bytes]], begins: Mapping[QueueKey, int]
) -> dict[str, list[bytes]]:
    """Return the files with padding for messages that lie before the first of their queue.

    Args:
        files: What `derived_files` has returned.
        begins: The first queue offset of each queue.
    """
    padded = dict(files)
    for name in files:
        if "consumequeue" in name:
            *_, topic, queue_id, base = Path(name).parts
            data = bytearray(files[name][0])
            hidden = begins.get((topic, int(queue_id)), 0) * UNIT_BYTES - int(base)
            for position in range(0, min(hidden, len(data)), UNIT_BYTES):
                if decode_unit(memoryview(data), position).is_written:
                    data[position : position + UNIT_BYTES] = PADDING_BYTES
            padded[name] = [bytes(data)]
    return padded


@cache
def _kernel_choices() -> tuple[KernelChoice, ...]:
    """Return the kernels that there are. None of them changes while a store runs."""
    if importlib.util.find_spec("numba") is None:
        return (KernelChoice("python"),)
    return (KernelChoice("python"), KernelChoice("numba"))


@contextmanager
def _kernels_of(scheduler: Scheduler) -> Iterator[None]:
    """Let the seed choose the kernels, which otherwise real time does: when they are loaded."""
    original, choices = choice._choice, _kernel_choices()
    chosen = choices[zlib.crc32(str(scheduler.seed).encode()) % len(choices)]
    choice._choice = lambda: chosen  # type: ignore[assignment]  # a function with a cache
    try:
        yield
    finally:
        choice._choice = original
