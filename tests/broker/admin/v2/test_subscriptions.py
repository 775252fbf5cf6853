"""Who consumes what, over both transports."""

from __future__ import annotations

from typing import Any

import pytest

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Names = tuple[str, str]


def connections(served: Any, group: str, topic: str = "") -> pb.ListConsumerConnectionResponse:
    request = pb.ListConsumerConnectionRequest()
    request.group.name = group
    if topic:
        request.topic.name = topic
    response = served.admin("ListConsumerConnection", request)
    assert isinstance(response, pb.ListConsumerConnectionResponse)
    return response


def subscriptions(served: Any, *, group: str = "", topic: str = "", describe: bool = False) -> Any:
    kind = pb.DescribeSubscriptionRequest if describe else pb.ListSubscriptionRequest
    request = kind()
    if group:
        request.group.name = group
    if topic:
        request.topic.name = topic
    return served.admin(kind.__name__.removesuffix("Request"), request)


def delete(served: Any, topic: str, group: str) -> pb.Code:
    request = pb.DeleteSubscriptionRequest()
    request.topic.name, request.group.name = topic, group
    code: pb.Code = served.admin("DeleteSubscription", request).status.code
    return code


def test_consumers_of_the_grpc_protocol_are_seen(served: Any, names: Names, connect: Any) -> None:
    """RocketMQ's operators do not see them."""
    topic, group = names
    connect("c1", group, **{topic: "A || B"})
    connect("c2", group, Another="*")
    response = connections(served, group)
    assert response.status.code == pb.OK
    first, second = sorted(response.client_info, key=lambda info: info.client_id)
    assert (first.client_id, first.language, first.version) == ("c1", "PYTHON", "5.1.2")
    assert (first.hostname, first.egress_ip) == ("host-1", "127.0.0.1")
    assert (first.message_model, second.client_id) == (pb.CLUSTERING, "c2")
    assert [info.client_id for info in connections(served, group, topic).client_info] == ["c1"]


def test_a_subscription_is_seen_online_and_offline(served: Any, names: Names, connect: Any) -> None:
    topic, group = names
    served.send(topic, b"x")
    served.receive(topic, group, client_id="passing")
    goodbye = pb.NotifyClientTerminationRequest()
    served.messaging("NotifyClientTermination", goodbye, "passing")
    (info,) = subscriptions(served, group=group).subscription_info
    assert (info.group.name, info.topic.name, info.online) == (group, topic, False)
    connect("c1", group, **{topic: "A"})
    for by_group, by_topic in ((group, ""), ("", topic), (group, topic)):
        (info,) = subscriptions(served, group=by_group, topic=by_topic).subscription_info
        assert (info.online, info.expression.expression) == (True, "A")
        assert (info.expression.type, info.subscription_consistency) == (pb.TAG, True)
        assert info.last_update_timestamp.seconds > 0


def test_clients_that_disagree_are_shown(served: Any, names: Names, connect: Any) -> None:
    """Each of them gets a part of the messages, filtered its own way: the rest is lost to all."""
    topic, group = names
    connect("c1", group, **{topic: "A"})
    connect("c2", group, **{topic: "B"})
    (info,) = subscriptions(served, group=group).subscription_info
    assert not info.subscription_consistency
    described = subscriptions(served, topic=topic, describe=True).client_subscription_info
    assert sorted(
        (one.client_info.client_id, one.subscription_info.expression.expression)
        for one in described
    ) == [("c1", "A"), ("c2", "B")]


def test_a_subscription_is_deleted_unless_somebody_consumes(
    served: Any, names: Names, connect: Any
) -> None:
    """The group begins anew then; that of other topics stays."""
    topic, group = names
    other = served.topic("T-kept")
    served.send(topic, b"x")
    served.send(other, b"y")
    served.ack(topic, group, *served.receive(topic, group))
    served.ack(other, group, *served.receive(other, group))
    consumer = connect("c9", group, **{topic: "*"})
    assert delete(served, topic, group) == pb.PRECONDITION_FAILED
    consumer.hang_up()
    served.messaging("NotifyClientTermination", pb.NotifyClientTerminationRequest(), "c9")
    assert delete(served, topic, group) == pb.OK
    assert delete(served, topic, group) == pb.NOT_FOUND
    assert [m.body for m in served.receive(topic, group)] == [b"x"]
    (info,) = subscriptions(served, group=group, topic=other).subscription_info
    assert info.topic.name == other


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [
        ("Missing", "", pb.TOPIC_NOT_FOUND),
        ("a b", "", pb.ILLEGAL_TOPIC),
        ("", "Missing", pb.CONSUMER_GROUP_NOT_FOUND),
        ("", "a b", pb.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_what_does_not_exist_has_no_subscription(
    served: Any, names: Names, topic: str, group: str, code: pb.Code
) -> None:
    topic, group = topic or names[0], group or names[1]
    assert connections(served, group, topic).status.code == code
    assert delete(served, topic, group) == code
    for describe in (False, True):
        response = subscriptions(served, group=group, topic=topic, describe=describe)
        assert response.status.code == code


def test_something_must_be_named(served: Any, names: Names) -> None:
    for describe in (False, True):
        assert subscriptions(served, describe=describe).status.code == pb.BAD_REQUEST
    request = pb.ListConsumerConnectionRequest(liteTopic="lite")
    request.group.name = names[1]
    assert served.admin("ListConsumerConnection", request).status.code == pb.NOT_IMPLEMENTED
