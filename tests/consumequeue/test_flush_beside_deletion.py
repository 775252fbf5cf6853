"""Topics that are deleted while their queues are flushed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.deleted_topics import DeletedTopics
from commitbus.consumequeue.removed_queues import RemovedQueues
from tests.consumequeue.test_consume_queue_store import message


@pytest.mark.parametrize("made_again", [False, True], ids=["gone", "made again"])
def test_a_topic_that_is_deleted_while_it_is_flushed_is_no_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, made_again: bool
) -> None:
    """Its names vanish because we removed them: the flush has nothing to make durable there."""
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=RealFileSystem())
    store.load()
    store.put([message(0, 0, topic="T"), message(1, 0, topic="U")])
    sync = RealFileSystem.sync_directory

    def delete_and_sync(self: RealFileSystem, path: Path) -> None:
        if path == tmp_path / "cq" / "T" / "0":
            store.delete_topic("T", lambda: (PhysicalOffset(200), {0: QueueOffset(1)}))
            if made_again:
                store.put([message(2, 1, topic="T")])
        sync(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "sync_directory", delete_and_sync)
        store.flush()
    assert store.queues() == ([("T", 0)] if made_again else []) + [("U", 0)]
    store.flush()
    store.close()


def test_a_directory_that_somebody_else_removed_is_a_failed_flush(tmp_path: Path) -> None:
    """We promised its units, and cannot keep that."""
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=RealFileSystem())
    store.load()
    store.put([message(0, 0, topic="T")])
    shutil.rmtree(tmp_path / "cq" / "T")
    with pytest.raises(FlushFailedError):
        store.flush()
    store.close()


def test_messages_are_put_while_a_deletion_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note waits for the disk; those that come meanwhile stay."""
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=RealFileSystem())
    store.load()
    store.put([message(0, 0, topic="T"), message(1, 0, topic="U")])
    later = [message(2, 1, topic="T"), message(3, 1, topic="U")]
    putting = threading.Thread(target=store.put, args=(later,), daemon=True)
    write = DeletedTopics.write
    is_over: list[bool] = []

    def write_slowly(self: DeletedTopics, *arguments: Any) -> Any:
        putting.start()
        putting.join(10)
        is_over.append(not putting.is_alive())
        return write(self, *arguments)

    monkeypatch.setattr(DeletedTopics, "write", write_slowly)
    store.delete_topic("T", lambda: (PhysicalOffset(later[0].physical_offset), {0: QueueOffset(1)}))
    assert is_over == [True]
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (1, 2)
    store.close()


@pytest.mark.parametrize("comes_during", ["write", "remove_topic"])
def test_messages_of_which_earlier_ones_were_not_dispatched_before_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_during: str
) -> None:
    """Reput passes over those that the deletion takes; the next one begins the queue anew."""
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=RealFileSystem())
    store.load()
    store.put([message(0, 0, topic="T"), message(1, 0, topic="U")])
    late = [message(2, 1, topic="T"), message(3, 2, topic="T"), message(4, 3, topic="T")]
    owner = DeletedTopics if comes_during == "write" else RemovedQueues
    original = getattr(owner, comes_during)

    def put_first(self: Any, *arguments: Any) -> Any:
        store.put(late[:1] if comes_during == "write" else late)
        return original(self, *arguments)

    monkeypatch.setattr(owner, comes_during, put_first)
    end = PhysicalOffset(late[2].physical_offset)
    store.delete_topic("T", lambda: (end, {0: QueueOffset(3)}))
    store.put(late)
    queue = store.queue("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (3, 4)
    store.close()
