"""Short runs that come to one point sooner than the simulation does, each given a seed."""

from __future__ import annotations

import random
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from commitbus.broker.store.checkpoint_service import SETTLE_INTERVAL_S
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.retention import NEVER_PERCENT, RetentionPolicy
from commitbus.consumequeue.queue_states import QUEUE_STATES_PATH
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import CrashState, Directory, Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import Oracle, QueueKey
from tests.simulation.process import Process, message, store_config
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError, repeatable

_ROUNDS: Final = 12
_QUEUES: Final = 4
_AGES_KNOWN_S: Final = 660.0


def topics_come_and_go(seed: int) -> None:
    """Make topics, fill them and delete them again, beside checkpoints without a pause.

    Raises:
        SimulationError: The store fails, or is not as it must be afterwards.
    """
    scheduler = Scheduler(f"topics {seed}", switch_probability=0.1)
    process = Process(Disk(), scheduler, Faults(sync_s=(0.0, 0.002), operation_s=0.001), START_MS)
    config = store_config(FlushMode.SYNC_FLUSH, checkpoint_interval_ms=1)
    oracle = Oracle(is_sync=True)

    def fail(error: StoreError) -> None:
        scheduler.fail(SimulationError(f"the store fails: {error!r}"))

    def run() -> None:
        store = process.open(config)
        store.add_failure_listener(fail)
        for number in range(_ROUNDS):
            for queue_id in range(_QUEUES):
                key, body = ("T", queue_id), b"%02d %d" % (number, queue_id)
                sent = oracle.sending(key, [body])
                oracle.appended(sent, [store.put(message(key, body, body.decode()))])
            store.dispatched.wait(store.end_offset)
            scheduler.sleep(scheduler.rng.choice((0.0, 0.001, 0.002, 0.01)))
            deletion = oracle.deleting("T")
            store.delete_topic("T")
            oracle.deleted(deletion)
        oracle.recovered(process.look_at(store, oracle), power_cut=False)
        store.close()
        process.check(config)

    process.run(run)


def deletions_that_fail(seed: int) -> None:
    """Let retention delete files while their directory cannot be synced, and once more when it can.

    Raises:
        SimulationError: The store does not open afterwards, or lacks a message.
    """
    scheduler = Scheduler(f"deletions {seed}", switch_probability=0.1)
    process = Process(Disk(), scheduler, Faults(), START_MS)
    policy = RetentionPolicy(0, frozenset(range(24)), *[NEVER_PERCENT] * 3)
    config = store_config(FlushMode.SYNC_FLUSH, log_file_bytes=1 << 13, retention=policy)
    oracle = Oracle(is_sync=True, reserved_ms=0)

    def put(store: MessageStore, number: int) -> None:
        body = b"%02d" % number + b"x" * scheduler.rng.randrange(2000)
        sent = oracle.sending(("T", 0), [body], now_ms=process.clock.true_ms())
        oracle.appended(sent, [store.put(message(("T", 0), body, "k"))])

    def run() -> None:
        store = process.open(config)
        store.durable_watermark.listen(oracle.durable)
        for number in range(40):
            put(store, number)
        store.dispatched.wait(store.end_offset)
        process.faults.unsyncable = "commitlog"
        scheduler.sleep(_AGES_KNOWN_S)
        process.faults.unsyncable = None
        for number in range(scheduler.rng.randrange(10, 40)):
            put(store, number + 40)
        store.dispatched.wait(store.end_offset)
        scheduler.sleep(_AGES_KNOWN_S)
        store.close()
        store = process.open(config)
        oracle.recovered(process.look_at(store, oracle), power_cut=False)
        store.close()

    try:
        process.run(run)
    except StoreError as error:
        raise SimulationError(f"seed {seed}: {error!r}") from error


def cut_units_stay_cut(seed: int) -> None:
    """Lose messages whose units are durable; kill the start that cuts them, and go on elsewhere.

    The next start finds nothing to cut. Once the log is past the places of the lost messages, a
    power cut must not bring their units back. No start has the states of the queues.

    Raises:
        SimulationError: It does.
    """
    config = store_config(FlushMode.ASYNC_FLUSH, checkpoint_interval_ms=10)
    rng = repeatable(seed)
    oracle = Oracle(is_sync=False)
    disk = _disk_with_units_of_lost_messages(config, oracle, rng)

    def start(process: Process) -> None:
        store = process.open(config)
        oracle.recovered(process.look_at(store, oracle), power_cut=True)
        process.scheduler.die()

    def go_on(process: Process) -> None:
        store = process.open(config)
        oracle.recovered(process.look_at(store, oracle), power_cut=False)
        store.durable_watermark.listen(oracle.durable)
        for number in range(8):
            _put(oracle, store, ("T", 1), b"%02d" % (50 + number) + b"y" * 500)
            process.scheduler.sleep(1.0)
        process.scheduler.die()

    for number, act in enumerate((start, go_on, start)):
        process = Process(disk, Scheduler(f"cut {seed} {number}"), Faults(), START_MS + 60_000)
        _remove_states(disk)
        process.run(partial(act, process))
        if number:
            state = disk.state()
            disk = state.disk([0] * len(state.axes))


def stray_units_stay_cut(seed: int) -> None:
    """Lose messages whose units are durable; kill a process that has cut them behind its start.

    The next one finds nothing to cut, and closes the store. A power cut must not bring them back.

    Raises:
        SimulationError: It does.
    """
    config = store_config(FlushMode.ASYNC_FLUSH, checkpoint_interval_ms=10)
    oracle = Oracle(is_sync=False)
    disk = _disk_with_units_of_lost_messages(config, oracle, repeatable(seed))

    def settle(process: Process) -> None:
        process.open(config)
        process.scheduler.sleep(SETTLE_INTERVAL_S * 1.5)
        process.scheduler.die()

    def go_on(process: Process) -> None:
        store = process.open(config)
        for number in range(8):
            _put(oracle, store, ("T", 1), b"%02d" % (50 + number) + b"y" * 500)
        store.close()

    for number, act in enumerate((settle, go_on)):
        process = Process(disk, Scheduler(f"stray {seed} {number}"), Faults(), START_MS + 60_000)
        process.run(partial(act, process))
    state = disk.state()
    disk = state.disk([0] * len(state.axes))
    Process(disk, Scheduler(seed), Faults(), START_MS + 120_000).check(config)


def _remove_states(disk: Disk) -> None:
    notes = disk.find(PurePosixPath("simulated/store", QUEUE_STATES_PATH.parent))
    if isinstance(notes, Directory):
        for names in (notes.entries, notes.durable):
            names.pop(QUEUE_STATES_PATH.name, None)


def _put(oracle: Oracle, store: MessageStore, key: QueueKey, body: bytes) -> None:
    sent = oracle.sending(key, [body])
    oracle.appended(sent, [store.put(message(key, body, body[:2].decode()))])


def _disk_with_units_of_lost_messages(
    config: StoreConfig, oracle: Oracle, rng: random.Random
) -> Disk:
    """Return what a power cut left: all of the queues, of the log what was synced."""
    process = Process(Disk(512), Scheduler(f"lost {rng.random()}"), Faults(), START_MS)
    states: list[CrashState] = []

    def run() -> None:
        store = process.open(config)
        oracle.recovered(process.look_at(store, oracle), power_cut=False)
        store.durable_watermark.listen(oracle.durable)
        _put(oracle, store, ("T", 0), b"00")
        process.scheduler.sleep(1.0)
        for number in range(1, rng.randint(2, 6)):
            _put(oracle, store, ("T", 0), b"%02d" % number + b"x" * 500)
        store.dispatched.wait(store.end_offset)
        states.append(process.disk.state())
        process.scheduler.die()

    process.run(run)
    return states[0].disk(states[0].one_part("consumequeue", survives=True))
