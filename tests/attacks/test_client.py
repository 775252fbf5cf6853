"""The suite's own client: it shares nothing with the broker, and means what it sends."""

from __future__ import annotations

import ast
import gzip
from pathlib import Path

import pytest

from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.rpc.proto import bulk_v1_pb2 as bulk
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.attacks import http2, protobuf, requests
from tests.attacks.connection import Answer
from tests.attacks.memory_attacks import bomb_of


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def test_no_module_but_the_tests_imports_the_broker_or_what_it_is_made_of() -> None:
    found = [
        f"{path.name}: {name}"
        for path in Path(__file__).parent.glob("*.py")
        if not path.name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported(node)
        if name.split(".")[0] in {"commitbus", "grpc", "google", "ngh2", "trio"}
    ]
    assert found == []


def test_a_message_to_send_is_what_it_says() -> None:
    encoded = requests.send("orders", b"body", "id-1", tag="t", key="k")
    (message,) = pb.SendMessageRequest.FromString(encoded).messages
    system = message.system_properties
    assert (message.topic.name, message.body) == ("orders", b"body")
    assert (system.message_id, system.tag, list(system.keys)) == ("id-1", "t", ["k"])
    assert (system.body_encoding, system.message_type) == (pb.IDENTITY, pb.NORMAL)


def test_a_receive_is_what_it_says() -> None:
    encoded = requests.receive(
        "orders", "g", batch=7, invisible_s=9, polling_s=6, kind=requests.SQL, expression="a=1"
    )
    request = pb.ReceiveMessageRequest.FromString(encoded)
    assert (request.group.name, request.message_queue.topic.name) == ("g", "orders")
    assert request.filter_expression == pb.FilterExpression(type=pb.SQL, expression="a=1")
    assert (request.batch_size, request.invisible_duration.seconds) == (7, 9)
    assert request.long_polling_timeout.seconds == 6


def test_other_requests_are_what_they_say() -> None:
    where = requests.endpoints("host", count=3)
    route = pb.QueryRouteRequest.FromString(requests.query_route("t", "space", where))
    assert (route.topic.name, route.topic.resource_namespace) == ("t", "space")
    assert [address.host for address in route.endpoints.addresses] == ["host"] * 3
    assignment = requests.query_assignment("t", "g", "space", where)
    assert pb.QueryAssignmentRequest.FromString(assignment).group.name == "g"
    pull = pb.PullMessageRequest.FromString(requests.pull("t", "g", 3, 70))
    assert (pull.message_queue.id, pull.offset, pull.batch_size) == (3, 70, 32)
    ack = pb.AckMessageRequest.FromString(requests.ack("t", "g", [("id", "handle")]))
    assert [(each.message_id, each.receipt_handle) for each in ack.entries] == [("id", "handle")]
    beat = pb.HeartbeatRequest.FromString(requests.heartbeat("g"))
    assert (beat.group.name, beat.client_type) == ("g", pb.PUSH_CONSUMER)
    published = pb.TelemetryCommand.FromString(requests.publishing(["a", "b"])).settings
    assert [topic.name for topic in published.publishing.topics] == ["a", "b"]
    wanted = pb.TelemetryCommand.FromString(requests.subscribing("g", ["a"])).settings.subscription
    assert (wanted.group.name, wanted.subscriptions[0].topic.name) == ("g", "a")
    offset = pb.QueryOffsetRequest.FromString(requests.offset_by_time("t", 2, 1000))
    assert (offset.query_offset_policy, offset.timestamp.seconds) == (pb.TIMESTAMP, 1000)
    assert admin.PutTopicRequest.FromString(requests.put_topic("t", 4)).write_queue_nums == 4
    assert admin.GetMessageRequest.FromString(requests.get_message("t", 1, 2)).place.queue_id == 1
    query = admin.QueryMessagesRequest.FromString(requests.query_messages("t", "k", by_tag=True))
    assert (query.kind, query.key, query.max_count) == (admin.TAG, "k", 64)
    start = bulk.AppendRequest.FromString(requests.append_start("t", b"id")).start
    assert (start.topic, start.producer_id) == ("t", b"id")
    assert bulk.FetchRequest.FromString(requests.fetch_topic("t")).topic.follow


def test_messages_of_an_answer_are_found() -> None:
    message = pb.Message(body=b"body")
    message.system_properties.message_id = "id"
    message.system_properties.receipt_handle = "handle"
    message.system_properties.queue_offset = -1
    responses = [
        pb.ReceiveMessageResponse(status=pb.Status(code=pb.OK)).SerializeToString(),
        pb.ReceiveMessageResponse(message=message).SerializeToString(),
    ]
    assert requests.received_messages(responses) == [(b"body", "id", "handle")]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\x0f", b"\x80"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        list(protobuf.fields(data))


def test_an_answer_is_told_by_its_codes() -> None:
    status = pb.SendMessageResponse(status=pb.Status(code=pb.BAD_REQUEST)).SerializeToString()
    packed = gzip.compress(status)
    for flag, body in ((0, status), (1, packed)):
        data = bytes([flag]) + len(body).to_bytes(4, "big") + body
        assert Answer(bytearray(data), status=0, is_over=True).outcome() == "code 40000"
    long = status + protobuf.text(2, bytes(1000))
    cut = bytearray(b"\0" + len(long).to_bytes(4, "big") + long[:100])
    assert Answer(cut, status=0, is_over=True).outcome() == "code 40000"
    assert Answer(status=8, is_over=True).outcome() == "grpc 8"
    assert Answer(status=0, is_over=True).outcome() == "ok"
    assert Answer(was_reset=True, is_over=True).outcome() == "reset"
    assert Answer().outcome() == "no answer yet"


@pytest.mark.parametrize(
    "block",
    [
        "00889acac8b21234da8f023136",  # as libnghttp2 writes it
        "20880f108b1d75d0620d263d4c4d656400889acac8b21234da8f023136",  # in the only header block
        "000b677270632d737461747573023136",  # as it is
        "400b677270632d737461747573023136",
    ],
)
def test_the_status_is_found_in_trailers(block: str) -> None:
    assert http2.grpc_status(bytes.fromhex(block)) == 16


def test_trailers_without_a_status_have_none() -> None:
    assert http2.grpc_status(bytes.fromhex("880f108b1d75d0620d263d4c4d6564")) is None


def test_frames_are_taken_when_they_are_complete() -> None:
    ping, data = http2.frame(http2.PING, bytes(8)), http2.frame(http2.DATA, bytes(70_000))
    buffer = bytearray(ping + data[:-1])
    assert [each.kind for each in http2.take_frames(buffer)] == [http2.PING]
    buffer += data[-1:]
    assert [len(each.payload) for each in http2.take_frames(buffer)] == [70_000]
    assert not buffer


def test_a_bomb_is_small_and_unpacks_to_what_a_call_may_take() -> None:
    packed = bomb_of(1)
    unpacked = gzip.decompress(packed)
    assert len(packed) < 10_000
    assert 4_000_000 < len(unpacked) < 4 << 20
    assert len(pb.AckMessageRequest.FromString(unpacked).entries) > 1_000_000
