"""A store with very many queues, and what its starts, checkpoints and deletions cost.

`python -m bench.many_queues DIRECTORY --queues 80000` makes one, unless it is there, and prints the
figures. Nothing is synced while it is made: only this machine's page cache has it then.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from bench.measure import Row
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import ABORT
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import Host, OutgoingMessage

QUEUES: Final = 80_000
QUEUES_PER_TOPIC: Final = 16
CHANGED: Final = 100
"""Queues that get a message between two checkpoints."""
DELETIONS: Final = 50_000
_BATCH: Final = 2_000
_HOST: Final = Host.parse("127.0.0.1", 1)
_CONFIG: Final = StoreConfig(
    log_file_bytes=64 << 20,
    queue_file_bytes=2_000,
    index_slots=1_000,
    index_entries=20_000,
    checkpoint_interval_ms=3_600_000,
)


def message(number: int) -> OutgoingMessage:
    """Return a message for the queue with a number."""
    topic, queue_id = divmod(number, QUEUES_PER_TOPIC)
    return OutgoingMessage(f"topic-{topic}", queue_id, b"x" * 20, b"", 0, _HOST)


@contextmanager
def nothing_synced() -> Iterator[None]:
    """Let syncs do nothing: of 80,000 files they take minutes."""
    with mock.patch("os.fdatasync", _do_nothing), mock.patch("os.fsync", _do_nothing):
        yield


def _do_nothing(_: int) -> None:
    """Stand for a sync."""


def fill(store: MessageStore, queues: int) -> None:
    """Put a message into each of so many queues, and wait until all can be fetched."""
    for start in range(0, queues, _BATCH):
        for number in range(start, min(start + _BATCH, queues)):
            store.put(message(number))
        store.dispatched.wait(store.end_offset)


def make_store(directory: Path, queues: int = QUEUES, deletions: int = 0) -> None:
    """Make a closed store with so many queues, and so many deleted topics noted."""
    with nothing_synced(), MessageStore.open(directory, _CONFIG) as store:
        for number in range(deletions):
            store.put(OutgoingMessage(f"deleted-{number}", 0, b"", b"", 0, _HOST))
        store.dispatched.wait(store.end_offset)
        for number in range(deletions):
            store.delete_topic(f"deleted-{number}")
        fill(store, queues)


def figures(directory: Path, queues: int) -> list[Row]:
    """Measure a closed store, which is changed a little by it."""
    os.sync()
    rows: list[Row] = []

    def note(name: str, start_s: float, remark: str = "") -> None:
        rows.append((f"{name}, {queues} queues", "s", time.perf_counter() - start_s, remark))

    for name in ("a clean start", "an unclean start"):
        if name == "an unclean start":
            (directory / ABORT).write_text("1")
        start_s = time.perf_counter()
        store = MessageStore.open(directory, _CONFIG)
        note(name, start_s)
        try:
            start_s = time.perf_counter()
            store.save_checkpoint()
            note(f"first checkpoint after {name}", start_s)
            for number in range(0, queues, max(queues // CHANGED, 1)):
                store.put(message(number))
            store.dispatched.wait(store.end_offset)
            start_s = time.perf_counter()
            store.save_checkpoint()
            note("checkpoint", start_s, f"{CHANGED} of them changed")
            store.put(OutgoingMessage("deleted", 0, b"", b"", 0, _HOST))
            store.dispatched.wait(store.end_offset)
            start_s = time.perf_counter()
            store.delete_topic("deleted")
            note("deletion of a topic", start_s)
        finally:
            start_s = time.perf_counter()
            store.close()
            note(f"close after {name}", start_s)
    return rows


def main() -> None:
    """Make a store and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_queues", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--deletions", type=int, default=0, help="deleted topics that are noted")
    arguments = parser.parse_args()
    if not arguments.directory.exists():
        make_store(arguments.directory, arguments.queues, arguments.deletions)
    for name, unit, value, remark in figures(arguments.directory, arguments.queues):
        print(f"{name:60} {value:9.3f} {unit}  {remark}")


if __name__ == "__main__":
    main()
