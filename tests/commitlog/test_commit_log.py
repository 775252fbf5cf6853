"""Appending to the log and reading from it."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog import commit_log, file_preparer
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import (
    CorruptRecordError,
    MessageRefusedError,
    OffsetOutOfRangeError,
    StoreClosedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE, SIZE_AND_MAGIC
from commitbus.commitlog.types import (
    AppendResult,
    Host,
    OutgoingMessage,
    PhysicalOffset,
    QueueOffset,
)
from tests.records import encode_record, record_size

V6 = Host.parse("2001:db8::7", 10911)
OpenLog = Callable[..., CommitLog]
Make = Callable[..., OutgoingMessage]
FILE = 4096


def body_for(size: int) -> bytes:
    """Return a body that makes a record of topic `topic` exactly this long."""
    return b"x" * (size - record_size(5, 0, 0))


def offsets(log: CommitLog) -> list[int]:
    """Return where every record of the log lies."""
    requests, end = log.dispatch_requests(log.min_offset, log.end_offset, 1 << 30)
    assert end == log.end_offset
    return [request.physical_offset for request in requests]


def test_an_appended_message_is_read_back(open_log: OpenLog, message: Make, clock: Any) -> None:
    """The record in the log is byte for byte what the format says."""
    log = open_log()
    sent = message(
        b"hello", topic="t" * 200, queue_id=7, properties=b"A\x01b\x02", flag=3, sys_flag=8,
        reconsume_times=2, prepared_transaction_offset=99,
    )  # fmt: skip
    log.append(message())
    result = log.append(sent)
    assert result.queue_offset == 0
    assert result.store_timestamp == clock.ms
    assert result.end_offset == log.end_offset
    expected = encode_record(
        topic=sent.topic, body=sent.body, properties=sent.properties, queue_id=7, queue_offset=0,
        physical_offset=result.physical_offset, born_timestamp=sent.born_timestamp,
        born_host=sent.born_host, store_timestamp=clock.ms, store_host=sent.born_host, flag=3,
        sys_flag=8, reconsume_times=2, prepared_transaction_offset=99,
    )  # fmt: skip
    place = result.physical_offset, result.size_bytes
    assert log.read_bytes(*place) == log.read_cached(*place) == expected
    assert log.read(result.physical_offset).body == b"hello"
    assert log.store_timestamp(result.physical_offset) == clock.ms


def test_ipv6_hosts_set_their_bits(open_log: OpenLog, message: Make) -> None:
    """Whatever the caller's system flag says, the host bits tell the truth."""
    for store_host, born_host, bits in (
        (V6, V6, 0x30),
        (Host.parse("1.2.3.4", 1), V6, 0x10),
        (Host.parse("1.2.3.4", 1), Host.parse("5.6.7.8", 2), 0),
    ):
        log = open_log(store_host=store_host)
        result = log.append(message(born_host=born_host, sys_flag=0x30 | 2))
        record = log.read(result.physical_offset)
        assert record.sys_flag == bits | 2
        assert (record.born_host, record.store_host) == (born_host, store_host)
        log.close()
        (log.files.directory / f"{0:020d}").unlink()


def test_queue_offsets_are_dense_per_queue(open_log: OpenLog, message: Make) -> None:
    """Each queue counts for itself, from wherever recovery set it."""
    log = open_log()
    log.set_queue_ends({("b", 1): QueueOffset(41)})
    sent = [("a", 0), ("a", 1), ("a", 0), ("b", 1), ("a", 0), ("b", 1)]
    got = [log.append(message(topic=t, queue_id=q)).queue_offset for t, q in sent]
    assert got == [0, 0, 1, 41, 2, 42]
    assert log.queue_end("a", 0) == 3
    assert log.queue_end("never", 0) == 0
    assert log.queue_ends() == {("a", 0): 3, ("a", 1): 1, ("b", 1): 43}


def test_what_no_queue_will_hold_takes_no_queue_offset(open_log: OpenLog, message: Make) -> None:
    """Prepared and rolled-back transactions get 0 and leave the queue dense."""
    log = open_log()
    flags = [0, 0x4, 0x8, 0xC, 0]
    assert [log.append(message(sys_flag=f)).queue_offset for f in flags] == [0, 0, 1, 0, 2]
    batch = log.append_batch([message(sys_flag=f) for f in flags])
    assert [result.queue_offset for result in batch] == [3, 0, 4, 0, 5]


def test_store_timestamps_never_decrease(open_log: OpenLog, message: Make, clock: Any) -> None:
    """A clock that is set back must not confuse the search by time."""
    log = open_log()
    first = log.append(message()).store_timestamp
    clock.ms -= 5000
    assert log.append(message()).store_timestamp == first
    clock.ms += 6000
    assert log.append(message()).store_timestamp == first + 1000


# Limits


@pytest.mark.parametrize(
    ("what", "fits", "too_long"),
    [
        ("body", {"body": b"x" * 1000}, {"body": b"x" * 1001}),
        ("topic", {"topic": "ä" * 127 + "x"}, {"topic": "ä" * 128}),
        ("properties", {"properties": b"p" * 32766 + b"\2"}, {"properties": b"p" * 32767 + b"\2"}),
        (
            "zeros",
            {"properties": b"a\1" + bytes(511) + b"\2"},
            {"properties": b"a\1" + bytes(512) + b"\2"},
        ),
    ],
)
def test_limits_hold_at_the_edge(
    open_log: OpenLog, message: Make, what: str, fits: dict[str, Any], too_long: dict[str, Any]
) -> None:
    """The largest is taken, one more is refused, and nothing of it stays."""
    log = open_log(1 << 16, max_body_bytes=1000)
    result = log.append(message(**fits))
    log.read(result.physical_offset)
    with pytest.raises(MessageRefusedError, match=what) as caught:
        log.append(message(**too_long))
    assert caught.value.got == caught.value.maximum + 1
    with pytest.raises(MessageRefusedError, match=what):
        log.append_batch([message(), message(**too_long)])
    assert offsets(log) == [0]


def test_a_record_leaves_room_for_a_blank_one(open_log: OpenLog, message: Make) -> None:
    """Eight bytes of each file are never a message's."""
    log = open_log(FILE)
    assert log.append(message(body_for(FILE - 8))).size_bytes == FILE - 8
    with pytest.raises(MessageRefusedError) as caught:
        log.append(message(body_for(FILE - 7)))
    assert (caught.value.got, caught.value.maximum) == (FILE - 7, FILE - 8)


# Rolling


@pytest.mark.parametrize("left", [8, 9, 200])
def test_a_full_file_ends_with_a_blank_record(open_log: OpenLog, message: Make, left: int) -> None:
    """It says how many bytes remain; the next record begins the next file."""
    log = open_log(FILE)
    log.append(message(body_for(FILE - left)))
    result = log.append(message(body_for(300)))
    assert result.physical_offset == FILE
    first = (log.files.directory / f"{0:020d}").read_bytes()
    assert SIZE_AND_MAGIC.unpack(first[FILE - left : FILE - left + 8]) == (left, BLANK_MAGIC_CODE)
    assert not any(first[FILE - left + 8 :])
    assert offsets(log) == [0, FILE]


def test_the_next_file_is_prepared_before_it_is_needed(open_log: OpenLog, message: Make) -> None:
    """It appears once half of the current one is used, and goes again if it was in vain."""
    log = open_log(FILE)
    log.append(message())
    following = log.files.directory / f"{FILE:020d}"
    with log._preparer._changed:
        assert log._preparer._changed.wait_for(following.exists, timeout=10)
    log.close()
    assert not following.exists()
    assert [path.name for path in log.files.directory.iterdir()] == [f"{0:020d}"]


def test_warming_never_touches_what_was_written(
    open_log: OpenLog, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preparer stores zeros right ahead of the writer; not one record suffers."""
    monkeypatch.setattr(file_preparer, "FIRST_AHEAD_BYTES", 512)
    monkeypatch.setattr(file_preparer, "AHEAD_MAX_BYTES", 512)
    log = open_log(1 << 16)
    sent = [b"%d" % number * (1 + number % 97) for number in range(4000)]
    for body in sent:
        log.append(message(body))
    got = [log.read(PhysicalOffset(offset)).body for offset in offsets(log)]
    assert got == sent


# Batches


def test_a_batch_lies_together_and_becomes_visible_at_once(
    open_log: OpenLog, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its last step neither a reader nor a recovery sees any of its records."""
    log = open_log(FILE)
    log.append(message())
    before = log.end_offset
    seen: list[tuple[int, bytes]] = []
    real = SIZE.pack_into

    class SpiedSize:
        def pack_into(self, buffer: memoryview, position: int, size: int) -> None:
            seen.append((log.end_offset, bytes(buffer[before : before + 4])))
            real(buffer, position, size)

    monkeypatch.setattr(commit_log, "SIZE", SpiedSize())
    results = log.append_batch([message(topic=t) for t in ("a", "b", "a")])
    assert seen == [(before, bytes(4))]
    assert [result.queue_offset for result in results] == [0, 0, 1]
    assert [result.physical_offset for result in results] == offsets(log)[1:]
    assert results[-1].end_offset == log.end_offset
    assert len({result.store_timestamp for result in results}) == 1


def test_a_batch_is_never_split_over_two_files(open_log: OpenLog, message: Make) -> None:
    """It begins a new file when the rest of the current one is too small."""
    log = open_log(FILE)
    log.append(message(body_for(2000)))
    results = log.append_batch([message(body_for(1100))] * 2)
    assert [result.physical_offset for result in results] == [FILE, FILE + 1100]
    assert offsets(log) == [0, FILE, FILE + 1100]


def test_a_batch_that_no_file_can_hold_is_refused_whole(open_log: OpenLog, message: Make) -> None:
    """All or nothing; and an empty batch is nothing."""
    log = open_log(FILE)
    half = FILE // 2
    assert len(log.append_batch([message(body_for(half)), message(body_for(half - 8))])) == 2
    with pytest.raises(MessageRefusedError):
        log.append_batch([message(body_for(half)), message(body_for(half - 7))])
    assert log.append_batch([]) == []
    assert offsets(log) == [0, half]


@pytest.mark.parametrize("batch", [False, True])
def test_our_own_mistake_leaves_no_trace(open_log: OpenLog, message: Make, *, batch: bool) -> None:
    """A field that does not fit fails half way through; the log is as it was."""
    log = open_log()
    log.append(message())
    bad = message(flag=1 << 40)
    with pytest.raises(struct.error):
        log.append_batch([message(), bad]) if batch else log.append(bad)
    assert log.queue_end("topic", 0) == 1
    assert log.append(message()).queue_offset == 1
    assert len(offsets(log)) == 2


# Threads


def test_concurrent_appends_are_dense(open_log: OpenLog, message: Make) -> None:
    """Whoever appends, offsets have no gap and no double, and a reader never sees half a record."""
    log = open_log(1 << 16)
    results: list[AppendResult] = []
    done = threading.Event()
    torn: list[Exception] = []

    def write(thread: int) -> None:
        for number in range(150):
            sent = message(b"x" * (number + thread), queue_id=number % 3)
            results.extend(log.append_batch([sent] * 2) if number % 5 == 0 else [log.append(sent)])

    def read() -> None:
        position = PhysicalOffset(0)
        while not (done.is_set() and position == log.end_offset):
            try:
                _, position = log.dispatch_requests(position, log.end_offset, 64)
            except CorruptRecordError as error:
                torn.append(error)
                return

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert torn == []
    assert sorted(result.physical_offset for result in results) == offsets(log)
    requests, _ = log.dispatch_requests(log.min_offset, log.end_offset, 1 << 30)
    for queue_id in range(3):
        queue = [r.queue_offset for r in requests if r.queue_id == queue_id]
        assert queue == list(range(len(queue)))
        assert log.queue_end("topic", queue_id) == len(queue)


# Reading


def test_reading_outside_of_what_is_stored_is_refused(open_log: OpenLog, message: Make) -> None:
    """Before, behind, across files, and in an empty log."""
    log = open_log(FILE)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(PhysicalOffset(0))
    log.append(message(body_for(FILE - 100)))
    end = log.append(message(body_for(200))).end_offset
    for offset in (-1, end, end + 10 * FILE):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(PhysicalOffset(offset))
        assert (caught.value.minimum, caught.value.end) == (0, end)
        with pytest.raises(OffsetOutOfRangeError):
            log.store_timestamp(PhysicalOffset(offset))
    for offset, size in ((end - 1, 2), (FILE - 1, 2)):
        for read in (log.read_bytes, log.read_cached):
            with pytest.raises(OffsetOutOfRangeError):
                read(PhysicalOffset(offset), size)


def test_reading_between_records_is_corrupt(open_log: OpenLog, message: Make) -> None:
    """An offset that somebody made up does not yield a message."""
    log = open_log()
    log.append(message())
    log.append(message())
    with pytest.raises(CorruptRecordError):
        log.read(PhysicalOffset(1))
    with pytest.raises(CorruptRecordError):
        log.dispatch_requests(PhysicalOffset(1), log.end_offset, 10)


def test_dispatch_goes_on_where_it_stopped(open_log: OpenLog, message: Make) -> None:
    """In steps of any size, over blank records, and not beyond the end that was asked for."""
    log = open_log(FILE)
    for number in range(40):
        log.append(message(body_for(300), queue_id=number))
    middle = PhysicalOffset(offsets(log)[20])
    requests, end = log.dispatch_requests(log.min_offset, middle, 1 << 30)
    assert ([r.queue_id for r in requests], end) == (list(range(20)), middle)
    for step in (1, 7, 13):
        position, got = log.min_offset, []
        while position < log.end_offset:
            requests, position = log.dispatch_requests(position, log.end_offset, step)
            assert len(requests) <= step
            got += [request.queue_id for request in requests]
        assert got == list(range(40))
    assert log.dispatch_requests(log.end_offset, log.end_offset, 9) == ([], log.end_offset)


def test_dispatch_returns_what_precedes_a_bad_record(open_log: OpenLog, message: Make) -> None:
    """Then the bad record is an error, so that it cannot be passed over in silence."""
    log = open_log()
    first, bad, _ = (log.append(message()) for _ in range(3))
    log.files.files[0].write(bad.physical_offset + 4, b"\xff")
    requests, position = log.dispatch_requests(log.min_offset, log.end_offset, 10)
    assert [request.physical_offset for request in requests] == [first.physical_offset]
    assert position == bad.physical_offset
    with pytest.raises(CorruptRecordError) as caught:
        log.dispatch_requests(position, log.end_offset, 10)
    assert caught.value.physical_offset == bad.physical_offset


def test_nothing_is_read_or_appended_after_retention_and_close(
    open_log: OpenLog, message: Make
) -> None:
    """A record whose file is gone is out of range; everything is, once the log is closed."""
    log = open_log(FILE)
    result = log.append(message(b"precious" * 400))
    log.append(message(body_for(1000)))
    log.flush()
    assert log.delete_before(PhysicalOffset(FILE)) == 1
    assert log.min_offset == FILE
    with pytest.raises(OffsetOutOfRangeError):
        log.read(result.physical_offset)
    log.close()
    with pytest.raises(StoreClosedError):
        log.read(PhysicalOffset(FILE))
    with pytest.raises(StoreClosedError):
        log.append(message())
    with pytest.raises(StoreClosedError):
        log.flush()


def test_retention_keeps_what_is_not_durable(open_log: OpenLog, message: Make) -> None:
    """Old files go only once they were flushed, and the file that is written never."""
    log = open_log(FILE)
    for _ in range(3):
        log.append(message(body_for(FILE - 8)))
    assert log.delete_before(log.end_offset) == 0
    log.flush()
    assert log.delete_before(log.end_offset) == 2
    assert offsets(log) == [2 * FILE]


# Against a model

MESSAGES = st.builds(
    OutgoingMessage,
    topic=st.sampled_from(["a", "b", "c" * 128]),
    queue_id=st.integers(0, 1),
    body=st.binary(max_size=1500),
    properties=st.sampled_from([b"", b"KEYS\x01k\x02", b"TAGS\x01t\x02"]),
    born_timestamp=st.integers(0, 1 << 50),
    born_host=st.sampled_from([Host.parse("1.2.3.4", 5), V6]),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sys_flag=st.sampled_from([0, 8]),
    reconsume_times=st.integers(-(1 << 31), (1 << 31) - 1),
    prepared_transaction_offset=st.integers(-(1 << 63), (1 << 63) - 1),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(MESSAGES, st.lists(MESSAGES, max_size=3)), max_size=12))
def test_a_log_is_a_list_of_messages(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[OutgoingMessage | list[OutgoingMessage]],
) -> None:
    """Whatever is appended in whatever groups comes back in order, with dense queue offsets."""
    log = CommitLog(
        tmp_path_factory.mktemp("model"), 8192, store_host=V6, max_body_bytes=2000,
        clock=SystemClock(), file_system=RealFileSystem(),
    )  # fmt: skip
    model: list[tuple[AppendResult, OutgoingMessage]] = []
    for step in steps:
        batch = step if isinstance(step, list) else [step]
        results = log.append_batch(batch) if isinstance(step, list) else [log.append(step)]
        model += zip(results, batch, strict=True)
    ends: dict[tuple[str, int], int] = {}
    requests, _ = log.dispatch_requests(log.min_offset, log.end_offset, 1000)
    for request, (result, sent) in zip(requests, model, strict=True):
        record = log.read(result.physical_offset)
        assert (record.topic, record.queue_id, record.body) == (
            sent.topic,
            sent.queue_id,
            sent.body,
        )
        assert (record.born_host, record.born_timestamp) == (sent.born_host, sent.born_timestamp)
        assert (record.flag, record.reconsume_times, record.prepared_transaction_offset) == (
            sent.flag,
            sent.reconsume_times,
            sent.prepared_transaction_offset,
        )
        key = (sent.topic, sent.queue_id)
        assert record.queue_offset == result.queue_offset == ends.get(key, 0)
        ends[key] = record.queue_offset + 1
        assert request.physical_offset == result.physical_offset
        assert request.size_bytes == record.size_bytes == result.size_bytes
    assert log.queue_ends() == ends
    log.close()
