"""Every disk that a power cut may leave of a short history, each recovered by the real store.

A history is a scripted workload. While it runs, the disk's state and the oracle's promises are
noted at every operation on a file. Of each state every subset of what is not durable is tried, if
they are few, otherwise a seeded sample with the extremes; equal disks of neighbouring states are
recovered once, against the later, stronger promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, final

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import FlushFailedError
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import PAGE_BYTES, CrashState, Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import Found, Oracle, QueueKey
from tests.simulation.process import (
    Process,
    all_found,
    derived_files,
    found_in,
    message,
    put_framed,
    store_config,
    with_padding,
)
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError, repeatable

_FILE_OPERATIONS: Final = (
    "open", "mkdir", "rename", "remove", "sync", "synced", "sync names", "pwrite", "truncate",
    "allocate",
)  # fmt: skip
_LATER_MS: Final = 60_000
_DISKS_PER_MOMENT: Final = 16
_DISKS_FOR_ONE: Final = 40
"""So many are made for each that is recovered."""


class Crash(NamedTuple):
    """What a power cut at one moment may leave, and what had been promised by then."""

    state: CrashState
    oracle: Oracle


@final
class Script:
    """What a history does to a store, told to the oracle."""

    def __init__(self, process: Process, oracle: Oracle, config: StoreConfig) -> None:
        self.process, self.oracle, self.config = process, oracle, config
        self.store: MessageStore | None = None
        self.number = 0

    def open(self) -> None:
        """Open the store; what is found in it is held against the oracle."""
        self.store = self.process.open(self.config)
        self.oracle.recovered(self.process.look_at(self.store, self.oracle), power_cut=True)
        self.store.durable_watermark.listen(self.oracle.durable)

    def put(
        self, *sizes: int, queue: QueueKey = ("T", 0), wait: bool = True, framed: bool = False
    ) -> None:
        """Append a message of each size, as one batch, and wait until it is durable and shown."""
        store = self._open_store()
        bodies = []
        for size in sizes:
            self.number += 1
            bodies.append(b"%04d" % self.number + b"x" * size)
        sent = self.oracle.sending(queue, bodies)
        messages = [message(queue, body, body[:4].decode()) for body in bodies]
        if framed:
            results = put_framed(store, messages)
        else:
            results = [store.put(messages[0])] if len(sizes) == 1 else store.put_batch(messages)
        self.oracle.appended(sent, results)
        if wait:
            store.durable_watermark.wait(results[-1].end_offset)
            self.oracle.durable(results[-1].end_offset)
            store.dispatched.wait(results[-1].end_offset)

    def pause(self, seconds: float) -> None:
        """Let the background do what it does."""
        self.process.scheduler.sleep(seconds)

    def close(self) -> None:
        """Close the store."""
        self._open_store().close()
        self.store = None

    def _open_store(self) -> MessageStore:
        assert self.store is not None, "the history opens it first"
        return self.store


History = Callable[[Script], None]


def one_by_one(script: Script) -> None:
    """Small messages, and one that lies across a page boundary."""
    script.open()
    for size in (30, 3900, 30):
        script.put(size)


def unacknowledged(script: Script) -> None:
    """Several messages that nobody waits for, two queues, then a pause."""
    script.open()
    for number, size in enumerate((30, 3000, 3000, 30)):
        script.put(size, queue=("T", number % 2), wait=False)
    script.pause(0.5)


def batches(script: Script) -> None:
    """Batches that lie across page boundaries."""
    script.open()
    script.put(30, 30, 30)
    script.put(1500, 1500, 1500, 1500)


def framed(script: Script) -> None:
    """Batches of one buffer, across page boundaries and into a second log file."""
    script.open()
    script.put(30, 30, 30, framed=True)
    for _ in range(3):
        script.put(1500, 1500, 1500, framed=True)


def rolling(script: Script) -> None:
    """Three log files, two queue files, two index files."""
    script.open()
    for _ in range(5):
        script.put(3500, wait=False)
    script.put(*([20] * 22))
    script.put(3500)


def checkpoints(script: Script) -> None:
    """Long enough for checkpoints that are trusted: they count from three seconds back."""
    script.open()
    for _ in range(3):
        script.put(30)
        script.put(30, queue=("T", 1))
        script.pause(5.0)


def closing(script: Script) -> None:
    """A clean close, another start, and a close again."""
    script.open()
    script.put(100)
    script.close()
    script.open()
    script.put(100, wait=False)
    script.close()


HISTORIES: Final[tuple[History, ...]] = (
    one_by_one, unacknowledged, batches, framed, rolling, checkpoints, closing,
)  # fmt: skip


@dataclass
class Counts:
    """What was looked at."""

    moments: int = 0
    disks: int = 0
    """Legal disk states, equal ones counted once."""
    exhausted: int = 0
    """Moments of which every subset was looked at."""


def config_of(mode: FlushMode) -> StoreConfig:
    """Return the sizes of the histories' stores: two pages to a log file."""
    return store_config(mode, log_file_bytes=1 << 13, max_body_bytes=4000)


def record(
    history: History, mode: FlushMode, seed: int, *, page_bytes: int = PAGE_BYTES
) -> list[Crash]:
    """Run a history to its end; return all its moments."""
    scheduler = Scheduler(f"{history.__name__} {mode} {seed}", switch_probability=0.2)
    process = Process(Disk(page_bytes), scheduler, Faults(), START_MS)
    oracle = Oracle(is_sync=mode is FlushMode.SYNC_FLUSH)
    crashes: list[Crash] = []

    def note(label: str) -> None:
        if label.startswith(_FILE_OPERATIONS):
            crashes.append(Crash(process.disk.state(), oracle.copy()))

    scheduler.on_point = note
    script = Script(process, oracle, config_of(mode))
    process.run(lambda: history(script))
    return crashes


def crash_everywhere(
    history: History,
    mode: FlushMode,
    *,
    seed: int,
    per_moment_max: int,
    in_all_max: int,
    page_bytes: int = PAGE_BYTES,
) -> Counts:
    """Recover every disk that a power cut may leave of a history.

    Args:
        history: What runs before the cut.
        mode: The flush mode.
        seed: Of the schedule, and of the choice where there are too many disks.
        per_moment_max: A moment with more disks than this is sampled.
        in_all_max: Disks that are recovered, spread evenly over the moments.
        page_bytes: What reaches the disk whole: a page, or a sector.

    Raises:
        SimulationError: One of them breaks a promise.
    """
    rng = repeatable(f"disks of {history.__name__} {mode} {seed}")
    crashes = record(history, mode, seed, page_bytes=page_bytes)
    counts = Counts(moments=len(crashes))
    found: dict[int, tuple[Disk, Oracle]] = {}
    # Many more than are recovered need not be made; where few are, all of a moment's are.
    wanted = max(_DISKS_PER_MOMENT, _DISKS_FOR_ONE * in_all_max // len(crashes))
    wanted = min(wanted, per_moment_max)
    for state, oracle in crashes:
        counts.exhausted += state.subset_count <= wanted
        for disk in state.disks(rng, wanted):
            found[disk.checksum()] = (disk, oracle)
    counts.disks = len(found)
    chosen = list(found.values())
    if len(chosen) > in_all_max:
        chosen = rng.sample(chosen, in_all_max)
    for number, (disk, oracle) in enumerate(chosen):
        try:
            recover(disk, oracle.copy(), config_of(mode), derive_anew=number % 8 == 0)
        except Exception as error:
            raise SimulationError(
                f"{history.__name__}, {mode}, seed {seed}, disk {number}: {error!r}"
            ) from error
    return counts


def recover(disk: Disk, oracle: Oracle, config: StoreConfig, *, derive_anew: bool) -> None:
    """Recover a disk twice, use it, close it, check it, and perhaps derive queues and index anew.

    Raises:
        SimulationError: A promise is broken.
    """
    first: dict[QueueKey, list[Found]] = {}
    ends: list[int] = []

    def start() -> MessageStore:
        store = process.open(config)
        found = all_found(store)
        oracle.recovered(process.look_at(store, oracle), power_cut=not ends)
        if ends and (found, store.end_offset) != (first, ends[0]):
            raise SimulationError("a second recovery finds something else")
        first.update(found)
        ends.append(store.end_offset)
        return store

    def die() -> None:
        start()
        process.scheduler.die()

    def use() -> None:
        store = start()
        script = Script(process, oracle, config)
        script.number = 5000
        script.store = store
        for key in sorted({("T", 0), *store.queues()}):
            script.put(10, queue=key)
            found = found_in(store, key)[0]
            if len(found) != len(first.get(key, ())) + 1:
                raise SimulationError(f"{key} has {len(found)} messages after one was put")
            oracle.shown(key, found[-1])
        store.close()
        process.check(config)

    for number, act in enumerate((die, use), 1):
        process = Process(disk, Scheduler(number), Faults(), START_MS + _LATER_MS * number)
        process.run(act)
    if derive_anew:
        rebuild(disk, config)


def rebuild(disk: Disk, config: StoreConfig, *, compares_bytes: bool = True) -> None:
    """Derive queues and index of a closed store from its log.

    Raises:
        SimulationError: They are not what they were, byte for byte if `compares_bytes`. Only units
            before a queue's first may become padding: those of a deleted topic stay in the file in
            which messages have followed before the deletion was noted.
    """
    before = derived_files(disk)
    begins: dict[QueueKey, int] = {}
    process = Process(disk, Scheduler("rebuild"), Faults(), START_MS + 10 * _LATER_MS)

    def derive() -> None:
        before = _messages(process, config, begins)
        process.remove_derived()
        if _messages(process, config, {}) != before:
            raise SimulationError("derived anew from the log, the queues have other messages")

    process.run(derive)
    if not compares_bytes:
        return
    after = derived_files(disk)
    padded = with_padding(before, begins)
    names = [
        n for n in sorted({*before, *after}) if after.get(n) not in (before.get(n), padded.get(n))
    ]
    if names:
        raise SimulationError(f"derived anew from the log, {names} differ")


def _messages(
    process: Process, config: StoreConfig, begins: dict[QueueKey, int]
) -> dict[QueueKey, list[Found]]:
    """Return the messages of each queue that has any; put into `begins` where these begin."""
    store = process.open(config)
    begins.update({key: store.min_offset(*key) for key in store.queues()})
    found = {key: messages for key, messages in all_found(store).items() if messages}
    store.close()
    return found


def killed_between_any_two_lines(
    history: History, mode: FlushMode, traced_files: frozenset[str], *, step: int
) -> Iterator[int]:
    """Kill a history at every `step`-th point, lines of the traced files included.

    Yields:
        The points, each after what is left was recovered and nothing was missing.

    Raises:
        SimulationError: A promise is broken.
    """
    point = 1
    while True:
        oracle = Oracle(is_sync=mode is FlushMode.SYNC_FLUSH)
        scheduler = Scheduler("killed", traced_files=traced_files)
        scheduler.dies_at = point
        process = Process(Disk(), scheduler, Faults(), START_MS)
        if process.run(partial(history, Script(process, oracle, config_of(mode)))):
            return
        again = Process(process.disk, Scheduler("again"), Faults(), START_MS + _LATER_MS)

        def check(again: Process = again, oracle: Oracle = oracle) -> None:
            store = again.open(config_of(mode))
            oracle.recovered(again.look_at(store, oracle), power_cut=False)
            store.close()
            again.check(config_of(mode))

        again.run(check)
        yield point
        point += step


def power_cut_after_failed_sync(seed: int) -> None:
    """Let a sync of the log fail, kill the process, start again, and cut the power.

    What the second start found counts as durable, though the kernel takes some of its pages for
    clean that never reached the disk.

    Raises:
        SimulationError: It was lost.
    """
    config = config_of(FlushMode.SYNC_FLUSH)
    oracle = Oracle(is_sync=True)
    faults = Faults()
    first = Process(Disk(), Scheduler(f"failed sync {seed}"), faults, START_MS)

    def fail() -> None:
        script = Script(first, oracle, config)
        script.open()
        script.put(30)
        faults.sync_failure_probability = 1.0
        try:
            script.put(3000)
        except FlushFailedError:
            first.scheduler.die()
        raise SimulationError("a message was acknowledged though its sync failed")

    first.run(fail)
    second = Process(first.disk, Scheduler(seed), Faults(), START_MS + _LATER_MS)

    def start() -> None:
        store = second.open(config)
        oracle.recovered(second.look_at(store, oracle), power_cut=False)
        second.scheduler.die()

    second.run(start)
    rng = repeatable(seed)
    for left in second.disk.state().disks(rng, 8):
        recover(left, oracle.copy(), config, derive_anew=False)


def equal_sizes(script: Script) -> None:
    """Messages that could take each other's place."""
    script.open()
    for _ in range(6):
        script.put(500, wait=False)
    script.pause(0.5)


def lost_stays_lost(seed: int) -> None:
    """Cut the power, put a message into the place of one that was lost, and kill the process.

    The record that lay behind the lost one, and was cut with it, must not be a message again.

    Raises:
        SimulationError: It is.
    """
    mode = FlushMode.ASYNC_FLUSH
    config = config_of(mode)
    rng = repeatable(seed)
    for state, promised in record(equal_sizes, mode, seed, page_bytes=512)[-40:]:
        disk, oracle = state.sample(rng), promised.copy()
        # Nobody else runs before the kill: the rest of the file is not warmed.
        first = Process(disk, Scheduler(seed, switch_probability=0.0), Faults(), START_MS)

        def put(process: Process = first, oracle: Oracle = oracle) -> None:
            script = Script(process, oracle, config)
            script.number = 5000
            script.open()
            script.put(500, wait=False)
            process.scheduler.die()

        first.run(put)
        second = Process(disk, Scheduler(seed), Faults(), START_MS + _LATER_MS)

        def check(process: Process = second, oracle: Oracle = oracle) -> None:
            store = process.open(config)
            oracle.recovered(process.look_at(store, oracle), power_cut=False)
            store.close()
            process.check(config)

        second.run(check)
