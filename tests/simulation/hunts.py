"""Short runs that come to one point sooner than the simulation does, each given a seed."""

from __future__ import annotations

from typing import Final

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.retention import NEVER_PERCENT, RetentionPolicy
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process, message, store_config
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError

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
            store.wait_dispatched(store.end_offset)
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
        store.add_durable_listener(oracle.durable)
        for number in range(40):
            put(store, number)
        store.wait_dispatched(store.end_offset)
        process.faults.unsyncable = "commitlog"
        scheduler.sleep(_AGES_KNOWN_S)
        process.faults.unsyncable = None
        for number in range(scheduler.rng.randrange(10, 40)):
            put(store, number + 40)
        store.wait_dispatched(store.end_offset)
        scheduler.sleep(_AGES_KNOWN_S)
        store.close()
        store = process.open(config)
        oracle.recovered(process.look_at(store, oracle), power_cut=False)
        store.close()

    try:
        process.run(run)
    except StoreError as error:
        raise SimulationError(f"seed {seed}: {error!r}") from error
