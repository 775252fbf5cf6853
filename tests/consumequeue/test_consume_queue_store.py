"""Consume queues: filled from the log, reopened, cut, deleted, and refused when they do not fit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from commitbus.commitlog.errors import (
    OffsetOutOfRangeError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.consumequeue import ConsumeQueue, ConsumeQueueStore, CqUnit, DispatchError
from commitbus.consumequeue.unit_format import PADDING, PADDING_BYTES, UNIT

FILE_BYTES = 200  # 10 units
RECORD_BYTES = 100
PREPARED, COMMITTED, ROLLED_BACK = 0x4, 0x8, 0xC


def message(
    number: int, queue_offset: int, topic: str = "T", queue_id: int = 0, sys_flag: int = 0
) -> DispatchRequest:
    """The number-th message of a log whose records all have 100 bytes."""
    return DispatchRequest(
        physical_offset=PhysicalOffset(number * RECORD_BYTES),
        size_bytes=RECORD_BYTES,
        topic=topic,
        queue_id=queue_id,
        queue_offset=QueueOffset(queue_offset),
        tags_code=number - 7,
        store_timestamp=1000 * number,
        sys_flag=sys_flag,
        unique_key="",
        keys="",
        tags="",
    )


def no_messages() -> tuple[PhysicalOffset, dict[int, QueueOffset]]:
    """Say that no message of the topic needs a note, and that the log ends behind all of them."""
    return PhysicalOffset(1 << 40), {}


def unit_of(request: DispatchRequest) -> CqUnit:
    """What a queue holds of a message."""
    return CqUnit(request.physical_offset, request.size_bytes, request.tags_code)


def open_store(directory: Path, file_system: Any = None, **options: Any) -> ConsumeQueueStore:
    """A loaded store with files of 10 units."""
    store = ConsumeQueueStore(
        directory, FILE_BYTES, file_system=file_system or RealFileSystem(), **options
    )
    store.load()
    return store


def the_queue(store: ConsumeQueueStore, topic: str = "T", queue_id: int = 0) -> ConsumeQueue:
    """A queue that must be there."""
    queue = store.queue(topic, queue_id)
    assert queue is not None
    return queue


def bytes_below(directory: Path) -> dict[Path, bytes]:
    """Every file below a directory."""
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConsumeQueueStore]:
    """An empty store, closed at the end."""
    opened = open_store(tmp_path / "cq")
    yield opened
    opened.close()


# The same bytes as RocketMQ


@pytest.mark.shared
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_queues_rebuilt_from_a_log_of_rocketmq_are_its_own_byte_for_byte(
    rocketmq_store: Any, tmp_path: Path, batch: int
) -> None:
    """Names, sizes and bytes of every queue file equal those beside the log."""
    store = ConsumeQueueStore(tmp_path / "cq", 2000, file_system=RealFileSystem())
    store.load()
    for start in range(0, len(rocketmq_store.requests), batch):
        store.put(rocketmq_store.requests[start : start + batch])
    store.close()
    assert bytes_below(tmp_path / "cq") == bytes_below(rocketmq_store.path / "consumequeue")


@pytest.mark.shared
def test_a_store_of_rocketmq_opens_for_reading(rocketmq_store: Any) -> None:
    """Every message of the log is found at its queue offset."""
    store = ConsumeQueueStore(
        rocketmq_store.path / "consumequeue", 2000, file_system=RealFileSystem(), writable=False
    )
    store.load()
    for request in rocketmq_store.requests:
        queue = the_queue(store, request.topic, request.queue_id)
        assert queue.unit(request.queue_offset) == unit_of(request)
    assert store.dispatched_to == rocketmq_store.requests[-1].end_offset
    store.close()


# Putting and reading


def test_what_was_put_is_read_across_files(store: ConsumeQueueStore) -> None:
    """Units come back in order, as tuples and as an array, whichever file they lie in."""
    messages = [message(n, n) for n in range(25)]
    store.put(messages)
    queue = the_queue(store)
    assert (queue.min_offset, queue.max_offset) == (0, 25)
    assert queue.units(QueueOffset(0), 100) == [unit_of(m) for m in messages]
    assert queue.units(QueueOffset(8), 5) == [unit_of(m) for m in messages[8:13]]
    assert queue.units(QueueOffset(25), 1) == []
    assert queue.units(QueueOffset(3), 0) == []
    array = queue.units_array(QueueOffset(9), 11)
    assert array["physical_offset"].tolist() == [m.physical_offset for m in messages[9:20]]
    assert array["tags_code"].tolist() == [m.tags_code for m in messages[9:20]]
    assert store.dispatched_to == 2500


@pytest.mark.parametrize("start", [-1, 4])
def test_reading_outside_of_the_queue_is_refused(store: ConsumeQueueStore, start: int) -> None:
    """The error says what is there."""
    store.put([message(n, n) for n in range(3)])
    with pytest.raises(OffsetOutOfRangeError) as caught:
        the_queue(store).units(QueueOffset(start), 1)
    assert (caught.value.got, caught.value.minimum, caught.value.end) == (start, 0, 3)
    with pytest.raises(OffsetOutOfRangeError):
        the_queue(store).unit(QueueOffset(3))


def test_putting_again_changes_nothing(store: ConsumeQueueStore, tmp_path: Path) -> None:
    """Reput may start anywhere before the end: what is there is passed over."""
    messages = [message(n, n // 2, queue_id=n % 2) for n in range(30)]
    store.put(messages[:20])
    store.put(messages[5:])
    before = bytes_below(tmp_path)
    store.put(messages)
    assert bytes_below(tmp_path) == before
    assert store.dispatched_to == 3000
    assert store.queues() == [("T", 0), ("T", 1)]


def test_half_and_rolled_back_messages_have_no_place_in_a_queue(store: ConsumeQueueStore) -> None:
    """They are dispatched, but only committed and plain messages are visible."""
    store.put([message(0, 0), message(1, 0, sys_flag=PREPARED), message(2, 1, sys_flag=COMMITTED)])
    store.put([message(3, 0, sys_flag=ROLLED_BACK)])
    assert [unit.physical_offset for unit in the_queue(store).units(QueueOffset(0), 9)] == [0, 200]
    assert store.dispatched_to == 400


@pytest.mark.parametrize("queue_offset", [4, -1])
def test_a_gap_is_an_error_of_the_store(store: ConsumeQueueStore, queue_offset: int) -> None:
    """A message whose queue offset is not the next one is refused, and says why."""
    store.put([message(n, n) for n in range(3)])
    with pytest.raises(DispatchError, match="next one is 3") as caught:
        store.put([message(3, queue_offset)])
    assert (caught.value.topic, caught.value.queue_id, caught.value.physical_offset) == (
        "T",
        0,
        300,
    )
    assert the_queue(store).max_offset == 3


def test_two_messages_cannot_have_one_queue_offset(store: ConsumeQueueStore) -> None:
    """A unit that a consumer may have seen is never overwritten."""
    store.put([message(n, n) for n in range(3)])
    with pytest.raises(DispatchError, match="another message"):
        store.put([message(3, 1)])
    assert the_queue(store).unit(QueueOffset(1)) == unit_of(message(1, 1))


@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "x" * 256])
def test_a_topic_cannot_leave_the_directory(
    store: ConsumeQueueStore, tmp_path: Path, topic: str
) -> None:
    """Whatever a foreign log calls a topic, nothing is written outside of its own folder."""
    with pytest.raises(DispatchError, match="names of directories"):
        store.put([message(0, 0, topic=topic)])
    with pytest.raises(DispatchError):
        store.put([message(0, 0, queue_id=-1)])
    store.delete_topic(topic, no_messages)
    assert list(tmp_path.iterdir()) == []


def test_the_first_file_is_padded_before_the_first_unit(tmp_path: Path) -> None:
    """A queue whose older messages were deleted begins in the middle of a file, as RocketMQ's."""
    store = open_store(tmp_path)
    store.put([message(0, 13), message(1, 14)])
    (path,) = (tmp_path / "T" / "0").iterdir()
    assert path.name == f"{FILE_BYTES:020}"
    expected = PADDING_BYTES * 3 + UNIT.pack(*unit_of(message(0, 13)))
    assert path.read_bytes()[:80] == expected
    assert PADDING not in the_queue(store).units(QueueOffset(13), 9)
    store.close()
    reopened = open_store(tmp_path)
    queue = the_queue(reopened)
    assert (queue.min_offset, queue.max_offset) == (13, 15)
    reopened.put([message(2, 15)])
    reopened.truncate(PhysicalOffset(250))
    assert (queue.min_offset, queue.max_offset) == (13, 15), "what ends before is kept, all of it"
    reopened.close()


def test_search_finds_the_first_unit_that_satisfies(store: ConsumeQueueStore) -> None:
    """Bisection by anything that rises with the queue offset."""
    store.put([message(n, n) for n in range(25)])
    queue = the_queue(store)
    for wanted in range(0, 2600, 50):

        def is_there(unit: CqUnit, wanted: int = wanted) -> bool:
            return unit.physical_offset >= wanted

        assert queue.search(is_there) == min((wanted + 99) // 100, 25)


@pytest.mark.slow
def test_readers_see_only_whole_units_while_others_are_put(store: ConsumeQueueStore) -> None:
    """Whatever `max_offset` a reader has seen, the units below it are there and right."""
    messages = [message(n, n) for n in range(4000)]
    store.put(messages[:1])
    queue = the_queue(store)
    wrong: list[list[CqUnit]] = []

    def read() -> None:
        seen = 0
        while seen < len(messages):
            end = queue.max_offset
            units = queue.units(QueueOffset(seen), end - seen)
            if units != [unit_of(m) for m in messages[seen:end]]:
                wrong.append(units)
            seen = end

    reader = threading.Thread(target=read)
    reader.start()
    for start in range(1, len(messages), 100):
        store.put(messages[start : start + 100])
    reader.join()
    assert wrong == []


# Reopening, cutting, deleting


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20, 25])
def test_a_reopened_store_goes_on_where_it_ended(tmp_path: Path, count: int) -> None:
    """Ends in the middle of a file and at its end are found without any help."""
    store = open_store(tmp_path)
    store.put([message(n, n) for n in range(count)])
    store.close()
    reopened = open_store(tmp_path)
    assert reopened.dispatched_to == count * RECORD_BYTES
    assert the_queue(reopened).max_offset == count
    reopened.put([message(n, n) for n in range(count, count + 12)])
    units = the_queue(reopened).units(QueueOffset(0), 100)
    assert units == [unit_of(message(n, n)) for n in range(count + 12)]
    reopened.close()


@pytest.mark.parametrize("end", [0, 1, 950, 1000, 1001, 2400, 2500, 9999])
def test_truncating_and_putting_again_gives_the_same_bytes(tmp_path: Path, end: int) -> None:
    """A queue is a function of the log: cut anywhere and refilled, it is as it was."""
    messages = [message(n, n // 3, queue_id=n % 3) for n in range(25)]
    messages += [message(n, n - 25, topic="U") for n in range(25, 40)]
    store = open_store(tmp_path)
    store.put(messages)
    before = bytes_below(tmp_path)
    store.truncate(PhysicalOffset(end))
    assert store.dispatched_to <= end
    for key in store.queues():
        queue = the_queue(store, *key)
        assert all(unit.end_offset <= end for unit in queue.units(queue.min_offset, 99))
    resumed = [m for m in messages if m.physical_offset >= store.dispatched_to]
    store.put(resumed)
    store.close()
    assert bytes_below(tmp_path) == before


def test_truncation_drops_what_a_power_cut_left_behind_a_gap(tmp_path: Path) -> None:
    """Pages reach the disk in any order: a unit that was lost takes the later ones with it."""
    messages = [message(n, n) for n in range(38)]
    store = open_store(tmp_path)
    store.put(messages)
    store.close()
    before = bytes_below(tmp_path)
    for name, unit in (("0" * 20, 7), (f"{2 * FILE_BYTES:020}", 0)):
        with (tmp_path / "T" / "0" / name).open("r+b") as file:
            file.seek(unit * 20)
            file.write(bytes(20))
    store = open_store(tmp_path)
    store.truncate(messages[6].end_offset)
    assert the_queue(store).max_offset == 7
    store.put(messages[7:])
    store.close()
    assert bytes_below(tmp_path) == before


def test_deleting_before_an_offset_hides_units_and_removes_whole_files(tmp_path: Path) -> None:
    """The units of messages that the log no longer has are gone for readers."""
    store = open_store(tmp_path)
    messages = [message(n, n) for n in range(35)]
    store.put(messages)
    store.delete_before(PhysicalOffset(2450))
    queue = the_queue(store)
    assert (queue.min_offset, queue.max_offset) == (25, 35)
    assert queue.units(QueueOffset(25), 99) == [unit_of(m) for m in messages[25:]]
    with pytest.raises(OffsetOutOfRangeError):
        queue.units(QueueOffset(24), 1)
    assert len(list((tmp_path / "T" / "0").iterdir())) == 2
    store.put(messages)
    assert queue.max_offset == 35, "what was deleted stays deleted"
    store.delete_before(PhysicalOffset(10**9))
    assert (queue.min_offset, queue.max_offset) == (35, 35)
    store.put([message(35, 35)])
    assert queue.units(QueueOffset(35), 9) == [unit_of(message(35, 35))]
    store.close()


def test_a_store_opened_for_reading_keeps_its_files(tmp_path: Path) -> None:
    """Hiding what the log no longer has writes nothing."""
    store = open_store(tmp_path)
    store.put([message(n, n) for n in range(35)])
    store.close()
    before = bytes_below(tmp_path)
    reader = open_store(tmp_path, writable=False)
    reader.delete_before(PhysicalOffset(2450))
    assert the_queue(reader).min_offset == 25
    reader.close()
    assert bytes_below(tmp_path) == before


def test_deleting_a_topic_removes_its_files_and_no_others(tmp_path: Path) -> None:
    """A topic of the same name may then begin anew."""
    store = open_store(tmp_path)
    store.put([message(n, n // 2, topic="TU"[n % 2], queue_id=n % 2) for n in range(50)])
    store.delete_topic("T", no_messages)
    store.delete_topic("unknown", no_messages)
    assert store.queue("T", 0) is None
    assert [path.name for path in tmp_path.iterdir()] == ["U"]
    store.put([message(50, 0)])
    assert the_queue(store).max_offset == 1
    store.flush()
    store.close()


def test_a_process_that_died_between_creating_a_file_and_writing_it_harms_nothing(
    tmp_path: Path,
) -> None:
    """An all-zero file at the wrong place, half padded, or short is no message."""
    first = message(0, 13)
    for left_behind in (bytes(FILE_BYTES), PADDING_BYTES + bytes(FILE_BYTES - 20), bytes(60)):
        directory = tmp_path / str(len(left_behind)) / str(sum(left_behind))
        path = directory / "T" / "0" / f"{FILE_BYTES:020}"
        path.parent.mkdir(parents=True)
        path.write_bytes(left_behind)
        store = open_store(directory)
        assert store.dispatched_to == 0
        store.put([first])
        assert the_queue(store).units(QueueOffset(13), 2) == [unit_of(first)]
        store.close()


# Against an oracle

KEYS = st.tuples(st.sampled_from(["A", "B"]), st.integers(0, 1))
STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=15)),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("truncate"), st.integers(0, 40)),
    st.tuples(st.just("delete_before"), st.integers(0, 40)),
    st.tuples(st.just("put_again"), st.integers(0, 40)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=12))
@example([("put", [("A", 1)]), ("delete_before", 1), ("put", [("A", 0)]), ("truncate", 2)])
def test_any_history_leaves_what_a_dict_of_lists_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    """Putting, reopening, cutting with refilling, and deleting, in any order."""
    directory = tmp_path_factory.mktemp("history")
    store = open_store(directory)
    log: list[DispatchRequest] = []
    oracle: dict[tuple[str, int], list[CqUnit]] = {}
    log_start = 0
    for step, argument in steps:
        if step == "put":
            new: list[DispatchRequest] = []
            for key in argument:
                units = oracle.setdefault(key, [])
                new.append(message(len(log) + len(new), len(units), *key))
                units.append(unit_of(new[-1]))
            store.put(new)
            log += new
        elif step == "reopen":
            store.close()
            store = open_store(directory)
        elif step == "truncate":
            store.truncate(PhysicalOffset(max(argument * RECORD_BYTES, log_start)))
            store.put([m for m in log if m.physical_offset >= store.dispatched_to])
        elif step == "put_again":
            store.put(log[argument:])
        else:
            log_start = max(log_start, min(argument, len(log)) * RECORD_BYTES)
        store.delete_before(PhysicalOffset(log_start))
    for key, units in oracle.items():
        kept = [unit for unit in units if unit.physical_offset >= log_start]
        queue = store.queue(*key)
        # Also where no message is left: an offset that was given away is not given away again.
        assert queue is not None
        assert queue.max_offset == len(units)
        assert queue.units(queue.min_offset, 10_000) == kept
    store.close()
