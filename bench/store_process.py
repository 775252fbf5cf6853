"""A process with a store of ours open: its memory, and what a start costs after its death.

As a program: `python -m bench.store_process DIRECTORY MESSAGES` fills a store, says so, and waits.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import read
from bench.measure import Row
from bench.store import BATCH, message, seconds_until_dispatched
from commitbus.broker.store.message_store import MessageStore

IDLE: Final = "anonymous RSS, idle, store alone"
IDLE_MESSAGES: Final = 1000
RESTART: Final = f"start after a kill, {read.LOG_MESSAGES} messages"
REBUILD: Final = f"start without queues and index, {read.LOG_MESSAGES} messages"


def main() -> None:
    """Fill a store and wait for the end of the input."""
    directory, messages = Path(sys.argv[1]), int(sys.argv[2])
    with MessageStore.open(directory, read.CONFIG) as store:
        for start in range(0, messages, BATCH):
            store.put_batch([message(n) for n in range(start, min(start + BATCH, messages))])
        seconds_until_dispatched(store, 0)
        print("filled", flush=True)
        sys.stdin.read()


@contextmanager
def store_process(directory: Path, messages: int) -> Iterator[subprocess.Popen[str]]:
    """Start this module as a program and wait until the store is filled; kill it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(directory), str(messages)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "filled\n"
            yield process
        finally:
            process.kill()


def restart() -> list[Row]:
    """Open a store whose process was killed, then once more without queues and index."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as name:
        directory = Path(name) / "store"
        with store_process(directory, read.LOG_MESSAGES):
            pass
        killed = seconds_to_start(directory)
        for derived in ("consumequeue", "index"):
            shutil.rmtree(directory / derived)
        rebuilt = seconds_to_start(directory)
    return [
        (RESTART, "s", killed, "until every message is in its queue and the last key is found"),
        (REBUILD, "s", rebuilt, ""),
    ]


def seconds_to_start(directory: Path) -> float:
    """Open a filled store; return when its messages could be consumed and found."""
    last = read.LOG_MESSAGES - 1
    start = time.perf_counter()
    with MessageStore.open(directory, read.CONFIG) as store:
        seconds_until_dispatched(store, start)
        while not store.query_by_key("Bench", f"key-{last}", 0, read.END_OF_TIME_MS, 1):
            time.sleep(0.001)
        seconds = time.perf_counter() - start
        visible = sum(store.max_offset(*queue) for queue in store.queues())
    assert visible == read.LOG_MESSAGES
    return seconds


def memory_idle() -> list[Row]:
    """Anonymous memory of a process that has a store open and used it a little."""
    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as name,
        store_process(Path(name) / "store", IDLE_MESSAGES) as process,
    ):
        return [(IDLE, "MB", anonymous_megabytes(process.pid), f"after {IDLE_MESSAGES} messages")]


def anonymous_megabytes(pid: int) -> float:
    """Return what a process holds of memory that no file backs."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if "RssAnon" in line)
    return int(kilobytes) / 1024


if __name__ == "__main__":
    main()
