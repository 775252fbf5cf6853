"""mqadmin's commands about consumer groups."""

from __future__ import annotations

import argparse
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

_KEPT: Final = "kept for RocketMQ, without effect here"
# Option, RocketMQ's long name, the field of the request, help.
_BOOLEANS: Final = (
    ("-s", "--consumeEnable", "consume_enable", "whether the group may consume"),
    ("-m", "--consumeFromMinEnable", "consume_from_min_enable", _KEPT),
    ("-d", "--consumeBroadcastEnable", "consume_broadcast_enable", _KEPT),
    ("-o", "--consumeMessageOrderly", "consume_message_orderly", "a FIFO group: in order"),
    ("-a", "--notifyConsumerIdsChanged", "notify_consumer_ids_changed_enable", _KEPT),
)
_NUMBERS: Final = (
    ("-q", "--retryQueueNums", "retry_queue_nums", "queues of its %%RETRY%% topic"),
    ("-r", "--retryMaxTimes", "retry_max_times", "retries before a message is a dead letter"),
    ("-i", "--brokerId", "broker_id", _KEPT),
    ("-w", "--whichBrokerWhenConsumeSlowly", "which_broker_when_consume_slowly", _KEPT),
)
_FIELDS: Final = tuple(field for _, _, field, _ in (*_BOOLEANS, *_NUMBERS))


def _update_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("-g", "--groupName", required=True, help="name of the group")
    for short, long, field, what in _BOOLEANS:
        parser.add_argument(short, long, dest=field, type=boolean, metavar="true|false", help=what)
    for short, long, field, what in _NUMBERS:
        parser.add_argument(short, long, dest=field, type=int32, metavar="N", help=what)
    parser.add_argument(
        *("-p", "--groupRetryPolicy"),
        dest="group_retry_policy",
        metavar="JSON",
        help='how long a message waits between attempts, such as {"type":"EXPONENTIAL"}',
    )
    add_attributes(parser, "--attributes", example="+fifo.lock.unit=MESSAGE_GROUP")


def _update(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    sets, deletes = options.attributes
    request = pb.PutGroupRequest(
        name=options.groupName,
        group_retry_policy=options.group_retry_policy,
        set_attributes=sets,
        delete_attributes=deletes,
        **{field: getattr(options, field) for field in _FIELDS},
    )
    group = client.put_group(request)
    return Answer(
        _group_data(group),
        [f"create subscription group to {client.broker().address} success.", _group_text(group)],
    )


def _group_text(group: pb.Group) -> str:
    return (
        f"SubscriptionGroupConfig{{groupName={group.name}, "
        f"consumeEnable={java_bool(group.consume_enable)}, "
        f"consumeFromMinEnable={java_bool(group.consume_from_min_enable)}, "
        f"consumeBroadcastEnable={java_bool(group.consume_broadcast_enable)}, "
        f"consumeMessageOrderly={java_bool(group.consume_message_orderly)}, "
        f"retryQueueNums={group.retry_queue_nums}, retryMaxTimes={group.retry_max_times}, "
        f"groupRetryPolicy={group.group_retry_policy or 'default'}, "
        f"brokerId={group.broker_id}, "
        f"whichBrokerWhenConsumeSlowly={group.which_broker_when_consume_slowly}, "
        f"notifyConsumerIdsChangedEnable={java_bool(group.notify_consumer_ids_changed_enable)}, "
        f"attributes={java_map(group.attributes)}}}"
    )


def _group_data(group: pb.Group) -> dict[str, object]:
    return {
        "group": group.name,
        **{field: getattr(group, field) for field in _FIELDS},
        "group_retry_policy": group.group_retry_policy,
        "attributes": dict(group.attributes),
    }


def _delete_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("-g", "--groupName", required=True, help="name of the group")
    parser.add_argument(
        *("-r", "--removeOffset"),
        type=boolean,
        metavar="true|false",
        help="accepted: progress is always removed, a group made anew starts anew",
    )


def _delete(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    client.delete_group(options.groupName)
    broker = client.broker()
    return Answer(
        {"group": options.groupName, "cluster": broker.cluster},
        [
            f"delete subscription group [{options.groupName}] from broker [{broker.address}] "
            f"in cluster [{broker.cluster}] success."
        ],
    )


def _progress_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument("-g", "--groupName", help="one group, queue by queue; otherwise all")
    parser.add_argument("-t", "--topicName", default="", help="with -g: only this topic")
    parser.add_argument(
        *("-s", "--showClientIP"),
        nargs="?",
        type=boolean,
        const=True,
        default=False,
        metavar="true|false",
        help="with -g: which clients hold messages",
    )


def _progress(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    return _one_group(client, options) if options.groupName else _all_groups(client)


def _all_groups(client: AdminClient) -> Answer:
    rows = [
        {
            "group": summary.group.name,
            "count": summary.client_count,
            "version": summary.client_version or "OFFLINE",
            # Every group of the gRPC protocol pops, and shares the messages among its clients.
            "type": "CONSUME_POP",
            "model": "CLUSTERING",
            "consume_tps": summary.consume_tps,
            "diff_total": summary.diff_total,
        }
        for summary in client.groups()
    ]
    columns = {
        "#Group": "group",
        "#Count": "count",
        "#Version": "version",
        "#Type": "type",
        "#Model": "model",
        "#TPS": "consume_tps",
        "#Diff Total": "diff_total",
    }
    return Answer(rows, [Table(columns, rows)])


def _one_group(client: AdminClient, options: argparse.Namespace) -> Answer:
    progress = client.consumer_progress(options.groupName, options.topicName)
    broker_name = client.broker().name
    rows = [_queue_row(queue, broker_name) for queue in progress.queues]
    columns = {
        "#Topic": "topic",
        "#Broker Name": "broker_name",
        "#QID": "queue_id",
        "#Broker Offset": "broker_offset",
        "#Consumer Offset": "consumer_offset",
        **({"#Client IP": "clients"} if options.showClientIP else {}),
        "#Diff": "diff",
        "#Inflight": "inflight",
        "#LastTime": "last_time",
    }
    diff_total = sum(queue.diff for queue in progress.queues)
    inflight_total = sum(queue.inflight for queue in progress.queues)
    data = {
        "group": options.groupName,
        "queues": rows,
        "consume_tps": progress.consume_tps,
        "diff_total": diff_total,
        "inflight_total": inflight_total,
    }
    footer = [
        "",
        f"Consume TPS: {progress.consume_tps:.2f}",
        f"Consume Diff Total: {diff_total}",
        f"Consume Inflight Total: {inflight_total}",
    ]
    return Answer(data, [Table(columns, rows), *footer])


def _queue_row(queue: pb.ConsumerProgress.Queue, broker_name: str) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "broker_name": broker_name,
        "queue_id": queue.queue_id,
        "broker_offset": queue.broker_offset,
        "consumer_offset": queue.consumer_offset,
        "clients": ",".join(queue.client_ids) or "N/A",
        "diff": queue.diff,
        "inflight": queue.inflight,
        "last_time_ms": queue.last_time_ms,
        "last_time": local_time(queue.last_time_ms) or "N/A",
    }


COMMANDS: Final = (
    Command("updateSubGroup", _update_arguments, _update, frozenset({"--attributes"})),
    Command("deleteSubGroup", _delete_arguments, _delete),
    Command("consumerProgress", _progress_arguments, _progress),
)
