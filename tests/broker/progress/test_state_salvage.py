"""Topics, groups and offsets of a damaged store."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import final

import pytest
import trio

from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import Lease
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.broker.progress.state_salvage import salvage_state
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem

CLOCK, FILES = SystemClock(), RealFileSystem()


@final
class Halved:
    """Every other message of the queue is lost."""

    def translate(self, old: int) -> int:
        return old // 2


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with topic T and group G, which is at offset 10 of queue 0 with 8 in flight."""
    store = tmp_path / "damaged"
    store.mkdir()
    metadata = SqliteMetadata(store, clock=CLOCK, file_system=FILES)

    async def fill() -> None:
        await metadata.put_topic(TopicConfig("T", read_queue_nums=3))
        await metadata.put_group(GroupConfig("G", retry_max_times=7))

    trio.run(fill)
    metadata.close()
    table = ProgressTable(store, SqliteRows(store, FILES), clock=CLOCK, file_system=FILES)
    table.open()
    progress = table.create("G", "T", 0, 8)
    table.create("G", "T", 1, 6)
    table.deliver(progress, [8], Lease(1, 2, "c", auto_renew=False), next_offset=10)
    table.close()
    return store


def state_of(store: Path) -> tuple[int | None, int | None, dict[int, int]]:
    """Topic T's queues, group G's attempts, and its offsets by queue."""
    metadata = SqliteMetadata(store, clock=CLOCK, file_system=FILES)
    topic, group = metadata.topic("T"), metadata.group("G")
    metadata.close()
    table = ProgressTable(store, SqliteRows(store, FILES), clock=CLOCK, file_system=FILES)
    table.open()
    offsets = {queue_id: p.committed_offset for (_, _, queue_id), p in table.items()}
    assert all(progress.in_flight_count == 0 for _, progress in table.items())
    table.close()
    return topic and topic.read_queue_nums, group and group.retry_max_times, offsets


@pytest.fixture
def run(damaged: Path, tmp_path: Path) -> Callable[[], list[str]]:
    """Take the state over to `out`, queue 0 halved, queue 1 gone."""
    return partial(
        salvage_state,
        damaged,
        tmp_path / "out",
        {("T", 0): Halved()},
        clock=CLOCK,
        file_system=FILES,
    )


def test_everything_readable_is_taken_over(run: Callable[[], list[str]], tmp_path: Path) -> None:
    """Offsets in the new numbers; what was in flight is delivered again."""
    assert run() == []
    assert state_of(tmp_path / "out") == (3, 7, {0: 4, 1: 0})


@pytest.mark.parametrize("content", [b"", b"no database at all" * 300])
def test_damaged_databases_are_replaced_by_their_mirrors(
    run: Callable[[], list[str]], damaged: Path, tmp_path: Path, content: bytes
) -> None:
    """And it is said."""
    for name in ("metadata.db", "progress.db"):
        (damaged / "commitbus" / name).write_bytes(content)
    assert [text.partition(":")[0] for text in run()] == [
        "topics and groups",
        "offsets of the groups",
    ]
    assert state_of(tmp_path / "out") == (3, 7, {0: 4, 1: 0})


def test_without_anything_readable_the_new_store_starts_empty(
    run: Callable[[], list[str]], damaged: Path, tmp_path: Path
) -> None:
    """Which is said as well."""
    for path in damaged.rglob("*"):
        if path.is_file():
            path.write_bytes(b"{rubbish" * 1000)
    lost = run()
    assert len(lost) >= 2
    assert state_of(tmp_path / "out") == (None, None, {})


def test_a_store_without_state_is_no_loss(
    run: Callable[[], list[str]], damaged: Path, tmp_path: Path
) -> None:
    """As one of a program that uses the store alone."""
    shutil.rmtree(damaged)
    damaged.mkdir()
    assert run() == []
    assert state_of(tmp_path / "out") == (None, None, {})
