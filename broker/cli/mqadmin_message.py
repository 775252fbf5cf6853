"""mqadmin's commands about single messages."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.common_options import count
from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import (
    add_cluster,
    check_broker_name,
    check_cluster,
    int32,
    int64,
)
from commitbus.broker.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    Answer,
    CommandError,
    Table,
    java_map,
    local_time,
)
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as v2

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

_OFFSET_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_LONGEST_MS: Final = 2**63 - 1


def _key_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster(parser)
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    add("-k", "--msgKey", required=True, help="the key, or the tag with -p T")
    add("-b", "--beginTimestamp", type=int64, default=0, help="store time, ms; 0 if not given")
    add("-e", "--endTimestamp", type=int64, default=_LONGEST_MS, help="store time, ms")
    add("-m", "--maxNum", type=count, default=64, help="messages at most; 64 if not given")
    add("-p", "--keyType", choices=("K", "T"), default="K", help="K key, T tag")
    add(
        "-l",
        "--lastKey",
        type=_last_offset,
        help="#IndexKey of the last row of the page before this one",
    )


def _by_key(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    request = pb.QueryMessagesRequest(
        topic=options.topic,
        key=options.msgKey,
        begin_ms=options.beginTimestamp,
        end_ms=options.endTimestamp,
        max_count=options.maxNum,
        kind=pb.TAG if options.keyType == "T" else pb.KEY,
        before_physical_offset=options.lastKey,
    )
    rows = [
        {
            "message_id": message.properties.get("UNIQ_KEY") or message.offset_id,
            "queue_id": message.queue_id,
            "offset": message.queue_offset,
            "index_key": _index_key(options, message),
            "offset_id": message.offset_id,
            "store_ms": message.store_ms,
        }
        for message in client.query_messages(request)
    ]
    columns = {
        "#Message ID": "message_id",
        "#QID": "queue_id",
        "#Offset": "offset",
        "#IndexKey": "index_key",
    }
    return Answer(rows, [Table(columns, rows)])


def _index_key(options: argparse.Namespace, message: pb.Message) -> str:
    """Return `hourTs@topic@K@key@uniqId@commitOffset`, where RocketMQ shows the same."""
    hour_ms = message.store_ms - message.store_ms % 3_600_000
    unique_key = message.properties.get("UNIQ_KEY", "")
    return (
        f"{hour_ms}@{options.topic}@{options.keyType}@{options.msgKey}@{unique_key}"
        f"@{message.physical_offset}"
    )


def _last_offset(index_key: str) -> int:
    """Return the physical offset at the end of an index key."""
    offset = index_key.rpartition("@")[2]
    if not (offset.isascii() and offset.isdigit()):
        raise argparse.ArgumentTypeError(f"{index_key!r} is not what the column #IndexKey shows")
    return int64(offset)


def _id_arguments(parser: argparse.ArgumentParser) -> None:
    _unique_key_arguments(parser, topic_required=False)


def _by_id(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    if _OFFSET_ID.fullmatch(options.msgId) and options.topic is None:
        return _by_name(client, pb.GetMessageRequest(offset_id=options.msgId), options)
    if options.topic is None:
        raise CommandError(
            f"{options.msgId!r} is an id that the producer gave, not a place in the log: "
            "name the topic with -t"
        )
    return _by_unique_key(client, options)


def _unique_key_arguments(parser: argparse.ArgumentParser, *, topic_required: bool = True) -> None:
    add_cluster(parser)
    parser.add_argument("-i", "--msgId", required=True, help="the id")
    parser.add_argument(
        "-t", "--topic", required=topic_required, help="topic, needed for a producer's id"
    )
    parser.add_argument("-g", "--consumerGroup", help="with -d: the client's group")
    parser.add_argument("-d", "--clientId", help="with -g: have this client consume the message")


def _by_unique_key(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_cluster(client, options)
    name = pb.GetMessageRequest.UniqueKey(topic=options.topic, unique_key=options.msgId)
    return _by_name(client, pb.GetMessageRequest(unique_key=name), options)


def _by_name(
    client: AdminClient, request: pb.GetMessageRequest, options: argparse.Namespace
) -> Answer:
    if (options.consumerGroup is None) != (options.clientId is None):
        raise CommandError("-g and -d belong together: a client of a group")
    if options.clientId is None:
        return found(client, request)
    message = client.message(request).message
    message_id = message.properties.get("UNIQ_KEY") or message.offset_id
    verify = v2.VerifyMessageRequest(client_id=options.clientId, message_id=message_id)
    verify.group.name, verify.topic.name = options.consumerGroup, message.topic
    status = client.verify_message(verify)
    code = v2.Code.Name(status.code)
    return Answer(
        {
            "client_id": options.clientId,
            "message_id": message_id,
            "result": code,
            "reason": status.message,
        },
        [f"client {options.clientId}, message {message_id}: {code} {status.message}".rstrip()],
        EXIT_OK if status.code == v2.OK else EXIT_FAILED,
    )


def _offset_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    add("-b", "--brokerName", help="must be the broker's name if given")
    add("-i", "--queueId", type=int32, required=True, help="the queue")
    add("-o", "--offset", type=int64, required=True, help="the queue offset")


def _by_offset(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_broker_name(client, options)
    place = pb.GetMessageRequest.QueuePlace(
        topic=options.topic, queue_id=options.queueId, queue_offset=options.offset
    )
    return found(client, pb.GetMessageRequest(place=place))


def found(client: AdminClient, request: pb.GetMessageRequest) -> Answer:
    """Return a message in full."""
    response = client.message(request)
    message = response.message
    body_path = _write_body(message)
    fields = {
        "OffsetID": message.offset_id,
        "Topic": message.topic,
        "Tags": f"[{message.properties.get('TAGS', 'null')}]",
        "Keys": f"[{message.properties.get('KEYS', '')}]",
        "Queue ID": message.queue_id,
        "Queue Offset": message.queue_offset,
        "CommitLog Offset": message.physical_offset,
        "Reconsume Times": message.reconsume_times,
        "Born Timestamp": local_time(message.born_ms, milliseconds=True),
        "Store Timestamp": local_time(message.store_ms, milliseconds=True),
        "Born Host": message.born_host,
        "Store Host": message.store_host,
        "System Flag": message.sys_flag,
        "Properties": java_map(message.properties),
        "Message Body Path": body_path,
    }
    lines = [f"{name + ':':<20} {value}" for name, value in fields.items()]
    tracks = [
        f"MessageTrack [consumerGroup={track.group}, trackType={track.track_type}, "
        "exceptionDesc=null]"
        for track in response.tracks
    ]
    return Answer(_message_data(response, body_path), lines + ["", *tracks] * bool(tracks))


def _message_data(response: pb.GetMessageResponse, body_path: Path) -> dict[str, object]:
    message = response.message
    return {
        "offset_id": message.offset_id,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.physical_offset,
        "reconsume_times": message.reconsume_times,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "sys_flag": message.sys_flag,
        "properties": dict(message.properties),
        "body_path": str(body_path),
        "tracks": {track.group: track.track_type for track in response.tracks},
    }


def _write_body(message: pb.Message) -> Path:
    """Put the body into a file of its own, as RocketMQ's tool does, and return its path."""
    # Named by the offset id: the producer's id may hold any character, a slash included.
    directory = Path(tempfile.gettempdir()) / f"commitbus-{os.getuid()}" / "msgbodys"
    try:
        # The names can be guessed, so nobody else may put a link in their place.
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        if directory.parent.is_symlink() or directory.parent.stat().st_uid != os.getuid():
            raise CommandError(f"{directory.parent} belongs to somebody else")
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / message.offset_id
        path.write_bytes(message.body)
    except OSError as error:
        raise CommandError(f"the body cannot be written: {error}") from None
    return path


def _send_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    add("-p", "--body", required=True, help="the body, as UTF-8 text")
    add("-k", "--keys", default="", help="keys, separated by spaces")
    add("-c", "--tags", default="", help="the tag")
    add("-b", "--brokerName", help="must be the broker's name if given")
    add("-i", "--qid", type=int32, help="the queue; the broker's choice if not given")


def _send(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_broker_name(client, options)
    request = pb.SendMessageRequest(
        topic=options.topic,
        body=options.body.encode(),
        keys=options.keys,
        tags=options.tags,
        queue_id=options.qid,
    )
    sent = client.send(request)
    row = {
        "broker_name": sent.broker_name,
        "queue_id": sent.queue_id,
        "result": "SEND_OK",
        "message_id": sent.message_id,
        "queue_offset": sent.queue_offset,
        "offset_id": sent.offset_id,
    }
    columns = {
        "#Broker Name": "broker_name",
        "#QID": "queue_id",
        "#Send Result": "result",
        "#MsgId": "message_id",
    }
    return Answer(row, [Table(columns, [row])])


COMMANDS: Final = (
    Command("queryMsgByKey", _key_arguments, _by_key, frozenset({"-k", "--msgKey"})),
    Command("queryMsgById", _id_arguments, _by_id),
    Command("queryMsgByUniqueKey", _unique_key_arguments, _by_unique_key),
    Command("queryMsgByOffset", _offset_arguments, _by_offset),
    Command(
        "sendMessage",
        _send_arguments,
        _send,
        frozenset({"-p", "--body", "-k", "--keys", "-c", "--tags"}),
    ),
)
