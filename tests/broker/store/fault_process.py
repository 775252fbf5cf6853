"""Runs a store on a failing disk in a process of its own: a SIGBUS ends no test run.

Run as `python -m tests.broker.store.fault_process COMMAND DIRECTORY [ARGUMENT]`; prints JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import Lease
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.salvage import salvage_store
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from tests.broker.store.conftest import message, small_config

PATIENCE_S = 30.0
FILES = 3


def outcome(work: Callable[[], object]) -> Any:
    """Return what `work` returned, or the error that it raised."""
    try:
        return work()
    except (StoreError, OSError) as error:
        return {
            "error": type(error).__name__,
            "path": str(getattr(error, "path", getattr(error, "filename", ""))),
            "position": getattr(error, "position", None),
            "text": str(error),
        }


def fill(directory: Path, _: str) -> object:
    """Make a store of several files, closed cleanly; return where the messages lie."""
    store = MessageStore.open(directory, small_config())
    offsets: list[int] = []
    try:
        while store.end_offset < FILES * small_config().log_file_bytes + 20_000:
            number = len(offsets)
            sent = message("TopicA", number % 2, bytes(1000), UNIQ_KEY=f"u{number}")
            offsets.append(store.put(sent).physical_offset)
        store.dispatched.wait(store.end_offset, PATIENCE_S)
        store.keep_house()
    finally:
        store.close()
    return offsets


def use(directory: Path, offsets: str) -> object:
    """Open a store, read every message, send between, and close it."""
    found: dict[str, Any] = {"reads": {}, "sends": [], "queues": [], "keys": []}

    def run() -> object:
        store = MessageStore.open(directory, small_config())
        try:
            for number, offset in enumerate(json.loads(offsets)):
                read = partial(_body_bytes, store, offset)
                found["reads"][offset] = outcome(read)
                if number % 10 == 0:
                    found["sends"].append(outcome(lambda: store.put(message()).physical_offset))
            for queue in range(2):
                end = store.max_offset("TopicA", queue)
                for at in range(store.min_offset("TopicA", queue), end, 20):
                    found["queues"].append(outcome(partial(_units, store, queue, at)))
            found["keys"].append(outcome(lambda: len(store.query_by_unique_key("TopicA", "u3"))))
            store.dispatched.wait(store.end_offset, PATIENCE_S)
            found["failure"] = str(store.failure or "")
        finally:
            found["closed"] = outcome(store.close)
        return True

    found["opened"] = outcome(run)
    return found


def _body_bytes(store: MessageStore, offset: int) -> int:
    return len(store.read(PhysicalOffset(offset)).body)


def _units(store: MessageStore, queue_id: int, offset: int) -> int:
    return len(store.fetch("TopicA", queue_id, QueueOffset(offset), 20).units)


def check(directory: Path, _: str) -> object:
    """Return what is wrong with a store."""
    report: Any = outcome(lambda: check_store(directory, config=small_config()))
    if isinstance(report, dict):
        return report
    return [[problem.file, problem.what] for problem in report.problems]


def salvage(directory: Path, out: str) -> object:
    """Return what salvage lost, and what is wrong with what it made."""
    done: Any = outcome(
        lambda: salvage_store(
            directory,
            Path(out),
            config=small_config(),
            clock=SystemClock(),
            file_system=RealFileSystem(),
        )
    )
    return done if isinstance(done, dict) else check(Path(out), "")


def state(directory: Path, _: str) -> object:
    """Open topics, groups and progress, and change progress."""
    files, clock = RealFileSystem(), SystemClock()

    def metadata() -> object:
        SqliteMetadata(directory, clock=clock, file_system=files).close()
        return True

    def progress() -> object:
        table = ProgressTable(
            directory, SqliteRows(directory, files), clock=clock, file_system=files
        )
        table.open()
        try:
            queue = table.create("g", "t", 0, 0)
            end = queue.next_offset
            table.deliver(queue, [end], Lease(1, 2, "c", auto_renew=True), next_offset=end + 1)
            return table.acknowledge(queue, end)
        finally:
            table.close()

    return [outcome(metadata), outcome(progress)]


def refuse(directory: Path, filler: str) -> object:
    """Use a store on a full disk until the filler is removed, and then until it takes a message."""
    found: dict[str, Any] = {"full": []}

    def send(store: MessageStore) -> Any:
        return outcome(lambda: store.put(message(body=bytes(20_000))).physical_offset)

    def run() -> object:
        store = MessageStore.open(directory, small_config())
        try:
            found["full"] = [send(store) for _ in range(40)]
            Path(filler).unlink()
            deadline = time.monotonic() + PATIENCE_S
            while isinstance(found.setdefault("after", send(store)), dict):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
                del found["after"]
            found["failure"] = str(store.failure or "")
        finally:
            found["closed"] = outcome(store.close)
        return True

    found["opened"] = outcome(run)
    return found


if __name__ == "__main__":
    name, directory, argument = [*sys.argv[1:], ""][:3]
    commands = {
        "fill": fill,
        "use": use,
        "check": check,
        "salvage": salvage,
        "state": state,
        "refuse": refuse,
    }
    sys.stdout.write(json.dumps(commands[name](Path(directory), argument)))
