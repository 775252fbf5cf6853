"""`commitbus salvage` of a store, killed several times before it ends."""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.salvage import salvage_store
from commitbus.broker.store.store_reader import StoreReader
from commitbus.commitlog.errors import StoreError
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.oracle import QueueKey
from tests.simulation.process import STORE, Process, all_found
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError

OUT: Final = STORE.with_name("salvaged")
_LATER_MS: Final = 1_000_000


def kill_salvages(disk: Disk, config: StoreConfig, rng: random.Random) -> None:
    """Salvage a store that was closed, with kills and power cuts on the way.

    Raises:
        SimulationError: What a killed salvage left is taken for a whole store, or a whole one lacks
            a message.
    """
    expected: dict[QueueKey, list[bytes]] = {}
    process = _process(disk, rng)

    def read() -> None:
        with MessageStore.open_read_only(STORE, config, file_system=process.files) as reader:
            expected.update(_bodies(reader))

    process.run(read)
    for _ in range(rng.randint(1, 3)):
        process = _process(disk, rng)
        process.scheduler.dies_at = rng.randrange(1, rng.choice((50, 200, 600)))
        if process.run(partial(_salvage, process, config)):
            break
        if rng.random() < 0.5:
            disk = disk.state().sample(rng)
        process = _process(disk, rng)
        process.run(partial(_use_what_is_left, process, config, expected))
        process = _process(disk, rng)
        process.run(partial(process.remove_tree, OUT))
    process = _process(disk, rng)

    def end() -> None:
        process.remove_tree(OUT)
        _salvage(process, config)
        if not any(expected.values()):
            return
        report = check_store(OUT, config=config, file_system=process.files)
        if report.problems or not report.was_closed_cleanly:
            raise SimulationError(f"a salvaged store is damaged: {report.to_json()}")
        with MessageStore.open_read_only(OUT, config, file_system=process.files) as reader:
            _compare(_bodies(reader), expected)

    process.run(end)


def _process(disk: Disk, rng: random.Random) -> Process:
    scheduler = Scheduler(f"salvage {rng.random()}")
    return Process(disk, scheduler, Faults(), START_MS + _LATER_MS)


def _salvage(process: Process, config: StoreConfig) -> None:
    salvage_store(
        STORE,
        OUT,
        config=config,
        clock=process.clock,
        file_system=process.files,
        threads=process.threads,
    )


def _use_what_is_left(
    process: Process, config: StoreConfig, expected: dict[QueueKey, list[bytes]]
) -> None:
    """Open what a killed salvage left, for writing, as somebody would who did not see the kill."""
    if not process.files.list_names(OUT / "commitlog"):
        return
    try:
        store = MessageStore.open(
            OUT, config, clock=process.clock, file_system=process.files, threads=process.threads
        )
    except StoreError:
        return
    _compare(_bodies(store), expected)
    store.close()


def _bodies(store: StoreReader) -> dict[QueueKey, list[bytes]]:
    return {key: [item.body for item in found] for key, found in all_found(store).items()}


def _compare(salvaged: dict[QueueKey, list[bytes]], expected: dict[QueueKey, list[bytes]]) -> None:
    """Hold queues against those of the store. Messages of deleted topics are there before."""
    for key, bodies in expected.items():
        if salvaged.get(key, [])[-len(bodies) :] != bodies and bodies:
            raise SimulationError(
                f"{key} has {len(bodies)} messages, and {len(salvaged.get(key, []))} in a salvaged "
                "store that opens as if it were whole"
            )
