"""The index: filled from the log, asked, reopened, cut back after unclean stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog.errors import (
    StoreClosedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import IndexService, KeyKind
from tests.indexfile.small_indexes import (
    END_OF_TIME,
    FILE_BYTES,
    START_MS,
    FixedClock,
    contents,
    message,
    messages,
    names_of,
    open_service,
    rebuilt,
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[IndexService]:
    """An empty index, closed at the end."""
    opened = open_service(tmp_path / "index")
    yield opened
    opened.close()


# The same bytes as RocketMQ


@pytest.mark.shared
@pytest.mark.parametrize("batch", [1, 3, 20, 1000])
def test_an_index_rebuilt_from_a_log_of_rocketmq_is_its_own_byte_for_byte(
    rocketmq_store: Any, tmp_path: Path, batch: int
) -> None:
    """Both ways of appending, one by one and in batches, give the bytes beside the log."""
    service = IndexService(
        tmp_path / "index",
        slot_count=100,
        entry_count=400,
        clock=FixedClock(),
        file_system=RealFileSystem(),
    )
    service.load()
    for start in range(0, len(rocketmq_store.requests), batch):
        service.put(rocketmq_store.requests[start : start + batch])
    originals = sorted((rocketmq_store.path / "index").iterdir())
    assert contents(service) == [path.read_bytes() for path in originals]
    service.close()


@pytest.mark.shared
def test_every_key_in_a_store_of_rocketmq_is_found(rocketmq_store: Any) -> None:
    """Opened for reading, with the numbers it was made with."""
    service = IndexService(
        rocketmq_store.path / "index",
        slot_count=100,
        entry_count=400,
        clock=FixedClock(),
        file_system=RealFileSystem(),
        writable=False,
    )
    service.load()
    for request in rocketmq_store.requests:
        ts = request.store_timestamp
        for name in names_of(request):
            found = service.query(request.topic, name, ts, ts, 1000)
            assert request.physical_offset in found
        if request.tags:
            found = service.query(request.topic, request.tags, ts, ts, 1000, kind=KeyKind.TAG)
            assert request.physical_offset in found
    service.close()


# Putting and asking


def test_messages_are_found_newest_first_across_files(service: IndexService) -> None:
    """A key that many messages have, limited and unlimited."""
    all_messages = messages(200)
    service.put(all_messages)
    assert len(service.paths()) > 5
    expected = [m.physical_offset for m in reversed(all_messages) if "m1" in names_of(m)]
    assert len(expected) > 50
    assert service.query("T", "m1", 0, END_OF_TIME, 1000) == expected
    assert service.query("T", "m1", 0, END_OF_TIME, 7) == expected[:7]
    assert service.query("T", "m1", 0, END_OF_TIME, 0) == []
    assert service.query("T", "absent", 0, END_OF_TIME, 9) == []
    assert service.dispatched_to == all_messages[-1].end_offset


def test_a_query_is_limited_in_time_to_within_a_second(service: IndexService) -> None:
    """All messages of the interval are among the candidates, none is further off than a second."""
    all_messages = messages(200)
    service.put(all_messages)
    for begin, end in ((0, 5000), (30_000, 30_000), (31_234, 77_777), (139_000, 500_000)):
        found = service.query("T", "m1", START_MS + begin, START_MS + end, 1000)
        times = {m.physical_offset: m.store_timestamp - START_MS for m in all_messages}
        within = {
            m.physical_offset
            for m in all_messages
            if "m1" in names_of(m) and begin <= times[m.physical_offset] <= end
        }
        assert within <= set(found)
        assert all(begin - 1000 <= times[offset] <= end + 1000 for offset in found)


def test_a_message_that_has_a_key_twice_is_found_once(service: IndexService) -> None:
    """Also when the two entries lie in different files."""
    service.put([message(n, keys="") for n in range(48)])
    service.put([message(48, keys="x x", unique_key="x"), message(49, keys="x")])
    assert len(service.paths()) == 2
    assert service.query("T", "x", 0, END_OF_TIME, 9) == [4900, 4800]


def test_the_file_is_allocated_with_the_first_key(tmp_path: Path) -> None:
    """A store whose messages have no keys has no index; with keys all blocks are real."""
    service = open_service(tmp_path / "index")
    keyless = DispatchRequest(
        PhysicalOffset(0), 100, "T", 0, QueueOffset(0), 0, START_MS, 0, "", "", ""
    )
    service.put([keyless])
    assert not (tmp_path / "index").exists()
    assert service.dispatched_to == 100
    service.put([message(1)])
    (path,) = service.paths()
    stat = path.stat()
    assert stat.st_size == FILE_BYTES
    assert stat.st_blocks * 512 >= FILE_BYTES
    service.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=8))
def test_batches_reopenings_and_repetitions_do_not_show_in_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    """The index depends on the messages only, not on how they came to it."""
    directory = tmp_path_factory.mktemp("index")
    service = open_service(directory / "one")
    done = 0
    for count, reopens in steps:
        done += count
        service.put(messages(done)[max(done - count - 5, 0) :])
        if reopens:
            service.close()
            service = open_service(directory / "one")
            resumed = [m for m in messages(done) if m.physical_offset >= service.dispatched_to]
            service.put(resumed)
    got = contents(service)
    service.close()
    assert got == rebuilt(directory / "two", messages(done))


def test_a_closed_index_answers_nothing(service: IndexService) -> None:
    """Closing twice is fine."""
    service.put(messages(3))
    service.close()
    service.close()
    with pytest.raises(StoreClosedError):
        service.query("T", "U1", 0, END_OF_TIME, 9)
    with pytest.raises(StoreClosedError):
        service.put(messages(4))
