"""Short runs that come to one point sooner than the simulation does, each given a seed."""

from __future__ import annotations

from typing import Final

from commitbus.commitlog.errors import StoreError
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process, message, store_config
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError

_ROUNDS: Final = 12
_QUEUES: Final = 4


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
