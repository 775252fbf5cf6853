"""mqadmin's commands that print messages, and how others read them page by page."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.common_options import count
from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_options import (
    NOW,
    boolean,
    check_broker_name,
    int32,
    int64,
    point_in_time,
)
from commitbus.broker.cli.output import Answer, CommandError, local_time
from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.tag_filter import TagFilter, parse_tags
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

_PAGE: Final = 64


def messages(client: AdminClient, request: pb.ListMessageRequest) -> Iterator[pb.Message]:
    """Yield what a search finds, asking for page after page. `request` is changed."""
    request.page_size = _PAGE
    while True:
        page = client.find_messages(request)
        yield from page.messages
        if not page.scroll_id:
            return
        request.scroll_id = page.scroll_id


def search(topic: str, begin_ms: int | None, end_ms: int | None) -> pb.ListMessageRequest:
    """Return the search for what was stored in a time. `NOW` and None are no limit."""
    request = pb.ListMessageRequest()
    request.topic.name = topic
    if begin_ms not in (None, NOW):
        request.begin_timestamp.FromMilliseconds(begin_ms)
    if end_ms not in (None, NOW):
        request.end_timestamp.FromMilliseconds(end_ms)
    return request


def _print_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    add("-c", "--charsetName", type=_charset, default="utf-8", help="of the bodies; UTF-8")
    add("-s", "--subExpression", type=_tags, help="only these tags, such as 'A || B'")
    add("-b", "--beginTimestamp", type=point_in_time, metavar="TIME", help="stored then or later")
    add("-e", "--endTimestamp", type=point_in_time, metavar="TIME", help="stored then or before")
    add("-d", "--printBody", type=boolean, default=True, metavar="true|false", help="the bodies")


def _print(client: AdminClient, options: argparse.Namespace) -> Answer:
    request = search(options.topic, options.beginTimestamp, options.endTimestamp)
    return _answer(messages(client, request), options)


def _consume_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-t", "--topic", required=True, help="name of the topic")
    add("-b", "--brokerName", help="must be the broker's name if given")
    add("-i", "--queueId", type=int32, help="only this queue")
    add("-o", "--offset", type=int64, help="with -i: from this queue offset on")
    add("-g", "--consumerGroup", help="accepted: no group's progress is looked at or changed")
    add("-s", "--beginTimestamp", type=point_in_time, metavar="TIME", help="stored then or later")
    add("-e", "--endTimestamp", type=point_in_time, metavar="TIME", help="stored then or before")
    add("-c", "--messageCount", type=count, default=128, help="messages at most; 128 if not given")


def _consume(client: AdminClient, options: argparse.Namespace) -> Answer:
    check_broker_name(client, options)
    request = search(options.topic, options.beginTimestamp, options.endTimestamp)
    if options.queueId is not None:
        request.queue_id = options.queueId
    if options.offset is not None:
        if options.queueId is None:
            raise CommandError("-o needs -i: an offset is one of a queue")
        request.scroll_id = f"{options.queueId}:{max(options.offset, 0)}"
    options.charsetName, options.subExpression, options.printBody = "utf-8", None, True
    return _answer(islice(messages(client, request), options.messageCount), options)


def _answer(found: Iterator[pb.Message], options: argparse.Namespace) -> Answer:
    """Print messages as they come, or return them all for JSON."""
    wanted: TagFilter | None = options.subExpression
    rows = []
    for message in found:
        if wanted is not None and not wanted.accepts({"TAGS": message.system_properties.tag}):
            continue
        if options.json:
            rows.append(row(message, options.charsetName, with_body=options.printBody))
        else:
            print(_line(message, options))
    return Answer(rows, [])


def row(message: pb.Message, charset: str, *, with_body: bool) -> dict[str, object]:
    """Return a message as JSON has it."""
    system = message.system_properties
    data: dict[str, object] = {
        "message_id": system.message_id,
        "topic": message.topic.name,
        "queue_id": system.queue_id,
        "queue_offset": system.queue_offset,
        "born_ms": system.born_timestamp.ToMilliseconds(),
        "store_ms": system.store_timestamp.ToMilliseconds(),
        "tag": system.tag,
        "keys": list(system.keys),
        "message_group": system.message_group,
        "properties": dict(message.user_properties),
    }
    if with_body:
        try:
            data["body"] = message.body.decode(charset)
        except UnicodeError:
            data["body_base64"] = base64.b64encode(message.body).decode()
    return data


def _line(message: pb.Message, options: argparse.Namespace) -> str:
    system = message.system_properties
    stored = local_time(system.store_timestamp.ToMilliseconds(), milliseconds=True)
    line = (
        f"MSGID: {system.message_id} QID: {system.queue_id} OFFSET: {system.queue_offset} "
        f"STORED: {stored} TAGS: [{system.tag}] KEYS: [{' '.join(system.keys)}]"
    )
    if options.printBody:
        line += f" BODY: {message.body.decode(options.charsetName, errors='replace')}"
    return line


def _charset(text: str) -> str:
    try:
        # Python has codecs that make no text of bytes, or cannot go on behind a wrong byte.
        b"x".decode(text, errors="replace")
    except (LookupError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no charset") from None
    return text


def _tags(text: str) -> TagFilter:
    try:
        return parse_tags(text)
    except FilterExpressionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


COMMANDS: Final = (
    Command("printMsg", _print_arguments, _print),
    Command("consumeMessage", _consume_arguments, _consume),
)
