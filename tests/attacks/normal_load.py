"""The load of clients that do no harm, in a process of its own.

`python -m tests.attacks.normal_load --port N`: every thread makes its calls at a fixed rate, one
after the other. A call that could not begin in time because the one before was not answered counts
from when it was to begin: a stall is in all calls that it delays. At SIGTERM it stops sending,
receives what is left, and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, final

from tests.attacks import requests
from tests.attacks.connection import Answer, Connection
from tests.attacks.requests import MESSAGING, OK
from tests.attacks.target import NORMAL_GROUP, NORMAL_TOPIC

_PRODUCERS: Final = 2
_CONSUMERS: Final = 2
_SENDS_A_SECOND: Final = 60.0
"""Of each producer."""
_HEARTBEATS_A_SECOND: Final = 20.0
_BODY: Final = struct.Struct("<Qd")
_FILL: Final = bytes(200)
_RETRY_S: Final = 0.1
_DRAIN_S: Final = 20.0
_FAILURES_SHOWN: Final = 20


class RefusedError(Exception):
    """A call was answered, but not with what it asked for."""


@final
class Load:
    """What all threads share, and what they saw."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sending_ends, self.ends = threading.Event(), threading.Event()
        self.calls: list[tuple[str, float, float]] = []
        """Kind, when it was to begin on the monotonic clock, seconds until it was answered."""
        self.failures: Counter[str] = Counter()
        self.sent: set[int] = set()
        """Messages whose send was answered."""
        self.received: set[int] = set()
        self._numbers = 0
        self._lock = threading.Lock()

    def next_number(self) -> int:
        """Return the number of a new message."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def took(self, kind: str, start_s: float) -> None:
        """Note a call that was answered now."""
        self.calls.append((kind, start_s, time.monotonic() - start_s))

    def at_rate(self, rate: float, step: Callable[[Connection, float], None]) -> None:
        """Do something so often a second until sending ends, over again after each failure."""
        next_s = time.monotonic()
        while not self.sending_ends.is_set():
            try:
                with Connection(("127.0.0.1", self.port), timeout_s=30) as connection:
                    while not self.sending_ends.is_set():
                        next_s += 1 / rate
                        time.sleep(max(0.0, next_s - time.monotonic()))
                        step(connection, next_s)
            except (OSError, RefusedError) as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Note a call that failed, and wait a little."""
        self.failures[f"{type(error).__name__}: {error}"] += 1
        time.sleep(_RETRY_S)

    def send(self, connection: Connection, start_s: float) -> None:
        """Send a message."""
        number = self.next_number()
        body = _BODY.pack(number, time.monotonic()) + _FILL
        request = requests.send(NORMAL_TOPIC, body, f"id-{number}", tag="t", key=f"k-{number % 9}")
        answer = connection.call(MESSAGING + "SendMessage", request, client_id="producer")
        _expect("send", answer, OK)
        self.took("send", start_s)
        self.sent.add(number)

    def heartbeat(self, connection: Connection, start_s: float) -> None:
        """Say that the consumer lives, and ask where its topic is."""
        request = requests.heartbeat(NORMAL_GROUP)
        answer = connection.call(MESSAGING + "Heartbeat", request, client_id="consumer")
        _expect("heartbeat", answer, OK)
        self.took("heartbeat", start_s)
        start_s = time.monotonic()
        request = requests.query_route(NORMAL_TOPIC)
        answer = connection.call(MESSAGING + "QueryRoute", request, client_id="consumer")
        _expect("route", answer, OK)
        self.took("route", start_s)

    def consume(self) -> None:
        """Receive and acknowledge until the end."""
        while not self.ends.is_set():
            try:
                with Connection(("127.0.0.1", self.port), timeout_s=30) as connection:
                    while not self.ends.is_set():
                        self._receive(connection)
            except (OSError, RefusedError) as error:
                self.fail(error)

    def _receive(self, connection: Connection) -> None:
        request = requests.receive(NORMAL_TOPIC, NORMAL_GROUP, batch=16)
        answer = connection.call(MESSAGING + "ReceiveMessage", request, client_id="consumer")
        if answer.code() == requests.MESSAGE_NOT_FOUND:
            return
        _expect("receive", answer, OK)
        messages, now_s = requests.received_messages(answer.messages()), time.monotonic()
        numbers = []
        for body, _, _ in messages:
            number, born_s = _BODY.unpack_from(body)
            numbers.append(number)
            if number not in self.received:
                self.calls.append(("delivery", born_s, now_s - born_s))
        entries = [(id_, handle) for _, id_, handle in messages]
        request = requests.ack(NORMAL_TOPIC, NORMAL_GROUP, entries)
        answer = connection.call(MESSAGING + "AckMessage", request, client_id="consumer")
        _expect("acknowledgement", answer, OK)
        self.took("ack", now_s)
        self.received.update(numbers)

    def drain(self) -> None:
        """Wait until all that was sent has come, for a while."""
        until_s = time.monotonic() + _DRAIN_S
        while self.sent - self.received and time.monotonic() < until_s:
            time.sleep(0.1)
        self.ends.set()


def _expect(what: str, answer: Answer, code: int) -> None:
    if answer.status != 0 or answer.code() != code:
        raise RefusedError(f"{what}: {answer.outcome()}")


def main() -> int:
    """Run until SIGTERM, then print what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.normal_load")
    parser.add_argument("--port", type=int, required=True)
    load = Load(parser.parse_args().port)
    signal.signal(signal.SIGTERM, lambda *_: load.sending_ends.set())
    threads = [threading.Thread(target=load.consume) for _ in range(_CONSUMERS)]
    rates = [(_SENDS_A_SECOND, load.send)] * _PRODUCERS + [(_HEARTBEATS_A_SECOND, load.heartbeat)]
    senders = [threading.Thread(target=load.at_rate, args=each) for each in rates]
    for thread in [*threads, *senders]:
        thread.start()
    load.sending_ends.wait()
    for thread in senders:
        thread.join()
    load.drain()
    for thread in threads:
        thread.join()
    seen = {
        "calls": load.calls,
        "failures": load.failures.most_common(_FAILURES_SHOWN),
        "sent": len(load.sent),
        "lost": sorted(load.sent - load.received)[:_FAILURES_SHOWN],
    }
    print(json.dumps(seen))  # noqa: T201 - what the one who started it reads
    return 0


if __name__ == "__main__":
    sys.exit(main())
