"""Where a topic's queues are: which address clients connect to, and what they may do there."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from commitbus.broker.common.address import PORT_MAX, is_host, split_host_port
from commitbus.broker.core.outgoing import peer_host
from commitbus.broker.core.validation import namespace
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.message_types import types_taken
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import group_name, topic_name
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

MASTER_ID: Final = 0
ALL_QUEUES: Final = -1
"""The queue id of an assignment that means every queue of the broker."""

ADDRESSES_MAX: Final = 16
"""Of a client's endpoints. An answer repeats them for each queue."""


async def query_route(
    context: MessagingContext, request: pb.QueryRouteRequest, call: Call
) -> pb.QueryRouteResponse:
    """Return every queue of a topic.

    Raises:
        RequestError: the topic's name is illegal, or there is no such topic.
    """
    resource = _repeated(request.topic)
    topic = await context.topic(resource.name)
    broker = _broker(context, request.endpoints, call)
    accepted = types_taken(topic.message_type)
    response = pb.QueryRouteResponse(status=ok())
    for queue_id, permission in enumerate(_permissions(topic)):
        queue = response.message_queues.add(id=queue_id, permission=permission)
        queue.topic.CopyFrom(resource)
        queue.broker.CopyFrom(broker)
        queue.accept_message_types.extend(accepted)
    return response


async def query_assignment(
    context: MessagingContext, request: pb.QueryAssignmentRequest, call: Call
) -> pb.QueryAssignmentResponse:
    """Return the same assignment to every consumer: receiving balances, not this.

    Raises:
        RequestError: a name is illegal, there is no such topic, or nobody may read it.
    """
    resource, group = _repeated(request.topic), group_name(request.group)
    await context.topic(resource.name)
    topic = context.readable_topic(resource.name)
    config = context.metadata.group(group)
    orderly = config is not None and config.consume_message_orderly
    broker = _broker(context, request.endpoints, call)
    response = pb.QueryAssignmentResponse(status=ok())
    for queue_id in range(topic.read_queue_nums) if orderly else (ALL_QUEUES,):
        queue = response.assignments.add().message_queue
        queue.id = queue_id
        queue.permission = pb.READ_WRITE if topic.writable else pb.READ
        queue.topic.CopyFrom(resource)
        queue.broker.CopyFrom(broker)
    return response


def _repeated(topic: pb.Resource) -> pb.Resource:
    """Return a topic's names as an answer repeats them, and nothing else of what came with them.

    Raises:
        IllegalTopicError: a name is illegal.
    """
    return pb.Resource(
        name=topic_name(topic), resource_namespace=namespace(topic.resource_namespace)
    )


def endpoints_for(context: MessagingContext, requested: pb.Endpoints, call: Call) -> pb.Endpoints:
    """Return the address that a client is told to use.

    That is the configured one, or else the one by which the client reached us, as far as it says:
    what a broker sees as its own address means nothing behind a container or a proxy.
    """
    config = context.config
    if config.advertise:
        return _endpoints(*split_host_port(config.advertise))
    addresses = requested.addresses[:ADDRESSES_MAX]
    if addresses and all(_usable(address) for address in addresses):
        # A domain name stands alone: clients refuse several.
        if any(_scheme(address.host) == pb.DOMAIN_NAME for address in addresses):
            addresses = addresses[:1]
        echoed = _endpoints(addresses[0].host, addresses[0].port)
        for address in addresses[1:]:
            echoed.addresses.add(host=address.host, port=address.port)
        return echoed
    try:
        host, port = split_host_port(call.authority or "")
    except ValueError:
        host, port = "", 0
    # The Java client sends the word IPAuthority for an address; only a port tells them apart.
    if host and port:
        return _endpoints(host, port)
    return _endpoints(_listen_host(config.listen_host, call), context.listen_port or 0)


def _listen_host(host: str, call: Call) -> str:
    try:
        wildcard = ip_address(host).is_unspecified
    except ValueError:
        return host
    if not wildcard:
        return host
    if call.peer.startswith("unix:"):
        return "127.0.0.1"
    peer = ip_address(peer_host(call.peer).address)
    # To a peer elsewhere a wildcard cannot be said in other words: `advertise` exists for that.
    return ("::1" if peer.version == 6 else "127.0.0.1") if peer.is_loopback else host


def _usable(address: pb.Address) -> bool:
    return 0 < address.port <= PORT_MAX and is_host(address.host)


def _endpoints(host: str, port: int) -> pb.Endpoints:
    endpoints = pb.Endpoints(scheme=_scheme(host))
    endpoints.addresses.add(host=host, port=port)
    return endpoints


def _scheme(host: str) -> pb.AddressScheme:
    try:
        return pb.IPv6 if ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        return pb.DOMAIN_NAME


def _broker(context: MessagingContext, requested: pb.Endpoints, call: Call) -> pb.Broker:
    return pb.Broker(
        name=context.config.broker_name,
        id=MASTER_ID,
        endpoints=endpoints_for(context, requested, call),
    )


def _permissions(topic: TopicConfig) -> Iterator[pb.Permission]:
    """Yield the permission of each queue in the order of the ids that clients see.

    As many queues as can be both are both; what is left over of one kind comes first.
    """
    readable = topic.read_queue_nums if topic.readable else 0
    writable = topic.write_queue_nums if topic.writable else 0
    both = min(readable, writable)
    if not readable and not writable:
        yield from [pb.NONE] * max(topic.read_queue_nums, topic.write_queue_nums)
    yield from [pb.READ] * (readable - both)
    yield from [pb.WRITE] * (writable - both)
    yield from [pb.READ_WRITE] * both
