"""The process that `test_kill.py` kills: it puts messages and prints each acknowledged one.

Arguments: store directory, flush mode, seed. Prints a line when the store is open, then a line per
message: number, queue id, queue offset, physical offset, size.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.flush.policy import FlushMode, FlushPolicy


def say(line: str) -> None:
    """Print a line in one system call, so that a kill leaves it out or whole."""
    os.write(1, line.encode() + b"\n")


def repeatable(seed: str) -> random.Random:
    """Return a source of the same numbers each time."""
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def main() -> None:
    """Put messages until killed."""
    directory, mode, seed = Path(sys.argv[1]), FlushMode(sys.argv[2]), sys.argv[3]
    config = StoreConfig(
        log_file_bytes=1 << 16,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=400,
        flush=FlushPolicy(mode, interval_ms=20),
        checkpoint_interval_ms=20,
    )
    store = MessageStore.open(directory, config)
    say(store.recovery_summary)
    choice = repeatable(seed)
    number = 0
    while True:
        messages = []
        for _ in range(choice.choice((1, 1, 1, 5, 30))):
            number += 1
            name = f"{seed}-{number}"
            body = repeatable(name).randbytes(choice.choice((0, 10, 300, 4000)))
            properties = encode_properties({"UNIQ_KEY": name, "TAGS": f"t{number % 3}"})
            host = Host.parse("127.0.0.1", 1)
            messages.append(OutgoingMessage("Kill", number % 3, body, properties, number, host))
        if choice.random() < 0.5:
            results = store.put_batch(messages)
        else:
            results = [store.put(message) for message in messages]
        if mode is FlushMode.SYNC_FLUSH:
            store.durable_watermark.wait(results[-1].end_offset)
        for message, result in zip(messages, results, strict=True):
            place = f"{result.queue_offset} {result.physical_offset} {result.size_bytes}"
            say(f"{message.born_timestamp} {message.queue_id} {place}")


if __name__ == "__main__":
    main()
