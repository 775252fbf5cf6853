"""mqadmin's commands about what groups could not consume."""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from commitbus.broker.cli.common_options import count
from commitbus.broker.cli.mqadmin_command import Command
from commitbus.broker.cli.mqadmin_message import found
from commitbus.broker.cli.mqadmin_options import int64, point_in_time
from commitbus.broker.cli.mqadmin_print import messages, row, search
from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, Answer, Table, local_time
from commitbus.broker.cli.progress import progress_bar
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as v2

if TYPE_CHECKING:
    from commitbus.broker.cli.admin_client import AdminClient

_LETTERS: Final = {
    "#Message ID": "message_id",
    "#Offset": "queue_offset",
    "#Origin Topic": "origin_topic",
    "#Tag": "tag",
    "#Store Time": "store_time",
}
_FAILURES: Final = {
    "#Message ID": "message_id",
    "#Offset": "queue_offset",
    "#Origin Topic": "origin_topic",
    "#Reason": "reason",
}


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-g", "--groupName", required=True, help="name of the group")
    add("-b", "--beginTimestamp", type=point_in_time, metavar="TIME", help="dead then or later")
    add("-e", "--endTimestamp", type=point_in_time, metavar="TIME", help="dead then or before")
    add("-m", "--maxNum", type=count, default=64, help="letters at most; 64 if not given")


def _list(client: AdminClient, options: argparse.Namespace) -> Answer:
    topic = dead_letter_topic(options.groupName)
    request = search(topic, options.beginTimestamp, options.endTimestamp)
    rows = [_row(message) for message in islice(messages(client, request), options.maxNum)]
    return Answer(rows, [Table(_LETTERS, rows)])


def _row(message: v2.Message) -> dict[str, object]:
    fields = row(message, "utf-8", with_body=False)
    origin = message.system_properties.dead_letter_queue
    store_ms = message.system_properties.store_timestamp.ToMilliseconds()
    return {
        **fields,
        "origin_topic": origin.topic,
        "origin_message_id": origin.message_id,
        "store_time": local_time(store_ms),
    }


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--groupName", required=True, help="name of the group")
    parser.add_argument("-i", "--msgId", required=True, help="the id")


def _read(client: AdminClient, options: argparse.Namespace) -> Answer:
    name = pb.GetMessageRequest.UniqueKey(
        topic=dead_letter_topic(options.groupName), unique_key=options.msgId
    )
    return found(client, pb.GetMessageRequest(unique_key=name))


def _send_back_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-g", "--groupName", required=True, help="name of the group")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("-i", "--msgId", help="the newest dead letter with this id")
    which.add_argument("-a", "--all", action="store_true", help="all that are there now")
    which.add_argument("-o", "--offset", type=int64, help="all from this offset on")


def _send_back(client: AdminClient, options: argparse.Namespace) -> Answer:
    """Send back; what was sent back before is left alone, so it may be begun again at any time."""
    group = options.groupName
    if options.msgId is not None:
        request = pb.SendBackDeadLettersRequest(group=group, message_id=options.msgId)
        letters = list(client.send_back(request).letters)
    else:
        letters = _send_back_all(client, group, max(options.offset or 0, 0))
    counts = Counter(letter.outcome for letter in letters)
    sent_back = counts[pb.SendBackDeadLettersResponse.SENT_BACK]
    before = counts[pb.SendBackDeadLettersResponse.SENT_BACK_BEFORE]
    failed = [
        {
            "message_id": letter.message_id,
            "queue_offset": letter.queue_offset,
            "origin_topic": letter.topic,
            "reason": letter.reason,
        }
        for letter in letters
        if letter.outcome == pb.SendBackDeadLettersResponse.FAILED
    ]
    data = {"group": group, "sent_back": sent_back, "sent_back_before": before, "failed": failed}
    text: list[str | Table] = [
        f"{sent_back} sent back, {before} sent back before, {len(failed)} failed"
    ]
    if failed:
        text.append(Table(_FAILURES, failed))
    return Answer(data, text, EXIT_FAILED if failed else EXIT_OK)


def _send_back_all(
    client: AdminClient, group: str, offset: int
) -> list[pb.SendBackDeadLettersResponse.Letter]:
    """Send back what is there at the beginning: what dies again meanwhile is not sent again."""
    letters: list[pb.SendBackDeadLettersResponse.Letter] = []
    end: int | None = None
    with progress_bar() as show:
        while end is None or offset < end:
            request = pb.SendBackDeadLettersRequest(group=group, from_offset=offset)
            if end is not None:
                request.max_count = min(end - offset, 64)
            response = client.send_back(request)
            letters += response.letters
            end = response.end_offset if end is None else end
            offset = response.next_offset
            show("sending back", min(offset, end), end)
    return letters


COMMANDS: Final = (
    Command("listDeadLetters", _list_arguments, _list),
    Command("readDeadLetter", _read_arguments, _read),
    Command("sendBackDeadLetters", _send_back_arguments, _send_back),
)
