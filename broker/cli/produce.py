"""`commitbus produce`: send the lines of a file or a pipe."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from io import FileIO
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
from commitbus.broker.cli.common_options import utf8
from commitbus.broker.cli.message_lines import from_json_line, from_line
from commitbus.broker.cli.output import EXIT_FAILED, EXIT_OK, CommandError
from commitbus.broker.client.errors import ClientError, RefusedError
from commitbus.broker.client.options import ProducerOptions
from commitbus.broker.client.producer import Producer
from commitbus.broker.client.receipt import Receipt
from commitbus.broker.common.shown import shown

_READ_BYTES: Final = 256 * 1024
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longer than any body may be, in base64 too: a file without line ends must not fill memory."""
_AHEAD_S: Final = 0.01
"""How far sending may be ahead of its rate: a wait costs more than a message."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_client_options(parser)
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="- is standard input")
    parser.add_argument("--tag", type=utf8, default="", help="of lines that name none")
    parser.add_argument("--rate", type=_rate, metavar="N", help="messages a second, at most")
    parser.add_argument(
        "--durable", action="store_true", help="wait for the disk, whatever the broker's flush mode"
    )


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    # Not a number compares as false.
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0")
    return rate


def run(options: argparse.Namespace) -> int:
    """Send every line and say how many were stored."""
    sender = _Sender(options)
    interrupted = run_until_interrupted("commitbus produce", sender.run)
    if options.json:
        print(json.dumps(sender.count.data))
    else:
        print(sender.count, file=sys.stderr)
    if sender.failure is not None:
        raise CommandError(str(sender.failure))
    return EXIT_FAILED if interrupted else EXIT_OK


@final
class _Sender:
    """Sends lines, and counts those that are acknowledged."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._connection_options = ConnectionOptions.of(options)
        self.count = Count("produced")
        self.failure: ClientError | None = None
        """Of the first line that was not stored; it ends the sending."""
        self._scope: trio.CancelScope

    async def run(self, interruption: Interruption) -> None:
        """Send everything, or, if interrupted, what was read before."""
        options = ProducerOptions(
            durable=self._options.durable,
            connect_timeout_s=self._connection_options.connect_timeout_s,
            delivery_timeout_s=self._connection_options.lost_timeout_s,
            tls=self._connection_options.tls.context,
            server_name=self._connection_options.tls.server_name,
        )
        name = self._options.file
        with interruption.scope:
            # Opening a named pipe waits for its writer: Ctrl-C must not wait for that.
            opened = await trio.to_thread.run_sync(_opened, name, abandon_on_cancel=True)
            with opened as file:
                async with (
                    Producer(self._options.broker, options) as producer,
                    counting(self.count),
                ):
                    # Lines read from here on are still sent after Ctrl-C.
                    interruption.scope = self._scope = trio.CancelScope()
                    with self._scope:
                        await self._send_all(producer, file)
                    await producer.flush()

    async def _send_all(self, producer: Producer, file: FileIO) -> None:
        rate = self._options.rate
        begun_s = trio.current_time()
        number = sent = 0
        async with aclosing(_lines(file, self._options.file)) as lines:
            async for line in lines:
                number += 1
                if not line:
                    continue
                await self._send(producer, line, number)
                sent += 1
                if rate is not None and sent / rate > trio.current_time() - begun_s + _AHEAD_S:
                    await trio.sleep_until(begun_s + sent / rate)

    async def _send(self, producer: Producer, line: bytes, number: int) -> None:
        is_json = self._options.format == "json"
        message = from_json_line(line, number) if is_json else from_line(line)
        try:
            await producer.produce(
                message.body,
                topic=self._options.topic,
                tag=message.tag or self._options.tag,
                keys=message.keys,
                properties=message.properties,
                on_delivery=partial(self._delivered, len(message.body)),
            )
        except RefusedError as error:
            raise CommandError(f"line {number}: {error}") from None

    def _delivered(self, size_bytes: int, error: ClientError | None, _: Receipt | None) -> None:
        if error is None:
            self.count.add(1, size_bytes)
        elif self.failure is None:
            self.failure = error
            self._scope.cancel()


def _opened(name: str) -> FileIO:
    if name == "-":
        if sys.stdin is None:
            raise CommandError("standard input is closed")
        # Unbuffered: a thread that still waits for a pipe at the end must hold no lock.
        return FileIO(sys.stdin.fileno(), closefd=False)
    try:
        return FileIO(name)
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}") from None
    except ValueError:
        raise CommandError(f"{shown(name)} is no path") from None


async def _read(file: FileIO, name: str) -> bytes:
    """Return the next bytes, empty at the end.

    Raises:
        CommandError: the system cannot read it.
    """
    try:
        # A silent pipe must not keep Ctrl-C waiting.
        while (
            data := await trio.to_thread.run_sync(file.read, _READ_BYTES, abandon_on_cancel=True)
        ) is None:
            # The pipe was set to non-blocking.
            await trio.lowlevel.wait_readable(file.fileno())
    except OSError as error:
        source = "standard input" if name == "-" else name
        raise CommandError(f"{source}: {error.strerror}") from None
    return data


async def _lines(file: FileIO, name: str) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a file as they come, without their ends."""
    rest: list[bytes] = []
    rest_bytes = 0
    while chunk := await _read(file, name):
        head, *lines = chunk.split(b"\n")
        rest.append(head)
        rest_bytes += len(head)
        if rest_bytes > _LINE_BYTES_MAX:
            raise CommandError(f"a line is longer than {_LINE_BYTES_MAX} bytes")
        if lines:
            yield b"".join(rest).removesuffix(b"\r")
            for line in lines[:-1]:
                yield line.removesuffix(b"\r")
            rest, rest_bytes = [lines[-1]], len(lines[-1])
    yield b"".join(rest).removesuffix(b"\r")
