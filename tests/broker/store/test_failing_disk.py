"""What a store still does, and what it refuses, on a disk that fails or is full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store import reput
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    StoreReadOnlyError,
)
from commitbus.commitlog.types import OutgoingMessage
from commitbus.flush.policy import FlushMode
from tests.broker.store.filling import PATIENCE_S, settle

FOREVER_MS = 1 << 62

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]


@pytest.mark.parametrize("mode", FlushMode)
def test_a_failed_fsync_ends_everything(
    mode: FlushMode,
    open_store: OpenStore,
    make_message: MakeMessage,
    faulty_files: Any,
    store_dir: Path,
) -> None:
    """No waiter is told, no message taken, the failure heard once; the next start recovers."""
    store = open_store(mode, faulty_files)
    good = store.put(make_message(body=b"good"))
    settle(store, good)
    failures: list[Exception] = []
    heard = threading.Event()
    store.add_failure_listener(failures.append)
    store.add_failure_listener(lambda _: heard.set())
    faulty_files.failing_sync = store_dir / "commitlog"
    bad = store.put(make_message(body=b"bad"))
    with pytest.raises(FlushFailedError, match="Input/output error"):
        store.durable_watermark.wait(bad.end_offset, PATIENCE_S)
    assert heard.wait(PATIENCE_S)
    faulty_files.failing_sync = None
    with pytest.raises(StoreReadOnlyError):
        store.put(make_message())
    late: list[Exception] = []
    store.add_failure_listener(late.append)
    assert late == failures[:1] == [store.failure]
    assert store.durable_watermark.offset == good.end_offset
    store.close()
    assert (store_dir / "abort").exists()
    again = open_store()
    assert "after an unclean stop" in again.recovery_summary
    assert again.read(good.physical_offset).body == b"good"


@pytest.mark.parametrize("failing", ["consumequeue", "index", "commitbus"])
def test_a_failed_fsync_of_anything_makes_the_store_read_only(
    failing: str,
    open_store: OpenStore,
    make_message: MakeMessage,
    faulty_files: Any,
    store_dir: Path,
) -> None:
    """Of queues, index and watermark too; a start afterwards finds every message."""
    store = open_store(file_system=faulty_files)
    settle(store, store.put(make_message(KEYS="k")))
    heard = threading.Event()
    store.add_failure_listener(lambda _: heard.set())
    faulty_files.failing_sync = store_dir / failing
    result = store.put(make_message(KEYS="k"))
    assert heard.wait(PATIENCE_S)
    assert isinstance(store.failure, FlushFailedError)
    for put in (store.put, lambda message: store.put_batch([message])):
        with pytest.raises(StoreReadOnlyError, match="Input/output error"):
            put(make_message())
    assert store.read(result.physical_offset).topic == "TopicA"
    store.close()
    faulty_files.failing_sync = None
    with MessageStore.open(store_dir) as again:
        assert "after an unclean stop" in again.recovery_summary
        assert again.max_offset("TopicA", 0) == 2


def test_a_full_disk_refuses_messages_until_there_is_room(
    open_store: OpenStore,
    make_message: MakeMessage,
    faulty_files: Any,
    store_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message whose queue has no room waits; more are refused; with room all goes on."""
    monkeypatch.setattr(reput, "FULL_DISK_RETRY_S", 0.01)
    store = open_store(file_system=faulty_files)
    settle(store, store.put(make_message("TopicA")))
    faulty_files.full_below = store_dir / "consumequeue"
    waiting = store.put(make_message("TopicB"))
    while store.full_disk is None:
        assert not store.dispatched.wait(waiting.end_offset, 0.001)
    for topic in ("TopicA", "TopicB"):
        with pytest.raises(DiskFullError):
            store.put(make_message(topic))
    assert store.failure is None
    faulty_files.full_below = None
    assert store.dispatched.wait(store.end_offset, PATIENCE_S)
    result = store.put(make_message("TopicB"))
    settle(store, result)
    assert store.max_offset("TopicB", 0) == result.queue_offset + 1


def test_a_full_disk_keeps_the_index_waiting_not_the_messages(
    open_store: OpenStore, make_message: MakeMessage, faulty_files: Any, store_dir: Path
) -> None:
    """The index catches up by itself."""
    store = open_store(file_system=faulty_files)
    faulty_files.full_below = store_dir / "index"
    settle(store, [store.put(make_message(KEYS=f"k{i}")) for i in range(20)][-1])
    assert store.query_by_key("TopicA", "k0", 0, FOREVER_MS, 1) == []
    faulty_files.full_below = None
    store.close()
    store = open_store()
    for _ in range(1000):
        result = store.put(make_message())
        settle(store, result)
        if store.query_by_key("TopicA", "k19", 0, FOREVER_MS, 1):
            break
    assert len(store.query_by_key("TopicA", "k0", 0, FOREVER_MS, 1)) == 1
