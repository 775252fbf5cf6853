"""Wrong arguments of a producer: an error of the call, and nothing for the messages beside it."""

from __future__ import annotations

import array
from typing import Any

import pytest

from commitbus.broker import Broker
from commitbus.broker.client import RefusedError, SyncConsumer, SyncProducer

GOOD: dict[str, Any] = {"body": b"body"}
WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"body": "text"}, TypeError),
    ({"body": None}, TypeError),
    ({"body": 5}, TypeError),
    ({"body": [1, 2]}, TypeError),
    ({"topic": b"bytes"}, TypeError),
    ({"topic": "surrogate \ud800"}, ValueError),
    ({"queue_id": "0"}, TypeError),
    ({"queue_id": 0.5}, TypeError),
    ({"queue_id": -1}, ValueError),
    ({"queue_id": 1 << 40}, ValueError),
    ({"tag": b"t"}, TypeError),
    ({"tag": "\ud800"}, RefusedError),
    ({"keys": [1]}, TypeError),
    ({"properties": {"name": 1}}, TypeError),
    ({"properties": {"name": "\ud800"}}, RefusedError),
    ({"on_delivery": "no function"}, TypeError),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG, ids=[str(wrong) for wrong, _ in WRONG])
def test_a_wrong_argument_is_an_error_of_its_call_alone(
    broker: Broker, topic: str, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with SyncProducer(broker.endpoint) as producer:
        producer.produce(b"before", topic=topic)
        with pytest.raises(error):
            producer.produce(**{"topic": topic, **GOOD, **wrong})
        if "on_delivery" not in wrong:
            with pytest.raises(error):
                producer.send(**{"topic": topic, **GOOD, **wrong})
        producer.produce(b"after", topic=topic)
    assert sorted(bodies_of(broker, topic)) == [b"after", b"before"]


def test_a_body_that_changes_after_the_call_is_stored_as_it_was(broker: Broker, topic: str) -> None:
    reused = bytearray(b"first")
    with SyncProducer(broker.endpoint) as producer:
        producer.produce(reused, topic=topic, queue_id=0)
        reused[:] = b"other"
        producer.produce(memoryview(reused), topic=topic, queue_id=0)
        reused[:] = b"third"
    assert bodies_of(broker, topic) == [b"first", b"other"]


def test_views_of_any_shape_are_stored_as_their_bytes(broker: Broker, topic: str) -> None:
    """The length of a view counts its items, which may be longer than a byte."""
    numbers = array.array("i", range(4))
    with SyncProducer(broker.endpoint) as producer:
        producer.produce(b"neighbour", topic=topic, queue_id=0)
        producer.produce(memoryview(numbers), topic=topic, queue_id=0)
        producer.produce(memoryview(b"abcdef")[::2], topic=topic, queue_id=0)
    assert bodies_of(broker, topic) == [b"neighbour", numbers.tobytes(), b"ace"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"topic": 1}, TypeError),
        ({"topic": "\ud800"}, ValueError),
        ({"tags": None}, TypeError),
        ({"begin": "first"}, ValueError),
        ({"begin": {0: -1}}, ValueError),
        ({"begin": {0: 1 << 63}}, ValueError),
        ({"begin": {"0": 1}}, TypeError),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_consumer_is_refused_at_once(
    broker: Broker, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        SyncConsumer(broker.endpoint, **{"topic": "topic", **wrong})


def bodies_of(broker: Broker, topic: str) -> list[bytes]:
    """Return the bodies of a topic in the order of its queues."""
    with SyncConsumer(broker.endpoint, topic, follow=False) as consumer:
        return [message.body for message in consumer]
