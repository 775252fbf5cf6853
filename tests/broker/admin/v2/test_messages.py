"""Finding messages by id, key and time, and sending them, over both transports."""

from __future__ import annotations

import time
from itertools import chain
from typing import Any

import pytest

from commitbus.broker.admin.v2 import messages as module
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import offset_message_id

Names = tuple[str, str]


def search(served: Any, topic: str, **fields: Any) -> pb.ListMessageResponse:
    request = pb.ListMessageRequest(**fields)
    request.topic.name = topic
    response = served.call(
        "/apache.rocketmq.v2.Admin/QueryMessage", request, pb.ListMessageResponse
    )
    assert isinstance(response, pb.ListMessageResponse)
    return response


def bodies(response: pb.ListMessageResponse) -> list[bytes]:
    assert response.status.code == pb.OK, response.status.message
    return [message.body for message in response.messages]


def test_a_message_is_found_by_its_id(served: Any, names: Names) -> None:
    """As a consumer would get it; the store's own id serves as well."""
    topic, _ = names
    (message_id,) = served.send(topic, b"body", key="k", tag="t")
    (message,) = search(served, topic, message_id=message_id).messages
    system = message.system_properties
    assert (message.topic.name, message.body) == (topic, b"body")
    assert (system.message_id, system.tag, list(system.keys)) == (message_id, "t", ["k"])
    assert not system.HasField("receipt_handle")
    assert not system.HasField("delivery_attempt")
    (record,) = served.store.query_by_unique_key(topic, message_id)
    place = offset_message_id(record.store_host, record.physical_offset)
    assert bodies(search(served, topic, message_id=place)) == [b"body"]


def test_a_search_holds_no_more_bodies_than_it_returns(
    served: Any, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any producer may send thousands of large messages with the same key and the same id."""
    topic, _ = names
    properties = pb.SystemProperties(message_id="same id", keys=["k"])
    for number in range(5):
        request = pb.AdminSendMessageRequest(body=b"%d" % number, system_properties=properties)
        request.topic.name = topic
        path = "/apache.rocketmq.v2.Admin/AdminSendMessage"
        served.call(path, request, pb.AdminSendMessageResponse)
    held: list[Any] = []
    reader = type(served.store)
    for name in ("query_by_key", "query_by_unique_key"):
        query = getattr(reader, name)

        def spied(*arguments: Any, query: Any = query, **options: Any) -> Any:
            found = query(*arguments, **options)
            held.extend(record for record in found if record.body)
            return found

        monkeypatch.setattr(reader, name, spied)
    served.send(topic, b"until all are found")
    assert len(bodies(search(served, topic, message_key="k"))) == 5
    assert held == []
    assert bodies(search(served, topic, message_id="same id")) == [b"4"]
    assert len(held) == 1


@pytest.mark.parametrize("message_id", ["no such id", "", "7F0000010000223D0000FFFFFFFFFFFF"])
def test_an_unknown_id_names_no_message(served: Any, names: Names, message_id: str) -> None:
    assert search(served, names[0], message_id=message_id).status.code == pb.MESSAGE_NOT_FOUND


def test_an_id_of_another_topic_names_no_message(served: Any, names: Names) -> None:
    (message_id,) = served.send(names[0], b"x")
    other = served.topic("T-other-topic")
    assert search(served, other, message_id=message_id).status.code == pb.MESSAGE_NOT_FOUND


def test_a_search_by_key_has_pages_newest_first(served: Any, names: Names) -> None:
    topic, _ = names
    served.send(topic, *[b"%d" % n for n in range(5)], key="k")
    served.send(topic, b"other", key="o")
    assert bodies(search(served, topic, message_key="k")) == [b"4", b"3", b"2", b"1", b"0"]
    page = search(served, topic, message_key="k", page_size=2)
    assert (bodies(page), bodies(search(served, topic, message_key="k", max_message_nums=2))) == (
        [b"4", b"3"],
        [b"4", b"3"],
    )
    page = search(served, topic, message_key="k", page_size=2, scroll_id=page.scroll_id)
    assert bodies(page) == [b"2", b"1"]
    page = search(served, topic, message_key="k", page_size=2, scroll_id=page.scroll_id)
    assert (bodies(page), page.scroll_id) == ([b"0"], "")
    assert bodies(search(served, topic, message_key="k", page_size=2, page_num=3)) == [b"0"]
    assert bodies(search(served, topic, message_key="k", page_size=2, page_num=4)) == []
    assert bodies(search(served, topic, message_key="nobody's")) == []


def all_pages(served: Any, topic: str, **fields: Any) -> list[list[bytes]]:
    pages: list[list[bytes]] = []
    scroll_id = ""
    while not pages or scroll_id:
        response = search(served, topic, scroll_id=scroll_id, **fields)
        pages.append(bodies(response))
        scroll_id = response.scroll_id
    return pages


def test_a_search_by_time_goes_queue_by_queue(served: Any) -> None:
    """Every message once, in pages of the wanted size; a queue may be chosen."""
    topic = served.topic("T-by-time", queues=3)
    served.send(topic, *[b"%d" % n for n in range(7)])
    by_queue = [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]
    expected = list(chain(*by_queue))
    assert bodies(search(served, topic)) == expected
    pages = all_pages(served, topic, page_size=3)
    assert (list(map(len, pages)), list(chain(*pages))) == ([3, 3, 1], expected)
    numbered = [bodies(search(served, topic, page_size=3, page_num=n)) for n in (1, 2, 3, 4)]
    assert numbered == [*pages, []]
    for queue_id, wanted in enumerate(by_queue):
        assert bodies(search(served, topic, queue_id=queue_id)) == wanted
    assert bodies(search(served, topic, broker_name="broker-a", queue_id=1)) == by_queue[1]


def test_a_search_by_time_keeps_to_its_time(served: Any, names: Names) -> None:
    topic, _ = names
    served.send(topic, b"old")
    time.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    served.send(topic, b"new")
    for field, wanted in (("begin_timestamp", [b"new"]), ("end_timestamp", [b"old"])):
        request = pb.ListMessageRequest()
        request.topic.name = topic
        getattr(request, field).FromMilliseconds(between_ms)
        path = "/apache.rocketmq.v2.Admin/QueryMessage"
        assert bodies(served.call(path, request, pb.ListMessageResponse)) == wanted


def test_a_page_of_large_messages_is_shorter(
    served: Any, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that an answer does not take hundreds of megabytes; none is left out."""
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 3500)
    topic, _ = names
    sent = [b"%d" % n * 1000 for n in range(5)]
    served.send(topic, *sent, key="large")
    pages = all_pages(served, topic)
    assert (list(map(len, pages)), list(chain(*pages))) == ([2, 2, 1], sent)
    pages = all_pages(served, topic, message_key="large")
    assert (list(map(len, pages)), list(chain(*pages))) == ([2, 2, 1], sent[::-1])


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"page_size": 0}, pb.BAD_REQUEST),
        ({"page_size": 1, "page_num": 0}, pb.BAD_REQUEST),
        ({"page_size": 1, "page_num": module.PAGES_MAX + 1}, pb.BAD_REQUEST),
        ({"message_key": "k", "page_num": 2**31 - 1}, pb.BAD_REQUEST),
        ({"max_message_nums": -1}, pb.BAD_REQUEST),
        ({"queue_id": 1}, pb.BAD_REQUEST),
        ({"queue_id": -1}, pb.BAD_REQUEST),
        ({"scroll_id": "x"}, pb.BAD_REQUEST),
        ({"scroll_id": "x", "message_key": "k"}, pb.BAD_REQUEST),
        ({"scroll_id": "9" * 5000, "message_key": "k"}, pb.BAD_REQUEST),
        ({"broker_name": "another"}, pb.NOT_FOUND),
        ({"subscription": "s"}, pb.NOT_IMPLEMENTED),
        ({"lite_topic": "l"}, pb.NOT_IMPLEMENTED),
    ],
)
def test_a_search_that_makes_no_sense(
    served: Any, names: Names, fields: dict[str, Any], code: pb.Code
) -> None:
    assert search(served, names[0], **fields).status.code == code


def test_a_search_does_not_begin_after_its_end(served: Any, names: Names) -> None:
    request = pb.ListMessageRequest()
    request.topic.name = names[0]
    request.begin_timestamp.seconds, request.end_timestamp.seconds = 2, 1
    response = served.call(
        "/apache.rocketmq.v2.Admin/QueryMessage", request, pb.ListMessageResponse
    )
    assert response.status.code == pb.BAD_REQUEST


def test_what_operators_send_is_a_message_like_others(served: Any, names: Names) -> None:
    topic, group = names
    request = pb.AdminSendMessageRequest(body=b"hello", tag="t", key="k")
    request.topic.name = topic
    request.user_properties["own"] = "value"
    request.system_properties.message_id = "chosen-id"
    response = served.admin("AdminSendMessage", request)
    assert (response.status.code, response.message_id) == (pb.OK, "chosen-id")
    assert served.store.dispatched.wait(served.store.end_offset, 10)
    (message,) = served.receive(topic, group)
    system = message.system_properties
    assert (message.body, system.tag, list(system.keys)) == (b"hello", "t", ["k"])
    assert (system.message_id, dict(message.user_properties)) == ("chosen-id", {"own": "value"})


@pytest.mark.parametrize(
    ("topic", "fields", "code"),
    [
        ("Missing", {"body": b"x"}, pb.TOPIC_NOT_FOUND),
        ("a b", {"body": b"x"}, pb.ILLEGAL_TOPIC),
        ("", {}, pb.MESSAGE_BODY_EMPTY),
        ("", {"body": b"x", "tag": "a|b"}, pb.ILLEGAL_MESSAGE_TAG),
        ("", {"body": b"x", "key": " "}, pb.ILLEGAL_MESSAGE_KEY),
        ("", {"body": b"x", "user_properties": {"KEYS": "k"}}, pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (
            "",
            {"body": b"x", "system_properties": {"message_group": "g"}},
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
    ],
)
def test_operators_are_under_the_limits_of_producers(
    served: Any, names: Names, topic: str, fields: dict[str, Any], code: pb.Code
) -> None:
    request = pb.AdminSendMessageRequest(**fields)
    request.topic.name = topic or names[0]
    assert served.admin("AdminSendMessage", request).status.code == code
