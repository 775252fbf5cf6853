"""mqadmin's commands about topics."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import (
    add_attributes,
    add_cluster,
    add_place,
    boolean,
    check_cluster,
    int32,
)
from commitbus.broker.cli.output import Answer, Table, java_bool, java_map, local_time
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient


def _update_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    kept = "unchanged, or %s for a new topic, if not given"
    add("-r", "--readQueueNums", type=int32, help="queues to read from; " + kept % 8)
    add("-w", "--writeQueueNums", type=int32, help="queues to write to; " + kept % 8)
    add("-p", "--perm", type=int32, help="4 read, 2 write, 6 both; " + kept % 6)
    add("-o", "--order", type=boolean, metavar="true|false", help="an ordered topic")
    add("-u", "--unit", type=boolean, metavar="true|false", help="set a unit topic's flag")
    add("-s", "--hasUnitSub", type=boolean, metavar="true|false", help="set its second flag")
    add_attributes(parser, "-a", "--attributes", example="+message.type=FIFO")


def _update(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    sets, deletes = options.attributes
    request = pb.PutTopicRequest(
        name=options.topic,
        read_queue_nums=options.readQueueNums,
        write_queue_nums=options.writeQueueNums,
        perm=options.perm,
        order=options.order,
        topic_sys_flag=_sys_flag(options),
        set_attributes=sets,
        delete_attributes=deletes,
    )
    topic = client.put_topic(request)
    return Answer(
        _topic_data(topic),
        [f"create topic to {client.broker().address} success.", _topic_text(topic)],
    )


def _sys_flag(options: argparse.Namespace) -> int | None:
    """Return RocketMQ's topicSysFlag: 1 unit, 2 has unit subscriptions; None to keep it."""
    if options.unit is None and options.hasUnitSub is None:
        return None
    return (1 if options.unit else 0) | (2 if options.hasUnitSub else 0)


def _perm_text(perm: int) -> str:
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def _topic_text(topic: pb.Topic) -> str:
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={_perm_text(topic.perm)}, "
        f"topicFilterType=SINGLE_TAG, topicSysFlag={topic.topic_sys_flag}, "
        f"order={java_bool(topic.order)}, attributes={java_map(topic.attributes)}]"
    )


def _topic_data(topic: pb.Topic) -> dict[str, object]:
    return {
        "topic": topic.name,
        "read_queue_nums": topic.read_queue_nums,
        "write_queue_nums": topic.write_queue_nums,
        "perm": topic.perm,
        "order": topic.order,
        "topic_sys_flag": topic.topic_sys_flag,
        "attributes": dict(topic.attributes),
        "groups": list(topic.groups),
    }


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument("-t", "--topic", required=True, help="name of the topic")


def _delete(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    client.delete_topic(options.topic)
    cluster = client.broker().cluster
    return Answer(
        {"topic": options.topic, "cluster": cluster},
        [
            f"delete topic [{options.topic}] from cluster [{cluster}] success.",
            f"delete topic [{options.topic}] from NameServer success.",
        ],
    )


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-c", "--clusterModel"), action="store_true", help="with cluster and consumer groups"
    )


def _list(client: AdminClient, options: argparse.Namespace) -> Answer:
    topics = client.topics()
    data = [_topic_data(topic) for topic in topics]
    if not options.clusterModel:
        return Answer(data, [topic.name for topic in topics])
    cluster = client.broker().cluster
    rows = [
        {"cluster": cluster, "topic": topic.name, "group": group}
        for topic in topics
        for group in (topic.groups or [""])
    ]
    columns = {"#Cluster Name": "cluster", "#Topic": "topic", "#Consumer Group": "group"}
    return Answer([{"cluster": cluster, **entry} for entry in data], [Table(columns, rows)])


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument("-t", "--topic", required=True, help="name of the topic")


def _status(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    status = client.topic_status(options.topic)
    broker_name = client.broker().name
    rows = [
        {
            "broker_name": broker_name,
            "queue_id": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "last_updated_ms": queue.last_updated_ms,
            "last_updated": local_time(queue.last_updated_ms, milliseconds=True),
        }
        for queue in status.queues
    ]
    columns = {
        "#Broker Name": "broker_name",
        "#QID": "queue_id",
        "#Min Offset": "min_offset",
        "#Max Offset": "max_offset",
        "#Last Updated": "last_updated",
    }
    return Answer(
        {"topic": options.topic, "queues": rows, "put_tps": status.put_tps},
        [Table(columns, rows), "", f"Topic Put TPS: {status.put_tps:.2f}"],
    )


def _route_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--topic", required=True, help="name of the topic")
    parser.add_argument("-l", "--list", action="store_true", help="a table instead of JSON")


def _route(client: AdminClient, options: argparse.Namespace) -> Answer:
    route = json.loads(client.topic_route(options.topic))
    if not options.list or options.json:
        return Answer(route, [json.dumps(route, indent="\t")])
    (broker,), (queues,) = route["brokerDatas"], route["queueDatas"]
    addresses = ", ".join(f"{key}={value}" for key, value in broker["brokerAddrs"].items())
    row = {
        "cluster": broker["cluster"],
        "broker_name": broker["brokerName"],
        "addresses": f"{{{addresses}}}",
        "read": queues["readQueueNums"],
        "write": queues["writeQueueNums"],
        "perm": queues["perm"],
    }
    total = {**dict.fromkeys(row, ""), "cluster": "Total:", "broker_name": 1}
    columns = {
        "#ClusterName": "cluster",
        "#BrokerName": "broker_name",
        "#BrokerAddrs": "addresses",
        "#ReadQueue": "read",
        "#WriteQueue": "write",
        "#Perm": "perm",
    }
    totals = {"read": row["read"], "write": row["write"]}
    return Answer(route, [Table(columns, [row, total | totals])])


COMMANDS: Final = (
    Command("updateTopic", _update_arguments, _update, frozenset({"-a", "--attributes"})),
    Command("deleteTopic", _delete_arguments, _delete),
    Command("topicList", _list_arguments, _list),
    Command("topicStatus", _status_arguments, _status),
    Command("topicRoute", _route_arguments, _route),
)
