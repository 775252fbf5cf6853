"""What is appended is fetched, byte for byte, however it is cut into batches and sent again."""

from __future__ import annotations

import secrets
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker import Broker
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Record
from tests.broker.bulk.bulk_client import Bulk, Pair, make_batch

TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=10)
MESSAGES = st.tuples(
    st.binary(min_size=1, max_size=300),
    st.dictionaries(TEXT.map("x-{}".format), TEXT, max_size=3)
    | st.fixed_dictionaries({"TAGS": st.sampled_from(["a", "b"]), "KEYS": st.just("k1 k2")}),
)
BATCHES = st.lists(
    st.tuples(st.integers(0, 1), st.lists(MESSAGES, min_size=1, max_size=20)),
    min_size=1,
    max_size=6,
)


def as_sent(record: Record) -> Pair:
    """A record without what the broker has added."""
    stored = {name: value for name, value in record.properties.items() if name != "UNIQ_KEY"}
    return record.body, stored


@settings(max_examples=40, deadline=None)
@given(batches=BATCHES, data=st.data())
def test_batches_come_out_as_they_went_in(
    bulk: Bulk, broker: Broker, batches: list[tuple[int, list[Pair]]], data: st.DataObject
) -> None:
    """Sent in several streams, each of which begins again somewhere before where the last ended."""
    topic, producer_id = f"t-{secrets.token_hex(8)}", secrets.token_bytes(16)
    broker.create_topic(topic, queues=2)
    requests = [
        make_batch(sequence, messages, queue_id=queue_id)
        for sequence, (queue_id, messages) in enumerate(batches)
    ]
    stored = 0
    acknowledged: dict[int, pb.AppendAck] = {}
    while stored < len(requests):
        first = data.draw(st.integers(0, stored))
        last = data.draw(st.integers(stored, len(requests) - 1))
        again = bulk.append(
            topic, *requests[first : last + 1], producer_id=producer_id, resumes=True
        )
        assert again.error is None
        for ack in again.acks:
            assert acknowledged.setdefault(ack.sequence, ack) == ack
        stored = last + 1
    records = bulk.fetch(topic, slice_bytes_max=data.draw(st.sampled_from([0, 1, 500]))).records
    for queue_id in (0, 1):
        sent = [message for queue, messages in batches if queue == queue_id for message in messages]
        found = [record for record in records if record.queue_id == queue_id]
        assert list(map(as_sent, found)) == sent
        assert [record.queue_offset for record in found] == list(range(len(sent)))


def test_what_is_fetched_after_a_restart_is_the_same(tmp_path: Path) -> None:
    """The same slices, to the last byte; and the properties are those that were sent."""
    messages: list[Pair] = [(bytes([n]) * (n + 1), {"TAGS": "t", "n": str(n)}) for n in range(50)]
    fetched = []
    for start in range(2):
        with Broker(tmp_path / "store") as broker:
            client = Bulk(broker)
            if start == 0:
                for number in range(0, 50, 10):
                    client.append("t", make_batch(0, messages[number : number + 10], queue_id=0))
            fetched.append(client.fetch("t"))
            fetched.append(client.fetch_log())
            client.channel.close()
    before, log_before, after, log_after = (
        b"".join(part.records for part in one.slices) for one in fetched
    )
    assert before == log_before == after == log_after
    for _, properties in messages:
        assert encode_properties(properties) in before
