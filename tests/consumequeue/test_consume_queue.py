"""One queue: what it makes of a topic that was made anew, and what opening it touches."""

from __future__ import annotations

from pathlib import Path

from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import FilePolicy
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue import ConsumeQueue, CqUnit

RECORD_BYTES = 100


def open_queue(directory: Path) -> ConsumeQueue:
    """The queue of the test, loaded, with files of 10 units."""
    policy = FilePolicy(grow=True, descriptors=DescriptorCache(4))
    queue = ConsumeQueue("T", 0, directory, 200, file_system=RealFileSystem(), policy=policy)
    queue.load()
    return queue


def put_all(queue: ConsumeQueue, log: list[tuple[int, int]]) -> None:
    """Put messages: (number in a log whose records all have 100 bytes, queue offset)."""
    for number, queue_offset in log:
        queue.put(queue_offset, number * RECORD_BYTES, RECORD_BYTES, number)


def test_a_topic_that_rocketmq_deleted_and_made_anew(tmp_path: Path) -> None:
    """It begins at 0 again, so the log has two messages for an offset: the later one counts."""
    log = [(n, n) for n in range(15)] + [(15 + n, n) for n in range(3)]
    queue = open_queue(tmp_path)
    for again in (log, log, log[3:], log[:16], log[10:]):
        put_all(queue, again)
        units = queue.units(QueueOffset(0), 99)
        assert units == [
            CqUnit(PhysicalOffset(n * RECORD_BYTES), RECORD_BYTES, n) for n in (15, 16, 17)
        ]
        assert queue.units_array(QueueOffset(1), 9).tolist() == [tuple(unit) for unit in units[1:]]
        assert queue.read_cached(QueueOffset(1), 9) == queue.read(QueueOffset(1), 9)
    queue.close()


def test_nothing_is_mapped(tmp_path: Path) -> None:
    """A page that the disk does not give back, or a hole of a full disk, would be a SIGBUS."""
    queue = open_queue(tmp_path)
    put_all(queue, [(n, n + 3) for n in range(30)])
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    queue.close()
    queue = open_queue(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert (queue.min_offset, queue.max_offset) == (3, 33)
    assert queue.dispatched_to == 30 * RECORD_BYTES
    queue.close()
