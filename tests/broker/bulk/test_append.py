"""Append: what is acknowledged is stored, once, in order."""

from __future__ import annotations

import queue
import re
import secrets
from pathlib import Path

import grpc
import pytest

from commitbus.broker import Broker
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.flush.policy import FlushMode
from tests.broker.bulk.bulk_client import Bulk, make_batch

INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION


def test_each_batch_is_acknowledged_with_its_place(bulk: Bulk, topic: str) -> None:
    """Next to each other in the queue that was asked for."""
    first = make_batch(7, [(b"a", {}), (b"b", {"TAGS": "t"})], queue_id=1)
    second = make_batch(8, [(b"c", {})], queue_id=1)
    acks, error = bulk.append(topic, first, second)
    assert error is None
    assert [(a.sequence, a.queue_id, a.first_queue_offset, a.record_count) for a in acks] == [
        (7, 1, 0, 2),
        (8, 1, 2, 1),
    ]
    records = bulk.fetch(topic).records
    assert [(r.body, r.queue_id, r.queue_offset) for r in records] == [
        (b"a", 1, 0),
        (b"b", 1, 1),
        (b"c", 1, 2),
    ]
    assert [acks[0].first_physical_offset, acks[1].first_physical_offset] == [
        records[0].physical_offset,
        records[2].physical_offset,
    ]
    assert acks[0].store_ms == records[0].store_timestamp
    assert records[1].properties == {"TAGS": "t"}


def test_the_broker_takes_the_queues_in_turn(bulk: Bulk, topic: str) -> None:
    acks, _ = bulk.append(topic, *(make_batch(n, [(b"x", {})]) for n in range(4)))
    assert sorted(ack.queue_id for ack in acks) == [0, 0, 1, 1]


def test_born_time_is_the_producer_s_if_it_says_one(bulk: Bulk, topic: str) -> None:
    bulk.append(
        topic,
        make_batch(0, [(b"a", {})], queue_id=0, born_ms=1_700_000_000_123),
        make_batch(1, [(b"b", {})], queue_id=0),
    )
    told, untold = bulk.fetch(topic).records
    assert told.born_timestamp == 1_700_000_000_123
    assert abs(untold.born_timestamp - untold.store_timestamp) < 60_000


def test_a_batch_that_is_sent_again_is_stored_once(bulk: Bulk, topic: str) -> None:
    """And its acknowledgement is the same, whatever came in between."""
    producer_id = secrets.token_bytes(16)
    batches = [make_batch(n, [(b"%d-%d" % (n, i), {}) for i in range(3)]) for n in range(4)]
    before = bulk.append(topic, *batches[:3], producer_id=producer_id).acks
    bulk.append(topic, make_batch(0, [(b"other", {})]))
    again, error = bulk.append(topic, *batches[1:], producer_id=producer_id, resumes=True)
    assert error is None
    assert again[:2] == before[1:]
    assert again[2].sequence == 3
    assert sorted(bulk.fetch(topic).bodies) == sorted(
        [b"other", *(b"%d-%d" % (n, i) for n in range(4) for i in range(3))]
    )


def test_a_producer_may_resume_before_it_stored_anything(bulk: Bulk, topic: str) -> None:
    """Its first batch was lost on the way: the same request is right."""
    producer_id = secrets.token_bytes(16)
    batch = make_batch(0, [(b"x", {})])
    assert bulk.append(topic, batch, producer_id=producer_id, resumes=True).error is None
    assert bulk.append(topic, batch, producer_id=producer_id, resumes=True).error is None
    assert bulk.fetch(topic).bodies == [b"x"]


def test_gaps_are_refused_and_what_came_before_is_acknowledged(bulk: Bulk, topic: str) -> None:
    producer_id = secrets.token_bytes(16)
    batches = {n: make_batch(n, [(b"%d" % n, {})]) for n in (0, 1, 3)}
    acks, error = bulk.append(topic, *batches.values(), producer_id=producer_id)
    assert [ack.sequence for ack in acks] == [0, 1]
    assert error == (PRECONDITION, "batch 3: the next one of this producer is 2")
    for resumes in (False, True):
        _, error = bulk.append(topic, batches[3], producer_id=producer_id, resumes=resumes)
        assert error is not None
        assert error[0] is PRECONDITION
    assert sorted(bulk.fetch(topic).bodies) == [b"0", b"1"]


def test_another_batch_under_a_used_sequence_is_refused(bulk: Bulk, topic: str) -> None:
    producer_id = secrets.token_bytes(16)
    bulk.append(topic, make_batch(0, [(b"one", {})]), producer_id=producer_id)
    other = make_batch(0, [(b"two", {})])
    _, error = bulk.append(topic, other, producer_id=producer_id, resumes=True)
    assert error is not None
    assert error[0] is PRECONDITION


class OpenStream:
    """An Append call that goes on until it is ended."""

    def __init__(self, bulk: Bulk, topic: str, producer_id: bytes) -> None:
        self._requests: queue.Queue[pb.AppendRequest | None] = queue.Queue()
        start = pb.AppendStart(topic=topic, producer_id=producer_id)
        self._requests.put(pb.AppendRequest(start=start))
        self._responses = bulk.append_call(iter(self._requests.get, None))
        assert next(self._responses).HasField("started")

    def send(self, batch: pb.AppendRequest) -> int:
        """Send a batch and return the sequence that is acknowledged."""
        self._requests.put(batch)
        (ack,) = next(self._responses).acks
        return int(ack.sequence)

    def end(self) -> None:
        self._requests.put(None)
        list(self._responses)


def test_a_stream_that_was_taken_over_stores_nothing_more(bulk: Bulk, topic: str) -> None:
    """A client that reconnects must not be overtaken by what its lost connection still carried."""
    producer_id = secrets.token_bytes(16)
    old = OpenStream(bulk, topic, producer_id)
    assert old.send(make_batch(0, [(b"early", {})])) == 0
    new = OpenStream(bulk, topic, producer_id)
    with pytest.raises(grpc.RpcError, match="another stream has taken this producer over"):
        old.send(make_batch(1, [(b"late", {})]))
    assert new.send(make_batch(0, [(b"new", {})])) == 0
    new.end()
    assert sorted(bulk.fetch(topic).bodies) == [b"early", b"new"]


def test_a_stream_that_was_taken_over_may_end_last(bulk: Bulk, topic: str) -> None:
    producer_id = secrets.token_bytes(16)
    old, new = (OpenStream(bulk, topic, producer_id) for _ in range(2))
    new.end()
    old.end()


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (make_batch(3, [(b"x", {}), (b"x", {"CLUSTER": "c"})]), "batch 3: record 1: property"),
        (make_batch(3, [(b"x", {}), (b"", {})]), "batch 3: record 1: message body"),
        (make_batch(3, [(b"x", {})], checksum=1), "batch 3: the batch does not match"),
        (make_batch(3, [(b"x", {})], queue_id=2), "batch 3: topic .* has 2 writable queues"),
        (make_batch(3, [(b"x", {})], queue_id=-1), "batch 3: topic .* has 2 writable queues"),
        (make_batch(3, []), "batch 3: the batch has no record"),
        (pb.AppendRequest(start=pb.AppendStart()), "only the first request is a start"),
    ],
)
def test_a_refusal_says_which_batch_and_record(
    bulk: Bulk, topic: str, batch: pb.AppendRequest, says: str
) -> None:
    """What came before it stays stored, nothing of the batch is."""
    acks, error = bulk.append(topic, make_batch(2, [(b"good", {})]), batch)
    assert [ack.sequence for ack in acks] == [2]
    assert error is not None
    assert error[0] is INVALID
    assert re.match(says, error[1])
    assert bulk.fetch(topic).bodies == [b"good"]


def test_a_request_of_twice_the_largest_batch_is_not_read(bulk: Bulk, topic: str) -> None:
    """One that is a little too large is told so by name."""
    for size, code in (
        (5 << 20, grpc.StatusCode.INVALID_ARGUMENT),
        (12 << 20, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ):
        _, error = bulk.append(topic, make_batch(0, [(bytes(size), {})]))
        assert error is not None
        assert error[0] is code


def test_a_call_begins_with_a_start(bulk: Bulk) -> None:
    for requests in ([], [make_batch(0, [(b"x", {})])]):
        with pytest.raises(grpc.RpcError, match="the first request must be a start"):
            next(iter(bulk.append_call(iter(requests))))


def test_only_topics_for_normal_messages_take_batches(bulk: Bulk, broker: Broker) -> None:
    broker.create_topic("fifo", message_type="FIFO")
    assert bulk.append("fifo").error is not None
    for name in ("", "a b", "SCHEDULE_TOPIC_XXXX", "x" * 128):
        _, error = bulk.append(name)
        assert error is not None
        assert error[0] is INVALID
    _, error = bulk.append("t", producer_id=b"short")
    assert error == (INVALID, "a producer id has 16 bytes")


def test_topics_are_created_only_where_that_is_allowed(bulk: Bulk) -> None:
    assert bulk.append("made-by-append", make_batch(0, [(b"x", {})])).error is None
    with Broker(auto_create_topics=False) as strict:
        client = Bulk(strict)
        _, error = client.append("unknown")
        client.channel.close()
    assert error == (grpc.StatusCode.NOT_FOUND, "no such topic: unknown")


def test_a_restart_forgets_no_producer(tmp_path: Path) -> None:
    """What was stored before is found again by its unique key."""
    producer_id = secrets.token_bytes(16)
    batches = [make_batch(n, [(b"%d" % n, {}), (b"x", {})]) for n in range(3)]
    with Broker(tmp_path / "store") as broker:
        client = Bulk(broker)
        before = client.append("t", *batches[:2], producer_id=producer_id).acks
        client.channel.close()
    with Broker(tmp_path / "store") as broker:
        client = Bulk(broker)
        again = client.append("t", *batches, producer_id=producer_id, resumes=True)
        bodies = client.fetch("t").bodies
        client.channel.close()
    assert again.acks[:2] == before
    assert again.error is None
    assert sorted(bodies) == sorted([b"0", b"1", b"2", b"x", b"x", b"x"])


@pytest.mark.parametrize("flush_mode", list(FlushMode))
def test_durable_acknowledgements_come_in_order(flush_mode: FlushMode) -> None:
    """In SYNC_FLUSH always, else if the stream asks for it."""
    with Broker(flush_mode=flush_mode) as broker:
        client = Bulk(broker)
        batches = [make_batch(n, [(b"x", {})]) for n in range(100)]
        acks, error = client.append("t", *batches, durable=True)
        durable = client.store.durable_watermark.offset
        client.channel.close()
    assert error is None
    assert [ack.sequence for ack in acks] == list(range(100))
    assert durable > acks[-1].first_physical_offset
