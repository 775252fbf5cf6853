"""Who consumes what: the clients of a group, and the topics of their subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.v2.names import known_group, known_topic
from commitbus.broker.common.errors import (
    BadRequestError,
    NotFoundError,
    PreconditionFailedError,
    UnsupportedFeatureError,
)
from commitbus.broker.core.outgoing import peer_host
from commitbus.broker.messaging.clients import Client
from commitbus.broker.messaging.message_codec import set_timestamp
from commitbus.broker.messaging.status import ok
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_LITE = (pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER)


def list_consumer_connection(
    context: AdminContext, request: pb.ListConsumerConnectionRequest, _call: Call
) -> pb.ListConsumerConnectionResponse:
    """Return the clients of a group; only those of a topic if one is named.

    A client that has not said yet what it subscribes to, as after a restart of the broker, counts
    as one of every topic.

    Raises:
        RequestError: the group or the topic does not exist, or a lite topic is asked about.
    """
    if request.liteTopic:
        raise UnsupportedFeatureError("lite topics are not supported")
    group = known_group(context, request.group)
    topic = known_topic(context, request.topic).name if request.HasField("topic") else None
    found = [
        client_info(client)
        for client in context.messaging.clients.consumers(group.name)
        if topic is None or topic in (client.introduction.subscriptions or {topic})
    ]
    return pb.ListConsumerConnectionResponse(status=ok(), client_info=found)


def list_subscription(
    context: AdminContext, request: pb.ListSubscriptionRequest, _call: Call
) -> pb.ListSubscriptionResponse:
    """Return who consumes a topic, or what a group consumes, online or not.

    Raises:
        RequestError: the group or the topic does not exist, or none of them is named.
    """
    group, topic = _named(context, request)
    found = set(_subscriptions_online(context, group, topic))
    found.update(_subscriptions_begun(context, group, topic))
    clients = _by_group(_consumers(context, group))
    infos = [_subscription(*names, clients.get(names[0], ())) for names in sorted(found)]
    return pb.ListSubscriptionResponse(status=ok(), subscription_info=infos)


def describe_subscription(
    context: AdminContext, request: pb.DescribeSubscriptionRequest, _call: Call
) -> pb.DescribeSubscriptionResponse:
    """Return every client's own subscriptions: where they differ, somebody gets too little.

    Raises:
        RequestError: the group or the topic does not exist, or none of them is named.
    """
    group, topic = _named(context, request)
    response = pb.DescribeSubscriptionResponse(status=ok())
    clients = _consumers(context, group)
    by_group = _by_group(clients)
    for client in clients:
        for name in sorted(client.introduction.subscriptions):
            if topic in (None, name):
                info = _subscription(client.group, name, by_group[client.group])
                _set_expression(info, client, name)
                response.client_subscription_info.add(
                    client_info=client_info(client), subscription_info=info
                )
    return response


def delete_subscription(
    context: AdminContext, request: pb.DeleteSubscriptionRequest, _call: Call
) -> pb.DeleteSubscriptionResponse:
    """Forget how far a group is in a topic; it begins anew should it come back.

    Raises:
        RequestError: the group or the topic does not exist, the group has not consumed it, or a
            client of it does now.
        StateWriteError: it cannot be saved.
    """
    group, topic = known_group(context, request.group), known_topic(context, request.topic)
    if any(_subscriptions_online(context, group.name, topic.name)):
        raise PreconditionFailedError(f"group {group.name} is consuming topic {topic.name}")
    if not context.progress.queues_of(group.name, topic.name):
        raise NotFoundError(f"group {group.name} has no subscription of topic {topic.name}")
    context.progress.delete_topic(topic.name, group=group.name)
    return pb.DeleteSubscriptionResponse(status=ok())


def client_info(client: Client) -> pb.ClientInfo:
    """Return a client as operators see it."""
    return pb.ClientInfo(
        client_id=client.client_id,
        version=client.version,
        language=client.language,
        hostname=client.introduction.hostname,
        egress_ip=peer_host(client.peer).address_text,
        message_model=_model(client),
    )


def _model(client: Client) -> pb.MessageModel:
    # Broadcasting consumers pull with offsets of their own and do not say so.
    return pb.LITE_SELECTIVE if client.kind in _LITE else pb.CLUSTERING


def _named(
    context: AdminContext, request: pb.ListSubscriptionRequest | pb.DescribeSubscriptionRequest
) -> tuple[str | None, str | None]:
    group = known_group(context, request.group).name if request.HasField("group") else None
    topic = known_topic(context, request.topic).name if request.HasField("topic") else None
    if group is None and topic is None:
        raise BadRequestError("name a group, a topic or both")
    return group, topic


def _consumers(context: AdminContext, group: str | None) -> list[Client]:
    clients = context.messaging.clients.all()
    return [c for c in clients if c.group and group in (None, c.group)]


def _subscriptions_online(
    context: AdminContext, group: str | None, topic: str | None
) -> Iterator[tuple[str, str]]:
    """Yield the group and the topic of what clients say they subscribe to."""
    for client in _consumers(context, group):
        for name in client.introduction.subscriptions:
            if topic in (None, name):
                yield client.group, name


def _subscriptions_begun(
    context: AdminContext, group: str | None, topic: str | None
) -> list[tuple[str, str]]:
    """Return the group and the topic of what was received before."""
    table = context.progress
    if group is None:
        assert topic is not None, "one of them is named"
        return [(known_in, topic) for known_in in table.groups_of(topic)]
    return [(group, known) for known in table.topics_of(group) if topic in (None, known)]


def _by_group(clients: Iterable[Client]) -> Mapping[str, Sequence[Client]]:
    groups: dict[str, list[Client]] = {}
    for client in clients:
        groups.setdefault(client.group, []).append(client)
    return groups


def _subscription(group: str, topic: str, clients: Sequence[Client]) -> pb.SubscriptionInfo:
    """Return a subscription as the newest of the group's clients says it; all should agree."""
    said = [client for client in clients if client.introduction.at_ms]
    info = pb.SubscriptionInfo(
        online=bool(clients),
        message_model=_model(clients[0]) if clients else pb.CLUSTERING,
        subscription_consistency=len({c.introduction.subscriptions.get(topic) for c in said}) <= 1,
    )
    info.group.name, info.topic.name = group, topic
    saying = [client for client in said if topic in client.introduction.subscriptions]
    if saying:
        _set_expression(info, max(saying, key=lambda client: client.introduction.at_ms), topic)
    return info


def _set_expression(info: pb.SubscriptionInfo, client: Client, topic: str) -> None:
    subscription = client.introduction.subscriptions[topic]
    info.expression.type, info.expression.expression = subscription.kind, subscription.expression
    set_timestamp(info.last_update_timestamp, client.introduction.at_ms)
