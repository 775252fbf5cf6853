"""mqadmin's commands about the clients that are connected."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import add_place, check_cluster
from commitbus.broker.cli.output import Answer, CommandError, Table
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

_CLIENTS: Final = {
    "#ClientId": "client_id",
    "#ClientAddr": "address",
    "#Language": "language",
    "#Version": "version",
}
_SUBSCRIPTIONS: Final = {"#Topic": "topic", "#SubExpression": "expression"}
_QUEUES: Final = {
    "#Topic": "topic",
    "#QID": "queue_id",
    "#ConsumerOffset": "commit_offset",
    "#HeldMin": "held_min_offset",
    "#HeldMax": "held_max_offset",
    "#HeldCount": "held_count",
}
_CONSUME_TYPE: Final = "CONSUME_POP"
_CONSUME_FROM: Final = "CONSUME_FROM_MAX_OFFSET"
"""What the gRPC protocol has, in the words for the older one."""


def _consumer_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("-g", "--consumerGroup", required=True, help="name of the group")


def _consumer(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    group = options.consumerGroup
    clients = [
        {
            "client_id": info.client_id,
            "address": info.egress_ip,
            "language": info.language,
            "version": info.version,
            "hostname": info.hostname,
        }
        for info in client.consumers(group)
    ]
    subscriptions = [
        {
            "topic": info.topic.name,
            "expression": info.expression.expression if info.HasField("expression") else "",
            "expression_type": pb.FilterType.Name(info.expression.type),
            "consistent": info.subscription_consistency,
        }
        for info in client.subscriptions(group)
    ]
    data = {
        "group": group,
        "clients": clients,
        "subscriptions": subscriptions,
        "consume_type": _CONSUME_TYPE,
        "message_model": "CLUSTERING",
        "consume_from_where": _CONSUME_FROM,
    }
    differing = [row["topic"] for row in subscriptions if not row["consistent"]]
    text: list[str | Table] = [
        Table(_CLIENTS, clients),
        "",
        "Below is subscription:",
        Table(_SUBSCRIPTIONS, subscriptions),
        *[f"The clients do not agree about topic {topic}." for topic in differing],
        "",
        f"ConsumeType: {_CONSUME_TYPE}",
        "MessageModel: CLUSTERING",
        f"ConsumeFromWhere: {_CONSUME_FROM}",
    ]
    return Answer(data, text)


def _producer_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("-g", "--producerGroup", help="accepted: producers have no group any more")
    parser.add_argument("-t", "--topic", required=True, help="name of the topic")


def _producer(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    rows = [
        {
            "client_id": producer.client_id,
            "address": producer.address,
            "language": producer.language,
            "version": producer.version,
        }
        for producer in client.producers(options.topic)
    ]
    lines = [
        f"{number:04d}  " + "  ".join(str(value) for value in row.values())
        for number, row in enumerate(rows, 1)
    ]
    return Answer(rows, lines)


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("-g", "--consumerGroup", required=True, help="name of the group")
    parser.add_argument("-i", "--clientId", help="one client, in full; otherwise all, in a table")
    parser.add_argument(
        *("-s", "--jstack"),
        action="store_true",
        help="with -i: ask the client what its threads are doing",
    )


def _status(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    group = options.consumerGroup
    if options.clientId is not None:
        return _one_client(client, options)
    if options.jstack:
        raise CommandError("-s needs -i: only one client is asked")
    rows = []
    for info in client.consumers(group):
        held = client.running_info(group, info.client_id).message_queue_table
        count = sum(item.process_queue_info.cached_msg_count for item in held)
        rows.append({"client_id": info.client_id, "version": info.version, "held": count})
    columns = {"#ClientId": "client_id", "#Version": "version", "#Held": "held"}
    return Answer(rows, [Table(columns, rows)])


def _one_client(client: AdminClient, options: argparse.Namespace) -> Answer:
    info = client.running_info(options.consumerGroup, options.clientId)
    properties = dict(sorted(info.properties.items()))
    subscriptions = [
        {"topic": topic, "expression": info.subscriptions[topic].expression}
        for topic in sorted(info.subscriptions)
    ]
    queues = [_queue_row(item) for item in info.message_queue_table]
    data: dict[str, Any] = {
        "properties": properties,
        "subscriptions": subscriptions,
        "queues": queues,
    }
    text: list[str | Table] = [
        "#Consumer Properties#",
        *_pairs(properties),
        "",
        "#Consumer Subscription#",
        Table(_SUBSCRIPTIONS, subscriptions),
        "",
        "#Consumer MQ Detail#",
        Table(_QUEUES, queues),
    ]
    if options.jstack:
        data["jstack"] = client.stack_trace(options.consumerGroup, options.clientId)
        text += ["", "#Consumer jstack#", data["jstack"]]
    return Answer(data, text)


def _pairs(properties: Mapping[str, str]) -> list[str]:
    return [f"{name:<40}: {value}" for name, value in properties.items()]


def _queue_row(item: pb.MessageQueueItem) -> dict[str, object]:
    held = item.process_queue_info
    return {
        "topic": item.message_queue.topic.name,
        "queue_id": item.message_queue.id,
        "commit_offset": held.commit_offset,
        "held_min_offset": held.cached_msg_min_offset,
        "held_max_offset": held.cached_msg_max_offset,
        "held_count": held.cached_msg_count,
        "last_pull_ms": held.last_pull_timestamp,
    }


COMMANDS: Final = (
    Command("consumerConnection", _consumer_arguments, _consumer),
    Command("producerConnection", _producer_arguments, _producer),
    Command("consumerStatus", _status_arguments, _status),
)
