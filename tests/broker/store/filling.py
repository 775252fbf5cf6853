"""Stores that are filled file by file, on a disk that is as full as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.retention import RetentionPolicy
from commitbus.commitlog.types import AppendResult, OutgoingMessage, PhysicalOffset

FILE: Final = 1 << 16
PATIENCE_S: Final = 20
Make = Callable[..., OutgoingMessage]
# Every hour of the day, so that no test depends on the time zone.
EXPIRY: Final = RetentionPolicy(delete_hours=frozenset(range(24)))


@final
class Disk(RealFileSystem):  # type: ignore[misc] # the rest is the real one's
    """The machine's file system, said to be as full as a test wants."""

    def __init__(self) -> None:
        self.used_percent = 10

    def disk_usage(self, path: Path) -> tuple[int, int]:
        return 100 * FILE, (100 - self.used_percent) * FILE


def fill(store: MessageStore, make: Make, files: int, topic: str = "TopicA") -> None:
    """Put messages until the log has this many full files, all dispatched and durable."""
    end = PhysicalOffset(store.end_offset - store.end_offset % FILE + files * FILE)
    number = 0
    while store.end_offset <= end:
        store.put(make(topic, 0, bytes(1000), KEYS=f"k{number} all a b c d"))
        number += 1
    settle(store)


def settle(store: MessageStore, result: AppendResult | None = None) -> None:
    """Wait until a message, or everything, is dispatched and durable."""
    end = store.end_offset if result is None else result.end_offset
    assert store.durable_watermark.wait(end, PATIENCE_S)
    assert store.dispatched.wait(end, PATIENCE_S)


def bases(store_dir: Path) -> list[int]:
    """Where the files of the log begin; the one prepared for later does not count."""
    return sorted(int(path.name) for path in (store_dir / "commitlog").iterdir())


def sealed(store_dir: Path) -> list[int]:
    """Which files have a manifest."""
    return sorted(int(path.stem) for path in (store_dir / "commitbus" / "sealed").glob("*.json"))
