"""Reput over a log, queues and an index that are only lists."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import final

import pytest

from commitbus.broker.store import reput as module
from commitbus.broker.store.reput import Arrival, DispatchedTo, Reput, ReputFailedError, arrivals_of
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import (
    CorruptRecordError,
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    OutOfResourcesError,
    ReadFailedError,
    StoreError,
)
from commitbus.commitlog.kernels import DispatchColumns
from commitbus.commitlog.threads import SystemThreads
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.flush.watermark import Watermark

PATIENCE_S = 20
BEGIN = DispatchedTo(PhysicalOffset(0), 0)


def request(number: int, *, sys_flag: int = 0, queue_id: int = 0) -> DispatchRequest:
    """Return message `number` of a log whose records have 10 bytes."""
    return DispatchRequest(
        PhysicalOffset(10 * number), 10, "T", queue_id, QueueOffset(number), 0, 1000 + number,
        sys_flag, "", "", "",
    )  # fmt: skip


@final
class FakeLog:
    """Endless records of 10 bytes, the confirmed ones of which may be read."""

    def __init__(self) -> None:
        self.confirmed = Watermark(PhysicalOffset(0))
        self.rotten_from = self.rotten_until = 1 << 62
        self.begin = PhysicalOffset(0)
        self.piece_records = 1 << 62

    def read(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[list[DispatchRequest], PhysicalOffset]:
        assert end <= self.confirmed.offset
        if self.rotten_from <= start < self.rotten_until:
            raise self.rot(start)
        count = min((end - start) // 10, max_count, self.piece_records)
        first = start // 10
        return [request(first + i) for i in range(count)], PhysicalOffset(start + 10 * count)

    def rot(self, start: PhysicalOffset) -> StoreError:
        return CorruptRecordError(start, "it rotted")

    def end_of_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        return PhysicalOffset(offset - offset % 100 + 100)


@final
class FakeTarget:
    """Takes messages, or says why not."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.is_full = False
        self.refusal: StoreError = DiskFullError(Path("somewhere"), 1)
        self.refused = threading.Event()
        self.lost_from: int | None = None

    @property
    def dispatched_to(self) -> PhysicalOffset:
        return PhysicalOffset(10 * len(self.numbers))

    def put(self, requests: Sequence[DispatchRequest] | DispatchColumns) -> None:
        assert not isinstance(requests, DispatchColumns), "the fake log gives no columns"
        if self.is_full:
            self.refused.set()
            raise self.refusal
        if self.lost_from is not None:
            del self.numbers[self.lost_from :]
            self.lost_from = None
            raise ReadFailedError(Path("somewhere"), 0, OSError(errno.EIO, "bad block"))
        self.numbers += [request.queue_offset for request in requests]


@final
class Bench:
    """A reput with its surroundings."""

    def __init__(self, start: DispatchedTo = BEGIN, index_from: int = 0) -> None:
        self.log, self.queues, self.index = FakeLog(), FakeTarget(), FakeTarget()
        self.log.confirmed = Watermark(start.physical_offset)
        self.reput = Reput(
            self.log,
            self.queues,
            self.index,
            self.log.confirmed,
            log_begin=lambda: self.log.begin,
            dispatched_to=start,
            index_from=PhysicalOffset(index_from),
            clock=SystemClock(),
        )

    def confirm(self, messages: int) -> PhysicalOffset:
        """Let reput have everything below message number `messages`."""
        self.log.confirmed.advance(PhysicalOffset(10 * messages))
        self.reput.wake()
        return self.log.confirmed.offset

    @contextmanager
    def running(self) -> Iterator[Reput]:
        """Start and, at the end, stop the thread."""
        self.reput.start()
        try:
            yield self.reput
        finally:
            self.reput.stop()


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FULL_DISK_RETRY_S", 0.001)


def test_every_message_goes_to_queues_and_index_once_in_order() -> None:
    """In batches; the position is that of the last one, with its store time."""
    bench = Bench()
    with bench.running() as reput:
        for messages in (1, 5, 2000, 2001):
            assert reput.dispatched.wait(bench.confirm(messages), PATIENCE_S)
            assert reput.dispatched_to == (10 * messages, 1000 + messages - 1)
        assert not reput.dispatched.wait(PhysicalOffset(20011), 0.001)
    assert bench.queues.numbers == bench.index.numbers == list(range(2001))
    assert reput.indexed_to == 20010


def test_reput_does_not_pause_while_more_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader returns fewer records than asked for; only its last batch may be the newest."""
    pauses: list[float] = []
    monkeypatch.setattr(SystemThreads, "sleep", lambda _, seconds: pauses.append(seconds))
    bench = Bench()
    bench.log.piece_records = 500
    bench.confirm(5000)
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.log.confirmed.offset, PATIENCE_S)
    assert len(pauses) <= 1


def test_stopping_dispatches_what_is_confirmed() -> None:
    """Even what nobody woke it for."""
    bench = Bench()
    with bench.running():
        bench.log.confirmed.advance(PhysicalOffset(50))
    assert bench.queues.numbers == bench.index.numbers == [0, 1, 2, 3, 4]


def test_an_index_behind_catches_up_without_delaying_the_queues() -> None:
    """New messages reach the queues while the index is being filled; then both go together."""
    bench = Bench(DispatchedTo(PhysicalOffset(20_000), 7), index_from=5000)
    seen: list[int] = []
    bench.reput.add_arrival_listener(lambda _: seen.append(len(bench.index.numbers)))
    bench.log.confirmed.advance(PhysicalOffset(20_010))
    with bench.running() as reput:
        assert reput.dispatched.wait(PhysicalOffset(20_010), PATIENCE_S)
    assert seen == [0]
    assert bench.queues.numbers == [2000]
    assert bench.index.numbers == list(range(500, 2001))


def test_a_stop_leaves_an_index_that_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebuild of hours does not hold up a shutdown."""
    monkeypatch.setattr(module, "LEFT_UNINDEXED_BYTES", 100)
    bench = Bench(DispatchedTo(PhysicalOffset(20_000), 7))
    bench.log.confirmed.advance(PhysicalOffset(20_010))
    # Stopped before it runs, so that it cannot begin with the index before it knows.
    bench.reput.stop()
    with bench.running():
        pass
    assert bench.queues.numbers == [2000]
    assert bench.index.numbers == []


def test_a_full_disk_of_the_queues_is_waited_out() -> None:
    """It is no failure, but it is known, and nothing is skipped."""
    bench = Bench()
    bench.queues.is_full = True
    with bench.running() as reput:
        end = bench.confirm(3)
        assert bench.queues.refused.wait(PATIENCE_S)
        assert not reput.dispatched.wait(end, 0.001)
        assert reput.full_disk is not None
        bench.queues.is_full = False
        assert reput.dispatched.wait(end, PATIENCE_S)
        assert reput.full_disk is None
    assert bench.queues.numbers == bench.index.numbers == [0, 1, 2]


def test_a_full_disk_of_the_index_does_not_stop_the_queues() -> None:
    """The index goes on later, from where it was."""
    bench = Bench()
    bench.index.is_full = True
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(3), PATIENCE_S)
        assert bench.index.refused.wait(PATIENCE_S)
        assert reput.dispatched.wait(bench.confirm(6), PATIENCE_S)
        assert reput.full_disk is None
        assert bench.index.numbers == []
        bench.index.is_full = False
        while reput.indexed_to < 60:
            assert not reput.dispatched.wait(PhysicalOffset(61), 0.001)
    assert bench.queues.numbers == bench.index.numbers == list(range(6))


def test_an_index_without_descriptors_does_not_stop_the_queues() -> None:
    """It goes on when files can be opened again."""
    bench = Bench()
    bench.index.refusal = OutOfResourcesError(Path("somewhere"), OSError(errno.EMFILE, "too many"))
    bench.index.is_full = True
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(3), PATIENCE_S)
        assert bench.index.refused.wait(PATIENCE_S)
        bench.index.is_full = False
        while reput.indexed_to < 30:
            assert not reput.dispatched.wait(PhysicalOffset(31), 0.001)
    assert bench.queues.numbers == bench.index.numbers == [0, 1, 2]


def test_what_the_index_has_lost_is_put_again() -> None:
    """A file that the disk does not give back any more is made anew while the store is in use."""
    bench = Bench()
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(2000), PATIENCE_S)
        bench.index.lost_from = 500
        assert reput.dispatched.wait(bench.confirm(2010), PATIENCE_S)
        while reput.indexed_to < 20_100:
            assert not reput.dispatched.wait(PhysicalOffset(20_101), 0.001)
    assert bench.queues.numbers == bench.index.numbers == list(range(2010))


def test_a_log_that_cannot_be_read_is_a_failure_that_is_told() -> None:
    """Once, to those who listen and to those who wait; nothing before it is lost."""
    bench = Bench()
    failures: list[StoreError] = []
    told = threading.Event()
    bench.reput.dispatched.listen(None, failures.append)
    bench.reput.dispatched.listen(None, lambda _: told.set())
    bench.log.rotten_from = 20
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(2), PATIENCE_S)
        end = bench.confirm(3)
        assert told.wait(PATIENCE_S)
        with pytest.raises(ReputFailedError, match=r"physical offset 20 failed: .*it rotted"):
            reput.dispatched.wait(end, PATIENCE_S)
    assert len(failures) == 1
    assert bench.queues.numbers == [0, 1]


def test_arrivals_name_each_queue_once_and_no_hidden_message() -> None:
    """Prepared and rolled-back messages of a transaction have no place in a queue."""
    requests = [
        request(0), request(1, queue_id=1), request(2), request(3, sys_flag=0x4),
        request(4, queue_id=2, sys_flag=0xC), request(5, queue_id=1, sys_flag=0x8),
    ]  # fmt: skip
    assert arrivals_of(requests) == [
        Arrival("T", 0, QueueOffset(3)),
        Arrival("T", 1, QueueOffset(6)),
    ]
    assert arrivals_of([]) == []


def test_an_index_that_is_behind_goes_on_where_the_log_begins() -> None:
    """Retention does not wait for it: what was deleted needs no entry."""
    bench = Bench()
    bench.index.is_full = True
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(6), PATIENCE_S)
        assert bench.index.refused.wait(PATIENCE_S)
        bench.log.begin = PhysicalOffset(40)
        bench.index.is_full = False
        while reput.indexed_to < 60:
            assert not reput.dispatched.wait(PhysicalOffset(61), 0.001)
    assert bench.queues.numbers == list(range(6))
    assert bench.index.numbers == [4, 5]


def test_what_is_deleted_while_it_is_read_for_the_index_is_passed_over() -> None:
    """A record that is still there and cannot be read is a failure, though."""
    bench = Bench(DispatchedTo(PhysicalOffset(60), 0))
    original, reads = bench.log.read, list[int]()

    def read(
        start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[list[DispatchRequest], PhysicalOffset]:
        reads.append(start)
        if start < 40:
            bench.log.begin = PhysicalOffset(40)
            raise OffsetOutOfRangeError("physical offset", start, 40, 60)
        return original(start, end, max_count)

    bench.log.read = read  # type: ignore[method-assign] # the deletion of this test
    with bench.running() as reput:
        while reput.indexed_to < 60:
            assert not reput.dispatched.wait(PhysicalOffset(61), 0.001)
    assert reads == [0, 40]
    assert bench.index.numbers == [4, 5]


def test_who_waits_for_what_is_never_confirmed_is_told() -> None:
    """Messages that are confirmed already are still dispatched."""
    bench = Bench()
    failure = FlushFailedError(Path("log"), OSError(5, "Input/output error"))
    with bench.running() as reput:
        end = bench.confirm(3)
        bench.log.confirmed.fail(failure)
        assert reput.dispatched.wait(end, PATIENCE_S)
        with pytest.raises(FlushFailedError):
            reput.dispatched.wait(PhysicalOffset(end + 1))


def test_a_process_without_descriptors_keeps_the_queues_waiting_and_fails_nothing() -> None:
    """To be out of descriptors is over some time; nothing was lost by it."""
    bench = Bench()
    bench.queues.refusal = OutOfResourcesError(Path("q"), OSError(errno.EMFILE, "Too many"))
    bench.queues.is_full = True
    with bench.running() as reput:
        end = bench.confirm(3)
        assert bench.queues.refused.wait(PATIENCE_S)
        assert not reput.dispatched.wait(end, 0.01)
        bench.queues.is_full = False
        assert reput.dispatched.wait(end, PATIENCE_S)
        assert reput.full_disk is None
    assert bench.queues.numbers == bench.index.numbers == [0, 1, 2]


@pytest.mark.parametrize(
    "error",
    [
        CorruptRecordError(50, "it rotted"),
        ReadFailedError(Path("log"), 50, OSError(errno.EIO, "Input/output error")),
    ],
    ids=["bad", "unreadable"],
)
def test_an_index_that_is_behind_goes_on_with_the_next_file_behind_a_bad_record(
    error: StoreError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One bad block in old messages would end the store otherwise, at each start again."""
    bench = Bench(DispatchedTo(PhysicalOffset(300), 0))
    bench.log.rotten_from, bench.log.rotten_until = 50, 90
    monkeypatch.setattr(module, "BATCH_RECORDS", 5)
    monkeypatch.setattr(bench.log.__class__, "rot", lambda *_: error)
    with bench.running() as reput:
        assert reput.dispatched.wait(bench.confirm(31), PATIENCE_S)
    assert bench.queues.numbers == [30]
    assert bench.index.numbers == [*range(5), *range(10, 31)]
    assert [r.message for r in caplog.records] == [f"messages are not indexed: {error}"]
