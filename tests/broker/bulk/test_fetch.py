"""Fetch: whole records as they are stored, from anywhere, as far as credit goes."""

from __future__ import annotations

import queue
import zlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trio

from commitbus.broker import Broker
from commitbus.broker.bulk.arrivals import Arrivals
from commitbus.broker.bulk.fetch import fetch
from commitbus.broker.bulk.slice_shares import SliceShares
from commitbus.broker.bulk.status import refusal as status_of
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.core.durability import Durability
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.outcome import refusal
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import FETCH
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import Watermark
from tests.broker.bulk.bulk_client import Bulk, Fetched, make_batch, records_of

MESSAGES = 100


@pytest.fixture
def filled(bulk: Bulk, topic: str) -> str:
    """A topic whose queue 0 has messages `0` to `99`, with the tags a, b, AaBB and BBAa in turn.

    The last two have one hash.
    """
    tags = ("a", "b", "AaBB", "BBAa")
    for first in range(0, MESSAGES, 10):
        messages = [(b"%d" % n, {"TAGS": tags[n % 4]}) for n in range(first, first + 10)]
        # Others in between, so that the queue's records do not lie next to each other.
        batch, other = make_batch(0, messages, queue_id=0), make_batch(1, [(b"-", {})], queue_id=1)
        assert bulk.append(topic, batch, other).error is None
    return topic


def position(**at: Any) -> list[pb.QueuePosition]:
    return [pb.QueuePosition(queue_id=0, position=pb.Position(**at))]


def numbers(fetched: Fetched) -> list[int]:
    assert fetched.error is None
    for part in fetched.slices:
        assert part.checksum == zlib.crc32(part.records)
        records = records_of(part.records)
        assert len(records) == part.record_count
        assert not records or records[0].queue_offset == part.first_offset
        assert not records or records[-1].queue_offset < part.next_offset
    return [int(record.body) for record in fetched.records]


def test_a_queue_is_fetched_from_any_offset(bulk: Bulk, filled: str) -> None:
    for offset in (0, 1, 55, 99, 100):
        fetched = bulk.fetch(filled, queues=position(queue_offset=offset))
        assert numbers(fetched) == list(range(offset, MESSAGES))
        begin, *_, last = (fetched.slices[0], *fetched.slices)
        assert (begin.record_count, begin.first_offset, begin.next_offset) == (0, offset, offset)
        assert last.next_offset == last.end_offset == MESSAGES


def test_all_queues_are_fetched_when_none_is_named(bulk: Bulk, filled: str) -> None:
    fetched = bulk.fetch(filled)
    assert [part.queue_id for part in fetched.slices[:2]] == [0, 1]
    assert sorted({record.queue_id for record in fetched.records}) == [0, 1]
    assert len(fetched.records) == MESSAGES + MESSAGES // 10


def test_earliest_latest_and_a_time_are_places_to_begin(bulk: Bulk, filled: str) -> None:
    assert numbers(bulk.fetch(filled, queues=position())) == list(range(MESSAGES))
    assert numbers(bulk.fetch(filled, queues=position(latest=True))) == []
    records = bulk.fetch(filled, queues=position()).records
    middle = records[50].store_timestamp
    expected = [int(record.body) for record in records if record.store_timestamp >= middle]
    assert numbers(bulk.fetch(filled, queues=position(store_ms=middle))) == expected


@pytest.mark.parametrize("slice_bytes", [1, 150, 1000, 0])
def test_slices_are_cut_between_records(bulk: Bulk, filled: str, slice_bytes: int) -> None:
    """A record that is longer than the limit is a slice of its own."""
    fetched = bulk.fetch(filled, queues=position(), slice_bytes_max=slice_bytes)
    assert numbers(fetched) == list(range(MESSAGES))
    assert all(
        part.record_count <= 1 or len(part.records) <= (slice_bytes or 1 << 20)
        for part in fetched.slices
    )


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("a", {0}),
        ("a || b", {0, 1}),
        ("AaBB", {2}),
        ("BBAa", {3}),
        ("*", {0, 1, 2, 3}),
        ("c", set()),
    ],
)
def test_tags_are_compared_exactly(bulk: Bulk, filled: str, tags: str, wanted: set[int]) -> None:
    """Different tags may have the same code in the queue."""
    fetched = bulk.fetch(filled, queues=position(), tags=tags, slice_bytes_max=500)
    assert numbers(fetched) == [n for n in range(MESSAGES) if n % 4 in wanted]
    assert fetched.slices[-1].next_offset == MESSAGES


def test_the_whole_log_is_fetched_in_its_order(bulk: Bulk, filled: str) -> None:
    """Records of all topics, each at the physical offset that it names."""
    fetched = bulk.fetch_log(slice_bytes_max=1000)
    assert fetched.error is None
    offsets = [record.physical_offset for record in fetched.records]
    assert offsets == sorted(set(offsets))
    for part in fetched.slices:
        first = records_of(part.records)[:1]
        assert [record.physical_offset for record in first] in ([], [part.first_offset])
    records = [record for record in fetched.records if record.topic == filled]
    assert len(records) == MESSAGES + MESSAGES // 10
    middle = records[30].physical_offset
    again = bulk.fetch_log(physical_offset=middle).records
    assert again == [record for record in fetched.records if record.physical_offset >= middle]


def test_the_log_is_fetched_across_its_files() -> None:
    with Broker() as broker:
        client = Bulk(broker)
        batches = [make_batch(n, [(bytes(1 << 20), {})], queue_id=0) for n in range(40)]
        assert client.append("t", *batches).error is None
        whole, queue_0 = client.fetch_log().records, client.fetch("t").records
        client.channel.close()
    assert [record.queue_offset for record in whole] == list(range(40))
    assert whole == queue_0
    assert whole[-1].physical_offset > 2 * (16 << 20)


class Following:
    """A Fetch call that goes on until it is cancelled."""

    def __init__(self, bulk: Bulk, credit: int, **what: Any) -> None:
        self._requests: queue.Queue[pb.FetchRequest] = queue.Queue()
        self._requests.put(pb.FetchRequest(credit_bytes=credit, **what))
        self._call = bulk.fetch_call(iter(self._requests.get, None))

    def begin(self, queue_count: int) -> None:
        """Wait until it is settled where each queue begins."""
        for _ in range(queue_count):
            assert next(self._call).record_count == 0

    def grant(self, credit: int) -> None:
        self._requests.put(pb.FetchRequest(credit_bytes=credit))

    def next(self, count: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            bodies += [record.body for record in records_of(next(self._call).records)]
        return bodies

    def cancel(self) -> None:
        self._call.cancel()
        self._requests.put(pb.FetchRequest())


def test_who_follows_gets_what_comes_later(bulk: Bulk, topic: str) -> None:
    what = pb.FetchTopic(topic=topic, follow=True)
    following = Following(bulk, 1 << 30, topic=what)
    log = Following(bulk, 1 << 30, log=pb.FetchLog(follow=True))
    for number in range(3):
        bulk.append(topic, make_batch(0, [(b"follow-%d" % number, {})]))
        assert following.next(1) == [b"follow-%d" % number]
    while log.next(1) != [b"follow-2"]:
        pass
    following.cancel()
    log.cancel()


@pytest.mark.parametrize("named", [[], position(queue_offset=0)])
def test_who_follows_all_queues_gets_those_that_are_added(
    bulk: Bulk, broker: Broker, topic: str, named: list[pb.QueuePosition]
) -> None:
    """Also from `latest`: what is in a new queue is new."""
    what = pb.FetchTopic(
        topic=topic, follow=True, queues=named, begin=pb.Position(latest=True), other_queues=True
    )
    following = Following(bulk, 1 << 30, topic=what)
    following.begin(2)
    bulk.append(topic, make_batch(0, [(b"old", {})], queue_id=0))
    assert following.next(1) == [b"old"]
    broker.create_topic(topic, queues=4)
    bulk.append(topic, make_batch(0, [(b"new", {})], queue_id=3))
    assert following.next(1) == [b"new"]
    following.cancel()


def test_nothing_is_sent_without_credit(bulk: Bulk, topic: str) -> None:
    """A slice is begun while any credit is left, and the next one waits for more."""
    bulk.append(topic, *(make_batch(n, [(b"%d" % n, {})], queue_id=0) for n in range(6)))
    size = bulk.fetch(topic).records[0].size_bytes
    what = pb.FetchTopic(topic=topic, queues=position(), slice_bytes_max=1)
    following = Following(bulk, size + 1, topic=what)
    assert following.next(2) == [b"0", b"1"]
    bulk.append(topic, make_batch(0, [(b"-", {})], queue_id=1))
    following.grant(2 * size)
    assert following.next(2) == [b"2", b"3"]
    following.grant(10 * size)
    assert following.next(2) == [b"4", b"5"]
    following.cancel()
    # Whoever grants no more gets what was granted, and then the end.
    assert bulk.fetch(topic, queues=position(), slice_bytes_max=1, credit=size).bodies == [b"0"]
    assert len(bulk.fetch_log(slice_bytes_max=1, credit=1).records) == 1


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ({"queues": position(queue_offset=101)}, grpc.StatusCode.OUT_OF_RANGE),
        ({"queues": position(queue_offset=-1)}, grpc.StatusCode.OUT_OF_RANGE),
        ({"queues": [pb.QueuePosition(queue_id=2)]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"tags": "||"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"slice_bytes_max": 5 << 20}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"credit": -1}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_fetched_is_refused(
    bulk: Bulk, filled: str, what: dict[str, Any], code: grpc.StatusCode
) -> None:
    _, error = bulk.fetch(filled, **what)
    assert error is not None
    assert error[0] is code


def test_unknown_topics_and_offsets_of_no_record_are_refused(bulk: Bulk, filled: str) -> None:
    _, error = bulk.fetch("never-made")
    assert error == (grpc.StatusCode.NOT_FOUND, "no such topic: never-made")
    record = bulk.fetch(filled).records[0]
    _, error = bulk.fetch_log(physical_offset=record.physical_offset + 1)
    assert error is not None
    assert error[0] is grpc.StatusCode.INVALID_ARGUMENT
    _, error = bulk.fetch_log(physical_offset=1 << 60)
    assert error is not None
    assert error[0] is grpc.StatusCode.OUT_OF_RANGE
    with pytest.raises(grpc.RpcError, match="must say what to fetch"):
        next(iter(bulk.fetch_call(iter([pb.FetchRequest(credit_bytes=1)]))))


def test_what_was_acknowledged_is_waited_for() -> None:
    """It may be in no queue yet when its producer fetches it."""

    async def main() -> None:
        events: list[str] = []

        async def wait(end: int) -> None:
            events.append(f"dispatched to {end}")

        store: Any = SimpleNamespace(
            confirm_offset=5,
            min_physical_offset=5,
            log_slices=lambda: None,
        )
        context: Any = SimpleNamespace(
            store=store, slices=SliceShares(), shown=SimpleNamespace(wait=wait)
        )

        async def requests() -> AsyncGenerator[pb.FetchRequest, None]:
            yield pb.FetchRequest(log=pb.FetchLog())

        async def send(*_: object) -> None:
            events.append("sent")

        async with aclosing(requests()) as stream:
            await fetch(context, stream, Call("", {}, "", None, None), send)
        assert events == ["dispatched to 5", "sent"]

    trio.run(main)


def test_a_refusal_is_one_also_for_a_client_that_has_just_gone() -> None:
    """Nothing is logged as a failure of ours then."""

    async def main() -> None:
        store: Any = SimpleNamespace(
            confirm_offset=0,
            min_physical_offset=0,
            log_slices=lambda: None,
        )
        trio_thread = TrioThread()
        context: Any = SimpleNamespace(
            store=store,
            slices=SliceShares(),
            arrivals=Arrivals(trio_thread),
            shown=Durability(Watermark(PhysicalOffset(0)), trio_thread),
        )
        call = Call("", {}, "", None, None)

        async def requests() -> AsyncGenerator[pb.FetchRequest, None]:
            log = pb.FetchLog(follow=True)
            yield pb.FetchRequest(log=log)
            scope.cancel()
            yield pb.FetchRequest(log=log)

        async def send(*_: object) -> None:
            pass

        with pytest.raises(ExceptionGroup) as raised, trio.CancelScope() as scope:
            async with aclosing(requests()) as stream:
                await fetch(context, stream, call, send)
        types = (pb.FetchRequest, pb.FetchResponse)
        method = Method(
            FETCH,
            MethodKind.BIDI,
            *types,
            partial(fetch, context),
            refusal=status_of,
            access=NOTHING,
        )
        refused = refusal(raised.value, method, call)
        assert isinstance(refused, RpcError)
        assert refused.code is StatusCode.INVALID_ARGUMENT

    trio.run(main)
