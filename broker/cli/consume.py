"""`commitbus consume`: print the messages of a topic, without a group and without a trace."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime
from typing import Final, final

import trio

from commitbus.broker.cli.client_options import (
    ConnectionOptions,
    Count,
    Interruption,
    add_client_options,
    counting,
    run_until_interrupted,
)
from commitbus.broker.cli.common_options import count, queue, utf8
from commitbus.broker.cli.message_lines import to_json_lines, to_lines
from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, CommandError
from commitbus.broker.client.consumer import Begin, Consumer
from commitbus.broker.client.options import ConsumerOptions
from commitbus.broker.common.shown import shown

_OFFSET_MAX: Final = 2**63 - 1
_OFFSET_DIGITS: Final = 19


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_client_options(parser)
    parser.add_argument(
        "--from",
        dest="begin",
        metavar="PLACE",
        default="earliest",
        help="earliest, latest, an offset, or a time such as 2026-11-21T15:00 (earliest)",
    )
    parser.add_argument("--queue", type=queue, metavar="N", help="only this queue; for an offset")
    parser.add_argument(
        "--tags", type=utf8, default="*", metavar="'A || B'", help="only with these tags"
    )
    parser.add_argument("--follow", action="store_true", help="wait for new messages at the end")
    parser.add_argument("--count", type=count, metavar="N", help="end after so many messages")


def run(options: argparse.Namespace) -> int:
    """Print messages to standard output and their number to standard error."""
    reader = _Reader(options)
    interrupted = run_until_interrupted("commitbus consume", reader.run)
    count = reader.count
    print(json.dumps(count.data) if options.json else count, file=sys.stderr)
    # Who follows has no other way to end.
    return EXIT_FAILED if interrupted and not options.follow else EXIT_OK


@final
class _Reader:
    """Reads a topic and writes its messages."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._begin = _begin(options.begin, options.queue)
        self._connection_options = ConnectionOptions.of(options)
        self.count = Count("consumed")

    async def run(self, interruption: Interruption) -> None:
        """Print until the end, until there were enough, or until it is interrupted."""
        options = self._options
        consumer = Consumer(
            options.broker,
            options.topic,
            begin=self._begin,
            tags=options.tags,
            follow=options.follow,
            options=ConsumerOptions(
                connect_timeout_s=self._connection_options.connect_timeout_s,
                reconnect_timeout_s=self._connection_options.lost_timeout_s,
                tls=self._connection_options.tls.context,
                server_name=self._connection_options.tls.server_name,
            ),
        )
        with interruption.scope:
            async with consumer, counting(self.count):
                while (left := self._left()) > 0:
                    batch = await consumer.next_batch()
                    if batch is None:
                        return
                    render = to_json_lines if options.format == "json" else to_lines
                    data = render(batch, left)
                    # A reader that is slow must not keep the connection from being served, and one
                    # that has stopped not Ctrl-C.
                    await trio.to_thread.run_sync(_write, data, abandon_on_cancel=True)
                    self.count.add(min(left, len(batch)), len(data))

    def _left(self) -> int:
        wanted: int | None = self._options.count
        return sys.maxsize if wanted is None else wanted - self.count.messages


def _write(data: bytes) -> None:
    """Write everything to standard output.

    At its file descriptor: a thread that still waits for a reader when the process exits would hold
    the lock of Python's own buffer, which Python then takes once more.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sys.stdout.fileno(), view) :]
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"standard output: {error.strerror}") from None


def _begin(place: str, queue_id: int | None) -> Begin:
    """Return where to begin.

    Raises:
        CommandError: `place` is none, or the queue is missing or too much.
    """
    if place.isascii() and place.isdecimal():
        if queue_id is None:
            raise CommandError("an offset is that of a queue: name it with --queue")
        if len(place) > _OFFSET_DIGITS or int(place) > _OFFSET_MAX:
            raise CommandError(f"{shown(place)} is no offset: the largest one is {_OFFSET_MAX}")
        return {queue_id: int(place)}
    if queue_id is not None:
        raise CommandError("--queue goes with an offset as the place to begin")
    if place == "earliest":
        return "earliest"
    if place == "latest":
        return "latest"
    try:
        return datetime.fromisoformat(place).astimezone()
    # A calendar ends before the numbers of a time do.
    except (ValueError, OverflowError, OSError):
        raise CommandError(
            f"{shown(place)} is neither earliest, latest, an offset, nor a time"
        ) from None
