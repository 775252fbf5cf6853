"""What an operator asks one consumer, over both transports."""

from __future__ import annotations

from typing import Any

import pytest

from commitbus.broker.messaging import questions
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Names = tuple[str, str]


def trace_answer(command: pb.TelemetryCommand) -> pb.TelemetryCommand:
    answer = pb.TelemetryCommand()
    answer.status.code = pb.OK
    answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
    answer.thread_stack_trace.thread_stack_trace = "main: consuming"
    return answer


def print_trace(served: Any, group: str, client_id: str) -> pb.PrintThreadStackTraceResponse:
    request = pb.PrintThreadStackTraceRequest(client_id=client_id)
    request.group.name = group
    response = served.admin("PrintThreadStackTrace", request)
    assert isinstance(response, pb.PrintThreadStackTraceResponse)
    return response


def verify(served: Any, names: Names, message_id: str, client_id: str = "c1") -> pb.Status:
    request = pb.VerifyMessageRequest(client_id=client_id, message_id=message_id)
    request.topic.name, request.group.name = names
    status: pb.Status = served.admin("VerifyMessage", request).status
    return status


def running_info(served: Any, group: str, client_id: str) -> pb.GetConsumerRunningInfoResponse:
    request = pb.GetConsumerRunningInfoRequest(client_id=client_id)
    request.group.name = group
    response = served.admin("GetConsumerRunningInfo", request)
    assert isinstance(response, pb.GetConsumerRunningInfoResponse)
    return response


def test_a_consumer_prints_its_stacks(served: Any, names: Names, connect: Any) -> None:
    _, group = names
    connect("c1", group).answer = trace_answer
    response = print_trace(served, group, "c1")
    assert (response.status.code, response.thread_stack_trace) == (pb.OK, "main: consuming")


@pytest.mark.parametrize("code", [pb.OK, pb.FAILED_TO_CONSUME_MESSAGE, pb.MESSAGE_CORRUPTED])
def test_a_consumer_consumes_a_message_on_demand(
    served: Any, names: Names, connect: Any, code: pb.Code
) -> None:
    """The whole message, and what the consumer says of it is the answer."""
    topic, group = names
    (message_id,) = served.send(topic, b"body", tag="t")
    heard: list[pb.Message] = []

    def answer(command: pb.TelemetryCommand) -> pb.TelemetryCommand:
        heard.append(command.verify_message_command.message)
        answer = pb.TelemetryCommand(status=pb.Status(code=code, message="said the client"))
        answer.verify_message_result.nonce = command.verify_message_command.nonce
        return answer

    connect("c1", group, **{topic: "*"}).answer = answer
    status = verify(served, names, message_id)
    assert (status.code, status.message) == (code, "said the client")
    (message,) = heard
    assert (message.body, message.system_properties.message_id) == (b"body", message_id)
    assert message.system_properties.tag == "t"


def test_a_silent_consumer_is_not_waited_for_for_ever(
    served: Any, names: Names, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, group = names
    connect("c1", group)
    request = pb.PrintThreadStackTraceRequest(client_id="c1")
    request.group.name = group
    method = served.channel.unary_unary(
        "/apache.rocketmq.v2.Admin/PrintThreadStackTrace",
        request_serializer=pb.PrintThreadStackTraceRequest.SerializeToString,
        response_deserializer=pb.PrintThreadStackTraceResponse.FromString,
    )
    assert questions.ANSWER_S_MAX > 1
    response = method(request, timeout=1)
    assert response.status.code == pb.PROXY_TIMEOUT


def test_a_consumer_that_hangs_up_instead_is_told_of(
    served: Any, names: Names, connect: Any
) -> None:
    topic, group = names
    consumer = connect("c1", group, **{topic: "*"})
    consumer.answer = lambda _: consumer._requests.put(None)
    assert print_trace(served, group, "c1").status.code == pb.NOT_FOUND


def test_clients_that_are_not_there_are_not_asked(served: Any, names: Names, connect: Any) -> None:
    """Nor is one of another group."""
    topic, group = names
    (message_id,) = served.send(topic, b"x")
    connect("c1", served.group("G-another"))
    for client_id in ("c1", "nobody", ""):
        assert print_trace(served, group, client_id).status.code == pb.NOT_FOUND
        assert verify(served, names, message_id, client_id).code == pb.NOT_FOUND
        assert running_info(served, group, client_id).status.code == pb.NOT_FOUND
    for name, code in (
        ("Missing", pb.CONSUMER_GROUP_NOT_FOUND),
        ("a b", pb.ILLEGAL_CONSUMER_GROUP),
    ):
        assert print_trace(served, name, "c1").status.code == code
        assert verify(served, (topic, name), message_id).code == code
        assert running_info(served, name, "c1").status.code == code


def test_a_message_to_verify_must_exist(served: Any, names: Names, connect: Any) -> None:
    topic, group = names
    connect("c1", group)
    assert verify(served, names, "no such id").code == pb.MESSAGE_NOT_FOUND
    assert verify(served, ("Missing", group), "id").code == pb.TOPIC_NOT_FOUND
    assert verify(served, ("a b", group), "id").code == pb.ILLEGAL_TOPIC
    assert topic


def test_running_info_is_what_the_broker_knows(served: Any, names: Names, connect: Any) -> None:
    topic, group = names
    connect("c1", group, **{topic: "A"})
    served.send(topic, b"a", b"b", b"c", tag="A")
    first, *_ = served.receive(topic, group, client_id="c1", batch=2)
    served.receive(topic, group, client_id="c2", batch=1)
    served.ack(topic, group, first)
    response = running_info(served, group, "c1")
    info = response.consumer_running_info
    assert response.status.code == pb.OK
    assert info.properties["clientType"] == "PUSH_CONSUMER"
    assert (info.properties["language"], info.properties["hostname"]) == ("PYTHON", "host-1")
    assert info.subscriptions[topic].expression == "A"
    (item,) = info.message_queue_table
    held = item.process_queue_info
    assert (item.message_queue.topic.name, item.message_queue.id) == (topic, 0)
    assert (held.commit_offset, held.cached_msg_count) == (1, 1)
    assert (held.cached_msg_min_offset, held.cached_msg_max_offset) == (1, 1)
    assert held.last_pull_timestamp > 0
