"""Shared by `commitbus produce` and `commitbus consume`: options, the count, Ctrl-C, warnings."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final, final

import trio

from commitbus.broker.cli.common_options import (
    DEFAULT_ENDPOINT,
    ENDPOINT_VARIABLE,
    add_tls_options,
    default_endpoint,
    seconds,
    utf8,
)
from commitbus.broker.cli.output import CommandError, print_error
from commitbus.broker.cli.tls import Tls, explained, tls_of
from commitbus.broker.client.errors import BrokerUnavailableError, ClientError
from commitbus.broker.common.address import Endpoint
from commitbus.commitlog.clock import SystemClock

FIRST_TIMEOUT_S: Final = 10.0
"""A broker that was started in the line before listens by then, on a busy machine too."""
LOST_TIMEOUT_S: Final = 30.0
"""A broker that restarts is back within this time, unless its recovery is a long one."""
_SHOWN_EVERY_S: Final = 0.5

_clock: Final = SystemClock()


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what both commands take."""
    parser.add_argument("topic", metavar="TOPIC", type=utf8)
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        type=_endpoint,
        default=default_endpoint(),
        help=f"or unix:PATH; ${ENDPOINT_VARIABLE}, or {DEFAULT_ENDPOINT} if not given",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="fail after so long without the broker "
        f"({FIRST_TIMEOUT_S:g} for the first connection, {LOST_TIMEOUT_S:g} later)",
    )
    add_tls_options(parser)
    parser.add_argument(
        "--format",
        choices=("lines", "json"),
        default="lines",
        help="each line is a body, or a JSON object with body, tag, keys, properties (lines)",
    )
    parser.add_argument("--json", action="store_true", help="the counts at the end as JSON")


def _endpoint(text: str) -> str:
    try:
        Endpoint.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


@final
@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the broker, and for how long to wait for it."""

    tls: Tls
    connect_timeout_s: float
    lost_timeout_s: float

    @classmethod
    def of(cls, options: argparse.Namespace) -> ConnectionOptions:
        """Return what the options say.

        Raises:
            CommandError: those of TLS, or its variables, make no sense.
        """
        timeout_s = options.timeout
        return cls(
            tls_of(options),
            FIRST_TIMEOUT_S if timeout_s is None else timeout_s,
            LOST_TIMEOUT_S if timeout_s is None else timeout_s,
        )


@final
@dataclass(slots=True)
class Count:
    """How much was done, and since when."""

    verb: str
    messages: int = 0
    size_bytes: int = 0
    begun_s: float = field(default_factory=_clock.monotonic_s)

    def add(self, messages: int, size_bytes: int) -> None:
        """Count more."""
        self.messages += messages
        self.size_bytes += size_bytes

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return max(_clock.monotonic_s() - self.begun_s, 1e-6)

    @property
    def data(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds),
        }

    def __str__(self) -> str:
        """Return one line for a person."""
        return (
            f"{self.verb} {self.messages:,} messages, {self.size_bytes:,} bytes, in "
            f"{self.seconds:.1f} s ({self.messages / self.seconds:,.0f}/s)"
        )


@asynccontextmanager
async def counting(count: Count) -> AsyncIterator[None]:
    """Show the count on standard error while the block runs, if that is a terminal."""
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        if sys.stderr.isatty():
            nursery.start_soon(_show, count)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _show(count: Count) -> None:
    try:
        while True:
            print(f"\r{count}\x1b[K", end="", file=sys.stderr, flush=True)
            await trio.sleep(_SHOWN_EVERY_S)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@final
class _Warnings(logging.Handler):
    """Shows the client's warnings as lines of the command on standard error."""

    def __init__(self, command: str) -> None:
        super().__init__(logging.INFO)
        self._command = command

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        print_error(self._command, record.getMessage())


@contextmanager
def _warnings_shown(command: str) -> Iterator[None]:
    logger = logging.getLogger("commitbus.broker.client")
    level, propagates, handler = logger.level, logger.propagate, _Warnings(command)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
        logger.setLevel(level)


@final
class Interruption:
    """A cancel scope that the first Ctrl-C cancels."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        """The work may replace it, to finish what it has begun."""


def run_until_interrupted(command: str, work: Callable[[Interruption], Awaitable[None]]) -> bool:
    """Run `work` for a command; return whether Ctrl-C ended it.

    Ctrl-C cancels the scope of the interruption that `work` is given; a second one ends everything.

    Raises:
        CommandError: the broker cannot be reached, or refuses.
        KeyboardInterrupt: Ctrl-C came twice.
    """
    interruptions = 0

    async def main() -> None:
        nonlocal interruptions
        interruption = Interruption()

        async def listen(*, task_status: trio.TaskStatus[None]) -> None:
            nonlocal interruptions
            with trio.open_signal_receiver(signal.SIGINT) as signals:
                task_status.started()
                async for _ in signals:
                    interruptions += 1
                    if interruptions > 1:
                        nursery.cancel_scope.cancel()
                    interruption.scope.cancel()

        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            try:
                await work(interruption)
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    try:
        with _warnings_shown(command):
            trio.run(main)
    except BrokerUnavailableError as error:
        raise explained(error) from None
    except ClientError as error:
        raise CommandError(str(error)) from None
    if interruptions > 1:
        raise KeyboardInterrupt
    return interruptions > 0
