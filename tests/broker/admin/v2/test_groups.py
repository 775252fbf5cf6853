"""Lag, time spans and resets, over both transports."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Names = tuple[str, str]


def accumulation(served: Any, group: str, *topics: str) -> pb.DescribeGroupAccumulationResponse:
    request = pb.DescribeGroupAccumulationRequest()
    request.group.name = group
    for topic in topics:
        request.topics.add(name=topic)
    response = served.admin("DescribeGroupAccumulation", request)
    assert isinstance(response, pb.DescribeGroupAccumulationResponse)
    return response


def reset(served: Any, topic: str, group: str, timestamp_ms: int | None) -> pb.Code:
    request = pb.ResetGroupOffsetRequest()
    request.topic.name, request.group.name = topic, group
    if timestamp_ms is not None:
        request.reset_timestamp.FromMilliseconds(timestamp_ms)
    code: pb.Code = served.admin("ResetGroupOffset", request).status.code
    return code


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_lag_says_what_is_in_flight_and_what_is_ready(served: Any, names: Names) -> None:
    topic, group = names
    served.send(topic, b"a", b"b", b"c", b"d")
    first, second = served.receive(topic, group, batch=2)
    assert served.ack(topic, group, first) == pb.OK
    response = accumulation(served, group)
    assert response.status.code == pb.OK
    found = response.accumulation
    assert (found.inflight_messages, found.ready_messages, found.accumulation) == (1, 2, 3)
    assert 0 <= found.deliver_delay_time.ToMilliseconds() < 60_000
    assert abs(found.last_consume_timestamp - now_ms()) < 60_000
    assert response.topic_accumulation[topic] == found
    served.ack(topic, group, second, *served.receive(topic, group))
    found = accumulation(served, group, topic).accumulation
    assert (found.accumulation, found.deliver_delay_time.ToMilliseconds()) == (0, 0)


def test_lag_of_a_group_that_has_not_begun_is_all_there_is(served: Any, names: Names) -> None:
    """If the topic is named: otherwise nothing says which topics it will consume."""
    topic, group = names
    served.send(topic, b"a", b"b")
    assert accumulation(served, group, topic).accumulation.ready_messages == 2
    response = accumulation(served, group)
    assert response.status.code == pb.OK
    assert dict(response.topic_accumulation) == {}


def test_what_became_visible_again_is_ready(served: Any, names: Names) -> None:
    topic, group = names
    served.send(topic, b"a")
    (message,) = served.receive(topic, group)
    request = pb.ChangeInvisibleDurationRequest(
        receipt_handle=message.system_properties.receipt_handle
    )
    request.group.name, request.topic.name = group, topic
    assert served.messaging("ChangeInvisibleDuration", request).status.code == pb.OK
    found = accumulation(served, group).accumulation
    assert (found.inflight_messages, found.ready_messages) == (0, 1)


def test_a_time_span_tells_from_when_messages_are(served: Any, names: Names) -> None:
    topic, group = names
    began_ms = now_ms()
    served.send(topic, b"a", b"b")
    served.ack(topic, group, *served.receive(topic, group, batch=1))
    request = pb.QueryTimeSpanRequest()
    request.group.name = group
    response = served.admin("QueryTimeSpan", request)
    assert response.status.code == pb.OK
    (span,) = response.queue_time_span_list
    assert (span.message_queue.topic.name, span.message_queue.id) == (topic, 0)
    times = (began_ms, span.min_timestamp, span.consume_timestamp, span.max_timestamp, now_ms())
    assert list(times) == sorted(times)
    assert 0 <= span.delay_time_ms < 60_000


def test_a_reset_back_delivers_again_without_a_restart(served: Any, names: Names) -> None:
    """A receiver that waits gets the messages at once."""
    topic, group = names
    served.send(topic, b"a", b"b")
    received = served.receive(topic, group)
    served.ack(topic, group, received[0])
    again: list[list[pb.Message]] = []
    waiting = threading.Thread(
        target=lambda: again.append(served.receive(topic, group, client_id="c2", wait_s=15))
    )
    waiting.start()
    while not any(
        c.client_id == "c2" for c in list(served.running.context.messaging.clients.all())
    ):
        time.sleep(0.01)
    assert reset(served, topic, group, 0) == pb.OK
    waiting.join(15)
    assert [message.body for message in again[0]] == [b"a", b"b"]
    served.ack(topic, group, *again[0])
    assert accumulation(served, group).accumulation.accumulation == 0


def test_a_reset_back_forgets_what_is_in_flight(served: Any, names: Names) -> None:
    """Who holds it cannot acknowledge what was not delivered again."""
    topic, group = names
    served.send(topic, b"a")
    (held,) = served.receive(topic, group)
    assert reset(served, topic, group, 0) == pb.OK
    assert served.ack(topic, group, held) == pb.INVALID_RECEIPT_HANDLE
    found = accumulation(served, group).accumulation
    assert (found.inflight_messages, found.ready_messages) == (0, 1)


def test_a_reset_forward_skips(served: Any, names: Names) -> None:
    """To the first message of that time, or to the end."""
    topic, group = names
    served.send(topic, b"old")
    time.sleep(0.05)
    between_ms = now_ms()
    served.send(topic, b"new")
    assert reset(served, topic, group, between_ms) == pb.OK
    (message,) = served.receive(topic, group)
    assert message.body == b"new"
    assert reset(served, topic, group, now_ms() + 3_600_000) == pb.OK
    assert accumulation(served, group).accumulation.accumulation == 0


def test_an_orderly_group_is_reset_like_any_other(served: Any, names: Names) -> None:
    """Its locks go with what was in flight."""
    topic, _ = names
    group = served.group("G-orderly-reset", consume_message_orderly=True)
    served.topic(topic, **{"message.type": "FIFO"})
    request = pb.AdminSendMessageRequest(body=b"a")
    request.topic.name, request.system_properties.message_group = topic, "g"
    assert served.admin("AdminSendMessage", request).status.code == pb.OK
    assert served.store.dispatched.wait(served.store.end_offset, 10)
    assert [m.body for m in served.receive(topic, group)] == [b"a"]
    assert reset(served, topic, group, 0) == pb.OK
    assert [m.body for m in served.receive(topic, group, client_id="c2")] == [b"a"]


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("Missing", "", pb.TOPIC_NOT_FOUND),
        ("a b", "", pb.ILLEGAL_TOPIC),
        ("TBW102", "", pb.ILLEGAL_TOPIC),
        ("", "Missing", pb.CONSUMER_GROUP_NOT_FOUND),
        ("", "a b", pb.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_what_does_not_exist_has_no_lag(
    served: Any, names: Names, topic: str, group: str, code: pb.Code
) -> None:
    topic, group = topic or names[0], group or names[1]
    assert accumulation(served, group, topic).status.code == code
    assert reset(served, topic, group, 0) == code
    request = pb.QueryTimeSpanRequest()
    request.group.name = group
    request.topics.add(name=topic)
    assert served.admin("QueryTimeSpan", request).status.code == code


def test_a_reset_needs_a_time(served: Any, names: Names) -> None:
    assert reset(served, *names, None) == pb.BAD_REQUEST


def test_lite_topics_have_no_lag_yet(served: Any, names: Names) -> None:
    request = pb.DescribeGroupAccumulationRequest(lite_topic="lite")
    request.group.name = names[1]
    assert served.admin("DescribeGroupAccumulation", request).status.code == pb.NOT_IMPLEMENTED
