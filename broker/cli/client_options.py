"""What `commitbus produce` and `commitbus consume` share: options, the count, Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, final

import trio

from commitbus.broker.address import split_host_port
from commitbus.broker.cli.common_options import (
    DEFAULT_ENDPOINT,
    ENDPOINT_VARIABLE,
    default_endpoint,
)
from commitbus.broker.cli.output import CommandError
from commitbus.broker.client.errors import ClientError
from commitbus.commitlog.clock import SystemClock

_SHOWN_EVERY_S: Final = 0.5

_clock: Final = SystemClock()


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what both commands take."""
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--broker",
        metavar="HOST:PORT",
        type=_endpoint,
        default=default_endpoint(),
        help=f"${ENDPOINT_VARIABLE}, or {DEFAULT_ENDPOINT} if not given",
    )
    parser.add_argument(
        "--format",
        choices=("lines", "json"),
        default="lines",
        help="each line is a body, or a JSON object with body, tag, keys, properties (lines)",
    )
    parser.add_argument("--json", action="store_true", help="the counts at the end as JSON")


def _endpoint(text: str) -> str:
    try:
        split_host_port(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


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


def run_until_interrupted(work: Callable[[trio.CancelScope], Awaitable[None]]) -> bool:
    """Run `work`; return whether Ctrl-C ended it.

    Ctrl-C cancels the scope that `work` is given, so that it can bring to an end what it has begun;
    a second one ends everything.

    Raises:
        CommandError: the broker cannot be reached, or refuses.
        KeyboardInterrupt: Ctrl-C came twice.
    """
    interruptions = 0

    async def main() -> None:
        nonlocal interruptions
        scope = trio.CancelScope()

        async def listen(*, task_status: trio.TaskStatus[None]) -> None:
            nonlocal interruptions
            with trio.open_signal_receiver(signal.SIGINT) as signals:
                task_status.started()
                async for _ in signals:
                    interruptions += 1
                    if interruptions > 1:
                        nursery.cancel_scope.cancel()
                    scope.cancel()

        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            try:
                await work(scope)
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    try:
        trio.run(main)
    except ClientError as error:
        raise CommandError(str(error)) from None
    if interruptions > 1:
        raise KeyboardInterrupt
    return interruptions > 0
