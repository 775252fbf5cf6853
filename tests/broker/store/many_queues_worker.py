"""The process of `test_many_queues.py`: a store with many queues and few descriptors.

Arguments: store directory, number of queues, descriptors allowed. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import AppendResult, Host, OutgoingMessage, QueueOffset

PATIENCE_S = 120
QUEUES_PER_TOPIC = 100
MESSAGES = 4
"""For each queue, in two files."""


def put_everywhere(store: MessageStore, queues: int) -> AppendResult:
    """Put a message into each queue."""
    host = Host.parse("127.0.0.1", 1)
    return [
        store.put(
            OutgoingMessage(f"T{i // QUEUES_PER_TOPIC}", i % QUEUES_PER_TOPIC, b"x", b"", 1, host)
        )
        for i in range(queues)
    ][-1]


def fetch_everywhere(store: MessageStore, queues: int) -> int:
    """Fetch all of each queue; return how many messages there were."""
    return sum(
        len(store.fetch(f"T{i // QUEUES_PER_TOPIC}", i % QUEUES_PER_TOPIC, QueueOffset(0), 9).units)
        for i in range(queues)
    )


def main() -> None:
    """Fill a store, open it again, and say what it took."""
    directory, queues, descriptors = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    config = StoreConfig(log_file_bytes=1 << 24, queue_file_bytes=20 * (MESSAGES - 1))
    with MessageStore.open(directory, config) as store:
        for _ in range(MESSAGES):
            store.dispatched.wait(put_everywhere(store, queues).end_offset, PATIENCE_S)
    with MessageStore.open(directory) as store:
        idle_kb = int(
            next(
                line.split()[1]
                for line in Path("/proc/self/status").read_text().splitlines()
                if line.startswith("RssAnon")
            )
        )
        fetched = fetch_everywhere(store, queues)
        store.dispatched.wait(put_everywhere(store, queues).end_offset, PATIENCE_S)
        fetched_then = fetch_everywhere(store, queues)
        report = {
            "fetched": [fetched, fetched_then],
            "descriptors": len(os.listdir("/proc/self/fd")),
            "maps": Path("/proc/self/maps").read_text().count("/consumequeue/"),
            "idle_kb": idle_kb,
        }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
