"""mqadmin's commands that have a group go on elsewhere."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import (
    NOW,
    add_cluster,
    boolean,
    check_broker_name,
    check_cluster,
    int32,
    int64,
    point_in_time,
)
from commitbus.broker.cli.output import Answer, CommandError, Table
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

_COLUMNS: Final = {"#brokerName": "broker_name", "#queueId": "queue_id", "#offset": "offset"}


def _reset_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    add = parser.add_argument
    add("-g", "--group", required=True, help="name of the group")
    add("-t", "--topic", required=True, help="name of the topic")
    add(
        *("-s", "--timestamp"),
        type=point_in_time,
        metavar="now|MS|yyyy-MM-dd#HH:mm:ss:SSS",
        help="go on at the first message stored then or later; now: at the end",
    )
    add("-b", "--broker", dest="brokerName", help="must be the broker's name if given")
    add("-q", "--queue", type=int32, help="only this queue")
    add("-o", "--offset", type=int64, help="with -q: the offset to go on at")
    add(
        *("-f", "--force"),
        type=boolean,
        default=True,
        metavar="true|false",
        help="false: only back, skip nothing; true if not given",
    )


def _reset(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    check_broker_name(client, options)
    request = pb.ResetOffsetsRequest(
        group=options.group,
        topic=options.topic,
        queue_id=options.queue,
        only_back=not options.force,
    )
    if options.offset is not None:
        if options.queue is None:
            raise CommandError("-o needs -q: an offset is one of a queue")
        request.offset = options.offset
    elif options.timestamp is None:
        raise CommandError("name a time with -s, or an offset with -q and -o")
    elif options.timestamp != NOW:
        request.timestamp_ms = options.timestamp
    return _reset_to(client, request)


def _reset_to(client: AdminClient, request: pb.ResetOffsetsRequest) -> Answer:
    queues = client.reset_offsets(request)
    broker_name = client.broker().name
    rows = [
        {"broker_name": broker_name, "queue_id": queue.queue_id, "offset": queue.offset}
        for queue in queues
    ]
    start = f"reset the offsets of group {request.group} in topic {request.topic}"
    return Answer(rows, [start, Table(_COLUMNS, rows)])


def _skip_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    parser.add_argument("-g", "--group", required=True, help="name of the group")
    parser.add_argument("-t", "--topic", required=True, help="name of the topic")
    parser.add_argument("-f", "--force", type=boolean, metavar="true|false", help="accepted")


def _skip(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    return _reset_to(client, pb.ResetOffsetsRequest(group=options.group, topic=options.topic))


COMMANDS: Final = (
    Command("resetOffsetByTime", _reset_arguments, _reset),
    Command("skipAccumulatedMessage", _skip_arguments, _skip),
)
